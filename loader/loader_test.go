package loader_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/stagetest"
	"github.com/shardfeed/shardfeed/loader"
)

// item is a batch that knows its maker.
type item struct {
	batch.Step
	of       *maker
	released atomic.Bool
}

func (i *item) Bytes() int { return 8 * len(i.Samples) }

func (i *item) Release() {
	if i.released.Swap(true) {
		panic(fmt.Sprintf("step %d is released twice", i.Index))
	}
	i.of.exist.Add(-1)
}

// maker fetches items and counts those that exist, from the begin of a fetch
// on. do, if set, is called in each fetch and may sleep, fail or panic.
type maker struct {
	do            func(ctx context.Context, step batch.Step) error
	exist, begun  atomic.Int64
	mostAtOnce    atomic.Int64
	fetchesAtOnce atomic.Int64
	fetches       atomic.Int64
}

func (m *maker) fetch(ctx context.Context, step batch.Step) (*item, error) {
	m.begun.Add(1)
	raise(&m.mostAtOnce, m.exist.Add(1))
	raise(&m.fetchesAtOnce, m.fetches.Add(1))
	defer m.fetches.Add(-1)
	made := false
	defer func() {
		if !made {
			m.exist.Add(-1)
		}
	}()
	if m.do != nil {
		if err := m.do(ctx, step); err != nil {
			return nil, err
		}
	}
	made = true
	return &item{Step: step, of: m}, nil
}

func raise(most *atomic.Int64, n int64) {
	for {
		if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
			return
		}
	}
}

// left is empty when all items have been released.
func (m *maker) left() string {
	if n := m.exist.Load(); n != 0 {
		return fmt.Sprintf("%d batches", n)
	}
	return ""
}

// steps plans n steps of one sample an epoch.
func steps(n int) loader.Plan {
	return func(epoch, skip int) iter.Seq[batch.Step] {
		return func(yield func(batch.Step) bool) {
			for i := skip; i < n && yield(batch.Step{Epoch: epoch, Index: i, Samples: []int{10*epoch + i}}); i++ {
			}
		}
	}
}

// drain is the indices that the loop saw and the error at its end.
func drain(t *testing.T, seq iter.Seq2[*item, error]) (indices []int, last error) {
	t.Helper()
	for b, err := range seq {
		if last != nil {
			t.Errorf("an item comes after the error %v", last)
		}
		if last = err; err != nil {
			if b != nil {
				t.Errorf("a batch comes with the error %v", err)
			}
			continue
		}
		if b.released.Load() {
			t.Errorf("step %d is released before its body", b.Index)
		}
		indices = append(indices, b.Index)
	}
	return indices, last
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestEndings(t *testing.T) {
	for _, cfg := range []loader.Config{{}, {Workers: 1}, {Workers: 3, Prefetch: 2}, {Workers: 2, Prefetch: 9}, {Workers: 2, Prefetch: -1}} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) {
			stagetest.Endings(t, 6, func(t *testing.T, fail func(int) error) stagetest.Stage[*item] {
				m := &maker{do: func(_ context.Context, step batch.Step) error { return fail(step.Index) }}
				return stagetest.Stage[*item]{Epoch: loader.New(steps(6), m.fetch, cfg).Epoch, Left: m.left}
			})
		})
	}
}

// Endings once more with what goes wrong in the plan, not in a fetch.
func TestEndingsOfPlan(t *testing.T) {
	stagetest.Endings(t, 6, func(t *testing.T, fail func(int) error) stagetest.Stage[*item] {
		m := &maker{}
		plan := func(epoch, skip int) iter.Seq[batch.Step] {
			return func(yield func(batch.Step) bool) {
				for step := range steps(6)(epoch, skip) {
					if err := fail(step.Index); err != nil {
						panic(err)
					}
					if !yield(step) {
						return
					}
				}
			}
		}
		return stagetest.Stage[*item]{Epoch: loader.New(plan, m.fetch, loader.Config{Workers: 2, Prefetch: 3}).Epoch, Left: m.left}
	})
}

