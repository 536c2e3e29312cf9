package local

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"unsafe"

	"github.com/shardfeed/shardfeed/trainer"
)

// Spawn runs f on size ranks, each a goroutine, and returns once all have
// ended: nil where all returned nil, otherwise the first error, which names
// its rank. A panic and runtime.Goexit in f are errors, too. When a rank has
// failed, the others' collectives return an error that wraps its error, and
// their context ends. f's group is closed for it when it returns.
func Spawn(ctx context.Context, size int, f func(context.Context, *Group) error) error {
	if size < 1 || size > maxRanks {
		return fmt.Errorf("local: a group of %d ranks: 1 to %d are possible", size, maxRanks)
	}
	h := newHub(size)
	ctx, h.cancel = context.WithCancelCause(ctx)
	defer h.cancel(nil)
	var ranks sync.WaitGroup
	for _, g := range h.groups {
		ranks.Go(func() { h.rank(ctx, g, f) })
	}
	ranks.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// rank is the life of a rank.
func (h *hub) rank(ctx context.Context, g *Group, f func(context.Context, *Group) error) {
	err := errors.New("ended by runtime.Goexit, as t.FailNow does")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n\n%s", p, debug.Stack())
		}
		if err != nil {
			g.fail(err)
		}
		g.Close()
		if err == nil {
			err = g.pending
		}
		if err != nil {
			g.medium.tell(err)
		}
		g.mu.Lock()
		g.leave()
		g.mu.Unlock()
	}()
	err = f(ctx, g)
}

// failure is another rank's error.
type failure struct {
	rank int
	err  error
}

func (f *failure) Error() string {
	return fmt.Sprintf("local: rank %d failed: %s", f.rank, strings.TrimPrefix(f.err.Error(), "local: "))
}

func (f *failure) Unwrap() error { return f.err }

// hub is what the goroutines of a group share.
type hub struct {
	groups []*Group
	arenas []arena
	bells  []chan struct{}
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	cause error // the first
}

func newHub(size int) *hub {
	h := &hub{arenas: make([]arena, size), cancel: func(error) {}}
	b := newBoard(size)
	for rank := range size {
		h.bells = append(h.bells, make(chan struct{}, 1))
		h.groups = append(h.groups, newGroup(rank, size, b, seat{h, rank}))
	}
	return h
}

// seat is a rank's place at the hub.
type seat struct {
	*hub
	rank int
}

func (s seat) ring() {
	for _, bell := range s.bells {
		select {
		case bell <- struct{}{}:
		default: // it has not heard the last one yet
		}
	}
}

func (s seat) listen() uint32 { return 0 } // the bell's channel remembers

func (s seat) sleep(ctx context.Context, _ uint32) {
	select {
	case <-s.bells[s.rank]:
	case <-ctx.Done():
	}
}

func (s seat) tell(err error) {
	cause := &failure{s.rank, err}
	s.mu.Lock()
	first := s.cause == nil
	if first {
		s.cause = cause
	}
	s.mu.Unlock()
	if !first {
		return
	}
	for rank, g := range s.groups {
		if rank != s.rank {
			g.fail(cause)
		}
	}
	s.cancel(cause)
}

func (s seat) close() error { return nil }

func (s seat) alloc(n int) (trainer.Host, error) {
	if uint64(n) > arenaBytes/4 {
		return nil, fmt.Errorf("more than the %d that a rank can have", uint64(arenaBytes)/4)
	}
	return s.arenas[s.rank].alloc(n), nil
}

func (s seat) offset(v trainer.Host) (uint64, bool) { return s.arenas[s.rank].offset(v) }

func (s seat) span(rank int, off, n uint64) trainer.Host { return s.arenas[rank].span(off, n) }

// arena is a rank's memory: pieces of the Go heap, which is the memory that
// the race detector watches, with offsets as if they were one.
type arena struct {
	mu     sync.RWMutex
	pieces []piece
	end    uint64
}

type piece struct {
	start uint64
	mem   trainer.Host
}

func (a *arena) alloc(n int) trainer.Host {
	mem := trainer.Host(aligned(n))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pieces = append(a.pieces, piece{a.end, mem})
	a.end = place(a.end + 4*uint64(n))
	return mem
}

func (a *arena) offset(v trainer.Host) (uint64, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, p := range a.pieces {
		if off, ok := within(v, p.mem); ok {
			return p.start + off, true
		}
	}
	return 0, false
}

func (a *arena) span(off, n uint64) trainer.Host {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, p := range a.pieces {
		if from := (off - p.start) / 4; off >= p.start && from+n <= uint64(len(p.mem)) {
			return p.mem[from : from+n : from+n]
		}
	}
	panic("local: a rank posted a span that it does not have")
}

// alignment is that of spans, in bytes: a cache line.
const alignment = 64

// place is the next multiple of the alignment.
func place(off uint64) uint64 { return (off + alignment - 1) &^ (alignment - 1) }

// aligned is n values at a multiple of the alignment.
func aligned(n int) []float32 {
	mem := make([]float32, n+alignment/4)
	skip := int(-address(mem)%alignment) / 4
	return mem[skip : skip+n : skip+n]
}

// within is the offset in bytes of v in mem, if it lies there.
func within(v, mem []float32) (off uint64, ok bool) {
	off, size := uint64(address(v)-address(mem)), 4*uint64(len(mem))
	return off, off%4 == 0 && off <= size && 4*uint64(len(v)) <= size-off
}

func address(v []float32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(v))) }
