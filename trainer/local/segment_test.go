//go:build linux

package local

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shardfeed/shardfeed/trainer/local/internal/shm"
)

// pair is the segment of two ranks as both see it, with arenas of 1 MiB.
func pair(t *testing.T) (ranks [2]*segment) {
	t.Helper()
	mem, err := shm.Create(arenas(2) + 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	other, err := shm.Open(mem.Ticket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mem.Close()
		other.Close()
	})
	return [2]*segment{newSegment(mem, 0, 2), newSegment(other, 1, 2)}
}

// Every rank finds what the other one has allocated, and knows its own.
func TestArenas(t *testing.T) {
	ranks := pair(t)
	for _, n := range []int{3, 0, 17, 1000} {
		var spans [2][]float32
		var offs [2]uint64
		for rank, s := range ranks {
			v, err := s.alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			for i := range v {
				v[i] = float32(10*i + rank)
			}
			off, ok := s.offset(v)
			if !ok && n > 0 {
				t.Errorf("rank %d does not know its memory", rank)
			}
			if _, ok := ranks[1-rank].offset(v); ok && n > 0 {
				t.Errorf("rank %d takes the other's memory for its own", 1-rank)
			}
			spans[rank], offs[rank] = v, off
		}
		if n == 0 {
			continue
		}
		if offs[0] != offs[1] || offs[0]%64 != 0 {
			t.Errorf("%d values lie at %d and at %d", n, offs[0], offs[1])
		}
		for rank, s := range ranks {
			theirs := s.span(1-rank, offs[rank], uint64(n))
			if theirs[n-1] != float32(10*(n-1)+1-rank) || spans[rank][n-1] != float32(10*(n-1)+rank) {
				t.Errorf("rank %d finds %v, and has %v", rank, theirs[n-1], spans[rank][n-1])
			}
		}
	}
	if _, ok := ranks[0].offset(ranks[0].span(0, uint64(ranks[0].used), 1)); ok {
		t.Error("memory behind what alloc gave counts as given")
	}
}

func TestArenaFull(t *testing.T) {
	s := pair(t)[1]
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

// A rank that sleeps in one mapping is woken through another.
func TestWake(t *testing.T) {
	ranks := pair(t)
	awake := make(chan struct{})
	go func() {
		for heard := ranks[0].listen(); ranks[0].listen() == heard; {
			ranks[0].doze(heard, time.Hour)
		}
		close(awake)
	}()
	for ranks[1].Sleepers.Load() == 0 {
		runtime.Gosched()
	}
	for began := time.Now(); ; ranks[1].ring() {
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
