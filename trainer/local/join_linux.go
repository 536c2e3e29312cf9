package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/shm"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

func joinProcesses(ctx context.Context, w rendezvous.World) (*Group, error) {
	store, err := rendezvous.Join(ctx, w)
	if err != nil {
		return nil, err
	}
	mem, err := share(ctx, store, w)
	if err != nil {
		err = fmt.Errorf("local: rank %d: %w", w.Rank, err)
		store.Fail(err)
		store.Close()
		return nil, err
	}
	s := newSegment(mem, w.Rank, w.Size)
	s.store, s.closing = store, make(chan struct{})
	g := newGroup(w.Rank, w.Size, s.Board, s)
	g.process = true
	s.watch.Go(func() {
		select {
		case <-store.Failed():
			g.fail(store.Err())
		case <-s.closing:
		}
	})
	// When all have met, all have mapped the memory.
	if err = g.exchange(call{ctx: ctx, all: new([][]byte)}, 0); err == nil {
		err = mem.Detach()
	}
	if err != nil {
		g.Fail(err)
		g.Close()
		return nil, err
	}
	return g, nil
}

// share gives every rank the memory that rank 0 makes.
func share(ctx context.Context, store *rendezvous.Store, w rendezvous.World) (*shm.Memory, error) {
	const key = "local/memory"
	if w.Rank != 0 {
		ticket, err := store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		return shm.Open(ticket)
	}
	// As large as the system allows.
	each := arenaBytes
	mem, err := shm.Create(arenas(w.Size) + w.Size*each)
	for ; err != nil && each > 1<<20; mem, err = shm.Create(arenas(w.Size) + w.Size*each) {
		each /= 2
	}
	if err != nil {
		return nil, err
	}
	if err := store.Set(ctx, key, mem.Ticket()); err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	return mem, nil
}

// segment is the memory that the processes of a group share as one of them
// sees it: the board, then an arena a rank.
type segment struct {
	board.Board
	mem   *shm.Memory
	rank  int
	first int // where the first arena begins
	each  int // bytes of an arena
	used  int // bytes of this rank's arena

	store   *rendezvous.Store
	closing chan struct{}
	watch   sync.WaitGroup
}

// arenas is where the arenas of a group of that size begin: at a huge page.
func arenas(size int) int { return (board.Size(size) + 2<<20 - 1) &^ (2<<20 - 1) }

func newSegment(mem *shm.Memory, rank, size int) *segment {
	first := arenas(size)
	return &segment{Board: board.On(mem.Bytes, size), mem: mem, rank: rank, first: first, each: (len(mem.Bytes) - first) / size}
}

func (s *segment) alloc(n int) (trainer.Host, error) {
	if left := s.each - s.used; n > left/4 {
		return nil, fmt.Errorf("%d of the %d bytes of address space that a rank can have are left", left, s.each)
	}
	at := s.first + s.rank*s.each + s.used
	if err := s.mem.Back(at, at+4*n); err != nil {
		return nil, err
	}
	v := s.span(s.rank, uint64(s.used), uint64(n))
	s.used = min((s.used+4*n+63)&^63, s.each)
	return v, nil
}

func (s *segment) offset(v trainer.Host) (uint64, bool) {
	return within(v, s.span(s.rank, 0, uint64(s.used/4)))
}

func (s *segment) span(rank int, off, n uint64) []float32 {
	at := uint64(s.first+rank*s.each) + off
	mem := s.mem.Bytes[at : at+4*n]
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
}

// spins is how often a rank looks before it sleeps: about 10 µs, what it costs
// to be woken.
const spins = 30000

// nap bounds a sleep, after which a rank looks whether its context has ended.
const nap = 50 * time.Millisecond

func (s *segment) listen() uint32 { return s.Bell.Load() }

func (s *segment) sleep(ctx context.Context, heard uint32) {
	for range spins {
		if s.Bell.Load() != heard {
			return
		}
	}
	d := nap
	if deadline, ok := ctx.Deadline(); ok {
		d = max(0, min(d, time.Until(deadline)))
	}
	s.doze(heard, d)
}

// doze sleeps until the bell rings, for at most d.
func (s *segment) doze(heard uint32, d time.Duration) {
	timeout := unix.NsecToTimespec(int64(d))
	s.Sleepers.Add(1)
	futex(&s.Bell, futexWait, heard, &timeout)
	s.Sleepers.Add(^uint32(0))
}

func (s *segment) ring() {
	s.Bell.Add(1)
	if s.Sleepers.Load() != 0 {
		futex(&s.Bell, futexWake, board.MaxRanks, nil)
	}
}

// The operations of futex(2), between processes.
const (
	futexWait = 0
	futexWake = 1
)

// futex sleeps while word is val, or wakes val sleepers. It may end for no
// reason, so it has no error that matters.
func futex(word *atomic.Uint32, op int, val uint32, timeout *unix.Timespec) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), uintptr(op), uintptr(val), uintptr(unsafe.Pointer(timeout)), 0, 0)
}

func (s *segment) tell(err error) { s.store.Fail(err) }

func (s *segment) close() error {
	close(s.closing)
	s.watch.Wait()
	return errors.Join(s.mem.Close(), s.store.Close())
}