func TestSeek(t *testing.T) {
	m := &maker{}
	sampler := batch.Sampler{
		Order: func(epoch, skip int) iter.Seq[int] {
			return func(yield func(int) bool) {
				for k := skip; k < 11 && yield(100*epoch+k); k++ {
				}
			}
		},
		Size: 2,
	}
	l := loader.New(sampler.Epoch, m.fetch, loader.Config{})
	stagetest.Seek(t, func(epoch, skip int) iter.Seq[batch.Step] {
		return func(yield func(batch.Step) bool) {
			for b, err := range l.Epoch(t.Context(), epoch, skip) {
				if err != nil {
					t.Fatal(err)
				}
				if !yield(b.Step) {
					return
				}
			}
		}
	}, 0, 1, 2)
}

// Fetches that take very different times do not change the order, and Workers
// of them run at once.
func TestOrder(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8, 33} {
		for _, prefetch := range []int{-1, 1, 2, 7, 64} {
			synctest.Test(t, func(t *testing.T) {
				m := &maker{do: func(context.Context, batch.Step) error {
					time.Sleep(rand.N(time.Second))
					return nil
				}}
				l := loader.New(steps(100), m.fetch, loader.Config{Workers: workers, Prefetch: prefetch})
				got, err := drain(t, l.Epoch(t.Context(), 0, 0))
				if err != nil || !reflect.DeepEqual(got, upTo(100)) {
					t.Errorf("workers %d, prefetch %d: steps %v, error %v", workers, prefetch, got, err)
				}
				if most, want := m.fetchesAtOnce.Load(), int64(min(workers, max(prefetch, 0)+1)); most != want {
					t.Errorf("workers %d, prefetch %d: %d fetches at once, want %d", workers, prefetch, most, want)
				}
			})
		}
	}
}

// While the body has a batch, Prefetch others exist or are being fetched, to
// the number.
func TestBound(t *testing.T) {
	const n = 20
	for _, tt := range []struct{ workers, prefetch, ahead int }{
		{1, -1, 0}, {4, -1, 0}, {1, 1, 1}, {4, 1, 1}, {1, 5, 5}, {2, 5, 5}, {9, 5, 5}, {3, 0, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &maker{}
			l := loader.New(steps(n), m.fetch, loader.Config{Workers: tt.workers, Prefetch: tt.prefetch})
			for b, err := range l.Epoch(t.Context(), 0, 0) {
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // until nobody can go on
				if exist, want := int(m.exist.Load()), 1+min(tt.ahead, n-1-b.Index); exist != want {
					t.Errorf("%+v: %d batches exist at step %d, want %d", tt, exist, b.Index, want)
				}
			}
			if most := int(m.mostAtOnce.Load()); most != tt.ahead+1 {
				t.Errorf("%+v: %d batches existed at once, want %d", tt, most, tt.ahead+1)
			}
		})
	}
}

// A pool of Prefetch+1 slabs, from which a fetch waits for one, is enough:
// the oldest step never waits for a slab that a later one holds.
func TestBoundedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slabs := make(chan struct{}, 4)
		fetch := func(ctx context.Context, step batch.Step) (slab, error) {
			time.Sleep(rand.N(time.Second))
			slabs <- struct{}{}
			time.Sleep(rand.N(time.Second))
			return slab{slabs}, nil
		}
		n := 0
		for _, err := range loader.New(steps(200), fetch, loader.Config{Workers: 8, Prefetch: 3}).Epoch(t.Context(), 0, 0) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 200 || len(slabs) != 0 {
			t.Errorf("%d steps, %d slabs left", n, len(slabs))
		}
	})
}

type slab struct{ from chan struct{} }

func (s slab) Release() { <-s.from }

