package local

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/sum"
)

// post is a call as the other ranks see it.
type post board.Post

// What is called.
const (
	join uint32 = iota // an exchange of nothing
	exchange
	broadcast
	reduceSum // plus a trainer.Op
	reduceAverage
)

func (p post) String() string {
	switch p.What {
	case join:
		return "join"
	case exchange:
		return fmt.Sprintf("exchange of %d bytes", p.Length)
	case broadcast:
		return fmt.Sprintf("broadcast of %d values from rank %d", p.Length, p.Root)
	case reduceSum:
		return fmt.Sprintf("all-reduce (sum) of %d values", p.Length)
	default:
		return fmt.Sprintf("all-reduce (average) of %d values", p.Length)
	}
}

// call is a collective as this rank has started it.
type call struct {
	ctx context.Context
	post
	span trainer.Host
	mine []byte // for an exchange
	all  *[][]byte
}

// spanCall is a call on a span of this rank's arena.
func (g *Group) spanCall(ctx context.Context, what uint32, v trainer.Host, root int) (call, error) {
	c := call{ctx: ctx, post: post{What: what, Root: uint32(root), Length: uint64(len(v))}, span: v}
	if len(v) == 0 {
		return c, nil
	}
	g.mu.Lock()
	off, ok := g.medium.offset(v)
	g.mu.Unlock()
	if !ok {
		return c, fmt.Errorf("local: %v: the other ranks cannot reach the memory: take it from Alloc of this group", c.post)
	}
	c.Offset = off
	return c, nil
}

// perform makes one call; number is the call's, for its errors. What two
// ranks do to one span is between the first meeting, at which all have
// arrived with it, and the second, at which all have finished.
func (g *Group) perform(c call, number uint64) error {
	if c.What == exchange {
		return g.exchange(c, number)
	}
	if err := g.meet(c.ctx, c.post, number, false); err != nil {
		return err
	}
	if err := g.agree(number); err != nil {
		return err
	}
	if c.What != broadcast {
		g.reduce(c)
	} else if g.rank != int(c.Root) {
		copy(c.span, g.medium.span(int(c.Root), c.Offset, c.Length))
	}
	// A goroutine that has come to the first meeting comes to the second,
	// whatever happens: so no rank is told of an error while others are still
	// at work on its memory. A process may have died.
	return g.meet(c.ctx, c.post, number, !g.process)
}

// reduce writes this rank's part of the result into every rank's span.
func (g *Group) reduce(c call) {
	lo, hi := sum.Part(int(c.Length), g.rank, g.size)
	if lo == hi {
		return
	}
	g.spans = g.spans[:0]
	for rank := range g.size {
		g.spans = append(g.spans, g.medium.span(rank, c.Offset, c.Length)[lo:hi])
	}
	scale := float32(1)
	if c.What == reduceAverage {
		scale /= float32(g.size)
	}
	g.scratch.Spans(g.spans, scale)
	clear(g.spans)
}

// exchange goes by way of the boxes, in as many meetings as the longest needs.
func (g *Group) exchange(c call, number uint64) error {
	var all [][]byte
	for from, longest := 0, 0; ; from += board.BoxBytes {
		meeting := g.met
		copy(g.board.Box(g.rank, meeting), c.mine[min(from, len(c.mine)):])
		if err := g.meet(c.ctx, c.post, number, false); err != nil {
			return err
		}
		if all == nil {
			if err := g.agree(number); err != nil {
				return err
			}
			all, longest = g.receivers(meeting)
		}
		for rank, theirs := range all {
			copy(theirs[min(from, len(theirs)):], g.board.Box(rank, meeting))
		}
		if from+board.BoxBytes >= longest {
			*c.all = all
			return nil
		}
	}
}

// receivers are slices for what each rank brings, and the longest's length.
func (g *Group) receivers(meeting uint64) (all [][]byte, longest int) {
	total := 0
	for rank := range g.size {
		total += int(g.board.Post(rank, meeting).Length)
	}
	mem := make([]byte, total)
	all = make([][]byte, g.size)
	for rank := range all {
		n := int(g.board.Post(rank, meeting).Length)
		all[rank], mem = mem[:n:n], mem[n:]
		longest = max(longest, n)
	}
	return all, longest
}

// meet returns once all ranks have come to their next meeting. Where that
// must come about, nothing else ends it.
func (g *Group) meet(ctx context.Context, p post, number uint64, must bool) error {
	meeting := g.met
	if g.board.Arrive(g.rank, meeting, board.Post(p), must) {
		g.medium.ring()
	}
	for {
		heard := g.medium.listen()
		met, broken := g.board.State(meeting)
		switch {
		case met:
			g.met++
			return nil
		case must:
			g.medium.sleep(context.Background(), heard)
			continue
		case broken:
			return g.cause(p, number)
		case ctx.Err() != nil && g.board.Prevent(meeting):
			err := fmt.Errorf("local: %v (call %d): %w; %s not come", p, number, context.Cause(ctx), have(g.board.Late(meeting)))
			g.Fail(err)
			return err
		}
		g.medium.sleep(ctx, heard)
	}
}

// patience is how long a rank waits for the reason why another one has broken
// the group, which comes by another way than the news.
const patience = 5 * time.Second

// cause is why a meeting of a broken group did not come about.
func (g *Group) cause(p post, number uint64) error {
	if err := g.Err(); err != nil {
		return err
	}
	if left := g.board.Left(); left != nil {
		return fmt.Errorf("local: %v (call %d): %s left", p, number, have(left))
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-g.failed:
		return g.Err()
	case <-timeout.C:
		return fmt.Errorf("local: %v (call %d): another rank has broken the group and has not said why", p, number)
	}
}

// agree compares what the ranks posted for the meeting behind them. All see
// the same and come to the same error.
func (g *Group) agree(number uint64) error {
	first := post(g.board.Post(0, g.met-1))
	for rank := 1; rank < g.size; rank++ {
		other := post(g.board.Post(rank, g.met-1))
		same := other
		if other.What == exchange {
			same.Length = first.Length
		}
		if same == first {
			continue
		}
		if same.Offset = first.Offset; same == first {
			return fmt.Errorf("local: rank %d called %v at byte %d of its memory, rank 0 at %d (call %d): make the same calls of Alloc on every rank",
				rank, other, other.Offset, first.Offset, number)
		}
		return fmt.Errorf("local: rank %d called %v, rank 0 %v (call %d)", rank, other, first, number)
	}
	return nil
}

// have is "rank 1 has" or "ranks 1, 3 have".
func have(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d has", ranks[0])
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]") + " have"
}
