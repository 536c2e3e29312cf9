package local_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// The ranks run beside who has started them. Any number of goroutines may wait
// for their end, again too.
func TestRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom, on := errors.New("boom"), make(chan struct{})
		ranks := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			<-on
			if g.Rank() == 1 {
				return boom
			}
			<-ctx.Done()
			return nil
		})
		var returned atomic.Int32
		for range 3 {
			go func() {
				if err := ranks.Wait(); !errors.Is(err, boom) {
					t.Errorf("the error is %v", err)
				}
				returned.Add(1)
			}()
		}
		synctest.Wait()
		select {
		case <-ranks.Done():
			t.Error("the ranks have ended before they began")
		default:
		}
		if n := returned.Load(); n != 0 {
			t.Errorf("%d goroutines have not waited", n)
		}
		close(on)
		<-ranks.Done()
		synctest.Wait()
		if err := ranks.Wait(); !errors.Is(err, boom) || returned.Load() != 3 {
			t.Errorf("%v; %d goroutines have waited", err, returned.Load())
		}
		ranks.Stop(errors.New("too late"))
		if err := ranks.Wait(); !errors.Is(err, boom) {
			t.Errorf("the error after Stop is %v", err)
		}
	})
}

// Stop ends the calls and the contexts of all ranks, whatever they do then.
func TestStop(t *testing.T) {
	enough := errors.New("enough")
	for _, cause := range []error{enough, nil} {
		want := cause
		if cause == nil {
			want = context.Canceled
		}
		synctest.Test(t, func(t *testing.T) {
			ranks := local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 0 {
					<-ctx.Done()
				} else if _, err := g.Exchange(context.Background(), nil); !errors.Is(err, want) {
					t.Errorf("rank %d: the call's error is %v", g.Rank(), err)
				}
				<-ctx.Done()
				if err := context.Cause(ctx); err != want {
					t.Errorf("rank %d: the context's cause is %v", g.Rank(), err)
				}
				return nil
			})
			synctest.Wait()
			ranks.Stop(cause)
			if err := ranks.Wait(); err != want {
				t.Errorf("the error is %v, not %v", err, want)
			}
		})
	}
	for range 100 { // at the last moment
		ranks := local.Spawn(t.Context(), 2, func(context.Context, *local.Group) error { return nil })
		go ranks.Stop(enough)
		first := ranks.Wait()
		ranks.Stop(errors.New("too late"))
		if again := ranks.Wait(); again != first || first != nil && first != enough {
			t.Errorf("the error is %v, then %v", first, again)
		}
	}
}

// A rank that comes below the timeout is in time. After it all get one error,
// which names exactly the ranks that have not come, the call, and the time.
func TestTimeout(t *testing.T) {
	const timeout = 10 * time.Second
	for _, test := range []struct {
		late   []int
		by     time.Duration
		expire bool
	}{
		{late: []int{1}, by: timeout - 100*time.Millisecond},
		{late: []int{1}, by: timeout + 100*time.Millisecond, expire: true},
		{late: []int{0}, by: time.Hour, expire: true},
		{late: []int{0, 2}, by: time.Hour, expire: true},
		{late: []int{0, 1, 2}, by: time.Hour, expire: true},
	} {
		t.Run(fmt.Sprintf("%v by %v", test.late, test.by), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := local.Config{Timeout: timeout}.Spawn(t.Context(), 4, func(ctx context.Context, g *local.Group) error {
					v, err := g.Alloc(10)
					if err != nil {
						return err
					}
					if _, err := g.Exchange(ctx, nil); err != nil {
						return err
					}
					if slices.Contains(test.late, g.Rank()) {
						<-time.After(test.by)
					}
					wait, err := g.AllReduce(ctx, v, trainer.Sum)
					if err == nil {
						err = wait()
					}
					var late *local.TimeoutError
					if test.expire && (!errors.As(err, &late) || !slices.Equal(late.Ranks, test.late) || !errors.Is(err, context.DeadlineExceeded)) {
						t.Errorf("rank %d: the error is %v", g.Rank(), err)
					}
					if ended := context.Cause(ctx); test.expire && !errors.As(ended, &late) {
						t.Errorf("rank %d: its context ended for %v", g.Rank(), ended)
					}
					if !test.expire {
						<-time.After(time.Hour) // computes for longer than any timeout
					}
					return err
				}).Wait()
				if !test.expire {
					if err != nil {
						t.Error(err)
					}
					return
				}
				var late *local.TimeoutError
				if !errors.As(err, &late) || late.Call != "all-reduce (sum) of 10 values (call 2)" || late.After != timeout || !strings.HasPrefix(err.Error(), "local: all-reduce") || !strings.Contains(err.Error(), "not come within 10s") {
					t.Errorf("the error is %v", err)
				}
				if d := time.Since(began); d != max(test.by, timeout) {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}
