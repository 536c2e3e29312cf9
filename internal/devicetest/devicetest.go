// Package devicetest proves what a [pinned.Device] promises. Nothing in it
// assumes that the host can reach device memory.
package devicetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/pinned"
)

// Harness is a device under test and the little work that tests give it.
type Harness interface {
	pinned.Device
	// Compute queues on the compute stream: be busy for so long, then copy
	// src to dst, which are device memory of the same length.
	Compute(dst, src pinned.Mem, busy time.Duration) error
	// Stall keeps the copy stream busy for so long before the copies started later.
	Stall(busy time.Duration) error
	// Sync waits for all that was queued on both streams.
	Sync() error
	// Read is the content of device memory after all that was queued.
	Read(pinned.Mem) ([]byte, error)
}

// Suite is the tests for one kind of device.
type Suite struct {
	// New is a device that has allocated nothing.
	New func(t *testing.T) Harness
	// In runs a test. It is synctest.Test for a device that is busy by
	// time.Sleep, so that every wrong order shows; nil for any other.
	In func(t *testing.T, test func(*testing.T))
}

// busy is how long a stream is kept busy to let a wrong order show, where
// time is real: long against what the host does meanwhile.
const busy = 100 * time.Millisecond

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*device)
	}{
		{"memory", memory},
		{"a copy arrives", arrive},
		{"wait ends with its context", waitContext},
		{"join orders compute after the copy", join},
		{"hold orders the refill after compute", hold},
		{"streams that wait for each other end", chain},
		{"many slots in flight", flights},
		{"concurrent use", concurrent},
		{"misuse is an error", misuse},
		{"after close", closed},
		{"close reports leaks", leaks},
		{"feeder end to end", feeders},
	} {
		s.run(t, test.name, test.run)
	}
}

// Mistakes feeds a device through a Feeder that forgets an ordering, each in
// turn, and fails where the device's batches are right all the same: then the
// suite could not find the mistake in a device either. On a device whose
// memory the race detector watches, each is a data race.
func (s Suite) Mistakes(t *testing.T) {
	for _, m := range []mistake{{name: "join", join: true}, {name: "hold", hold: true}, {name: "wait", wait: true}} {
		s.run(t, m.name, func(d *device) {
			m.Harness = d.Harness
			slow := feeding{steps: 8, slowCopies: !m.hold, slowCompute: m.hold}
			if wrong := d.feed(m, slow); len(wrong) == 0 {
				d.Errorf("a feeder that forgets to %s is not found out", m.name)
			}
		})
	}
}

func (s Suite) run(t *testing.T, name string, test func(*device)) {
	in := s.In
	if in == nil {
		in = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	t.Run(name, func(t *testing.T) {
		in(t, func(t *testing.T) {
			d := &device{T: t, Harness: s.New(t)}
			defer d.end()
			test(d)
		})
	})
}

// device is the harness with errors that fail the test, and the memory that
// the test has not freed.
type device struct {
	*testing.T
	Harness
	mu   sync.Mutex
	mem  []pinned.Mem
	host [][]byte
}

func (d *device) check(what string, err error) {
	d.Helper()
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
}

// end frees the memory and closes the device.
func (d *device) end() {
	if err := d.Sync(); err != nil {
		d.Errorf("Sync: %v", err)
	}
	for _, m := range d.mem {
		if err := d.Free(m); err != nil {
			d.Errorf("Free: %v", err)
		}
	}
	for _, b := range d.host {
		if err := d.FreeHost(b); err != nil {
			d.Errorf("FreeHost: %v", err)
		}
	}
	if err := d.Close(); err != nil {
		d.Errorf("Close: %v", err)
	}
}

// alloc is device memory until the end of the test.
func (d *device) alloc(n int) pinned.Mem {
	d.Helper()
	m, err := d.Alloc(n)
	d.check("Alloc", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mem = append(d.mem, m)
	return m
}

// fill is host memory with the pattern of a seed until the end of the test.
func (d *device) fill(n int, seed int) []byte {
	d.Helper()
	b, err := d.AllocHost(n)
	d.check("AllocHost", err)
	copy(b, pattern(n, seed))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.host = append(d.host, b)
	return b
}

func (d *device) copy(dst pinned.Mem, src []byte) pinned.Fence {
	d.Helper()
	f, err := d.Copy(dst, src)
	d.check("Copy", err)
	return f
}

// write copies and waits.
func (d *device) write(dst pinned.Mem, src []byte) {
	d.Helper()
	d.check("Wait", d.copy(dst, src).Wait(context.Background()))
}

func (d *device) compute(dst, src pinned.Mem, busy time.Duration) {
	d.Helper()
	d.check("Compute", d.Compute(dst, src, busy))
}

func (d *device) expect(what string, m pinned.Mem, want []byte) {
	d.Helper()
	got, err := d.Read(m)
	d.check("Read", err)
	if !bytes.Equal(got, want) {
		d.Errorf("%s: the %d bytes differ from what is expected, first at %d", what, len(got), differs(got, want))
	}
}

// refuse fails where a misuse is let through.
func (d *device) refuse(what string, err error) {
	d.Helper()
	if err == nil {
		d.Errorf("%s is no error", what)
	}
}

// busyStill fails where the copy of the fence has ended.
func (d *device) busyStill(what string, f pinned.Fence) {
	d.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Wait(ctx); !errors.Is(err, context.Canceled) {
		d.Errorf("the caller of %s has waited: the copy has ended with %v", what, err)
	}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*(2*seed+1) + i>>8 + seed)
	}
	return b
}