func TestErrors(t *testing.T) {
	cause := errors.New("no such file")
	var index []int
	for _, tt := range []struct {
		name string
		at   func() error
		want string // follows "loader: epoch 2, step 5: "
		is   error
	}{
		{name: "error", at: func() error { return cause }, want: "no such file", is: cause},
		{name: "sample", at: func() error { return &batch.SampleError{Sample: 7, Err: cause} }, want: "sample 7: no such file", is: cause},
		{name: "panic", at: func() error { panic("boom") }, want: "panic: boom (github.com/shardfeed/shardfeed/loader_test.TestErrors.func"},
		{name: "panic with an error", at: func() error { panic(cause) }, want: "panic: no such file (", is: cause},
		{name: "panic of the runtime", at: func() error { return fmt.Errorf("%d", index[3]) }, want: "panic: runtime error: index out of range [3] with length 0 (github.com/shardfeed/shardfeed/loader_test.TestErrors.func"},
		{name: "panic with nil", at: func() error { panic(nil) }, want: "panic: panic called with nil argument"},
		{name: "goexit", at: func() error { runtime.Goexit(); return nil }, want: "the fetch ended its goroutine (runtime.Goexit)"},
	} {
		for _, workers := range []int{1, 2, 5} {
			for _, late := range []int{0, 4, 6} { // the step before, or the one after, is the slower one
				t.Run(fmt.Sprintf("%s/workers=%d/late=%d", tt.name, workers, late), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m := &maker{do: func(_ context.Context, step batch.Step) error {
							if step.Index == late {
								time.Sleep(time.Hour)
							}
							if step.Index >= 5 { // later ones fail, too, and are not heard of
								return tt.at()
							}
							return nil
						}}
						got, err := drain(t, loader.New(steps(9), m.fetch, loader.Config{Workers: workers, Prefetch: 4}).Epoch(t.Context(), 2, 1))
						if !reflect.DeepEqual(got, []int{1, 2, 3, 4}) {
							t.Errorf("steps %v before the error, want 1 to 4", got)
						}
						var place *loader.Error
						if !errors.As(err, &place) || place.Epoch != 2 || place.Step != 5 {
							t.Fatalf("the error is %v, want one at epoch 2, step 5", err)
						}
						if !strings.HasPrefix(err.Error(), "loader: epoch 2, step 5: "+tt.want) {
							t.Errorf("the error reads %q, want %q after the place", err, tt.want)
						}
						if tt.is != nil && !errors.Is(err, tt.is) {
							t.Errorf("%v does not wrap its cause", err)
						}
						if left := m.left(); left != "" {
							t.Errorf("left: %s", left)
						}
					})
				})
			}
		}
	}
}

func TestPanicError(t *testing.T) {
	fetch := func(context.Context, batch.Step) (*item, error) { panic("boom") }
	_, err := drain(t, loader.New(steps(1), fetch, loader.Config{}).Epoch(t.Context(), 0, 0))
	var p *loader.PanicError
	if !errors.As(err, &p) || p.Value != "boom" || p.Unwrap() != nil {
		t.Fatalf("the error is %#v, want the panic with its value", err)
	}
	if !strings.Contains(string(p.Stack), "TestPanicError.func1") {
		t.Errorf("the stack lacks the function that panicked:\n%s", p.Stack)
	}
	if !strings.Contains(err.Error(), "loader_test.go:") {
		t.Errorf("%q does not say where it happened", err)
	}
}

