package segment

import (
	"context"
	"errors"
	"time"

	"github.com/shardfeed/shardfeed/trainer/local/internal/arena"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/shm"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// Segment is the memory as one rank sees it.
type Segment struct {
	board.Board
	Arenas []arena.Arena // by rank

	mem *shm.Memory
}

// Share gives every rank of a run the memory that rank 0 makes. Detach is to
// be called once all have it.
func Share(ctx context.Context, store *rendezvous.Store) (*Segment, error) {
	const key = "local/memory"
	size := store.World().Size
	if store.World().Rank != 0 {
		ticket, err := store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		mem, err := shm.Open(ticket)
		if err != nil {
			return nil, err
		}
		return on(mem, size), nil
	}
	// As large as the system allows.
	each := arena.Bytes
	mem, err := shm.Create(first(size) + size*each)
	for ; err != nil && each > 1<<20; mem, err = shm.Create(first(size) + size*each) {
		each /= 2
	}
	if err != nil {
		return nil, err
	}
	if err := store.Set(ctx, key, mem.Ticket()); err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	return on(mem, size), nil
}

// first is where the first arena of a group of that size begins: at a huge
// page.
func first(size int) int { return (board.Size(size) + 2<<20 - 1) &^ (2<<20 - 1) }

func on(mem *shm.Memory, size int) *Segment {
	s := &Segment{Board: board.On(mem.Bytes, size), mem: mem}
	each := (len(mem.Bytes) - first(size)) / size
	for at := first(size); len(s.Arenas) < size; at += each {
		back := func(i, j int) error { return mem.Back(at+i, at+j) }
		s.Arenas = append(s.Arenas, arena.On(mem.Bytes[at:at+each], back))
	}
	return s
}

// spins is how often a rank looks before it sleeps: about 10 µs, what it costs
// to be woken.
const spins = 30000

// Sleep returns once the bell has rung more often than heard, after d, or when
// ctx's deadline has come; or for no reason.
func (s *Segment) Sleep(ctx context.Context, heard uint32, d time.Duration) {
	for range spins {
		if s.Heard() != heard {
			return
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		d = max(0, min(d, time.Until(deadline)))
	}
	s.Board.Sleep(heard, d)
}

// Detach closes the memory's file, when all processes have the memory.
func (s *Segment) Detach() error { return s.mem.Detach() }

// Close gives the memory up.
func (s *Segment) Close() error { return s.mem.Close() }
