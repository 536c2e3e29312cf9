// Package board is where ranks meet: memory that all of them reach, with a
// count of who has come to the next meeting, and for each rank a slot for what
// it calls and boxes for bytes. Nothing in it points anywhere, so it means the
// same in every process.
//
// A rank writes its post and its box, comes to a meeting, and once that has
// come about reads those of the others. Posts and boxes are there twice, for
// odd and even meetings: what a rank brought to a meeting stays until the next
// one has come about, to which the others come when they have read it.
package board

import (
	"sync/atomic"
	"unsafe"
)

// MaxRanks is the largest number of ranks.
const MaxRanks = 1024

// BoxBytes is what a rank can bring to a meeting.
const BoxBytes = 32 << 10

// Board is the ranks' shared memory as one of them sees it.
type Board struct {
	*head
	slots []slot
	boxes []byte // for each rank two
}

// head and slot are cache lines.
type head struct {
	state    atomic.Uint64 // meetings that have come about <<16, broken, ranks that have come to the next
	Bell     atomic.Uint32 // counts changes that a rank may sleep for
	Sleepers atomic.Uint32 // how many do
	_        [48]byte
}

type slot struct {
	arrived atomic.Uint64 // meetings to which the rank has come
	left    atomic.Uint32 // not 0: it will come to no other
	_       [4]byte
	posts   [2]Post
}

// Post is a call as the other ranks see it.
type Post struct {
	What   uint32
	Root   uint32 // of a broadcast
	Length uint64 // in values, of an exchange in bytes
	Offset uint64 // in the rank's arena, in bytes
}

// The state's parts.
const (
	broken   = 1 << 15 // no further meeting comes about, but for one that must
	comers   = broken - 1
	meetings = 16 // the shift
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

// Box is a rank's box at a meeting.
func (b Board) Box(rank int, meeting uint64) []byte {
	at := (2*rank + int(meeting&1)) * BoxBytes
	return b.boxes[at : at+BoxBytes]
}

// Arrive brings a rank to a meeting with its post, and says whether it was the
// last to come. Once the board is broken that has no effect, except for a
// meeting that must come about.
func (b Board) Arrive(rank int, meeting uint64, p Post, must bool) (last bool) {
	b.slots[rank].posts[meeting&1] = p
	b.slots[rank].arrived.Store(meeting + 1)
	for {
		s := b.state.Load()
		if s&broken != 0 && !must {
			return false
		}
		next := s + 1
		if last = s&comers == uint64(len(b.slots)-1); last {
			next = (meeting+1)<<meetings | s&broken
		}
		if b.state.CompareAndSwap(s, next) {
			return last
		}
	}
}

// State says whether a meeting has come about, and whether the board is broken.
func (b Board) State(meeting uint64) (met, isBroken bool) {
	s := b.state.Load()
	return s>>meetings > meeting, s&broken != 0
}

// Break lets no further meeting come about.
func (b Board) Break() { b.state.Or(broken) }

// Prevent is Break unless the meeting has come about, and says whether it was
// in time: either all ranks pass a meeting or none does.
func (b Board) Prevent(meeting uint64) bool {
	for {
		s := b.state.Load()
		if s>>meetings > meeting {
			return false
		}
		if b.state.CompareAndSwap(s, s|broken) {
			return true
		}
	}
}

// Leave breaks the board because a rank comes to no further meeting.
func (b Board) Leave(rank int) {
	b.slots[rank].left.Store(1)
	b.Break()
}

// Left are the ranks that have left.
func (b Board) Left() []int { return b.ranks(func(s *slot) bool { return s.left.Load() != 0 }) }

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
