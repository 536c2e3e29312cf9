package local_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/internal/grouptest"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

var _ trainer.Group[trainer.Host] = (*local.Group)(nil)

// Goroutines as ranks, in a bubble, in which one left behind fails the test.
func TestGoroutines(t *testing.T) {
	grouptest.Test(t, []int{1, 2, 3, 4}, func(t *testing.T, size int, c grouptest.Case[trainer.Host]) []error {
		errs := make([]error, size)
		synctest.Test(t, func(t *testing.T) {
			local.Spawn(t.Context(), size, func(ctx context.Context, g *local.Group) error {
				errs[g.Rank()] = c.Rank(ctx, g)
				return errs[g.Rank()]
			}).Wait()
		})
		return errs
	})
}

// What Spawn returns, by how its ranks end.
func TestSpawn(t *testing.T) {
	boom := errors.New("boom")
	meet := func(ctx context.Context, g *local.Group) error {
		_, err := g.Exchange(ctx, nil)
		return err
	}
	for _, test := range []struct {
		name string
		f    func(ctx context.Context, g *local.Group) error
		is   error
		says []string // nothing: no error
	}{
		{name: "well", f: meet},
		{
			name: "one fails",
			f: func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 1 {
					return boom
				}
				err := meet(ctx, g)
				if !errors.Is(err, boom) || !errors.Is(context.Cause(ctx), boom) {
					return fmt.Errorf("rank %d got %v, its context %v", g.Rank(), err, context.Cause(ctx))
				}
				return fmt.Errorf("rank %d: %w", g.Rank(), err)
			},
			is:   boom,
			says: []string{"local: rank 1 failed: boom"},
		},
		{
			name: "one fails while it closes",
			f: func(ctx context.Context, g *local.Group) error {
				defer g.Close()
				v, err := g.Alloc(1)
				if g.Rank() == 1 && err == nil {
					_, err = g.AllReduce(ctx, v, trainer.Sum) // pending at Close
					return errors.Join(err, boom)
				}
				return meet(ctx, g)
			},
			is:   boom,
			says: []string{"rank 1 failed: boom"},
		},
		{
			name: "panic",
			f: func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 2 {
					panic("the table is upside down")
				}
				return meet(ctx, g)
			},
			says: []string{"rank 2 failed: panic: the table is upside down", "group_test.go:"},
		},
		{
			name: "goexit",
			f: func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 2 {
					runtime.Goexit()
				}
				return meet(ctx, g)
			},
			says: []string{"rank 2 failed", "Goexit"},
		},
		{
			name: "one leaves",
			f: func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 1 {
					return nil
				}
				return meet(ctx, g)
			},
			says: []string{"exchange of 0 bytes (call 1): rank 1 has left"},
		},
		{
			name: "a call is pending at the end",
			f: func(ctx context.Context, g *local.Group) error {
				if g.Rank() != 1 {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				v, err := g.Alloc(1)
				if err == nil {
					_, err = g.AllReduce(ctx, v, trainer.Sum)
				}
				return err
			},
			says: []string{"rank 1 closed the group with 1 calls pending"},
		},
		{
			name: "a call is an error and nobody minds",
			f: func(ctx context.Context, g *local.Group) error {
				g.Exchange(ctx, nil)
				if g.Rank() == 0 {
					g.Exchange(ctx, nil)
				}
				return nil
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := local.Spawn(t.Context(), 3, test.f).Wait()
				if err == nil && test.says != nil || err != nil && test.says == nil {
					t.Fatalf("the error is %v", err)
				}
				if test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("the error is %v, not %v", err, test.is)
				}
				for _, words := range test.says {
					if !strings.Contains(err.Error(), words) {
						t.Errorf("the error does not say %q: %v", words, err)
					}
				}
			})
		})
	}
}

func TestSizes(t *testing.T) {
	for _, size := range []int{-1, 0, 1025, 1 << 40} {
		if err := local.Spawn(t.Context(), size, nil).Wait(); err == nil {
			t.Errorf("a group of %d ranks is no error", size)
		}
	}
	for _, w := range []rendezvous.World{{}, {Size: -1}, {Rank: 2, Size: 2}, {Rank: -1, Size: 2}, {Size: 2, LocalSize: 1}, {Size: 1 << 30}} {
		if g, err := local.Join(t.Context(), w); err == nil {
			t.Errorf("%+v: no error but the group %v", w, g)
		}
	}
}