func differs(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func memory(d *device) {
	for _, n := range []int{1, 63, 64, 4095, 4096, 1<<20 + 1, 5 << 20} {
		b := d.fill(n, n)
		if at := reflect.ValueOf(b).Pointer(); len(b) != n || at%batch.Align != 0 {
			d.Errorf("AllocHost(%d): %d bytes at %#x", n, len(b), at)
		}
		m := d.alloc(n)
		at := m.Addr
		if m.Bytes != nil {
			at = reflect.ValueOf(m.Bytes).Pointer()
		}
		if m.Len != n || m.Bytes != nil && len(m.Bytes) != n || at == 0 || at%batch.Align != 0 {
			d.Errorf("Alloc(%d): %d bytes at %#x, %d of them reachable", n, m.Len, at, len(m.Bytes))
		}
	}
}

func arrive(d *device) {
	for _, n := range []int{1, 63, 4096, 3<<20 + 5} {
		dst, want := d.alloc(n+64), pattern(n+64, 1)
		d.write(dst, d.fill(n+64, 1))
		d.expect("a copy", dst, want)
		copy(want[64:], pattern(n, 2))
		d.write(dst.Slice(64, 64+n), d.fill(n, 2))
		d.expect("a copy to a slice", dst, want)
		copy(want, pattern(n, 3))
		d.write(dst, d.fill(n, 3))
		d.expect("a copy shorter than its destination", dst, want)
	}
	dst, ordinary := d.alloc(64), pattern(64, 4)
	d.write(dst, ordinary)
	d.write(dst, nil)
	d.write(dst.Slice(64, 64), nil)
	d.expect("a copy from memory of the Go heap, and two of nothing", dst, ordinary)
}

func waitContext(d *device) {
	dst, gone := d.alloc(64), errors.New("gone")
	src := d.fill(64, 1)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(gone)
	d.check("Stall", d.Stall(2*busy))
	f := d.copy(dst, src)
	if err := f.Wait(ctx); !errors.Is(err, gone) {
		d.Errorf("Wait with a context that has ended: %v, want its cause", err)
	}
	soon, cancelSoon := context.WithTimeout(context.Background(), busy/4)
	defer cancelSoon()
	if err := f.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		d.Errorf("Wait with a context that ends meanwhile: %v, want %v", err, context.DeadlineExceeded)
	}
	for range 2 {
		d.check("Wait", f.Wait(context.Background()))
	}
	d.check("Wait of a copy that has ended, with a context that has, too", f.Wait(ctx))
	d.check("Join of a copy that has ended", f.Join())
	d.expect("after Wait", dst, src)
}

func join(d *device) {
	slot, result := d.alloc(4096), d.alloc(4096)
	d.write(slot, d.fill(4096, 1))
	src := d.fill(4096, 2)
	d.check("Stall", d.Stall(busy))
	f := d.copy(slot, src)
	d.check("Join", f.Join())
	d.compute(result, slot, 0)
	d.busyStill("Join", f)
	d.expect("compute queued after Join", result, src)
}

func hold(d *device) {
	slot, result, later := d.alloc(4096), d.alloc(4096), d.alloc(4096)
	old, new := d.fill(4096, 1), d.fill(4096, 2)
	d.write(slot, old)
	d.compute(result, slot, busy)
	d.check("Hold", d.Hold())
	f := d.copy(slot, new)
	d.busyStill("Hold", f)
	d.check("Join", f.Join())
	d.compute(later, slot, 0)
	d.expect("compute queued before Hold", result, old)
	d.expect("compute queued after the refill", later, new)

	// Copies on their way are not called back by a Hold.
	d.compute(result, slot, busy)
	first := d.copy(later, old)
	d.check("Hold", d.Hold())
	d.check("Wait", first.Wait(context.Background()))
	d.expect("a copy started before Hold", later, old)
}

// chain queues a long chain of waits without ever waiting itself.
func chain(d *device) {
	const rounds = 500
	slot, sum := d.alloc(64), d.alloc(64*rounds)
	src := d.fill(64*rounds, 1)
	d.compute(sum.Slice(0, 64), slot, busy)
	for k := range rounds {
		d.check("Hold", d.Hold())
		d.check("Join", d.copy(slot, src[64*k:64*k+64]).Join())
		d.compute(sum.Slice(64*k, 64*k+64), slot, 0)
	}
	d.expect("the chain", sum, src)
}

