package pinned_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/internal/devicetest"
	"github.com/shardfeed/shardfeed/pinned"
)

// harness is busy by sleeping on a bubble's fake clock: what is not ordered
// after it runs before it, always.
type harness struct{ *pinned.Host }

func (h harness) Compute(dst, src pinned.Mem, busy time.Duration) error {
	h.Queue(func() {
		time.Sleep(busy)
		copy(dst.Bytes, src.Bytes)
	})
	return nil
}

func (h harness) Stall(busy time.Duration) error {
	h.QueueCopy(func() { time.Sleep(busy) })
	return nil
}

func (h harness) Read(m pinned.Mem) ([]byte, error) {
	err := h.Sync()
	return bytes.Clone(m.Bytes), err
}

var host = devicetest.Suite{
	New: func(*testing.T) devicetest.Harness { return harness{pinned.NewHost()} },
	In:  synctest.Test,
}

func TestHost(t *testing.T) { host.Run(t) }

// Each forgotten ordering shows in the batches; with -race it is a data race
// that must be reported, so there a child runs it.
func TestMistakes(t *testing.T) {
	if raceEnabled {
		reported(t, "join")
		reported(t, "hold")
		reported(t, "wait")
		return
	}
	host.Mistakes(t)
}

// A forgotten Hold is a data race even where the compute has ended long
// before the refill.
func TestMistakeInTime(t *testing.T) {
	if raceEnabled {
		reported(t, "late")
		return
	}
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := harness{pinned.NewHost()}
			slot, _ := h.Alloc(1 << 10)
			result, _ := h.Alloc(1 << 10)
			h.Compute(result, slot, 0)
			time.Sleep(time.Hour)
			f, err := h.Copy(slot, make([]byte, 1<<10))
			if err := errors.Join(err, f.Wait(t.Context()), h.Sync(), h.Free(slot), h.Free(result), h.Close()); err != nil {
				t.Fatal(err)
			}
		})
	})
}

const inChild = "SHARDFEED_TEST_MISTAKE"

// raceEnabled says whether the tests must leave mistakes to a child.
var raceEnabled = raceBuild && os.Getenv(inChild) == ""

// reported fails where a child that runs a subtest of t reports no race.
func reported(t *testing.T, name string) {
	t.Run(name, func(t *testing.T) {
		child := exec.Command(os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
		child.Env = append(os.Environ(), inChild+"=1")
		out, err := child.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "WARNING: DATA RACE") {
			t.Errorf("no data race is reported: %v\n%s", err, out)
		}
	})
}

func TestHostQueueIsInOrder(t *testing.T) {
	h := pinned.NewHost()
	var got []int
	for k := range 1000 {
		h.Queue(func() {
			if got = append(got, k); k%100 == 0 {
				h.Queue(func() { got = append(got, -1-k) }) // compute may queue compute
			}
		})
	}
	if err := h.Sync(); err != nil {
		t.Fatal(err)
	}
	h.Run(func() {}) // what compute queued came after the mark of Sync
	got = slices.DeleteFunc(got, func(k int) bool { return k < 0 })
	if len(got) != 1000 || !slices.IsSorted(got) {
		t.Errorf("the order is %v", got)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func TestHostPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := pinned.NewHost()
		ran := 0
		count := func() { ran++ }

		// Run's panic is the caller's, with the value.
		func() {
			defer func() {
				if p := recover(); p != 42 {
					t.Errorf("Run panicked with %v, want 42", p)
				}
			}()
			h.Run(func() { panic(42) })
		}()
		// So is the end of the goroutine, as by t.FailNow.
		ended := make(chan bool)
		go func() {
			defer close(ended)
			h.Run(func() { runtime.Goexit() })
			t.Error("Run returned although its function ended the goroutine")
		}()
		<-ended
		h.Queue(count)
		if err := h.Sync(); err != nil {
			t.Errorf("Sync after panics that Run has passed on: %v", err)
		}

		// A panic of queued compute is kept, the first of several.
		h.Queue(func() { planted() })
		h.Queue(func() { panic("the second") })
		h.Queue(runtime.Goexit)
		h.Queue(count)
		err := h.Sync()
		for range 2 { // and reported by each Sync and Close
			for _, want := range []string{"queued compute panicked: planted", "planted()"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v, want %q in it", err, want)
				}
			}
			err = h.Close()
		}
		if ran != 2 {
			t.Errorf("%d functions ran beside those that panicked, want 2", ran)
		}
	})
}

