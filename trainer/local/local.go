// Package local is a trainer.Group of ranks on one machine: goroutines of one
// process, which [Spawn] starts, or processes that share memory, by [Join].
//
// Both kinds run the same collectives, so they give the same bits. Every
// rank's spans lie in an arena that all ranks can reach. In an all-reduce a
// rank takes one part of the span, adds up that part over all arenas in the
// order of the ranks, and writes the sum into all of them: nothing is staged,
// and no rank's speed changes the order of the additions.
//
// Between ranks there is a board: a word that counts who has come to the next
// meeting, and for each rank a slot for what it called and a box for bytes.
package local

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/sum"
)

// Group is one rank's end of the group: a trainer.Group of spans in the
// host's memory. Its methods may be called from several goroutines, as long
// as calls begin in the same order on all ranks.
//
// A call waits until all ranks have made it. If its ctx ends before, its error
// names the ranks that have not come. By that, by ranks that make different
// calls, and by a rank that fails, dies or leaves, the group is broken: calls
// under way and later ones return an error that names the cause, on all ranks.
type Group struct {
	rank, size int
	board      board.Board
	medium     medium
	process    bool          // this rank is a process of its own: it may die in the middle of a call
	background func()        // g.run, made once
	failed     chan struct{} // closed once err is set

	// Of the goroutine that works on the queue.
	met     uint64 // meetings behind this rank
	spans   [][]float32
	scratch sum.Scratch

	mu      sync.Mutex
	changed sync.Cond // any of the fields below
	queue   []call    // started and not begun
	started uint64    // calls
	ended   uint64    // calls that went well
	running bool      // a goroutine works on the queue
	closed  bool      // by Close: no further calls
	gone    bool      // the board must not be touched any more
	pending error     // what Close found
	err     error     // why the group is broken
}

// medium is what is not the same for goroutines and for processes.
type medium interface {
	alloc(n int) (trainer.Host, error)
	// offset is where v begins in this rank's arena, in bytes; ok is false for
	// memory that alloc did not give.
	offset(v trainer.Host) (off uint64, ok bool)
	// span is the n values at off in the arena of a rank that has posted them.
	span(rank int, off, n uint64) []float32
	// ring ends every sleep of all ranks that began with an earlier listen.
	ring()
	listen() (heard uint32)
	// sleep may return for no reason, and must before long if ctx has ended.
	sleep(ctx context.Context, heard uint32)
	// tell gives the others err as the reason why this rank ends.
	tell(err error)
	close() error
}

func newGroup(rank, size int, b board.Board, m medium) *Group {
	g := &Group{rank: rank, size: size, board: b, medium: m, failed: make(chan struct{})}
	g.changed.L = &g.mu
	g.background = g.run
	return g
}

// Rank is this rank's number.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.size }

// Failed is closed once the group is broken. Err is the reason then.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Err is why the group is broken, nil while it is not: an error that names
// the rank that failed or died, for a process a *rendezvous.RankError.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Alloc is n zeroed values at a multiple of 64 bytes, on which collectives
// work. Every rank makes the same calls of Alloc, so that a span lies at the
// same place in every arena; collectives check that. The memory lives until
// Close: a process that uses it later ends with a fault.
func (g *Group) Alloc(n int) (trainer.Host, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("local: memory for %d values: the group is closed", n)
	}
	if n < 0 || n > math.MaxInt/4 {
		return nil, fmt.Errorf("local: memory for %d values", n)
	}
	v, err := g.medium.alloc(n)
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
	c, err := g.spanCall(ctx, reduceSum+uint32(op), v, 0)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := g.start(c)
	if err != nil {
		return nil, err
	}
	if !g.running {
		g.running = true
		go g.background()
	}
	return func() error { return g.wait(n) }, nil
}

// Broadcast replaces v, which Alloc gave whole or in part, by the root's.
func (g *Group) Broadcast(ctx context.Context, v trainer.Host, root int) error {
	if root < 0 || root >= g.size {
		return fmt.Errorf("local: broadcast from rank %d: there are the ranks 0 to %d", root, g.size-1)
	}
	c, err := g.spanCall(ctx, broadcast, v, root)
	if err != nil {
		return err
	}
	return g.do(c)
}

