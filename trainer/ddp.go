package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Config says how DDP works. Its zero value works.
type Config struct {
	Seed        uint64 // given to Model.Init
	FirstBucket int    // bytes of the first bucket of gradients to be averaged; 0: 1 MiB, small so that averaging begins early
	Bucket      int    // bytes of the others; 0: 25 MiB
	// Agree is what else must be the same on every rank, an item a line: the
	// order of the samples, their seed, the global batch. New compares it.
	Agree []string
}

func (c *Config) setDefaults() {
	if c.FirstBucket <= 0 {
		c.FirstBucket = 1 << 20
	}
	if c.Bucket <= 0 {
		c.Bucket = 25 << 20
	}
}

// DDP trains a model on all ranks of a group: every rank computes the
// gradients of its part of a global batch, the gradients are averaged while
// the backward pass goes on, and every rank makes the same update.
//
// The average is that of all rows that count, wherever they lie: a rank's
// gradient weighs as many rows as it has (B's method Rows() int; without one,
// all ranks' batches weigh the same), and padding weighs nothing. So any split
// of a global batch over any number of ranks gives one and the same step, but
// for rounding.
//
// Its methods are not safe for concurrent use.
type DDP[B any, V Span[V]] struct {
	group       Group[V]
	model       Model[B, V]
	opt         Optimizer[V]
	params      []*Param[V]
	value, grad V
	offsets     []int // of the parameters in the arenas, and the end
	buckets     []bucket[V]
	steps       int
}

// bucket is neighbours in the gradient arena that are averaged together.
type bucket[V any] struct {
	first, last int // parameters
	grad        V
}

// New makes the ranks of g one training run. It compares the model and
// cfg.Agree between all ranks, and fails on all of them alike where something
// differs. It gives the model its memory, calls its Init and broadcasts rank
// 0's values. The memory is the group's: it lives until g.Close.
func New[B any, V Span[V]](ctx context.Context, g Group[V], m Model[B, V], opt Optimizer[V], cfg Config) (*DDP[B, V], error) {
	cfg.setDefaults()
	d := &DDP[B, V]{group: g, model: m, opt: opt, params: m.Params(), offsets: []int{0}}
	for _, p := range d.params {
		d.offsets = append(d.offsets, d.offsets[len(d.offsets)-1]+p.Len())
	}
	if err := compare(ctx, g, fingerprint(g.Size(), d.params, cfg)); err != nil {
		return nil, err
	}
	var err error
	if d.value, err = g.Alloc(d.size()); err != nil {
		return nil, fmt.Errorf("trainer: memory for the values: %w", err)
	}
	if d.grad, err = g.Alloc(d.size()); err != nil {
		return nil, fmt.Errorf("trainer: memory for the gradients: %w", err)
	}
	for i, p := range d.params {
		p.Value = d.value.Slice(d.offsets[i], d.offsets[i+1])
		p.Grad = d.grad.Slice(d.offsets[i], d.offsets[i+1])
	}
	for _, ends := range plan(d.params, cfg) {
		d.buckets = append(d.buckets, bucket[V]{ends[0], ends[1], d.grad.Slice(d.offsets[ends[0]], d.offsets[ends[1]+1])})
	}
	if err := m.Init(cfg.Seed); err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	if err := g.Broadcast(ctx, d.value, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// size is the number of values of all parameters.
func (d *DDP[B, V]) size() int { return d.offsets[len(d.params)] }

// plan cuts the parameters into buckets, from the last one backwards, which is
// the order in which a backward pass completes them. A bucket closes before
// the parameter that would make it too large, so that what is small is on its
// way while a large gradient is still computed.
func plan[V any](params []*Param[V], cfg Config) (buckets [][2]int) {
	room := cfg.FirstBucket
	for last := len(params) - 1; last >= 0; {
		first, size := last, 4*params[last].Len()
		for first > 0 && size+4*params[first-1].Len() <= room {
			first--
			size += 4 * params[first].Len()
		}
		buckets = append(buckets, [2]int{first, last})
		last, room = first-1, cfg.Bucket
	}
	return buckets
}

// Steps is the number of updates so far, those before a Restore included.
func (d *DDP[B, V]) Steps() int { return d.steps }

// Step makes one update with the batch of this rank and those of the others,
// and returns the mean loss of the rows of all ranks. An error means that the
// values are not to be trusted: end the rank with it.
func (d *DDP[B, V]) Step(ctx context.Context, b B) (loss float64, err error) {
	mine := float64(rows(b))
	all, err := Totals(ctx, d.group, mine)
	if err != nil {
		return 0, err
	}
	scale := 0.0
	if all[0] > 0 {
		scale = mine / all[0]
	}
	r := reduction[B, V]{ddp: d, pending: make([]int, len(d.buckets)), done: make([]bool, len(d.params))}
	for k, b := range d.buckets {
		r.pending[k] = b.last - b.first + 1
	}
	if loss, err = d.model.Step(ctx, b, scale, func(param int) { r.ready(ctx, param) }); err != nil {
		return 0, err
	}
	// The others wait for this rank where an all-reduce has begun: an error
	// returns at once, and ends them through the group.
	if err := r.complete(); err != nil {
		return 0, err
	}
	sum, err := Totals(ctx, d.group, loss*scale)
	if err != nil {
		return 0, err
	}
	for _, wait := range r.waits {
		if err := wait(); err != nil {
			return 0, err
		}
	}
	if err := d.opt.Update(d.steps, d.value, d.grad); err != nil {
		return 0, fmt.Errorf("trainer: step %d: %w", d.steps, err)
	}
	d.steps++
	return sum[0], nil
}

// rows is the weight of a batch.
func rows[B any](b B) int {
	if r, ok := any(b).(interface{ Rows() int }); ok {
		return r.Rows()
	}
	return 1
}

// reduction is the all-reduces of one step. They start in the order of the
// buckets on every rank, whatever the order in which gradients are ready.
type reduction[B any, V Span[V]] struct {
	ddp     *DDP[B, V]
	mu      sync.Mutex
	done    []bool // by parameter
	pending []int  // parameters that a bucket waits for
	waits   []func() error
	err     error
}

// ready is what a model calls with each parameter.
func (r *reduction[B, V]) ready(ctx context.Context, param int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.ddp
	switch {
	case r.err != nil:
		return
	case param < 0 || param >= len(d.params):
		r.err = fmt.Errorf("trainer: the model says that parameter %d is ready; it has %d", param, len(d.params))
		return
	case r.done[param]:
		r.err = fmt.Errorf("trainer: the model says twice in a step that %s is ready", d.params[param].Name)
		return
	}
	r.done[param] = true
	k := slices.IndexFunc(d.buckets, func(b bucket[V]) bool { return b.first <= param && param <= b.last })
	r.pending[k]--
	for next := len(r.waits); next < len(d.buckets) && r.pending[next] == 0; next++ {
		wait, err := d.group.AllReduce(ctx, d.buckets[next].grad, Sum)
		if err != nil {
			r.err = err
			return
		}
		r.waits = append(r.waits, wait)
	}
}

// complete says whether all gradients are on their way.
func (r *reduction[B, V]) complete() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	var missing []string
	for i, p := range r.ddp.params {
		if !r.done[i] {
			missing = append(missing, p.Name)
		}
	}
	if missing != nil {
		return fmt.Errorf("trainer: step %d gave no gradient for %s: a model calls ready for every parameter", r.ddp.steps, strings.Join(missing, ", "))
	}
	return nil
}

// Save is everything that a checkpoint needs of the model and the optimizer:
// the values under the parameters' names, the optimizer's state under
// optimizer.STATE.PARAMETER. The caller owns it.
func (d *DDP[B, V]) Save() ([]Tensor, error) {
	tensors, err := d.tensors("", d.value)
	if err != nil {
		return nil, err
	}
	state := d.opt.State()
	for _, name := range sortedKeys(state) {
		more, err := d.tensors("optimizer."+name+".", state[name])
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, more...)
	}
	return tensors, nil
}

