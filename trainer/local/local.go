// Package local is a trainer.Group of ranks on one machine: goroutines of one
// process, which [Spawn] starts, or processes that share memory, by [Join].
//
// Both kinds run the same collectives, so they give the same bits. Every
// rank's spans lie in an arena that all ranks can reach. In an all-reduce a
// rank takes one part of the span, adds up that part over all arenas in the
// order of the ranks, and writes the sum into all of them: nothing is staged,
// and no rank's speed changes the order of the additions.
//
// Between ranks there is a board: a word that says which meetings have come
// about, and for each rank to which it has come, what it called, and a box for
// bytes.
package local

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local/internal/arena"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/queue"
	"github.com/shardfeed/shardfeed/trainer/local/internal/sum"
)

// Group is one rank's end of the group: a trainer.Group of spans in the
// host's memory. Its methods may be called from several goroutines, as long
// as calls begin in the same order on all ranks.
//
// A call waits until all ranks have made it. If its ctx ends before, or
// Config.Timeout passes, its error names the ranks that have not come. By
// that, by ranks that make different calls, and by a rank that fails, dies or
// leaves, the group is broken: calls under way and later ones return an error
// that names the cause, on all ranks.
type Group struct {
	rank, size int
	board      board.Board
	arenas     []arena.Arena // by rank
	medium     medium
	timeout    time.Duration // Config's
	process    bool          // this rank is a process of its own: it may die in the middle of a call
	calls      *queue.Queue[call]

	// Of the goroutine that makes calls.
	met     uint64     // meetings behind this rank
	before  board.Post // the last call that went well
	spans   [][]float32
	scratch sum.Scratch

	mu      sync.Mutex // of this rank's arena, and of the fields below
	gone    bool       // the board must not be touched any more
	pids    []int      // of processes that have joined, by rank
	pending error      // what Close found
	telling sync.WaitGroup
}

// medium is what is not the same for goroutines and for processes.
type medium interface {
	// Ring ends every Sleep of all ranks with what they Heard before.
	Ring()
	Heard() uint32
	// Sleep may return for no reason, and must after d or if ctx has ended.
	Sleep(ctx context.Context, heard uint32, d time.Duration)
	// tell gives the others err as the reason why this rank ends.
	tell(err error)
	close() error
}

func newGroup(rank, size int, b board.Board, arenas []arena.Arena, m medium) *Group {
	g := &Group{rank: rank, size: size, board: b, arenas: arenas, medium: m}
	g.calls = queue.New(g.perform)
	return g
}

// Rank is this rank's number.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.size }

// Failed is closed once the group is broken. Err is the reason then.
func (g *Group) Failed() <-chan struct{} { return g.calls.Failed() }

// Err is why the group is broken, nil while it is not: an error that names
// the rank that failed or died, for a process a *rendezvous.RankError.
func (g *Group) Err() error { return g.calls.Err() }

// Alloc is n zeroed values at a multiple of 64 bytes, on which collectives
// work. Every rank makes the same calls of Alloc, so that a span lies at the
// same place in every arena; collectives check that. The memory lives until
// Close: a process that uses it later ends with a fault.
func (g *Group) Alloc(n int) (trainer.Host, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls.Closed() {
		return nil, fmt.Errorf("local: memory for %d values: %w", n, queue.ErrClosed)
	}
	if n < 0 || n > math.MaxInt/4 {
		return nil, fmt.Errorf("local: memory for %d values", n)
	}
	v, err := g.arenas[g.rank].Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("local: memory for %d values: %w", n, err)
	}
	return v, nil
}

// AllReduce starts to replace v, which Alloc gave whole or in part, by the
// reduction over all ranks: ((v0+v1)+v2)+… in float32, for an Average with
// every addend multiplied by float32(1)/float32(Size) before. It returns at
// once; v belongs to the group until wait has returned. wait need not be
// called, and may be called more than once.
func (g *Group) AllReduce(ctx context.Context, v trainer.Host, op trainer.Op) (wait func() error, err error) {
	if op != trainer.Sum && op != trainer.Average {
		return nil, fmt.Errorf("local: all-reduce with the operation %d, which does not exist", op)
	}
	c, err := g.spanCall(ctx, board.Reduce+uint32(op), v, 0)
	if err != nil {
		return nil, err
	}
	n, err := g.start(c)
	if err != nil {
		return nil, err
	}
	g.calls.Go()
	return func() error { return g.calls.Wait(n) }, nil
}

