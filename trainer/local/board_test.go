package local

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"
)

// A slot and the head are cache lines, and the board means the same in
// programs of any word size.
func TestBoardLayout(t *testing.T) {
	if n := unsafe.Sizeof(head{}); n != 64 {
		t.Errorf("the head has %d bytes, want 64", n)
	}
	if n := unsafe.Sizeof(slot{}); n != 64 {
		t.Errorf("a slot has %d bytes, want 64", n)
	}
	b := newBoard(3)
	for rank := range 3 {
		for meeting := range uint64(2) {
			for i := range b.box(rank, meeting) {
				b.box(rank, meeting)[i] = byte(1 + 2*rank + int(meeting))
			}
		}
	}
	for i, x := range b.boxes {
		if want := byte(1 + i/boxBytes); x != want {
			t.Fatalf("byte %d of the boxes is %d, want %d: boxes overlap or leave gaps", i, x, want)
		}
	}
	if len(b.boxes) != 6*boxBytes || b.slots[2].left.Load() != 0 {
		t.Errorf("%d bytes of boxes, want %d, and the slots untouched", len(b.boxes), 6*boxBytes)
	}
}

// The last to come lets a meeting come about; whoever prevents it before
// stops it for all, and whoever is too late stops nothing.
func TestPrevent(t *testing.T) {
	b := newBoard(2)
	if b.arrive(0, false) || !b.arrive(0, false) {
		t.Fatal("the second of two ranks is not the last")
	}
	if b.prevent(0) || b.state.Load() != 1<<meetings {
		t.Errorf("a meeting is prevented that has come about: state %#x", b.state.Load())
	}
	b.arrive(1, false)
	if !b.prevent(1) || b.arrive(1, false) || b.state.Load()>>meetings != 1 {
		t.Errorf("a meeting comes about that was prevented: state %#x", b.state.Load())
	}
	if !b.arrive(1, true) || b.state.Load() != 2<<meetings|broken {
		t.Errorf("a meeting that must come about does not: state %#x", b.state.Load())
	}
}

// However a cancellation falls between the arrivals, a meeting comes about
// for all ranks or for none.
func TestAllOrNone(t *testing.T) {
	enough := errors.New("enough")
	both := map[int]int{}
	for trial := range 300 {
		ctx, cancel := context.WithCancelCause(t.Context())
		var met atomic.Int32
		err := Spawn(t.Context(), 3, func(_ context.Context, g *Group) error {
			if g.Rank() == trial%3 {
				go cancel(enough)
			}
			_, err := g.Exchange(ctx, nil)
			if err == nil {
				met.Add(1)
			}
			return err
		})
		if n := met.Load(); n != 0 && n != 3 || (n == 3) != (err == nil) {
			t.Fatalf("%d of 3 ranks have met, and the error is %v", n, err)
		}
		if err != nil && !errors.Is(err, enough) {
			t.Fatal(err)
		}
		both[int(met.Load())]++
	}
	t.Logf("met %d times, prevented %d times", both[3], both[0])
}
