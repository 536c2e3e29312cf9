package trainer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/shardfeed/shardfeed/trainer/internal/bucket"
)

// Config says how DDP works. Its zero value works.
type Config struct {
	Seed        uint64 // given to Model.Init
	FirstBucket int    // bytes of the first bucket of gradients to be averaged; 0: 1 MiB, small so that averaging begins early
	Bucket      int    // bytes of the others; 0: 25 MiB
	// Accumulate is how many Steps make an update: the gradients of all but
	// the last are added up without communication. 0: 1.
	Accumulate int
	// GlobalBatch is the rows of an update, over all ranks and accumulated
	// steps, where most have as many: those need no correction after the sum.
	// It changes nothing but rounding. 0: not known.
	GlobalBatch int
	// FindUnused allows that a step has no gradient for some parameters. One
	// without any in an update, on any rank, stays as it is, momenta included.
	// It costs a bit a parameter in what ranks exchange. Without FindUnused an
	// unused parameter is an error.
	FindUnused bool
	// SkipNonFinite leaves out an update where a rank's loss or gradient is
	// infinite or NaN: values and buffers stay as they were before its steps;
	// Stats counts them. Without it that is a *NonFiniteError.
	SkipNonFinite bool
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
	c.Accumulate = max(1, c.Accumulate)
}

// DDP trains a model on all ranks of a group: every rank computes the
// gradients of its part of a global batch, the gradients are averaged while
// the backward pass goes on, and every rank makes the same update.
//
// The average is that of all rows that count, wherever they lie: a rank's
// gradient weighs as many rows as it has (B's method Rows() int; without one,
// all ranks' batches weigh the same), and padding weighs nothing. So any split
// of a global batch over ranks and accumulated steps gives one and the same
// update, but for rounding.
//
// For that a rank scales its gradient by rows/GlobalBatch before the sum. Once
// the ranks have told each other their rows, with the loss, the optimizer
// scales the sum by what GlobalBatch was wrong.
//
// Several DDPs may share a group, as a generator and a discriminator do, if
// all ranks step them in the same order. The methods of a DDP are not safe for
// concurrent use.
type DDP[B any, V Span[V]] struct {
	group       Group[V]
	model       Model[B, V]
	opt         Optimizer[V]
	cfg         Config
	params      []*Param[V]
	parts       []Part // where the parameters lie in value; the trained ones lie there as they lie in grad
	trained     []int  // their numbers
	value, grad V
	buffers     V         // the end of value
	before      []float32 // the buffers before the steps of the running update
	sums        *bucket.Reduction[V]

	nominal float64 // rows of an update by which gradients are scaled
	pending int     // steps without communication since the last update
	rows    int     // of this rank since then
	loss    float64 // the sum over them
	used    []bool  // parameters that had a gradient since then
	message []byte  // for what is exchanged with the others
	stats   Stats
	steps   int
}

// New makes the ranks of g one training run. It compares the model and cfg
// between all ranks, and fails on all of them alike where something differs.
// It gives the model its memory, calls its Init and broadcasts rank 0's
// values. The memory is the group's: it lives until g.Close.
func New[B any, V Span[V]](ctx context.Context, g Group[V], m Model[B, V], opt Optimizer[V], cfg Config) (*DDP[B, V], error) {
	cfg.setDefaults()
	d := &DDP[B, V]{group: g, model: m, opt: opt, cfg: cfg, params: m.Params(), nominal: float64(cfg.GlobalBatch)}
	if cfg.GlobalBatch <= 0 {
		d.nominal = float64(g.Size() * cfg.Accumulate)
	}
	if err := compare(ctx, g, fingerprint(g.Size(), d.params, cfg)); err != nil {
		return nil, err
	}
	trained, unchanged, size, err := d.place()
	if err != nil {
		return nil, err
	}
	if d.value, err = g.Alloc(size); err != nil {
		return nil, fmt.Errorf("trainer: memory for the values: %w", err)
	}
	if d.grad, err = g.Alloc(trained); err != nil {
		return nil, fmt.Errorf("trainer: memory for the gradients: %w", err)
	}
	d.buffers, d.before = d.value.Slice(unchanged, size), make([]float32, size-unchanged)
	for i, p := range d.params {
		at := d.parts[i]
		if p.Value = d.value.Slice(at.From, at.To); p.Role == Trained {
			p.Grad = d.grad.Slice(at.From, at.To)
		}
	}
	places := make([]bucket.Param, len(d.parts))
	for i, at := range d.parts {
		places[i] = bucket.Param{Name: at.Name, Trained: d.params[i].Role == Trained, From: at.From, To: at.To}
	}
	d.sums = bucket.New(places, d.grad, cfg.FirstBucket, cfg.Bucket, func(ctx context.Context, v V) (func() error, error) {
		return g.AllReduce(ctx, v, Sum)
	})
	d.used = make([]bool, len(d.params))
	if err := m.Init(cfg.Seed); err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	if err := g.Broadcast(ctx, d.value, 0); err != nil {
		return nil, fmt.Errorf("trainer: the first values: %w", err)
	}
	return d, nil
}

