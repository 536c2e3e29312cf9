package local

import (
	"context"
	"fmt"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/sum"
)

// call is a collective as this rank has started it.
type call struct {
	ctx context.Context
	board.Post
	span trainer.Host
	mine []byte // for an exchange
	all  *[][]byte
}

// spanCall is a call on a span of this rank's arena.
func (g *Group) spanCall(ctx context.Context, what uint32, v trainer.Host, root int) (call, error) {
	c := call{ctx: ctx, Post: board.Post{What: what, Root: uint32(root), Length: uint64(len(v))}, span: v}
	if len(v) == 0 {
		return c, nil
	}
	g.mu.Lock()
	off, ok := g.arenas[g.rank].Offset(v)
	g.mu.Unlock()
	if !ok {
		return c, fmt.Errorf("local: %v: the other ranks cannot reach the memory: take it from Alloc of this group", c.Post)
	}
	c.Offset = off
	return c, nil
}

// perform makes one call; number is the call's, for its errors. An error
// breaks the group.
func (g *Group) perform(c call, number uint64) (err error) {
	if c.What == board.Exchange {
		err = g.exchange(c, number)
	} else {
		err = g.onSpans(c, number)
	}
	g.fail(err)
	g.before = c.Post
	return err
}

// onSpans is a broadcast or an all-reduce. What two ranks do to one span is
// between the first meeting, at which all have arrived with it, and the
// second, at which all have finished.
func (g *Group) onSpans(c call, number uint64) error {
	if err := g.meet(c.ctx, c.Post, number, false); err != nil {
		return err
	}
	if err := g.agree(number); err != nil {
		return err
	}
	if c.What != board.Broadcast {
		g.reduce(c)
	} else if g.rank != int(c.Root) {
		copy(c.span, g.arenas[c.Root].Span(c.Offset, c.Length))
	}
	// A goroutine that has come to the first meeting comes to the second,
	// whatever happens: so no rank is told of an error while others are still
	// at work on its memory. A process may have died.
	return g.meet(c.ctx, c.Post, number, !g.process)
}

// reduce writes this rank's part of the result into every rank's span.
func (g *Group) reduce(c call) {
	lo, hi := sum.Part(int(c.Length), g.rank, g.size)
	if lo == hi {
		return
	}
	g.spans = g.spans[:0]
	for _, a := range g.arenas {
		g.spans = append(g.spans, a.Span(c.Offset, c.Length)[lo:hi])
	}
	scale := float32(1)
	if c.What == board.Reduce+uint32(trainer.Average) {
		scale /= float32(g.size)
	}
	g.scratch.Spans(g.spans, scale)
	clear(g.spans)
}

// exchange goes by way of the boxes, in as many meetings as the longest needs.
func (g *Group) exchange(c call, number uint64) error {
	var all [][]byte
	for from, more := 0, true; more; from += board.BoxBytes {
		meeting := g.met
		g.board.Bring(g.rank, meeting, c.mine, from)
		if err := g.meet(c.ctx, c.Post, number, false); err != nil {
			return err
		}
		if all == nil {
			if err := g.agree(number); err != nil {
				return err
			}
			all = g.board.Receivers(meeting)
		}
		more = g.board.Take(meeting, all, from)
	}
	*c.all = all
	return nil
}