// What goes wrong in a plan is an error at the step after the last planned.
func TestPlanErrors(t *testing.T) {
	after := func(n int, do func()) loader.Plan {
		return func(epoch, skip int) iter.Seq[batch.Step] {
			return func(yield func(batch.Step) bool) {
				for step := range steps(n)(epoch, skip) {
					if !yield(step) {
						return
					}
				}
				do()
			}
		}
	}
	for _, tt := range []struct {
		name string
		plan loader.Plan
		n    int
		want string
	}{
		{"panic", after(3, func() { panic("boom") }), 3, "loader: epoch 1, step 3: panic: boom (github.com/shardfeed/shardfeed/loader_test.TestPlanErrors"},
		{"panic at once", after(0, func() { panic("boom") }), 0, "loader: epoch 1, step 0: panic: boom ("},
		{"goexit", after(3, runtime.Goexit), 3, "loader: epoch 1, step 3: the plan ended its goroutine (runtime.Goexit)"},
		{"panic before the first step", batch.Sampler{}.Epoch, 0, "loader: epoch 1, step 0: panic: batch: Sampler.Size is 0"},
		{"no plan", nil, 0, "loader: epoch 1, step 0: panic: runtime error: invalid memory address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &maker{}
				got, err := drain(t, loader.New(tt.plan, m.fetch, loader.Config{}).Epoch(t.Context(), 1, 0))
				if len(got) != tt.n || err == nil || !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("%d steps and the error %v, want %d and %q", len(got), err, tt.n, tt.want)
				}
			})
		})
	}
}

// A cancelled context ends the loop at once, although the fetches under way do
// not listen; Epoch returns when they have.
func TestCancelIsPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{do: func(_ context.Context, step batch.Step) error {
			if step.Index >= 2 {
				time.Sleep(time.Hour)
			}
			return nil
		}}
		stop := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		start := time.Now()
		got, seen := 0, time.Duration(0)
		for _, err := range loader.New(steps(9), m.fetch, loader.Config{Workers: 2, Prefetch: 5}).Epoch(ctx, 3, 0) {
			if err == nil {
				got++
				continue
			}
			seen = time.Since(start)
			if !errors.Is(err, stop) || err.Error() != "loader: epoch 3, step 2: enough" {
				t.Errorf("the error is %v", err)
			}
		}
		if got != 2 || seen != time.Second {
			t.Errorf("%d steps, and the error after %v; want 2, and 1s", got, seen)
		}
		if took := time.Since(start); took != time.Hour {
			t.Errorf("the loop ended after %v, want 1h: when the fetches have returned", took)
		}
		if begun := m.begun.Load(); begun != 4 {
			t.Errorf("%d fetches, want 4: none starts after the cancel", begun)
		}
		if left := m.left(); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

func TestCancel(t *testing.T) {
	cancelled := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	t.Run("before the loop", func(t *testing.T) {
		m := &maker{}
		got, err := drain(t, loader.New(steps(9), m.fetch, loader.Config{}).Epoch(cancelled(t), 1, 4))
		if len(got) != 0 || !errors.Is(err, context.Canceled) || err.Error() != "loader: epoch 1, step 4: context canceled" {
			t.Errorf("steps %v and the error %v", got, err)
		}
	})
	t.Run("before an empty loop", func(t *testing.T) {
		m := &maker{}
		if got, err := drain(t, loader.New(steps(9), m.fetch, loader.Config{}).Epoch(cancelled(t), 1, 9)); len(got) != 0 || err != nil {
			t.Errorf("steps %v and the error %v, want neither", got, err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &maker{do: func(ctx context.Context, _ batch.Step) error { <-ctx.Done(); return ctx.Err() }}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := drain(t, loader.New(steps(9), m.fetch, loader.Config{}).Epoch(ctx, 0, 0)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
		})
	})
	// The last batch's body cancels while the plan has not said yet that there
	// is no other step: the loop had everything, so there is no error. Where
	// there is another step, there is one.
	for _, more := range []bool{false, true} {
		t.Run(fmt.Sprintf("in the last body/more=%v", more), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plan := func(epoch, skip int) iter.Seq[batch.Step] {
					return func(yield func(batch.Step) bool) {
						if yield(batch.Step{Index: 0}) {
							time.Sleep(time.Minute)
							_ = more && yield(batch.Step{Index: 1})
						}
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var last error
				m := &maker{}
				for _, err := range loader.New(plan, m.fetch, loader.Config{}).Epoch(ctx, 0, 0) {
					last = err
					cancel()
				}
				if (last != nil) != more {
					t.Errorf("the error is %v", last)
				}
			})
		})
	}
	// A context that the standard library cannot hook into tells its children
	// later; the loop still ends at the next item.
	t.Run("foreign context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			m := &maker{}
			n := 0
			for _, err := range loader.New(steps(9), m.fetch, loader.Config{}).Epoch(foreign{ctx}, 0, 0) {
				if err == nil {
					n++
					synctest.Wait()
					cancel()
				}
			}
			if n != 1 {
				t.Errorf("%d steps after the cancel in the first", n-1)
			}
		})
	})
}

