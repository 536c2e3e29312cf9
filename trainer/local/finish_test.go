package local

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local/internal/arena"
)

// hooked is an arena in which an all-reduce calls before, when all ranks have
// come, at the beginning of its part.
type hooked struct {
	arena.Arena
	before func()
}

func (h hooked) Span(off, n uint64) []float32 {
	h.before()
	return h.Arena.Span(off, n)
}

// InReduce has this rank's next all-reduces call f.
func (g *Group) InReduce(f func()) {
	g.arenas = slices.Clone(g.arenas)
	g.arenas[0] = hooked{g.arenas[0], f}
}

// SetTimeout changes Config.Timeout, so that it bounds a call and not Join.
func (g *Group) SetTimeout(d time.Duration) { g.timeout = d }

// A rank gets no error while another one still works on its memory.
func TestFailureWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(2, time.Second) // which is no reason either
		at, on := make(chan struct{}), make(chan struct{})
		h.groups[1].InReduce(func() {
			at <- struct{}{}
			<-on
		})
		var waits []func() error
		for _, g := range h.groups {
			v, err := g.Alloc(100)
			if err != nil {
				t.Fatal(err)
			}
			wait, err := g.AllReduce(t.Context(), v, trainer.Sum)
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, wait)
		}
		<-at
		returned := false
		go func() {
			waits[0]()
			returned = true
		}()
		<-time.After(time.Minute)
		h.groups[0].Fail(errors.New("enough"))
		synctest.Wait()
		if returned {
			t.Error("rank 0 has its memory back, and rank 1 is at work on it")
		}
		close(on)
		synctest.Wait()
		if !returned {
			t.Error("rank 0 still waits")
		}
		if err := h.groups[0].Close(); err != nil {
			t.Errorf("a Close that brings no news: %v", err)
		}
		if err := h.groups[1].Close(); err == nil || !strings.Contains(err.Error(), "rank 0 failed: enough") {
			t.Errorf("the first that rank 1 hears of it is %v", err)
		}
	})
}

// However a cancellation falls between the arrivals, a meeting comes about
// for all ranks or for none.
func TestAllOrNone(t *testing.T) {
	enough := errors.New("enough")
	for trial := range 300 {
		ctx, cancel := context.WithCancelCause(t.Context())
		var met atomic.Int32
		err := Spawn(t.Context(), 3, func(_ context.Context, g *Group) error {
			if g.Rank() == trial%3 {
				go cancel(enough)
			}
			_, err := g.Exchange(ctx, nil)
			if err == nil {
				met.Add(1)
			}
			return err
		}).Wait()
		if n := met.Load(); n != 0 && n != 3 || (n == 3) != (err == nil) {
			t.Fatalf("%d of 3 ranks have met, and the error is %v", n, err)
		}
		if err != nil && !errors.Is(err, enough) {
			t.Fatal(err)
		}
	}
}