// place gives every parameter its place: trained ones first, then frozen
// ones, then buffers, so that each kind is one span. It returns where
// each of them ends.
func (d *DDP[B, V]) place() (trained, unchanged, size int, err error) {
	d.parts = make([]Part, len(d.params))
	names, end := map[string]bool{}, 0
	for role, ends := range []*int{Trained: &trained, Frozen: &unchanged, Buffer: &size} {
		for i, p := range d.params {
			if p.Role != Role(role) {
				continue
			}
			if names[p.Name] {
				return 0, 0, 0, fmt.Errorf("trainer: two parameters of the model have the name %s", p.Name)
			}
			names[p.Name] = true
			if p.Role == Trained {
				d.trained = append(d.trained, i)
			}
			d.parts[i] = Part{p.Name, p.Shape, end, end + p.Len()}
			end = d.parts[i].To
		}
		*ends = end
	}
	switch {
	case len(names) < len(d.params):
		return 0, 0, 0, errors.New("trainer: a parameter of the model has a Role that does not exist")
	case trained == 0:
		return 0, 0, 0, errors.New("trainer: no parameter of the model is trained: there is nothing for DDP to do")
	}
	return trained, unchanged, size, nil
}

// Steps is the number of updates so far, those before a Restore and those
// skipped included.
func (d *DDP[B, V]) Steps() int { return d.steps }

// Pending is the number of steps since the last update.
func (d *DDP[B, V]) Pending() int { return d.pending }

// Step computes the gradient of this rank's batch. Every Accumulate-th one
// makes an update, together with the other ranks, and returns the mean loss of
// all rows of all ranks since the last update. The others return the loss of
// their own batch. An error means that the values are not to be trusted: end
// the rank with it.
func (d *DDP[B, V]) Step(ctx context.Context, b B) (loss float64, err error) {
	if d.pending+1 < d.cfg.Accumulate {
		return d.NoSync(ctx, b)
	}
	return d.update(ctx, func() error {
		_, err := d.compute(ctx, b, func(param int) { d.sums.Ready(ctx, param) })
		return err
	})
}

// NoSync adds up the gradient of this rank's batch without communication,
// for the next update: accumulation by hand. It returns the batch's loss.
func (d *DDP[B, V]) NoSync(ctx context.Context, b B) (loss float64, err error) {
	d.sums.Reset()
	if loss, err = d.compute(ctx, b, d.sums.Note); err != nil {
		return 0, err
	}
	d.pending++
	return loss, nil
}

// Idle takes part in a step of the other ranks for which this one has no
// batch. It returns what their Step returns, or 0 where that makes no update.
func (d *DDP[B, V]) Idle(ctx context.Context) (loss float64, err error) {
	idle := func(ready func(param int)) error {
		if err := d.begin(); err != nil {
			return err
		}
		if m, ok := d.model.(interface {
			Idle(context.Context, func(int)) error
		}); ok {
			return m.Idle(ctx, ready)
		}
		return nil
	}
	if d.pending+1 < d.cfg.Accumulate {
		err := idle(func(int) {})
		d.pending++
		return 0, err
	}
	return d.update(ctx, func() error { return idle(func(param int) { d.sums.Ready(ctx, param) }) })
}