// A World of one rank is a group without a store.
func TestJoinAlone(t *testing.T) {
	g, err := local.Join(t.Context(), rendezvous.World{Size: 1, LocalSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	v, err := g.Alloc(3)
	if err != nil {
		t.Fatal(err)
	}
	copy(v, []float32{1, 2, 3})
	wait, err := g.AllReduce(t.Context(), v, trainer.Average)
	if err != nil {
		t.Fatal(err)
	}
	all, err := g.Exchange(t.Context(), []byte("x"))
	if err := errors.Join(err, wait(), g.Close(), g.Close()); err != nil || string(all[0]) != "x" || v[2] != 3 {
		t.Errorf("%v, %q, %v", err, all, v)
	}
}

// Memory that the others cannot reach is an error before anything begins.
func TestForeignMemory(t *testing.T) {
	spans := make([]trainer.Host, 2)
	err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		v, err := g.Alloc(100)
		if err != nil {
			return err
		}
		spans[g.Rank()] = v
		if _, err := g.Exchange(ctx, nil); err != nil {
			return err
		}
		other, err := g.Alloc(100)
		if err != nil {
			return err
		}
		for name, foreign := range map[string]trainer.Host{
			"the heap":       make(trainer.Host, 10),
			"another rank's": spans[1-g.Rank()],
		} {
			_, err := g.AllReduce(ctx, foreign, trainer.Sum)
			if err == nil || !strings.Contains(err.Error(), "Alloc") {
				return fmt.Errorf("%s: the error is %v", name, err)
			}
			if err := g.Broadcast(ctx, foreign, 0); err == nil {
				return fmt.Errorf("%s: a broadcast is no error", name)
			}
		}
		return g.Broadcast(ctx, other, 1)
	}).Wait()
	if err != nil {
		t.Error(err)
	}
}

// An all-reduce makes progress while its rank computes, and returns at once.
func TestOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			v, err := g.Alloc(10)
			if err != nil {
				return err
			}
			if g.Rank() == 1 {
				time.Sleep(time.Second) // comes late
			}
			began := time.Now()
			wait, err := g.AllReduce(ctx, v, trainer.Sum)
			if err != nil {
				return err
			}
			if d := time.Since(began); d != 0 {
				return fmt.Errorf("the call of rank %d took %v", g.Rank(), d)
			}
			time.Sleep(3 * time.Second) // computes
			began = time.Now()
			if err := wait(); err != nil {
				return err
			}
			if d := time.Since(began); d != 0 {
				return fmt.Errorf("rank %d waited for %v although both had the time to finish", g.Rank(), d)
			}
			return nil
		}).Wait()
		if err != nil {
			t.Error(err)
		}
	})
}

// Many goroutines of a rank may share its group.
func TestConcurrentCallers(t *testing.T) {
	err := local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
		var callers sync.WaitGroup
		errs := make(chan error, 8)
		for range cap(errs) {
			callers.Go(func() {
				for range 50 {
					if _, err := g.Exchange(ctx, []byte("same")); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		callers.Wait()
		close(errs)
		return <-errs
	}).Wait()
	if err != nil {
		t.Error(err)
	}
}

// In the steady state an all-reduce allocates its wait and nothing else.
func TestAllocations(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage counts allocate")
	}
	const runs = 200
	err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		v, err := g.Alloc(10_000)
		if err != nil {
			return err
		}
		step := func() {
			wait, err := g.AllReduce(ctx, v, trainer.Average)
			if err != nil {
				panic(err)
			}
			if err := wait(); err != nil {
				panic(err)
			}
		}
		for range 10 {
			step()
		}
		if g.Rank() == 1 {
			for range runs + 1 {
				step()
			}
			return nil
		}
		// Both ranks are in this process: two waits.
		if n := testing.AllocsPerRun(runs, step); n > 2.5 {
			return fmt.Errorf("%v allocations an all-reduce of two ranks, want 2", n)
		}
		return nil
	}).Wait()
	if err != nil {
		t.Error(err)
	}
}