type foreign struct{ context.Context }

func (f foreign) Value(key any) any { return nil }

// The loop's end cancels the fetches under way and starts no more.
func TestBreakStopsFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{do: func(ctx context.Context, step batch.Step) error {
			if step.Index > 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		for range loader.New(steps(100), m.fetch, loader.Config{Workers: 3, Prefetch: 50}).Epoch(t.Context(), 0, 0) {
			synctest.Wait()
			break
		}
		if begun := m.begun.Load(); begun != 4 {
			t.Errorf("%d fetches, want 4: the first and one a worker", begun)
		}
	})
}

// The fetches under way are cancelled before the body sees the error.
func TestErrorStopsFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{do: func(ctx context.Context, step batch.Step) error {
			if step.Index == 0 {
				return errors.New("bad")
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		for _, err := range loader.New(steps(9), m.fetch, loader.Config{Workers: 4}).Epoch(t.Context(), 0, 0) {
			synctest.Wait()
			if n := m.fetches.Load(); err == nil || n != 0 {
				t.Errorf("%d fetches go on while the body has the error %v", n, err)
			}
		}
	})
}

// Two loops over one loader, step by step, and one loop inside another.
func TestLoopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{do: func(context.Context, batch.Step) error { time.Sleep(rand.N(time.Second)); return nil }}
		l := loader.New(steps(30), m.fetch, loader.Config{Workers: 2})
		next, stop := iter.Pull2(l.Epoch(t.Context(), 1, 0))
		defer stop()
		for b, err := range l.Epoch(t.Context(), 0, 0) {
			c, cerr, ok := next()
			if err != nil || cerr != nil || !ok || b.Epoch != 0 || c.Epoch != 1 || c.Index != b.Index {
				t.Fatalf("step %v beside %v, errors %v and %v", b, c, err, cerr)
			}
			if b.Index%10 == 0 {
				if got, err := drain(t, l.Epoch(t.Context(), 2, 25)); err != nil || len(got) != 5 {
					t.Fatalf("the loop inside: steps %v, error %v", got, err)
				}
			}
		}
		if _, _, ok := next(); ok {
			t.Error("the second loop has more steps")
		}
		if s := l.Stats(); s.Steps != 75 {
			t.Errorf("%d steps in all, want 75", s.Steps)
		}
		if left := m.left(); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

// A sequence may be ranged over again, as the same epoch.
func TestEpochTwice(t *testing.T) {
	m := &maker{}
	seq := loader.New(steps(5), m.fetch, loader.Config{}).Epoch(t.Context(), 0, 1)
	for range 2 {
		if got, err := drain(t, seq); err != nil || !reflect.DeepEqual(got, []int{1, 2, 3, 4}) {
			t.Errorf("steps %v, error %v", got, err)
		}
	}
}

// A nil pointer passes through and has no Release, in an interface neither.
func TestNil(t *testing.T) {
	pointers := loader.New(steps(3), func(context.Context, batch.Step) (*item, error) { return nil, nil }, loader.Config{})
	wrapped := loader.New(steps(3), func(context.Context, batch.Step) (interface{ Release() }, error) { return (*item)(nil), nil }, loader.Config{})
	none := loader.New(steps(3), func(context.Context, batch.Step) (any, error) { return nil, nil }, loader.Config{})
	count(t, pointers)
	count(t, wrapped)
	count(t, none)
}

