package local

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/shardfeed/shardfeed/trainer"
)

// slow is a seat that stops at the beginning of its part of an all-reduce.
type slow struct {
	medium
	at, on chan struct{}
}

func (s slow) span(rank int, off, n uint64) []float32 {
	if rank == 0 {
		s.at <- struct{}{}
		<-s.on
	}
	return s.medium.span(rank, off, n)
}

// A rank gets no error while another one still works on its memory.
func TestFailureWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(2)
		s := slow{h.groups[1].medium, make(chan struct{}), make(chan struct{})}
		h.groups[1].medium = s
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
		<-s.at
		returned := false
		go func() {
			waits[0]()
			returned = true
		}()
		h.groups[0].Fail(errors.New("enough"))
		synctest.Wait()
		if returned {
			t.Error("rank 0 has its memory back, and rank 1 is at work on it")
		}
		close(s.on)
		synctest.Wait()
		if !returned {
			t.Error("rank 0 still waits")
		}
		for _, g := range h.groups {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
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
		})
		if n := met.Load(); n != 0 && n != 3 || (n == 3) != (err == nil) {
			t.Fatalf("%d of 3 ranks have met, and the error is %v", n, err)
		}
		if err != nil && !errors.Is(err, enough) {
			t.Fatal(err)
		}
	}
}
