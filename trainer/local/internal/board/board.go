// Package board is where ranks meet: memory that all of them reach, with a
// word that says which meetings have come about, and for each rank to which it
// has come, what it calls, and boxes for bytes. Nothing in it points anywhere,
// so it means the same in every process.
//
// A rank writes its post and its box, comes to a meeting, and once that has
// come about reads those of the others. Posts and boxes are there twice, for
// odd and even meetings: what a rank brought to a meeting stays until the next
// one has come about, to which the others come when they have read it.
package board

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// MaxRanks is the largest number of ranks.
const MaxRanks = 1024

// BoxBytes is how much a rank can bring to a meeting.
const BoxBytes = 32 << 10

// Board is the ranks' shared memory as one of them sees it.
type Board struct {
	*head
	slots []slot
	boxes []byte // for each rank two
}

// head and slot are whole cache lines.
type head struct {
	state    atomic.Uint64 // meetings that have come about <<16, broken, prevented, 1 + the rank that did it
	bell     atomic.Uint32 // counts changes that a rank may sleep for
	sleepers atomic.Uint32 // how many do
	_        [48]byte
}

type slot struct {
	arrived atomic.Uint64 // meetings to which the rank has come
	left    atomic.Uint32 // a way of leaving; 0: it is here
	_       [4]byte
	posts   [2]Post
	verdict verdict // the state says whether it counts
}

// verdict is what a rank found when it prevented a meeting.
type verdict struct {
	Reason
	late [MaxRanks / 64]uint64 // a bit for each rank that had not come
	_    [48]byte
}

// Reason is why a rank waits for a meeting no longer.
type Reason struct {
	Call  uint64        // the number of its call
	After time.Duration // for which it has waited; 0 where that was not too long, but it has a reason of its own
}

// The state's parts.
const (
	broken    = 1 << 15 // no further meeting comes about, but for one that must
	prevented = 1 << 14 // by a rank that waited for others
	breaker   = prevented - 1
	meetings  = 16 // the shift
)

// The ways of leaving.
const (
	wellLeft uint32 = 1 + iota
	fled            // because the group was broken before
)

// Size is how many bytes a board has.
func Size(ranks int) int {
	return int(unsafe.Sizeof(head{})) + ranks*(int(unsafe.Sizeof(slot{}))+2*BoxBytes)
}

// New is a board on the Go heap.
func New(ranks int) Board {
	mem := make([]byte, Size(ranks)+63)
	skip := -uintptr(unsafe.Pointer(&mem[0])) % 64
	return On(mem[skip:], ranks)
}

// On is the board in mem: Size(ranks) bytes at a multiple of 64, which were
// zero before any rank used them.
func On(mem []byte, ranks int) Board {
	b := Board{head: (*head)(unsafe.Pointer(&mem[0]))}
	mem = mem[unsafe.Sizeof(head{}):]
	b.slots = unsafe.Slice((*slot)(unsafe.Pointer(&mem[0])), ranks)
	b.boxes = mem[uintptr(ranks)*unsafe.Sizeof(slot{}):]
	return b
}

// Post is what a rank brought to a meeting.
func (b Board) Post(rank int, meeting uint64) Post { return b.slots[rank].posts[meeting&1] }

// box is a rank's box at a meeting.
func (b Board) box(rank int, meeting uint64) []byte {
	at := (2*rank + int(meeting&1)) * BoxBytes
	return b.boxes[at : at+BoxBytes]
}

// Bring puts into a rank's box what fits of mine[from:], before it arrives at
// the meeting.
func (b Board) Bring(rank int, meeting uint64, mine []byte, from int) {
	copy(b.box(rank, meeting), mine[min(from, len(mine)):])
}

// Receivers are slices for what each rank brings to an exchange, as long as
// the posts of its first meeting say.
func (b Board) Receivers(meeting uint64) [][]byte {
	total := 0
	for rank := range b.slots {
		total += int(b.Post(rank, meeting).Length)
	}
	mem := make([]byte, total)
	all := make([][]byte, len(b.slots))
	for rank := range all {
		n := int(b.Post(rank, meeting).Length)
		all[rank], mem = mem[:n:n], mem[n:]
	}
	return all
}