//go:noinline
func planted() { panic("planted") }

func TestHostGoexitIsKept(t *testing.T) {
	h := pinned.NewHost()
	h.Queue(runtime.Goexit)
	if err := h.Close(); err == nil || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("Close: %v", err)
	}
}

func TestHostClosed(t *testing.T) {
	h := pinned.NewHost()
	ran := false
	h.Queue(func() { ran = true })
	if err := errors.Join(h.Close(), h.Close(), h.Sync()); err != nil || !ran {
		t.Errorf("Close, Close, Sync: %v; ran: %v", err, ran)
	}
	for name, f := range map[string]func(func()){"Queue": h.Queue, "Run": h.Run} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "after its Close") {
					t.Errorf("%s after Close panics with %v", name, p)
				}
			}()
			f(func() { t.Error("ran after Close") })
		})
	}
}

// Where locking is refused the memory is ordinary, and it is tried once.
func TestHostLocked(t *testing.T) {
	h := pinned.NewHost()
	tries, refused := 0, errors.New("refused")
	h.SetLock(func(b []byte) error {
		if tries++; tries == 2 {
			return refused
		}
		return nil
	})
	for k, want := range []error{nil, refused, refused} {
		b, err := h.AllocHost(100)
		if err != nil {
			t.Fatal(err)
		}
		b[99] = 1
		if got := h.Locked(); got != want {
			t.Errorf("Locked after %d allocations: %v, want %v", k+1, got, want)
		}
		m, err := h.Alloc(100)
		if err := errors.Join(err, h.FreeHost(b), h.Free(m)); err != nil {
			t.Fatal(err)
		}
	}
	if tries != 2 {
		t.Errorf("locking was tried %d times, want 2", tries)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// Host and device memory are freed each by its own method.
func TestHostMemoryKinds(t *testing.T) {
	h := pinned.NewHost()
	b, _ := h.AllocHost(64)
	m, _ := h.Alloc(64)
	if h.Free(pinned.Mem{Bytes: b, Len: 64}) == nil || h.FreeHost(m.Bytes) == nil {
		t.Error("memory is freed by the other kind's method")
	}
	if _, err := h.Copy(pinned.Mem{Bytes: b, Len: 64}, nil); err == nil {
		t.Error("a copy to host memory is no error")
	}
	if _, err := h.Copy(pinned.Mem{Bytes: m.Bytes, Len: 128}, make([]byte, 128)); err == nil {
		t.Error("a copy to a Mem of a wrong length is no error")
	}
	if err := errors.Join(h.FreeHost(b), h.Free(m), h.Close()); err != nil {
		t.Error(err)
	}
}

func TestMemSlice(t *testing.T) {
	m := pinned.Mem{Addr: 4096, Bytes: make([]byte, 100), Len: 100}
	s := m.Slice(10, 30).Slice(5, 20)
	if s.Addr != 4111 || s.Len != 15 || len(s.Bytes) != 15 || cap(s.Bytes) != 15 || &s.Bytes[0] != &m.Bytes[15] {
		t.Errorf("Slice = %+v", s)
	}
	if s := (pinned.Mem{Len: 4}).Slice(1, 3); s.Addr != 0 || s.Bytes != nil || s.Len != 2 {
		t.Errorf("Slice of unreachable memory at 0 = %+v", s)
	}
	for _, ij := range [][2]int{{-1, 1}, {2, 1}, {0, 101}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Slice(%d, %d) does not panic", ij[0], ij[1])
				}
			}()
			m.Slice(ij[0], ij[1])
		}()
	}
}

// A context without an end is enough for Wait.
func TestHostWaitBackground(t *testing.T) {
	h := pinned.NewHost()
	m, _ := h.Alloc(8)
	f, err := h.Copy(m, []byte("12345678"))
	if err := errors.Join(err, f.Wait(context.Background())); err != nil || string(m.Bytes) != "12345678" {
		t.Errorf("%v, %q", err, m.Bytes)
	}
	if err := errors.Join(h.Free(m), h.Close()); err != nil {
		t.Error(err)
	}
}
