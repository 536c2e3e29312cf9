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
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
)

// Spawn runs f on size ranks, each a goroutine, and returns once all have
// ended: nil where all returned nil, otherwise the first error, which names
// its rank. A panic and runtime.Goexit in f are errors, too. When a rank has
// failed, the others' collectives return an error that wraps its error, and
// their context ends. f's group is closed for it when it returns.
func Spawn(ctx context.Context, size int, f func(context.Context, *Group) error) error {
	if size < 1 || size > board.MaxRanks {
		return fmt.Errorf("local: a group of %d ranks: 1 to %d are possible", size, board.MaxRanks)
	}
	h := newHub(size)
	ctx, h.cancel = context.WithCancelCause(ctx)
	defer h.cancel(nil)
	var ranks sync.WaitGroup
	for _, g := range h.groups {
		ranks.Go(func() { h.rank(ctx, g, f) })
	}
	ranks.Wait()
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
	failed sync.Once
	cause  error // the first
}

func newHub(size int) *hub {
	h := &hub{arenas: make([]arena, size), cancel: func(error) {}}
	b := board.New(size)
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
	s.failed.Do(func() {
		s.cause = &failure{s.rank, err}
		for rank, g := range s.groups {
			if rank != s.rank {
				g.fail(s.cause)
			}
		}
		s.cancel(s.cause)
	})
}

func (s seat) close() error { return nil }

func (s seat) alloc(n int) (trainer.Host, error) {
	if uint64(n) > arenaBytes/4 {
		return nil, fmt.Errorf("more than the %d that a rank can have", uint64(arenaBytes)/4)
	}
	return s.arenas[s.rank].alloc(n), nil
}

func (s seat) offset(v trainer.Host) (uint64, bool) { return s.arenas[s.rank].offset(v) }

func (s seat) span(rank int, off, n uint64) []float32 { return s.arenas[rank].span(off, n) }

// arena is a rank's memory: pieces of the Go heap, which is the memory that
// the race detector watches. An offset is the piece's number and the offset in
// the piece.
type arena struct {
	mu     sync.RWMutex
	pieces []trainer.Host
}

const pieceShift = 36 // a piece has up to arenaBytes

func (a *arena) alloc(n int) trainer.Host {
	mem := trainer.Host(aligned(n))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pieces = append(a.pieces, mem)
	return mem
}

func (a *arena) offset(v trainer.Host) (uint64, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for i, p := range a.pieces {
		if off, ok := within(v, p); ok {
			return uint64(i)<<pieceShift + off, true
		}
	}
	return 0, false
}

func (a *arena) span(off, n uint64) []float32 {
	if n == 0 {
		return nil
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	from := off % (1 << pieceShift) / 4
	return a.pieces[off>>pieceShift][from : from+n]
}

// aligned is n values at a multiple of 64 bytes.
func aligned(n int) []float32 {
	mem := make([]float32, n+15)
	skip := int(-address(mem)%64) / 4
	return mem[skip : skip+n : skip+n]
}

// within is the offset in bytes of v in mem, if it lies there.
func within(v, mem []float32) (off uint64, ok bool) {
	off, size := uint64(address(v)-address(mem)), 4*uint64(len(mem))
	return off, off%4 == 0 && off <= size && 4*uint64(len(v)) <= size-off
}

func address(v []float32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(v))) }