// Join ranges over batches, for a loop whose body calls Step, where the ranks
// have different numbers of them. When this rank's end it goes on with Idle
// until there were as many as the largest number, steps. That costs nothing
// where all have as many. A rank can compute the others' numbers, as it can
// their order; where it can't, Gather finds the largest.
func (d *DDP[B, V]) Join(ctx context.Context, steps int, batches iter.Seq2[B, error]) iter.Seq2[B, error] {
	return func(yield func(B, error) bool) {
		n := 0
		for b, err := range batches {
			if n++; err == nil && n > steps {
				var none B
				b, err = none, fmt.Errorf("trainer: rank %d has more than the %d batches that Join was told of", d.group.Rank(), steps)
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
		for ; n < steps; n++ {
			if _, err := d.Idle(ctx); err != nil {
				var none B
				yield(none, err)
				return
			}
		}
	}
}

// Flush makes the update of steps that are pending, fewer than Accumulate:
// at the end of an epoch, for instance. Without any it does nothing.
func (d *DDP[B, V]) Flush(ctx context.Context) (loss float64, err error) {
	if d.pending == 0 {
		return 0, nil
	}
	return d.update(ctx, func() error { return nil })
}

// begin keeps the buffers, which the first step of an update may change.
func (d *DDP[B, V]) begin() error {
	if d.pending > 0 || len(d.before) == 0 {
		return nil
	}
	if err := d.buffers.Read(d.before); err != nil {
		return fmt.Errorf("trainer: the buffers before step %d: %w", d.steps, err)
	}
	return nil
}

// compute runs the model on a batch.
func (d *DDP[B, V]) compute(ctx context.Context, b B, ready func(param int)) (loss float64, err error) {
	if err := d.begin(); err != nil {
		return 0, err
	}
	n := rows(b)
	if loss, err = d.model.Step(ctx, b, float64(n)/d.nominal, ready); err != nil {
		return 0, err
	}
	if err := d.sums.Misuse(); err != nil || n == 0 {
		return loss, err
	}
	d.rows += n
	d.loss += loss * float64(n)
	return loss, d.use()
}

// rows is the weight of a batch.
func rows[B any](b B) int {
	if r, ok := any(b).(interface{ Rows() int }); ok {
		return r.Rows()
	}
	return 1
}

// use notes which parameters had a gradient in a step with rows. It is an error
// where one had none and must.
func (d *DDP[B, V]) use() error {
	var missing []string
	done := d.sums.Done()
	for _, i := range d.trained {
		if done[i] {
			d.used[i] = true
		} else if !d.cfg.FindUnused {
			missing = append(missing, d.params[i].Name)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("trainer: step %d gave no gradient for %s: a model calls ready for every parameter that it used; set FindUnused where it may leave some out, or make those Frozen", d.steps, bucket.List(missing))
}

// update averages the gradients that compute completes, and those of pending
// steps, and applies them.
func (d *DDP[B, V]) update(ctx context.Context, compute func() error) (loss float64, err error) {
	d.sums.Reset()
	// Where an all-reduce has begun the others wait for this rank: an error
	// returns at once, and ends them through the group.
	if err := compute(); err != nil {
		return 0, err
	}
	computed := time.Now()
	if err := d.sums.Finish(ctx); err != nil {
		return 0, err
	}
	reports, err := d.exchange(ctx)
	if err := d.sums.Wait(); err != nil { // what came before says more
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("trainer: the losses of step %d: %w", d.steps, err)
	}
	all, exposed := d.sums.Times(computed)
	d.stats.AllReduce += all
	d.stats.Exposed += exposed
	loss, err = d.apply(ctx, reports)
	d.forget()
	return loss, err
}

// forget ends an update: no step is pending.
func (d *DDP[B, V]) forget() {
	d.pending, d.rows, d.loss = 0, 0, 0
	clear(d.used)
}

// apply makes the update of averaged gradients.
func (d *DDP[B, V]) apply(ctx context.Context, all []report) (loss float64, err error) {
	total, live := 0, 0
	for rank, r := range slices.Backward(all) {
		if total += r.rows; r.rows > 0 {
			live = rank
		}
	}
	for _, r := range all {
		loss += r.loss
	}
	loss /= max(1, float64(total))
	switch bad := d.nonFinite(all); {
	case bad != nil && d.cfg.SkipNonFinite:
		d.stats.Skipped++
		d.stats.Reason = bad
		err = errors.Join(zero(d.grad), d.buffers.Write(d.before))
	case bad != nil:
		err = bad
	case total > 0:
		u := Update[V]{Step: d.steps, Value: d.value.Slice(0, d.grad.Len()), Grad: d.grad, Scale: d.nominal / float64(total), Parts: d.changing(all)}
		if err = d.opt.Update(u); err != nil {
			err = fmt.Errorf("trainer: step %d: %w", d.steps, err)
		}
	}
	if err != nil {
		return 0, err
	}
	d.steps++
	d.stats.Updates++
	// Statistics of one rank's batches: those of the lowest rank that had rows.
	if d.buffers.Len() > 0 {
		if err := d.group.Broadcast(ctx, d.buffers, live); err != nil {
			return 0, fmt.Errorf("trainer: the buffers after step %d: %w", d.steps-1, err)
		}
	}
	return loss, nil
}

// changing are the trained parameters that had a gradient on any rank.
func (d *DDP[B, V]) changing(all []report) []Part {
	parts := make([]Part, 0, len(d.trained))
	for _, i := range d.trained {
		if !d.cfg.FindUnused || slices.ContainsFunc(all, func(r report) bool { return r.uses(i) }) {
			parts = append(parts, d.parts[i])
		}
	}
	return parts
}

// NonFiniteError is a loss or a gradient that is infinite or not a number.
type NonFiniteError struct {
	Step  int     // of the updates
	Rank  int     // on which it was, the lowest one
	Param string  // the parameter nearest to the loss whose gradient it is; "" where only the loss is
	Loss  float64 // the rank's mean loss
}

// Error names rank, step and parameter.
func (e *NonFiniteError) Error() string {
	what := "the loss"
	if e.Param != "" {
		what = "the gradient of " + e.Param
	}
	return fmt.Sprintf("trainer: %s of rank %d is not finite at step %d (its loss is %v)", what, e.Rank, e.Step, e.Loss)
}

func (d *DDP[B, V]) nonFinite(all []report) *NonFiniteError {
	for rank, r := range all {
		if r.bad == 0 && !math.IsNaN(r.loss) && !math.IsInf(r.loss, 0) {
			continue
		}
		e := &NonFiniteError{Step: d.steps, Rank: rank, Loss: r.loss / float64(max(1, r.rows))}
		if r.bad > 0 {
			e.Param = d.params[r.bad-1].Name
		}
		return e
	}
	return nil
}

// zero makes all values 0.
func zero[V Span[V]](v V) error {
	zeros := make([]float32, min(v.Len(), 1<<16))
	for i := 0; i < v.Len(); i += len(zeros) {
		j := min(i+len(zeros), v.Len())
		if err := v.Slice(i, j).Write(zeros[:j-i]); err != nil {
			return err
		}
	}
	return nil
}

// Stats is what DDP has done since New.
type Stats struct {
	Updates int // Skipped ones included
	Skipped int // because something was not finite,
	// and why the last one was, alike on all ranks.
	Reason *NonFiniteError
	// AllReduce is the time in which gradients were on their way, waiting for
	// slower ranks included; Exposed the part of it after the backward pass
	// had ended.
	AllReduce, Exposed time.Duration
}

// Overlap is the share of AllReduce that the backward pass has hidden.
func (s Stats) Overlap() float64 {
	if s.AllReduce == 0 {
		return 0
	}
	return 1 - s.Exposed.Seconds()/s.AllReduce.Seconds()
}

// Stats is what this rank has done so far.
func (d *DDP[B, V]) Stats() Stats { return d.stats }