// Broadcast replaces v, which Alloc gave whole or in part, by the root's.
func (g *Group) Broadcast(ctx context.Context, v trainer.Host, root int) error {
	if root < 0 || root >= g.size {
		return fmt.Errorf("local: broadcast from rank %d: there are the ranks 0 to %d", root, g.size-1)
	}
	c, err := g.spanCall(ctx, board.Broadcast, v, root)
	if err != nil {
		return err
	}
	return g.do(c)
}

// Exchange gives every rank what each rank brought, by rank. Lengths may
// differ. The caller owns all.
func (g *Group) Exchange(ctx context.Context, mine []byte) (all [][]byte, err error) {
	err = g.do(call{ctx: ctx, Post: board.Post{What: board.Exchange, Length: uint64(len(mine))}, mine: mine, all: &all})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Fail breaks the group: calls of this rank return err, those of the others
// return an error that names this rank and says what err says. A process that
// ends for an error calls it before Close; Spawn does it by itself. It does
// nothing where err is nil or the group is broken already.
func (g *Group) Fail(err error) {
	if err != nil && g.fail(err) {
		g.Err() // the caller knows
		g.medium.tell(err)
	}
}

// Close ends this rank's part and frees its memory. Where a call is pending
// still, that breaks the group and is an error; so is a broken group, unless
// a call has said so before. Calls of the others that need this rank later are
// errors that say that it has left; a goroutine has left once its function has
// returned. On rank 0 of processes it waits for the others to leave, too, for
// Config.Timeout or else 5 s, and then is an error that names those that have
// not. Further calls of Close do nothing.
func (g *Group) Close() error {
	pending, first := g.calls.Close()
	if !first {
		return nil
	}
	if pending > 0 {
		if err := fmt.Errorf("local: rank %d closed the group with %d calls pending", g.rank, pending); g.fail(err) {
			g.pending = err
		}
	}
	g.calls.Rest()
	if g.process {
		g.leave()
	}
	g.telling.Wait()
	err, whole := cmp.Or(g.pending, g.calls.News()), g.whole()
	switch {
	case g.process && g.pending != nil:
		g.medium.tell(g.pending)
	case g.process && g.rank == 0 && whole:
		err = g.seeOff()
	}
	if closing := g.medium.close(); whole && err == nil {
		err = closing
	}
	return err
}

// leave lets the others know that this rank takes part no longer. Where the
// group is broken they know a better reason why it is.
func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		g.board.Leave(g.rank, g.whole())
		g.medium.Ring()
	}
	g.gone = true
}

// seeOff waits until all ranks have left; it is rank 0 that passes on news.
func (g *Group) seeOff() error {
	timeout := cmp.Or(g.timeout, patience)
	for waited := time.Duration(0); ; {
		heard := g.medium.Heard()
		here := g.board.Here()
		switch {
		case len(here) == 0 || !g.whole():
			return nil
		case waited >= timeout:
			err := &TimeoutError{Ranks: here, Call: "close of rank 0", After: timeout, where: g.where(here)}
			g.Fail(err)
			return err
		}
		waited += g.sleep(context.Background(), heard, timeout-waited)
	}
}

// whole says whether the group is not broken.
func (g *Group) whole() bool {
	select {
	case <-g.calls.Failed():
		return false
	default:
		return true
	}
}

// fail breaks the group by err, and says whether it was whole before.
func (g *Group) fail(err error) bool {
	if !g.calls.Fail(err) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		g.board.Break(g.rank)
		g.medium.Ring()
	}
	return true
}

// start puts a call into the queue, and do waits for it.
func (g *Group) start(c call) (n uint64, err error) {
	if n, err = g.calls.Start(c); err == queue.ErrClosed {
		err = fmt.Errorf("local: %v: %w", c.Post, err)
	}
	return n, err
}

func (g *Group) do(c call) error {
	n, err := g.start(c)
	if err != nil {
		return err
	}
	return g.calls.Wait(n)
}
