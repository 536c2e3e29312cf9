package board

import (
	"slices"
	"testing"
	"time"
	"unsafe"
)

// The layout is the same in programs of any word size: processes share it.
func TestLayout(t *testing.T) {
	if n := unsafe.Sizeof(head{}); n != 64 {
		t.Errorf("the head has %d bytes, want 64", n)
	}
	if n := unsafe.Sizeof(slot{}); n != 256 {
		t.Errorf("a slot has %d bytes, want 256", n)
	}
	b := New(3)
	for rank := range 3 {
		for meeting := range uint64(2) {
			for i := range b.box(rank, meeting) {
				b.box(rank, meeting)[i] = byte(1 + 2*rank + int(meeting))
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

// What the ranks bring is taken a box at a time.
func TestBoxes(t *testing.T) {
	b := New(3)
	bring := [][]byte{make([]byte, 2*BoxBytes+1), nil, make([]byte, BoxBytes)}
	for rank, mine := range bring {
		for i := range mine {
			mine[i] = byte(i%251 + rank)
		}
		b.Arrive(rank, 0, Post{What: Exchange, Length: uint64(len(mine))})
	}
	all := b.Receivers(0)
	for meeting := range uint64(3) {
		from := int(meeting) * BoxBytes
		for rank, mine := range bring {
			b.Bring(rank, meeting, mine, from)
		}
		if more := b.Take(meeting, all, from); more != (meeting < 2) {
			t.Errorf("after meeting %d there is more: %v", meeting, more)
		}
	}
	for rank := range bring {
		if !slices.Equal(all[rank], bring[rank]) || cap(all[rank]) != len(all[rank]) {
			t.Errorf("rank %d brought something else", rank)
		}
	}
}

// What a rank brought to a meeting stays until the one after the next.
func TestPosts(t *testing.T) {
	b := New(1)
	for meeting := range uint64(5) {
		b.Arrive(0, meeting, Post{Length: 100 + meeting})
		b.Complete(meeting, false)
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

// state checks a meeting and the board.
func state(t *testing.T, b Board, meeting uint64, met, broken bool) {
	t.Helper()
	if m, br := b.State(meeting); m != met || br != broken {
		t.Errorf("meeting %d: met %v, broken %v, want %v, %v", meeting, m, br, met, broken)
	}
}

// A meeting comes about once all have come, by whoever sees it first, and
// once only.
func TestComplete(t *testing.T) {
	b := New(2)
	b.Arrive(0, 0, Post{})
	if b.Complete(0, false) {
		t.Error("one of two ranks has met")
	}
	if late := b.Late(0); !slices.Equal(late, []int{1}) {
		t.Errorf("late are %v", late)
	}
	state(t, b, 0, false, false)
	b.Arrive(1, 0, Post{})
	state(t, b, 0, false, false)
	if !b.Complete(0, false) || b.Complete(0, false) {
		t.Error("the meeting does not come about once")
	}
	state(t, b, 0, true, false)
	state(t, b, 1, false, false)
	if b.Breaker() != -1 {
		t.Errorf("the board is broken by rank %d", b.Breaker())
	}
}

// Who prevents a meeting stops it for all, and leaves who was late, although
// these come later. Who is too late stops nothing.
func TestPrevent(t *testing.T) {
	const ranks = 130
	b := New(ranks)
	for rank := range ranks {
		b.Arrive(rank, 0, Post{})
	}
	if b.Prevent(0, 0, Reason{}) {
		t.Error("a meeting is prevented to which all have come")
	}
	b.Complete(0, false)
	if b.Prevent(0, 0, Reason{}) {
		t.Error("a meeting is prevented that has come about")
	}
	state(t, b, 0, true, false)

	want, post := []int{0, 63, 64, 129}, Post{What: 7, Length: 100}
	for rank := range ranks {
		if !slices.Contains(want, rank) {
			b.Arrive(rank, 1, post)
		}
	}
	if late, _, _ := b.Verdict(); late != nil {
		t.Errorf("late are %v on a board that is whole", late)
	}
	if !b.Prevent(5, 1, Reason{12, time.Minute}) || b.Prevent(6, 1, Reason{13, time.Hour}) {
		t.Error("a meeting is not prevented once")
	}
	for _, rank := range want {
		b.Arrive(rank, 1, Post{})
	}
	if b.Complete(1, false) {
		t.Error("a meeting comes about that was prevented")
	}
	state(t, b, 1, false, true)
	late, p, r := b.Verdict()
	if !slices.Equal(late, want) || p != post || r != (Reason{12, time.Minute}) || b.Breaker() != 5 {
		t.Errorf("rank %d, late %v, %v, %v", b.Breaker(), late, p, r)
	}
}

// A board that is broken for another reason has no verdict, although a rank
// was about to give one.
func TestBreak(t *testing.T) {
	b := New(3)
	b.slots[1].verdict.late[0] = 4
	b.Break(1)
	b.Break(2)
	if late, _, _ := b.Verdict(); late != nil || b.Breaker() != 1 {
		t.Errorf("broken by rank %d, late are %v", b.Breaker(), late)
	}
	for rank := range 3 {
		b.Arrive(rank, 0, Post{})
	}
	if b.Prevent(0, 0, Reason{}) || b.Complete(0, false) {
		t.Error("a broken board is not at rest")
	}
	if !b.Complete(0, true) {
		t.Error("a meeting that must come about does not")
	}
	state(t, b, 0, true, true)
}

func TestLeave(t *testing.T) {
	b := New(4)
	b.Leave(1, true)
	b.Leave(3, true)
	b.Leave(0, false)
	if left, here := b.Left(), b.Here(); !slices.Equal(left, []int{1, 3}) || !slices.Equal(here, []int{2}) {
		t.Errorf("left have %v, here are %v", left, here)
	}
	state(t, b, 0, false, true)
}