func count[T any](t *testing.T, l *loader.Loader[T]) {
	n := 0
	for _, err := range l.Epoch(t.Context(), 0, 0) {
		if err != nil {
			t.Error(err)
		}
		if n++; n == 2 {
			break // and the third is released
		}
	}
	if n != 2 {
		t.Errorf("%d steps, want 2", n)
	}
}

// A value beside an error is the fetch's own: it is neither seen nor released.
func TestValueWithError(t *testing.T) {
	m := &maker{}
	fetch := func(_ context.Context, step batch.Step) (*item, error) {
		return &item{Step: step, of: m}, errors.New("half read")
	}
	if _, err := drain(t, loader.New(steps(3), fetch, loader.Config{}).Epoch(t.Context(), 0, 0)); err == nil {
		t.Error("no error")
	}
	if left := m.left(); left != "" {
		t.Errorf("released: %s", left)
	}
}

// A Release that panics reaches the loop's caller, after all others were
// released and all goroutines have ended.
func TestReleasePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		defer func() {
			if p := recover(); p != "step 2 is released twice" {
				t.Errorf("recovered %v", p)
			}
			if n := m.exist.Load(); n != 0 {
				t.Errorf("%d batches are left", n)
			}
		}()
		fetch := func(ctx context.Context, step batch.Step) (*item, error) {
			b, err := m.fetch(ctx, step)
			if step.Index == 2 {
				b.Release()
			}
			return b, err
		}
		for range loader.New(steps(9), fetch, loader.Config{Prefetch: 6}).Epoch(t.Context(), 0, 0) {
			synctest.Wait()
			break
		}
	})
}

// The numbers of two epochs on the fake clock, worked out by hand.
func TestStats(t *testing.T) {
	for _, tt := range []struct {
		name           string
		workers, ahead int
		fetch, body    time.Duration
		want           loader.Stats
		share          float64
	}{
		// The loop waits 3 s for the first batch and 2 s for the others.
		{name: "fetches are slower", workers: 1, ahead: 1, fetch: 3 * time.Second, body: time.Second,
			want:  loader.Stats{Steps: 6, Samples: 12, Bytes: 6 * 24, Fetch: 18 * time.Second, Wait: 14 * time.Second, Work: 6 * time.Second},
			share: 0.7},
		// The loop waits 1 s for the first batch. The worker fetches one more
		// at once, has no place for the third during 2 s, and then one is ready
		// whenever the loop asks: 0, 1 and 1 of them.
		{name: "the body is slower", workers: 1, ahead: 1, fetch: time.Second, body: 3 * time.Second,
			want:  loader.Stats{Steps: 6, Samples: 12, Bytes: 6 * 24, Fetch: 6 * time.Second, Idle: 4 * time.Second, Wait: 2 * time.Second, Work: 18 * time.Second, Ready: 4. / 6},
			share: 0.1},
		// Both workers fetch in the first second; one of them the third batch
		// in the next.
		{name: "two workers", workers: 2, ahead: 2, fetch: time.Second, body: 3 * time.Second,
			want:  loader.Stats{Steps: 6, Samples: 12, Bytes: 6 * 24, Fetch: 6 * time.Second, Wait: 2 * time.Second, Work: 18 * time.Second, Ready: 6. / 6},
			share: 0.1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &maker{do: func(context.Context, batch.Step) error { time.Sleep(tt.fetch); return nil }}
				plan := func(epoch, skip int) iter.Seq[batch.Step] {
					return func(yield func(batch.Step) bool) {
						for i := range 3 {
							if !yield(batch.Step{Epoch: epoch, Index: i, Samples: []int{1, 2, 2}, Padded: 1}) {
								return
							}
						}
					}
				}
				l := loader.New(plan, m.fetch, loader.Config{Workers: tt.workers, Prefetch: tt.ahead})
				if s := l.Stats(); s != (loader.Stats{}) || s.WaitShare() != 0 {
					t.Errorf("before the first epoch: %+v", s)
				}
				for epoch := range 2 {
					for _, err := range l.Epoch(t.Context(), epoch, 0) {
						if err != nil {
							t.Fatal(err)
						}
						time.Sleep(tt.body)
					}
				}
				if s := l.Stats(); s != tt.want || s.WaitShare() != tt.share {
					t.Errorf("stats %+v\nwant  %+v, share %v", s, tt.want, tt.share)
				}
			})
		})
	}
}

