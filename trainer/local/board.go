package local

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"
)

// board is what the ranks share beside their arenas: memory in which nothing
// points anywhere, so that it means the same in every process.
type board struct {
	*head
	slots []slot
	boxes []byte // for each rank two boxes
}

// head is the board's first cache line.
type head struct {
	state    atomic.Uint64 // meetings that have come about <<16, broken, ranks that have come to the next
	bell     atomic.Uint32 // changes of state that others must see
	sleepers atomic.Uint32 // who would not see them without being woken
	check    [16]byte      // tells a board from any other memory
	_        [32]byte
}

// slot is a cache line for each rank.
type slot struct {
	arrived atomic.Uint64 // meetings to which the rank has come
	left    atomic.Uint32 // not 0: it will come to no other
	_       [4]byte
	// What the rank calls at its odd and its even meetings. A rank reads the
	// others' posts before it comes to the next meeting, so they may change
	// once that has come about.
	posts [2]post
}

// post is a call as the other ranks see it.
type post struct {
	what   what
	root   uint32 // of a broadcast
	length uint64 // in values, of an exchange in bytes
	offset uint64 // in the arena, in bytes
}

type what uint32

const (
	join what = iota // an exchange of nothing
	exchange
	broadcast
	reduceSum
	reduceAverage
)

func (p post) String() string {
	switch p.what {
	case join:
		return "join"
	case exchange:
		return fmt.Sprintf("exchange of %d bytes", p.length)
	case broadcast:
		return fmt.Sprintf("broadcast of %d values from rank %d", p.length, p.root)
	case reduceSum:
		return fmt.Sprintf("all-reduce (sum) of %d values", p.length)
	case reduceAverage:
		return fmt.Sprintf("all-reduce (average) of %d values", p.length)
	}
	return fmt.Sprintf("call %d, which does not exist", p.what)
}

// The state's parts.
const (
	broken   = 1 << 15 // no further meeting comes about
	comers   = broken - 1
	meetings = 16 // the shift
)

// maxRanks fits into comers, and keeps boards small.
const maxRanks = 1024

// boxBytes is what a rank can give the others at a meeting.
const boxBytes = 32 << 10

func boardBytes(size int) int {
	return int(unsafe.Sizeof(head{})) + size*(int(unsafe.Sizeof(slot{}))+2*boxBytes)
}

// newBoard is a board on the Go heap.
func newBoard(size int) board {
	mem := aligned(boardBytes(size) / 4)
	return boardOn(unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), 4*len(mem)), size)
}

// boardOn lays a board over boardBytes(size) zeroed bytes at a multiple of 64.
func boardOn(mem []byte, size int) board {
	b := board{head: (*head)(unsafe.Pointer(&mem[0]))}
	mem = mem[unsafe.Sizeof(head{}):]
	b.slots = unsafe.Slice((*slot)(unsafe.Pointer(&mem[0])), size)
	b.boxes = mem[uintptr(size)*unsafe.Sizeof(slot{}):]
	return b
}

func (b *board) post(rank int, meeting uint64) *post { return &b.slots[rank].posts[meeting&1] }

func (b *board) box(rank int, meeting uint64) []byte {
	at := (2*rank + int(meeting&1)) * boxBytes
	return b.boxes[at : at+boxBytes]
}

// arrive counts a rank in at a meeting, and says whether it was the last.
// Where the group is broken, only a meeting that must be still counts.
func (b *board) arrive(meeting uint64, must bool) (last bool) {
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

// breakUp lets no further meeting come about.
func (b *board) breakUp() { b.state.Or(broken) }

// prevent breaks the group up unless the meeting has come about. So either
// all ranks pass a meeting or none does.
func (b *board) prevent(meeting uint64) bool {
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

// ranks are those with a slot that is so.
func (b *board) ranks(is func(*slot) bool) (ranks []int) {
	for rank := range b.slots {
		if is(&b.slots[rank]) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// have is "rank 1 has" or "ranks 1, 3 have".
func have(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d has", ranks[0])
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]") + " have"
}
