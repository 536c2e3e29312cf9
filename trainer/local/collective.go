package local

import (
	"context"
	"fmt"

	"github.com/shardfeed/shardfeed/trainer"
)

// call is a collective as this rank has started it.
type call struct {
	ctx context.Context
	post
	span trainer.Host
	mine []byte // for an exchange
	all  *[][]byte
}

// spanCall is a call on a span of this rank's arena.
func (g *Group) spanCall(ctx context.Context, what what, v trainer.Host, root int) (call, error) {
	c := call{ctx: ctx, post: post{what: what, root: uint32(root), length: uint64(len(v))}, span: v}
	if len(v) == 0 {
		return c, nil
	}
	g.mu.Lock()
	off, ok := g.medium.offset(v)
	g.mu.Unlock()
	if !ok {
		return c, fmt.Errorf("local: %v: the other ranks cannot reach the memory: take it from Alloc of this group", c.post)
	}
	c.offset = off
	return c, nil
}

// perform makes one call; number is the call's, for its errors. What two
// ranks do to one span is between the first meeting, at which all have
// arrived with it, and the second, at which all have finished.
func (g *Group) perform(c call, number uint64) error {
	if c.what == exchange {
		return g.exchange(c, number)
	}
	if err := g.meet(c.ctx, c.post, number, "come", false); err != nil {
		return err
	}
	if err := g.agree(number); err != nil {
		return err
	}
	switch c.what {
	case broadcast:
		if g.rank != int(c.root) {
			copy(c.span, g.medium.span(int(c.root), c.offset, c.length))
		}
	default:
		g.reduce(c)
	}
	// A goroutine that has come to the first meeting comes to the second,
	// whatever happens: so no rank is told of an error while others are still
	// at work on its memory. A process may have died.
	return g.meet(c.ctx, c.post, number, "finished", !g.process)
}

// exchange goes by way of the boxes, in as many meetings as the longest needs.
func (g *Group) exchange(c call, number uint64) error {
	var all [][]byte
	for from, longest := 0, 0; ; from += boxBytes {
		meeting := g.met
		copy(g.board.box(g.rank, meeting), c.mine[min(from, len(c.mine)):])
		if err := g.meet(c.ctx, c.post, number, "come", false); err != nil {
			return err
		}
		if all == nil {
			if err := g.agree(number); err != nil {
				return err
			}
			all, longest = g.receivers(meeting)
		}
		for rank, theirs := range all {
			copy(theirs[min(from, len(theirs)):], g.board.box(rank, meeting))
		}
		if from+boxBytes >= longest {
			*c.all = all
			return nil
		}
	}
}

// receivers are slices for what each rank brings, and the longest's length.
func (g *Group) receivers(meeting uint64) (all [][]byte, longest int) {
	total := 0
	for rank := range g.size {
		total += int(g.board.post(rank, meeting).length)
	}
	mem := make([]byte, total)
	all = make([][]byte, g.size)
	for rank := range all {
		n := int(g.board.post(rank, meeting).length)
		all[rank], mem = mem[:n:n], mem[n:]
		longest = max(longest, n)
	}
	return all, longest
}

// meet returns once all ranks have come to their next meeting. Where that
// must come about, nothing else ends it.
func (g *Group) meet(ctx context.Context, p post, number uint64, missing string, must bool) error {
	meeting := g.met
	*g.board.post(g.rank, meeting) = p
	g.board.slots[g.rank].arrived.Store(meeting + 1)
	if g.board.arrive(meeting, must) {
		g.medium.ring()
	}
	for {
		heard := g.medium.listen()
		s := g.board.state.Load()
		switch {
		case s>>meetings > meeting:
			g.met++
			return nil
		case must:
			g.medium.sleep(context.Background(), heard)
			continue
		case s&broken != 0:
			return g.cause(p, number)
		case ctx.Err() != nil && g.board.prevent(meeting):
			late := g.board.ranks(func(s *slot) bool { return s.arrived.Load() <= meeting })
			err := fmt.Errorf("local: %v (call %d): %w; %s not %s", p, number, context.Cause(ctx), have(late), missing)
			g.Fail(err)
			return err
		}
		g.medium.sleep(ctx, heard)
	}
}

// agree compares what the ranks posted for the meeting behind them. All see
// the same and come to the same error.
func (g *Group) agree(number uint64) error {
	first := *g.board.post(0, g.met-1)
	for rank := 1; rank < g.size; rank++ {
		other := *g.board.post(rank, g.met-1)
		same := other
		if other.what == exchange {
			same.length = first.length
		}
		if same == first {
			continue
		}
		if same.offset = first.offset; same == first {
			return fmt.Errorf("local: rank %d called %v at byte %d of its memory, rank 0 at %d (call %d): make the same calls of Alloc on every rank",
				rank, other, other.offset, first.offset, number)
		}
		return fmt.Errorf("local: rank %d called %v, rank 0 %v (call %d)", rank, other, first, number)
	}
	return nil
}
