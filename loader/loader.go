// Package loader fetches batches ahead of the loop that uses them.
//
// A [Plan] says what each step of an epoch reads, a [Fetch] reads one step,
// and a [Loader] runs fetches side by side while the loop's body works on an
// earlier batch. Batches come in plan order whatever the number of workers:
//
//	for b, err := range l.Epoch(ctx, epoch, skip) {
//		if err != nil {
//			return err // the error comes last, once
//		}
//		… use b: it is released when the body returns
//	}
//
// A Loader owns no goroutines. They start when the range loop starts and have
// ended when it ends, however it ends, so there is nothing to close.
package loader

import (
	"context"
	"iter"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardfeed/shardfeed/batch"
)

// Plan lists the steps of an epoch without the first skip. It is arithmetic:
// a loop that ends waits for the plan to yield once more or to return.
// batch.Sampler.Epoch is one.
type Plan func(epoch, skip int) iter.Seq[batch.Step]

// Fetch reads one step. It is called from up to Config.Workers goroutines at
// once. Its ctx is cancelled when the loop ends, and the loop waits for it to
// return. A value that comes with an error is dropped.
// batch.Collate makes one.
type Fetch[T any] func(ctx context.Context, step batch.Step) (T, error)

// Config sets how far a Loader runs ahead. The zero Config suits most.
type Config struct {
	// Workers is the number of fetches at once; below 1 it is GOMAXPROCS.
	Workers int
	// Prefetch is the number of steps fetched or being fetched ahead of the
	// loop; 0 means twice Workers, below 0 none. At most Prefetch+1 batches
	// exist at once: these, and the one that the loop has or waits for.
	Prefetch int
}

// Loader fetches the steps of a plan. Its epochs share nothing but Stats, so
// several loops may run at once.
type Loader[T any] struct {
	plan  Plan
	fetch Fetch[T]
	cfg   Config

	mu    sync.Mutex
	stats Stats // with the sum of what was ready in Ready
}

// New is a loader of the plan's steps. Workers call fetch for each.
func New[T any](plan Plan, fetch Fetch[T], cfg Config) *Loader[T] {
	if cfg.Workers < 1 {
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	if cfg.Prefetch == 0 {
		cfg.Prefetch = 2 * cfg.Workers
	}
	cfg.Prefetch = max(cfg.Prefetch, 0)
	return &Loader[T]{plan: plan, fetch: fetch, cfg: cfg}
}

// Epoch yields the batches of the epoch in plan order, without the first skip.
//
// A batch is the loop's until its body returns or panics. Then Release is
// called, if T has it and is no nil pointer; whoever keeps a batch longer
// retains it. Batches that were fetched ahead and never reach the loop are
// released, too.
//
// The first error is an *[Error]. It comes last, once, with the zero T, at its
// place in the order: all batches before it come first. A panic in the plan or
// in a fetch is an error (*[PanicError]), as is a call of runtime.Goexit.
// Where ctx is cancelled before the last batch was delivered, the next item
// is the error context.Cause(ctx), at once, even while a fetch is slow.
//
// The loop ends after all fetches under way have returned: nothing outlives
// it. No fetch starts any more, and their ctx is cancelled.
func (l *Loader[T]) Epoch(ctx context.Context, epoch, skip int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ahead, cancel := context.WithCancel(ctx)
		r := l.start(ahead, epoch, skip)
		defer r.end()
		defer cancel()
		if err := r.deliver(ctx, yield); err != nil {
			cancel() // what is still being fetched will not be used, however long the body takes over the error
			yield(*new(T), err)
		}
	}
}

// run is one range loop: a planner, the workers and the loop itself.
//
// The planner hands each step first to the loop (queue) and then to the
// workers (todo), so a step has its place in the order before its fetch
// starts, and the oldest step is always one that a worker has or takes next.
type run[T any] struct {
	loader *Loader[T]
	ring   []slot[T]
	queue  chan *slot[T] // in plan order; closed after the last
	todo   chan *slot[T] // the same slots, for the workers
	ready  atomic.Int64  // batches fetched and not yet taken by the loop
	err    error         // why the plan ended early; set before queue is closed
	wait   sync.WaitGroup
}

// slot is the place of a step from its planning until the loop takes its batch.
type slot[T any] struct {
	step batch.Step
	done chan result[T] // room for one
}

type result[T any] struct {
	value T
	err   error
}