// Exchange gives every rank what each rank brought, by rank. Lengths may
// differ. The caller owns all.
func (g *Group) Exchange(ctx context.Context, mine []byte) (all [][]byte, err error) {
	err = g.do(call{ctx: ctx, post: post{What: exchange, Length: uint64(len(mine))}, mine: mine, all: &all})
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
		g.medium.tell(err)
	}
}

// Close ends this rank's part and frees its memory. Where a call is pending
// still, that breaks the group and is an error. Calls of the others that
// need this rank later are errors that say that it has left; a goroutine has
// left once its function has returned. On rank 0 of processes it waits up to
// 5 s for the others to leave, too. Further calls of Close do nothing.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	if n := g.started - g.ended; n > 0 && g.err == nil {
		g.pending = fmt.Errorf("local: rank %d closed the group with %d calls pending", g.rank, n)
		g.breakUp(g.pending)
	}
	for g.running {
		g.changed.Wait()
	}
	if g.process {
		g.leave()
	}
	pending, broken := g.pending, g.err != nil
	g.mu.Unlock()
	if g.process && pending != nil {
		g.medium.tell(pending)
	}
	if err := g.medium.close(); !broken {
		return err
	}
	return pending
}

// leave lets the others know that this rank takes part no longer. Where the
// group is broken they know better. The caller holds mu.
func (g *Group) leave() {
	if g.err == nil && !g.gone {
		g.board.Leave(g.rank)
		g.medium.ring()
	}
	g.gone = true
}

// fail breaks the group by err, and says whether it was whole before.
func (g *Group) fail(err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breakUp(err)
}

// breakUp is fail for a caller that holds mu.
func (g *Group) breakUp(err error) bool {
	if g.err != nil {
		return false
	}
	g.err = err
	close(g.failed)
	g.changed.Broadcast()
	if !g.gone {
		g.board.Break()
		g.medium.ring()
	}
	return true
}

// start puts a call into the queue; the caller holds mu and sees to it that a
// goroutine works on the queue.
func (g *Group) start(c call) (n uint64, err error) {
	switch {
	case g.closed:
		return 0, fmt.Errorf("local: %v: the group is closed", c.post)
	case g.err != nil:
		return 0, g.err
	}
	g.started++
	g.queue = append(g.queue, c)
	return g.started, nil
}

// do starts a call and waits for it. Where nothing else is under way the
// caller's goroutine does the work, which saves two changes of goroutine.
func (g *Group) do(c call) error {
	g.mu.Lock()
	n, err := g.start(c)
	if err == nil && !g.running {
		g.running = true
		g.work(n)
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	return g.wait(n)
}

// wait waits for the n-th call. A call that has failed still has its spans
// until the runner has stopped.
func (g *Group) wait(n uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.ended < n && (g.err == nil || g.running) {
		g.changed.Wait()
	}
	if g.ended < n {
		return g.err
	}
	return nil
}

func (g *Group) run() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.work(math.MaxUint64)
}

// work makes the calls in the queue, in order, until the n-th has ended; what
// is queued behind that goes on in the background. The caller holds mu and
// has set running.
func (g *Group) work(n uint64) {
	for len(g.queue) > 0 && g.err == nil {
		if g.ended >= n {
			go g.background()
			return
		}
		c := g.queue[0]
		copy(g.queue, g.queue[1:])
		g.queue[len(g.queue)-1] = call{}
		g.queue = g.queue[:len(g.queue)-1]
		number := g.ended + 1
		g.mu.Unlock()
		err := g.perform(c, number)
		g.mu.Lock()
		if err != nil {
			g.breakUp(err)
			break
		}
		g.ended++
		g.changed.Broadcast()
	}
	clear(g.queue)
	g.queue = g.queue[:0]
	g.running = false
	g.changed.Broadcast()
}
