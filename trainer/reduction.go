package trainer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// bucket is trained parameters that are neighbours in the gradient arena and
// are averaged together.
type bucket[V any] struct {
	params []int // their numbers, ascending
	grad   V

	// Of one update.
	missing        int // parameters that are not ready
	started, ended time.Time
	err            error
}

// plan cuts the trained parameters into buckets, from the last one backwards,
// which is the order in which a backward pass completes them. A bucket closes
// before the parameter that would make it too large, so that what is small is
// on its way while a large gradient is still computed.
func plan[V any](params []*Param[V], trained []int, cfg Config) (buckets []bucket[V]) {
	room := cfg.FirstBucket
	for last := len(trained); last > 0; {
		first := last - 1
		size := 4 * params[trained[first]].Len()
		for first > 0 && size+4*params[trained[first-1]].Len() <= room {
			first--
			size += 4 * params[trained[first]].Len()
		}
		buckets = append(buckets, bucket[V]{params: trained[first:last]})
		last, room = first, cfg.Bucket
	}
	return buckets
}

// reduction is the all-reduces of an update. They start in the order of the
// buckets on every rank, whatever the order in which gradients are ready.
type reduction[V Span[V]] struct {
	group   Group[V]
	params  []*Param[V]
	buckets []bucket[V]
	home    []int // the bucket of each parameter; -1: it is not trained

	mu      sync.Mutex
	done    []bool // by parameter, in the running pass
	started int    // buckets
	bad     int    // the first parameter found whose gradient is not finite, plus 1
	misuse  error  // of ready
	flights sync.WaitGroup
}

func newReduction[V Span[V]](g Group[V], params []*Param[V], trained []int, cfg Config) *reduction[V] {
	r := &reduction[V]{group: g, params: params, buckets: plan(params, trained, cfg), home: make([]int, len(params)), done: make([]bool, len(params))}
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

// reset begins a pass.
func (r *reduction[V]) reset() {
	clear(r.done)
	r.started, r.bad, r.misuse = 0, 0, nil
	for k := range r.buckets {
		b := &r.buckets[k]
		b.missing, b.err = len(b.params), nil
	}
}

// note is what a model calls with each parameter in a pass without
// communication.
func (r *reduction[V]) note(param int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mark(param)
}

// ready is what a model calls with each parameter in a pass that ends in an
// update.
func (r *reduction[V]) ready(ctx context.Context, param int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mark(param) {
		r.complete(ctx, param)
	}
}

// mark takes down that a parameter is ready, and says whether it may be.
func (r *reduction[V]) mark(param int) bool {
	var err error
	switch {
	case r.misuse != nil:
		return false
	case param < 0 || param >= len(r.params):
		err = fmt.Errorf("trainer: the model says that parameter %d is ready; it has %d", param, len(r.params))
	case r.home[param] < 0:
		err = fmt.Errorf("trainer: the model says that %s is ready, which is not trained: that is for parameters with a gradient", r.params[param].Name)
	case r.done[param]:
		err = fmt.Errorf("trainer: the model says twice in a step that %s is ready", r.params[param].Name)
	}
	r.misuse = err
	if err == nil {
		r.done[param] = true
	}
	return err == nil
}

// complete starts the all-reduces of which a parameter was the last one
// missing. The caller holds mu.
func (r *reduction[V]) complete(ctx context.Context, param int) {
	r.buckets[r.home[param]].missing--
	for r.started < len(r.buckets) && r.buckets[r.started].missing == 0 {
		b := &r.buckets[r.started]
		if r.bad == 0 {
			r.bad = r.nonFinite(b)
		}
		wait, err := r.group.AllReduce(ctx, b.grad, Sum)
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

// nonFinite is the bucket's last parameter with a gradient that is not finite,
// plus 1; 0 where there is none or the memory cannot tell.
func (r *reduction[V]) nonFinite(b *bucket[V]) int {
	finite := func(v V) bool {
		f, ok := any(v).(interface{ Finite() bool })
		return !ok || f.Finite()
	}
	if finite(b.grad) {
		return 0
	}
	for k := len(b.params) - 1; k > 0; k-- {
		if !finite(r.params[b.params[k]].Grad) {
			return b.params[k] + 1
		}
	}
	return b.params[0] + 1
}

// finish starts what has not been started: parameters that the last pass did
// not use still have the gradients of earlier ones, or zeros.
func (r *reduction[V]) finish(ctx context.Context) error {
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

// wait returns once all gradients are sums over all ranks.
func (r *reduction[V]) wait() error {
	r.flights.Wait()
	for k := range r.buckets {
		if b := &r.buckets[k]; b.err != nil {
			return r.blame(b, b.err)
		}
	}
	return nil
}

// blame says in an error what it happened to.
func (r *reduction[V]) blame(b *bucket[V], err error) error {
	names := make([]string, len(b.params))
	for k, i := range b.params {
		names[k] = r.params[i].Name
	}
	return fmt.Errorf("trainer: averaging the gradients of %s: %w", list(names), err)
}

// times is how long gradients were on their way, one bucket after the other,
// and how much of that was after a point in time.
func (r *reduction[V]) times(computed time.Time) (all, after time.Duration) {
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

// list names a few.
func list(names []string) string {
	const most = 8
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