func (l *Loader[T]) start(ctx context.Context, epoch, skip int) *run[T] {
	// Slots are used in turn. When the planner fills one, at most Prefetch
	// older ones are in the queue and one is with the loop, so among
	// Prefetch+2 it is free: its last batch was taken, and its channel is
	// empty. The queue itself bounds the batches: Prefetch in it and one taken
	// out, which was released before the loop takes the next.
	n := l.cfg.Prefetch + 2
	r := &run[T]{
		loader: l,
		ring:   make([]slot[T], n),
		queue:  make(chan *slot[T], l.cfg.Prefetch),
		todo:   make(chan *slot[T], n), // never full
	}
	for i := range r.ring {
		r.ring[i].done = make(chan result[T], 1)
	}
	r.wait.Go(func() { r.plan(ctx, epoch, skip) })
	for range l.cfg.Workers {
		r.wait.Go(func() { r.work(ctx) })
	}
	return r
}

// plan queues the steps and then sets r.err.
func (r *run[T]) plan(ctx context.Context, epoch, skip int) {
	err := errPlanExit // unless it returns or panics
	defer func() {
		if p := recover(); p != nil {
			err = newPanicError(p)
		}
		if err != nil {
			r.err = &Error{epoch, skip, err}
		}
		close(r.todo)
		close(r.queue)
	}()
	next := 0
	for step := range r.loader.plan(epoch, skip) {
		s := &r.ring[next]
		next = (next + 1) % len(r.ring)
		s.step = step
		epoch, skip = step.Epoch, step.Index
		select {
		case r.queue <- s:
		case <-ctx.Done():
			err = context.Cause(ctx)
			return
		}
		r.todo <- s
		skip++
	}
	err = nil
}

// work fetches until the plan or the loop ends, or a fetch fails: no step
// after a failed one reaches the loop, and older ones have their workers.
func (r *run[T]) work(ctx context.Context) {
	free := time.Now()
	for s := range r.todo {
		if ctx.Err() != nil {
			return
		}
		began := time.Now()
		if !r.fetch(ctx, s, began.Sub(free), began) {
			return
		}
		free = time.Now()
	}
}

// fetch fills the slot, whatever the fetch does, and says whether it is a batch.
func (r *run[T]) fetch(ctx context.Context, s *slot[T], idle time.Duration, began time.Time) (ok bool) {
	res := result[T]{err: errFetchExit} // unless it returns or panics
	defer func() {
		if p := recover(); p != nil {
			res.err = newPanicError(p)
		}
		r.loader.fetched(idle, time.Since(began))
		r.ready.Add(1)
		s.done <- res
	}()
	res.value, res.err = r.loader.fetch(ctx, s.step)
	return res.err == nil
}

// deliver runs the loop. Its error is for the loop's body.
func (r *run[T]) deliver(ctx context.Context, yield func(T, error) bool) error {
	asked := time.Now()
	for {
		ready := r.ready.Load()
		s, ok := <-r.queue
		if !ok {
			return r.err
		}
		value, err := r.take(ctx, s)
		if err != nil {
			return &Error{s.step.Epoch, s.step.Index, err}
		}
		began := time.Now()
		r.loader.delivered(s.step, value, ready, began.Sub(asked))
		if !r.body(value, began, yield) {
			return nil
		}
		asked = time.Now()
	}
}

// take waits for the slot's batch or for the end of ctx, which goes first.
func (r *run[T]) take(ctx context.Context, s *slot[T]) (T, error) {
	select {
	case res := <-s.done:
		if ctx.Err() == nil {
			r.ready.Add(-1)
			return res.value, res.err
		}
		s.done <- res // for end
	case <-ctx.Done():
	}
	return *new(T), context.Cause(ctx)
}

func (r *run[T]) body(value T, began time.Time, yield func(T, error) bool) bool {
	defer release(value) // after a panic, too
	defer func() { r.loader.worked(time.Since(began)) }()
	return yield(value, nil)
}

// end waits for the goroutines, whose ctx has ended, and releases the batches
// that the loop did not take.
func (r *run[T]) end() {
	r.wait.Wait()
	for i := range r.ring {
		select {
		case res := <-r.ring[i].done:
			if res.err == nil {
				defer release(res.value) // deferred: should one Release panic, the others are still called
			}
		default:
		}
	}
}

func release(v any) {
	if r, ok := v.(interface{ Release() }); ok && !isNil(v) {
		r.Release()
	}
}

// isNil says whether v is a nil pointer, which has methods and yet is nothing.
func isNil(v any) bool {
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && p.IsNil()
}
