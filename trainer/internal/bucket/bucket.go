// Package bucket sums gradients over the ranks in buckets, while the backward
// pass that completes them goes on.
package bucket

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Param is a parameter. Where it is trained its gradient is the values
// From … To-1 of the arena.
type Param struct {
	Name     string
	Trained  bool
	From, To int
}

// Span is memory that holds gradients.
type Span[V any] interface{ Slice(i, j int) V }

// Reduction is the all-reduces of an update, one for each bucket. They start
// in the order of the buckets on every rank, whatever the order in which
// gradients are ready. From Reset to Wait it belongs to one update.
type Reduction[V Span[V]] struct {
	params  []Param
	grad    V
	sum     func(ctx context.Context, v V) (wait func() error, err error)
	buckets []bucket
	home    []int // the bucket of each parameter; -1: it is not trained

	mu      sync.Mutex
	done    []bool // by parameter, in the running pass
	started int    // buckets
	bad     int    // the first parameter found whose gradient is not finite, plus 1
	misuse  error  // of Ready and Note, or why an all-reduce did not start
	flights sync.WaitGroup
}

// bucket is trained parameters that are neighbours in the arena and are summed
// together.
type bucket struct {
	params []int // their numbers, ascending

	// Of one update.
	missing        int // parameters that are not ready
	started, ended time.Time
	err            error
}

// New plans the buckets of the trained parameters, which lie in grad one after
// the other: the first of so many bytes, then the rest. sum starts to replace
// a span by its sum over all ranks.
func New[V Span[V]](params []Param, grad V, first, rest int, sum func(ctx context.Context, v V) (wait func() error, err error)) *Reduction[V] {
	r := &Reduction[V]{params: params, grad: grad, sum: sum, buckets: plan(params, first, rest), home: make([]int, len(params)), done: make([]bool, len(params))}
	for i := range r.home {
		r.home[i] = -1
	}
	for k, b := range r.buckets {
		for _, i := range b.params {
			r.home[i] = k
		}
	}
	return r
}

// plan cuts the trained parameters into buckets, from the last one backwards,
// which is the order in which a backward pass completes them. A bucket closes
// before the parameter that would make it too large, so that what is small is
// on its way while a large gradient is still computed.
func plan(params []Param, first, rest int) (buckets []bucket) {
	var trained []int
	for i, p := range params {
		if p.Trained {
			trained = append(trained, i)
		}
	}
	bytes := func(k int) int { return 4 * (params[trained[k]].To - params[trained[k]].From) }
	room := first
	for end := len(trained); end > 0; {
		begin := end - 1
		size := bytes(begin)
		for begin > 0 && size+bytes(begin-1) <= room {
			begin--
			size += bytes(begin)
		}
		buckets = append(buckets, bucket{params: trained[begin:end]})
		end, room = begin, rest
	}
	return buckets
}

// Reset begins a pass.
func (r *Reduction[V]) Reset() {
	clear(r.done)
	r.started, r.bad, r.misuse = 0, 0, nil
	for k := range r.buckets {
		b := &r.buckets[k]
		b.missing, b.err = len(b.params), nil
	}
}

// Note is what a model calls with each parameter whose gradient is complete,
// in a pass without communication.
func (r *Reduction[V]) Note(param int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mark(param)
}

// Ready is Note in a pass that ends in an update.
func (r *Reduction[V]) Ready(ctx context.Context, param int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mark(param) {
		r.complete(ctx, param)
	}
}

// mark takes down that a parameter is ready, and says whether it may be.
func (r *Reduction[V]) mark(param int) bool {
	switch {
	case r.misuse != nil:
		return false
	case param < 0 || param >= len(r.params):
		r.misuse = fmt.Errorf("trainer: the model says that parameter %d is ready; it has %d", param, len(r.params))
	case r.home[param] < 0:
		r.misuse = fmt.Errorf("trainer: the model says that %s is ready, which is not trained: that is for parameters with a gradient", r.params[param].Name)
	case r.done[param]:
		r.misuse = fmt.Errorf("trainer: the model says twice in a step that %s is ready", r.params[param].Name)
	default:
		r.done[param] = true
	}
	return r.misuse == nil
}

// Misuse is what was wrong with a call of Ready or Note, or why an all-reduce
// did not start.
func (r *Reduction[V]) Misuse() error { return r.misuse }

// Done is which parameters were ready in the last pass.
func (r *Reduction[V]) Done() []bool { return r.done }

// complete starts the all-reduces of which a parameter was the last one
// missing. The caller holds mu.
func (r *Reduction[V]) complete(ctx context.Context, param int) {
	r.buckets[r.home[param]].missing--
	for r.started < len(r.buckets) && r.buckets[r.started].missing == 0 {
		b := &r.buckets[r.started]
		if r.bad == 0 {
			r.bad = r.nonFinite(b)
		}
		wait, err := r.sum(ctx, r.span(b.params))
		if err != nil {
			r.misuse = r.blame(b, err)
			return
		}
		b.started = time.Now()
		// For the time of its end a bucket is waited for at once.
		r.flights.Go(func() {
			b.err = wait()
			b.ended = time.Now()
		})
		r.started++
	}
}

// span is the gradients of neighbours.
func (r *Reduction[V]) span(params []int) V {
	return r.grad.Slice(r.params[params[0]].From, r.params[params[len(params)-1]].To)
}

// nonFinite is the bucket's last parameter with a gradient that is not finite,
// plus 1; 0 where there is none or the memory cannot tell.
func (r *Reduction[V]) nonFinite(b *bucket) int {
	finite := func(params []int) bool {
		f, ok := any(r.span(params)).(interface{ Finite() bool })
		return !ok || f.Finite()
	}
	if finite(b.params) {
		return 0
	}
	for _, i := range slices.Backward(b.params) {
		if !finite([]int{i}) {
			return i + 1
		}
	}
	return b.params[0] + 1
}

// Bad is the parameter nearest to the loss whose gradient on this rank is not
// finite, plus 1; 0 where all are.
func (r *Reduction[V]) Bad() int { return r.bad }

// Finish starts what has not been started: parameters that the last pass did
// not use still have the gradients of earlier ones, or zeros.
func (r *Reduction[V]) Finish(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.buckets {
		for _, i := range r.buckets[k].params {
			if !r.done[i] && r.misuse == nil {
				r.done[i] = true
				r.complete(ctx, i)
			}
		}
	}
	return r.misuse
}

// Wait returns once all gradients are sums over all ranks.
func (r *Reduction[V]) Wait() error {
	r.flights.Wait()
	for k := range r.buckets {
		if b := &r.buckets[k]; b.err != nil {
			return r.blame(b, b.err)
		}
	}
	return nil
}

// blame says in an error what it happened to.
func (r *Reduction[V]) blame(b *bucket, err error) error {
	names := make([]string, len(b.params))
	for k, i := range b.params {
		names[k] = r.params[i].Name
	}
	return fmt.Errorf("trainer: averaging the gradients of %s: %w", List(names), err)
}

// Times is how long gradients were on their way, one bucket after the other,
// and how much of that was after a point in time.
func (r *Reduction[V]) Times(computed time.Time) (all, after time.Duration) {
	var before time.Time // the end of the bucket before
	for _, b := range r.buckets {
		begin := b.started
		if before.After(begin) {
			begin = before
		}
		before = b.ended
		all += b.ended.Sub(begin)
		if begin.Before(computed) {
			begin = computed
		}
		after += max(0, b.ended.Sub(begin))
	}
	return all, after
}

// List names a few.
func List(names []string) string {
	const most = 8
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