// Take gets what all ranks have brought to a meeting to the receivers, from
// the byte from, and says whether some have more.
func (b Board) Take(meeting uint64, all [][]byte, from int) (more bool) {
	for rank, theirs := range all {
		copy(theirs[min(from, len(theirs)):], b.box(rank, meeting))
		more = more || from+BoxBytes < len(theirs)
	}
	return more
}

// Arrive brings a rank to a meeting with its post. Another call, Complete,
// lets the meeting come about.
func (b Board) Arrive(rank int, meeting uint64, p Post) {
	slot := &b.slots[rank]
	slot.posts[meeting&1] = p
	slot.arrived.Store(meeting + 1)
}

// Complete lets a meeting come about if all have come to it, and says whether
// it did. Any rank may do that for all: the last to come may have been stopped
// on the threshold. Nothing comes about on a broken board, except for a
// meeting that must.
func (b Board) Complete(meeting uint64, must bool) bool {
	for rank := range b.slots {
		if b.slots[rank].arrived.Load() <= meeting {
			return false
		}
	}
	for {
		s := b.state.Load()
		if s>>meetings > meeting || s&broken != 0 && !must {
			return false
		}
		if b.state.CompareAndSwap(s, s+1<<meetings) {
			return true
		}
	}
}

// State says whether a meeting has come about, and whether the board is broken.
func (b Board) State(meeting uint64) (met, isBroken bool) {
	s := b.state.Load()
	return s>>meetings > meeting, s&broken != 0
}

// Break lets no further meeting come about, and gives the rank as the one
// that did it if it is the first.
func (b Board) Break(rank int) {
	for {
		s := b.state.Load()
		if s&broken != 0 || b.state.CompareAndSwap(s, s|broken|uint64(rank+1)) {
			return
		}
	}
}

// Prevent is Break unless nobody is late for the meeting any more, or the
// board is broken already, and says whether it was in time: either all ranks
// pass a meeting or none does.
func (b Board) Prevent(rank int, meeting uint64, r Reason) bool {
	v := &b.slots[rank].verdict
	for {
		s := b.state.Load()
		late := b.Late(meeting)
		if len(late) == 0 || s&broken != 0 {
			return false
		}
		v.Reason, v.late = r, [MaxRanks / 64]uint64{}
		for _, l := range late {
			v.late[l/64] |= 1 << (l % 64)
		}
		if b.state.CompareAndSwap(s, s|broken|prevented|uint64(rank+1)) {
			return true
		}
	}
}

// Breaker is the rank that has broken the board, -1 while it is whole.
func (b Board) Breaker() int { return int(b.state.Load()&breaker) - 1 }

// Verdict are the ranks that were late for the meeting that Breaker prevented,
// with what it had posted; none where it broke the board otherwise.
func (b Board) Verdict() (late []int, p Post, r Reason) {
	s := b.state.Load()
	if s&prevented == 0 {
		return nil, p, r
	}
	rank := int(s&breaker) - 1
	v := &b.slots[rank].verdict
	for l := range b.slots {
		if v.late[l/64]>>(l%64)&1 != 0 {
			late = append(late, l)
		}
	}
	return late, b.Post(rank, s>>meetings), v.Reason
}

// Leave breaks the board because a rank comes to no further meeting. well
// says that this, and nothing before, is the reason.
func (b Board) Leave(rank int, well bool) {
	way := fled
	if well {
		way = wellLeft
	}
	b.slots[rank].left.Store(way)
	b.Break(rank)
}

// Left are the ranks that have left well.
func (b Board) Left() []int { return b.ranks(func(s *slot) bool { return s.left.Load() == wellLeft }) }

// Here are the ranks that have not left at all.
func (b Board) Here() []int { return b.ranks(func(s *slot) bool { return s.left.Load() == 0 }) }

// Late are the ranks that have not come to a meeting.
func (b Board) Late(meeting uint64) []int {
	return b.ranks(func(s *slot) bool { return s.arrived.Load() <= meeting })
}

func (b Board) ranks(is func(*slot) bool) (ranks []int) {
	for rank := range b.slots {
		if is(&b.slots[rank]) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}