// Stats counts a body that breaks or panics, and may be read meanwhile.
func TestStatsOfBrokenBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		l := loader.New(steps(9), m.fetch, loader.Config{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for l.Stats().Steps == 0 {
				time.Sleep(time.Millisecond)
			}
		}()
		func() {
			defer func() { _ = recover() }()
			for range l.Epoch(t.Context(), 0, 0) {
				time.Sleep(time.Second)
				panic("body")
			}
		}()
		<-done
		if s := l.Stats(); s.Steps != 1 || s.Work != time.Second {
			t.Errorf("stats %+v, want one step and 1s of work", s)
		}
	})
}

// plain is the slow twin: fetch, then yield, one step at a time.
func plain(plan loader.Plan, fetch loader.Fetch[*item]) func(context.Context, int, int) iter.Seq2[*item, error] {
	return func(ctx context.Context, epoch, skip int) iter.Seq2[*item, error] {
		return func(yield func(*item, error) bool) {
			for step := range plan(epoch, skip) {
				b, err := fetch(ctx, step)
				if err != nil {
					yield(nil, &loader.Error{Epoch: step.Epoch, Step: step.Index, Err: err})
					return
				}
				if !yield(b, nil) {
					return
				}
				b.Release()
			}
		}
	}
}

// The loader gives what a plain loop over plan and fetch gives, whatever the
// fetches' durations, the bounds, the failures and the break.
func FuzzPlainLoop(f *testing.F) {
	f.Add(uint8(2), int8(3), uint8(0), uint8(255), []byte{1, 9, 0, 4, 200, 7})
	f.Add(uint8(1), int8(-1), uint8(2), uint8(255), []byte{1, 9, 0, 4, 200, 7})
	f.Add(uint8(7), int8(20), uint8(1), uint8(3), []byte{90, 1, 9, 0, 4, 255, 7})
	f.Add(uint8(3), int8(2), uint8(0), uint8(255), []byte("a long plan that goes round the ring of slots many times over"))
	f.Add(uint8(0), int8(0), uint8(9), uint8(0), []byte{})
	f.Fuzz(func(t *testing.T, workers uint8, prefetch int8, skip, stop uint8, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			sampler := batch.Sampler{Size: 1 + len(data)%3, Order: func(epoch, skip int) iter.Seq[int] {
				return func(yield func(int) bool) {
					for k := skip; k < len(data) && yield(k); k++ {
					}
				}
			}}
			m := &maker{do: func(_ context.Context, step batch.Step) error {
				for _, k := range step.Samples {
					time.Sleep(time.Duration(data[k]%32) * time.Millisecond)
					if data[k] == 255 {
						return &batch.SampleError{Sample: k, Err: errors.New("bad")}
					}
				}
				return nil
			}}
			plan := loader.Plan(sampler.Through(1))
			l := loader.New(plan, m.fetch, loader.Config{Workers: int(workers % 16), Prefetch: int(prefetch)})
			trace := func(seq iter.Seq2[*item, error]) (trace []string) {
				for b, err := range seq {
					if err != nil {
						trace = append(trace, err.Error())
						continue
					}
					trace = append(trace, fmt.Sprint(b.Step))
					if len(trace) > int(stop) {
						break
					}
				}
				return trace
			}
			got, want := trace(l.Epoch(t.Context(), 0, int(skip))), trace(plain(plan, (&maker{do: m.do}).fetch)(t.Context(), 0, int(skip)))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("the loader gives %v\nthe plain loop %v", got, want)
			}
			if left := m.left(); left != "" {
				t.Errorf("left: %s", left)
			}
		})
	})
}
