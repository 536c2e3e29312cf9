//go:build linux

package local

import (
	"encoding/hex"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// made is rank 0's segment of two ranks, and where the other one finds it.
func made(t *testing.T) (*segment, where) {
	t.Helper()
	s := &segment{arenas: huge}
	check, err := s.create(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.unmap()
		s.file.Close()
	})
	return s, where{layoutVersion, os.Getpid(), int(s.file.Fd()), check, s.each}
}

// Two mappings of one segment are the same memory, and its size stays.
func TestSegment(t *testing.T) {
	s, w := made(t)
	other := &segment{rank: 1, arenas: huge}
	if err := other.open(w, 2); err != nil {
		t.Fatal(err)
	}
	defer other.unmap()
	defer other.file.Close()

	mine, err := s.alloc(3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.alloc(3); err != nil {
		t.Fatal(err)
	}
	theirs, err := other.alloc(5)
	if err != nil {
		t.Fatal(err)
	}
	mine[2], theirs[4] = 42, 43
	if off, ok := other.offset(theirs[4:]); !ok || s.span(1, off, 1)[0] != 43 || other.span(0, 8, 1)[0] != 42 {
		t.Errorf("the mappings are not the same memory: offset %d, %v", off, ok)
	}
	if _, ok := s.offset(theirs); ok {
		t.Error("memory of another rank counts as this one's")
	}
	if _, ok := s.offset(s.span(0, 0, uint64(len(mine))+100)); ok {
		t.Error("memory behind what alloc gave counts as given")
	}
	for _, size := range []int64{1, 1 << 50} {
		if err := unix.Ftruncate(int(other.file.Fd()), size); err != unix.EPERM {
			t.Errorf("another size of the segment: %v, want %v", err, unix.EPERM)
		}
	}
}

// A rank that sleeps in one mapping is woken through another.
func TestWake(t *testing.T) {
	s, w := made(t)
	other := &segment{rank: 1, arenas: huge}
	if err := other.open(w, 2); err != nil {
		t.Fatal(err)
	}
	defer other.unmap()
	defer other.file.Close()
	awake := make(chan struct{})
	go func() {
		for heard := s.listen(); s.listen() == heard; {
			s.doze(heard, time.Hour)
		}
		close(awake)
	}()
	for other.sleepers.Load() == 0 {
		runtime.Gosched()
	}
	for began := time.Now(); ; other.ring() {
		select {
		case <-awake:
			return
		default:
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("the bell wakes nobody")
		}
	}
}

func TestSegmentFull(t *testing.T) {
	s, _ := made(t)
	s.each = 1 << 20
	for range 4 {
		if _, err := s.alloc(1 << 16); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.alloc(0); err != nil {
		t.Error(err)
	}
	if _, err := s.alloc(1); err == nil || !strings.Contains(err.Error(), "0 of the 1048576 bytes") {
		t.Errorf("the error is %v", err)
	}
}

// Whatever else a process finds in place of the segment is an error that says
// what to do.
func TestWrongSegment(t *testing.T) {
	right, w := made(t)
	_, strange := made(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, test := range []struct {
		name  string
		where func(w *where)
		says  string
	}{
		{"no such process", func(w *where) { w.PID = 1 << 30 }, "no such file"},
		{"no such file", func(w *where) { w.FD = 1 << 20 }, "no such file"},
		{"another file", func(w *where) { w.FD = int(file.Fd()) }, "is not the shared memory"},
		{"another group's segment", func(w *where) { w.FD = strange.FD }, "is not the shared memory"},
		{"another size", func(w *where) { w.Arena /= 2 }, "is not the shared memory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := w
			test.where(&w)
			s := &segment{rank: 1, arenas: huge}
			err := s.open(w, 2)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "container") {
				t.Errorf("the error is %v", err)
			}
			if s.mem != nil {
				t.Error("it is mapped all the same")
			}
		})
	}
	if hex.EncodeToString(right.check[:]) != w.Check {
		t.Error("the check is not in the segment")
	}
}
