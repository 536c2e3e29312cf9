package board

import (
	"slices"
	"testing"
	"unsafe"
)

// The layout is the same in programs of any word size: processes share it.
func TestLayout(t *testing.T) {
	if n := unsafe.Sizeof(head{}); n != 64 {
		t.Errorf("the head has %d bytes, want 64", n)
	}
	if n := unsafe.Sizeof(slot{}); n != 64 {
		t.Errorf("a slot has %d bytes, want 64", n)
	}
	b := New(3)
	for rank := range 3 {
		for meeting := range uint64(2) {
			for i := range b.Box(rank, meeting) {
				b.Box(rank, meeting)[i] = byte(1 + 2*rank + int(meeting))
			}
		}
	}
	for i, x := range b.boxes[:6*BoxBytes] {
		if want := byte(1 + i/BoxBytes); x != want {
			t.Fatalf("byte %d of the boxes is %d, want %d: boxes overlap or leave gaps", i, x, want)
		}
	}
	if b.Left() != nil || len(b.Late(0)) != 3 {
		t.Error("the boxes lie over the slots")
	}
}

// What a rank brought to a meeting stays until the one after the next.
func TestPosts(t *testing.T) {
	b := New(1)
	for meeting := range uint64(5) {
		b.Arrive(0, meeting, Post{Length: 100 + meeting}, false)
		for m := max(meeting, 1) - 1; m <= meeting; m++ {
			if p := b.Post(0, m); p.Length != 100+m {
				t.Errorf("at meeting %d, meeting %d's post is %v", meeting, m, p)
			}
		}
		if met, broken := b.State(meeting); !met || broken {
			t.Errorf("meeting %d: %v, %v", meeting, met, broken)
		}
	}
}

// The last to come lets a meeting come about; whoever prevents it before
// stops it for all, and whoever is too late stops nothing.
func TestPrevent(t *testing.T) {
	b := New(2)
	if b.Arrive(0, 0, Post{}, false) {
		t.Error("the first of two ranks is the last")
	}
	if late := b.Late(0); !slices.Equal(late, []int{1}) {
		t.Errorf("late are %v", late)
	}
	if !b.Arrive(1, 0, Post{}, false) {
		t.Error("the second of two ranks is not the last")
	}
	if b.Prevent(0) || b.state.Load() != 1<<meetings {
		t.Errorf("a meeting is prevented that has come about: state %#x", b.state.Load())
	}
	b.Arrive(0, 1, Post{}, false)
	if !b.Prevent(1) || b.Arrive(1, 1, Post{}, false) || b.state.Load() != 1<<meetings|broken|1 {
		t.Errorf("a meeting comes about that was prevented: state %#x", b.state.Load())
	}
	if !b.Arrive(1, 1, Post{}, true) || b.state.Load() != 2<<meetings|broken {
		t.Errorf("a meeting that must come about does not: state %#x", b.state.Load())
	}
	if b.Leave(1); !slices.Equal(b.Left(), []int{1}) {
		t.Errorf("left have %v", b.Left())
	}
}
