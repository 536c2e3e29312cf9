package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/shardfeed/shardfeed/trainer/local/internal/arena"
	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
)

// Ranks are the ranks that Spawn has started.
type Ranks struct {
	hub  *hub
	done chan struct{}
	err  error // set before done is closed
}

// Spawn is [Config.Spawn] without a Timeout.
func Spawn(ctx context.Context, size int, f func(context.Context, *Group) error) *Ranks {
	return Config{}.Spawn(ctx, size, f)
}

// Spawn starts f on size ranks, each a goroutine, and returns at once; Wait
// waits for them. A panic and runtime.Goexit in f are errors of their rank.
// When a rank has failed, the others' collectives return an error that wraps
// its error, and their context ends. f's group is closed for it when it
// returns.
func (c Config) Spawn(ctx context.Context, size int, f func(context.Context, *Group) error) *Ranks {
	r := &Ranks{done: make(chan struct{})}
	if size < 1 || size > board.MaxRanks {
		r.err = fmt.Errorf("local: a group of %d ranks: 1 to %d are possible", size, board.MaxRanks)
		close(r.done)
		return r
	}
	r.hub = newHub(size, c.Timeout)
	ctx, r.hub.cancel = context.WithCancelCause(ctx)
	var ranks sync.WaitGroup
	for _, g := range r.hub.groups {
		ranks.Go(func() { r.hub.rank(ctx, g, f) })
	}
	go func() {
		ranks.Wait()
		r.hub.stop(nil) // from now on it is too late
		r.err = r.hub.cause
		close(r.done)
	}()
	return r
}

// Wait waits until all ranks have ended: nil where all returned nil, otherwise
// the first error, which names its rank. It may be called more than once.
func (r *Ranks) Wait() error {
	<-r.done
	return r.err
}

// Done is closed once all ranks have ended.
func (r *Ranks) Done() <-chan struct{} { return r.done }

// Stop ends the ranks in order: their contexts end with cause, or
// context.Canceled where that is nil, and their collectives fail with it. It
// does not wait for them, and does nothing once a rank has failed.
func (r *Ranks) Stop(cause error) {
	if r.hub != nil {
		r.hub.stop(cmp.Or(cause, context.Canceled))
	}
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
		g.leave()
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
	groups  []*Group
	timeout time.Duration
	bells   []chan struct{}
	cancel  context.CancelCauseFunc
	ended   sync.Once
	cause   error // the first
}

func newHub(size int, timeout time.Duration) *hub {
	h := &hub{timeout: timeout, cancel: func(error) {}}
	b := board.New(size)
	var arenas []arena.Arena
	for range size {
		arenas = append(arenas, new(arena.Heap))
	}
	for rank := range size {
		h.bells = append(h.bells, make(chan struct{}, 1))
		g := newGroup(rank, size, b, arenas, seat{h, rank})
		g.timeout = timeout
		h.groups = append(h.groups, g)
	}
	return h
}

// stop ends all ranks because of the first cause.
func (h *hub) stop(cause error) {
	h.ended.Do(func() {
		h.cause = cause
		for _, g := range h.groups {
			g.fail(cause)
		}
		h.cancel(cause)
	})
}

// seat is a rank's place at the hub.
type seat struct {
	*hub
	rank int
}

func (s seat) Ring() {
	for _, bell := range s.bells {
		select {
		case bell <- struct{}{}:
		default: // it has not heard the last one yet
		}
	}
}

func (s seat) Heard() uint32 { return 0 } // the bell's channel remembers

func (s seat) Sleep(ctx context.Context, _ uint32, d time.Duration) {
	var passed <-chan time.Time
	if s.timeout > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-s.bells[s.rank]:
	case <-ctx.Done():
	case <-passed:
	}
}

func (s seat) tell(err error) {
	var late *TimeoutError
	if errors.As(err, &late) {
		s.stop(late) // it says itself who is to blame
	} else {
		s.stop(&failure{s.rank, err})
	}
}

func (s seat) close() error { return nil }