func (d *DDP[B, V]) tensors(prefix string, arena V) (tensors []Tensor, err error) {
	if arena.Len() != d.size() {
		return nil, fmt.Errorf("trainer: the optimizer's state %q has %d values, the model %d", prefix, arena.Len(), d.size())
	}
	for i, p := range d.params {
		t := Tensor{Name: prefix + p.Name, Shape: p.Shape, Data: make([]float32, p.Len())}
		if err := arena.Slice(d.offsets[i], d.offsets[i+1]).Read(t.Data); err != nil {
			return nil, fmt.Errorf("trainer: reading %s: %w", t.Name, err)
		}
		tensors = append(tensors, t)
	}
	return tensors, nil
}

// Restore goes on from what Save gave after that many steps. Every rank calls
// it; it fails on all of them where the ranks restore different things, and
// names every tensor that is missing, not known or of another shape.
func (d *DDP[B, V]) Restore(ctx context.Context, steps int, tensors []Tensor) error {
	arenas, err := d.arenas(tensors)
	if all := compare(ctx, d.group, []string{fmt.Sprintf("restored step %d", steps), fmt.Sprintf("restored values %08x", checksum(tensors))}); all != nil {
		return errors.Join(err, all)
	}
	if err != nil {
		return err
	}
	if err := d.value.Write(arenas[""]); err != nil {
		return fmt.Errorf("trainer: restoring the values: %w", err)
	}
	delete(arenas, "")
	if err := d.opt.Restore(arenas); err != nil {
		return fmt.Errorf("trainer: restoring the optimizer: %w", err)
	}
	d.steps = steps
	return nil
}

// arenas sorts tensors into arenas: the values under "", each state of the
// optimizer under its name.
func (d *DDP[B, V]) arenas(tensors []Tensor) (map[string][]float32, error) {
	var errs []error
	arenas, seen := map[string][]float32{"": nil}, map[string]bool{}
	for _, t := range tensors {
		state, name := "", t.Name
		if rest, ok := strings.CutPrefix(t.Name, "optimizer."); ok {
			state, name, _ = strings.Cut(rest, ".")
		}
		i := slices.IndexFunc(d.params, func(p *Param[V]) bool { return p.Name == name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("trainer: the checkpoint has %s, this model has no such parameter", t.Name))
			continue
		case !slices.Equal(t.Shape, d.params[i].Shape) || len(t.Data) != d.params[i].Len():
			errs = append(errs, fmt.Errorf("trainer: the checkpoint's %s has the shape %v, this model's %v", t.Name, t.Shape, d.params[i].Shape))
			continue
		}
		if arenas[state] == nil {
			arenas[state] = make([]float32, d.size())
		}
		copy(arenas[state][d.offsets[i]:], t.Data)
		seen[state+"."+name] = true
	}
	for _, state := range sortedKeys(arenas) {
		for _, p := range d.params {
			if !seen[state+"."+p.Name] && len(errs) == 0 {
				errs = append(errs, fmt.Errorf("trainer: the checkpoint lacks %s", strings.TrimPrefix("optimizer."+state+"."+p.Name, "optimizer..")))
			}
		}
	}
	return arenas, errors.Join(errs...)
}