func flights(d *device) {
	const slots, n = 64, 10_000
	in, out := d.alloc(slots*n), d.alloc(slots*n)
	src := d.fill(slots*n, 1)
	var fences []pinned.Fence
	for k := range slots {
		fences = append(fences, d.copy(in.Slice(k*n, k*n+n), src[k*n:k*n+n]))
	}
	for k := range slots { // the last first
		k = slots - 1 - k
		d.check("Join", fences[k].Join())
		d.compute(out.Slice(k*n, k*n+n), in.Slice(k*n, k*n+n), 0)
	}
	d.expect("all slots", out, src)
}

func concurrent(d *device) {
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			if err := trips(d.Harness, g); err != nil {
				d.Errorf("goroutine %d: %v", g, err)
			}
		})
	}
	all.Wait()
}

// trips sends bytes to the device and back, again and again.
func trips(h Harness, seed int) error {
	for k := range 20 {
		n := 1000 + 100*seed + k
		src, err := h.AllocHost(n)
		if err != nil {
			return err
		}
		copy(src, pattern(n, seed+k))
		m, err := h.Alloc(2 * n)
		if err != nil {
			return err
		}
		f, err := h.Copy(m, src)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Join(), h.Compute(m.Slice(n, 2*n), m.Slice(0, n), 0), h.Hold(), f.Wait(context.Background())); err != nil {
			return err
		}
		got, err := h.Read(m.Slice(n, 2*n))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, pattern(n, seed+k)) {
			return fmt.Errorf("trip %d: the bytes differ", k)
		}
		if err := errors.Join(h.Free(m), h.FreeHost(src)); err != nil {
			return err
		}
	}
	return nil
}

func misuse(d *device) {
	m, b := d.alloc(128), d.fill(128, 1)
	for _, n := range []int{0, -1, math.MinInt, math.MaxInt, math.MaxInt / 8} {
		_, err := d.Alloc(n)
		d.refuse(fmt.Sprintf("Alloc(%d)", n), err)
		_, err = d.AllocHost(n)
		d.refuse(fmt.Sprintf("AllocHost(%d)", n), err)
	}
	_, err := d.Copy(m.Slice(0, 100), b)
	d.refuse("a copy longer than its destination", err)
	if err != nil && !(strings.Contains(err.Error(), "128") && strings.Contains(err.Error(), "100")) {
		d.Errorf("the error does not name both sizes: %v", err)
	}
	foreign := pinned.Mem{Addr: 64, Bytes: make([]byte, 128), Len: 128}
	_, err = d.Copy(foreign, b)
	d.refuse("a copy to foreign memory", err)
	d.refuse("Free of foreign memory", d.Free(foreign))
	d.refuse("Free of no memory", d.Free(pinned.Mem{}))
	d.refuse("Free of the first half", d.Free(m.Slice(0, 64)))
	d.refuse("Free of the second half", d.Free(m.Slice(64, 128)))
	d.refuse("FreeHost of foreign memory", d.FreeHost(make([]byte, 128)))
	d.refuse("FreeHost of no memory", d.FreeHost(nil))
	d.refuse("FreeHost of the first half", d.FreeHost(b[:64]))
	d.refuse("FreeHost of the second half", d.FreeHost(b[64:]))

	again, err := d.Alloc(64)
	d.check("Alloc", err)
	d.check("Free", d.Free(again))
	d.refuse("Free twice", d.Free(again))
	_, err = d.Copy(again, b[:64])
	d.refuse("a copy to memory that was freed", err)
	host, err := d.AllocHost(64)
	d.check("AllocHost", err)
	d.check("FreeHost", d.FreeHost(host))
	d.refuse("FreeHost twice", d.FreeHost(host))

	d.write(m, b)
	d.expect("a copy after all that", m, b)
}

func closed(d *device) {
	m, b := d.alloc(64), d.fill(64, 1)
	d.check("Stall", d.Stall(busy))
	f := d.copy(m, b)
	d.refuse("Close with memory allocated", d.Close())
	d.check("Wait for a copy that Close waited for", f.Wait(context.Background()))
	_, err := d.Alloc(64)
	d.refuse("Alloc after Close", err)
	_, err = d.AllocHost(64)
	d.refuse("AllocHost after Close", err)
	_, err = d.Copy(m, b)
	d.refuse("Copy after Close", err)
	d.refuse("Hold after Close", d.Hold())
	d.refuse("Join after Close", f.Join())
}

func leaks(d *device) {
	d.alloc(1000)
	d.alloc(2000)
	b := d.fill(70_000, 1)
	err := d.Close()
	d.refuse("a leak", err)
	for _, want := range []string{"2", "3000", "1", "70000"} {
		if err != nil && !strings.Contains(err.Error(), want) {
			d.Errorf("the error does not name the leak by count and bytes, %s of them: %v", want, err)
		}
	}
	// Memory that is out stays valid, can be freed, and then nothing leaks.
	b[0]++
	for _, m := range d.mem {
		d.check("Free after Close", d.Free(m))
	}
	d.check("FreeHost after Close", d.FreeHost(b))
	d.mem, d.host = nil, nil
	d.check("Close when all is freed", d.Close())
}
