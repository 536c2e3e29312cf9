package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// points is a batch of the model below: y is to be predicted from x.
type points struct {
	x      [][3]float32
	y      []float32
	padded int // of the last points
}

func (p points) Rows() int { return len(p.x) - p.padded }

// plane is the model y = w·x + b with squared error; w comes in two
// parameters, so that there is something to put into buckets.
type plane struct {
	params []*trainer.Param[trainer.Host]
	// around is called by Step in place of ready, where it is set.
	around func(ready func(int)) error
}

func newPlane() *plane {
	return &plane{params: []*trainer.Param[trainer.Host]{
		{Name: "first.weight", Shape: []int{2}}, {Name: "second.weight", Shape: []int{1}}, {Name: "bias"},
	}}
}

func (m *plane) Params() []*trainer.Param[trainer.Host] { return m.params }

func (m *plane) Init(seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	for _, p := range m.params {
		for i := range p.Value {
			p.Value[i] = r.Float32()
		}
	}
	return nil
}

func (m *plane) Step(_ context.Context, b points, scale float64, ready func(int)) (loss float64, err error) {
	n := b.Rows()
	for k := range n {
		x, w := b.x[k], m.params
		e := w[0].Value[0]*x[0] + w[0].Value[1]*x[1] + w[1].Value[0]*x[2] + w[2].Value[0] - b.y[k]
		loss += float64(e*e) / float64(n)
		g := float32(scale) * 2 * e / float32(n)
		for i, dx := range [][]float32{x[:2], x[2:], {1}} {
			for j := range w[i].Grad { // none where it is not trained
				w[i].Grad[j] += g * dx[j]
			}
		}
	}
	if m.around != nil {
		return loss, m.around(ready)
	}
	for i := len(m.params) - 1; i >= 0; i-- {
		ready(i)
	}
	return loss, nil
}

// momentum is the least optimizer with a state.
type momentum struct{ v trainer.Host }

func (o *momentum) Update(u trainer.Update[trainer.Host]) error {
	if o.v == nil {
		o.v = make(trainer.Host, len(u.Value))
	}
	for _, p := range u.Parts {
		for i := p.From; i < p.To; i++ {
			o.v[i] = 0.5*o.v[i] + float32(u.Scale)*u.Grad[i]
			u.Value[i] -= 0.05 * o.v[i]
			u.Grad[i] = 0
		}
	}
	return nil
}

func (o *momentum) State() map[string]trainer.Host {
	if o.v == nil {
		return nil
	}
	return map[string]trainer.Host{"momentum": o.v}
}

func (o *momentum) Restore(state map[string][]float32) error {
	o.v = state["momentum"]
	return nil
}

type ddp = trainer.DDP[points, trainer.Host]

func newDDP(ctx context.Context, g *local.Group, cfg trainer.Config) (*ddp, error) {
	return trainer.New[points](ctx, g, newPlane(), &momentum{}, cfg)
}

// whole is the global batch of a step; cut is a rank's part of it.
func whole(step int) (p points) {
	r := rand.New(rand.NewPCG(uint64(step), 2))
	for range 12 {
		x := [3]float32{r.Float32(), r.Float32(), r.Float32()}
		p.x, p.y = append(p.x, x), append(p.y, 3*x[0]-2*x[1]+x[2]+1)
	}
	return p
}

func (p points) cut(from, to, padding int) points {
	c := points{slices.Clone(p.x[from:to]), slices.Clone(p.y[from:to]), padding}
	for range padding { // what it repeats must not matter
		c.x, c.y = append(c.x, [3]float32{9, 9, 9}), append(c.y, -9)
	}
	return c
}

// run trains on the splits of the global batches: splits[k%len(splits)] cuts
// the batch of step k at its numbers.
func run(t *testing.T, steps int, splits [][]int) (values []float32, losses []float64) {
	t.Helper()
	world := len(splits[0]) - 1
	all := make([][]float32, world)
	err := local.Spawn(t.Context(), world, func(ctx context.Context, g *local.Group) error {
		d, err := newDDP(ctx, g, trainer.Config{Seed: 7, FirstBucket: 4, Bucket: 8})
		if err != nil {
			return err
		}
		for k := range steps {
			at := splits[k%len(splits)]
			loss, err := d.Step(ctx, whole(k).cut(at[g.Rank()], at[g.Rank()+1], g.Rank()))
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				losses = append(losses, loss)
			}
		}
		saved, err := d.Save()
		for _, tensor := range saved {
			all[g.Rank()] = append(all[g.Rank()], tensor.Data...)
		}
		return err
	}).Wait()
	if err != nil {
		t.Fatal(err)
	}
	for rank, values := range all {
		if !slices.Equal(values, all[0]) {
			t.Fatalf("rank %d has other values than rank 0", rank)
		}
	}
	return all[0], losses
}

// Any split of the global batch over any number of ranks is one and the same
// step: uneven shares, ranks without a row, and padding, which counts nothing.
func TestSplitEqualsWhole(t *testing.T) {
	wantValues, wantLosses := run(t, 20, [][]int{{0, 12}})
	for _, splits := range [][][]int{
		{{0, 6, 12}},
		{{0, 4, 8, 12}},
		{{0, 3, 6, 9, 12}},
		{{0, 1, 12}, {0, 11, 12}, {0, 0, 12}, {0, 12, 12}},
		{{0, 5, 6, 12}, {0, 0, 0, 12}},
	} {
		values, losses := run(t, 20, splits)
		for i := range values {
			if math.Abs(float64(values[i]-wantValues[i])) > 1e-5*math.Abs(float64(wantValues[i])) {
				t.Errorf("split %v: value %d is %v, want %v", splits, i, values[i], wantValues[i])
			}
		}
		for k := range losses {
			if math.Abs(losses[k]-wantLosses[k]) > 1e-5*wantLosses[k] {
				t.Errorf("split %v: the loss of step %d is %v, want %v", splits, k, losses[k], wantLosses[k])
			}
		}
	}
}

func TestSameBitsInEveryRun(t *testing.T) {
	splits := [][]int{{0, 5, 6, 12}, {0, 3, 9, 12}}
	values, losses := run(t, 10, splits)
	again, lossesAgain := run(t, 10, splits)
	if !slices.Equal(values, again) || !slices.Equal(losses, lossesAgain) {
		t.Error("two runs differ")
	}
}

// Each difference between the ranks ends New on all of them with one message.
func TestRanksThatDiffer(t *testing.T) {
	for want, change := range map[string]func(m *plane, cfg *trainer.Config){
		"rank 1 has parameter 1: second.weight float32[4], rank 0 has parameter 1: second.weight float32[1]":       func(m *plane, _ *trainer.Config) { m.params[1].Shape = []int{4} },
		"rank 1 has parameter 0: other float32[2], rank 0 has parameter 0: first.weight float32[2]":                func(m *plane, _ *trainer.Config) { m.params[0].Name = "other" },
		"rank 1 has a model of 2 parameters, rank 0 has a model of 3 parameters":                                   func(m *plane, _ *trainer.Config) { m.params = m.params[:2] },
		"rank 1 has seed 8, rank 0 has seed 0":                                                                     func(_ *plane, cfg *trainer.Config) { cfg.Seed = 8 },
		"rank 1 has order b, rank 0 has order a":                                                                   func(_ *plane, cfg *trainer.Config) { cfg.Agree = []string{"order b"} },
		"rank 1 has parameter 2: bias float32[] (frozen), rank 0 has parameter 2: bias float32[]":                  func(m *plane, _ *trainer.Config) { m.params[2].Role = trainer.Frozen },
		"rank 1 has 3 accumulated steps, a global batch of 0, rank 0 has 1 accumulated steps, a global batch of 0": func(_ *plane, cfg *trainer.Config) { cfg.Accumulate = 3 },
		"rank 1 has nothing more, rank 0 has order a":                                                              func(_ *plane, cfg *trainer.Config) { cfg.Agree = nil },
		"rank 1 has buckets of 1048576 and 8 bytes, rank 0 has buckets of 1048576 and 26214400 bytes":              func(_ *plane, cfg *trainer.Config) { cfg.Bucket = 8 },
	} {
		errs := make([]error, 3)
		_ = local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
			m, cfg := newPlane(), trainer.Config{Agree: []string{"order a"}}
			if g.Rank() == 1 {
				change(m, &cfg)
			}
			_, errs[g.Rank()] = trainer.New[points](ctx, g, m, &momentum{}, cfg)
			return nil
		}).Wait()
		for rank, err := range errs {
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("rank %d: %v\nwant …%s", rank, err, want)
			}
		}
	}
}

// recorder notes when all-reduces begin.
type recorder struct {
	*local.Group
	mu    sync.Mutex
	spans []int
}

func (r *recorder) AllReduce(ctx context.Context, v trainer.Host, op trainer.Op) (func() error, error) {
	r.mu.Lock()
	r.spans = append(r.spans, v.Len())
	r.mu.Unlock()
	return r.Group.AllReduce(ctx, v, op)
}

// Averaging begins while the backward pass goes on, in the very first step,
// and in one order whatever the order in which gradients are ready.
func TestOverlap(t *testing.T) {
	for _, order := range [][]int{{2, 1, 0}, {0, 1, 2}, {1, 0, 2}} {
		err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			m, r := newPlane(), &recorder{Group: g}
			m.around = func(ready func(int)) error {
				for k, i := range order {
					ready(i)
					// Buckets of the sizes 1 (bias), 1 (second) and 2 (first), which go in this order.
					done, begun := map[int]bool{}, 0
					for _, j := range order[:k+1] {
						done[j] = true
					}
					for begun < 3 && done[2-begun] {
						begun++
					}
					if len(r.spans) != begun {
						return fmt.Errorf("order %v: %d all-reduces have begun after %d gradients, want %d", order, len(r.spans), k+1, begun)
					}
				}
				if want := []int{1, 1, 2}; !slices.Equal(r.spans, want) {
					return fmt.Errorf("order %v: buckets of %v values, want %v", order, r.spans, want)
				}
				return nil
			}
			d, err := trainer.New[points](ctx, r, m, &momentum{}, trainer.Config{FirstBucket: 4, Bucket: 8})
			if err != nil {
				return err
			}
			_, err = d.Step(ctx, whole(0))
			return err
		}).Wait()
		if err != nil {
			t.Error(err)
		}
	}
}

func TestModelsThatMisreport(t *testing.T) {
	for want, around := range map[string]func(ready func(int)) error{
		"no gradient for first.weight, bias": func(ready func(int)) error { ready(1); return nil },
		"twice in a step that bias is ready": func(ready func(int)) error { ready(2); ready(2); return nil },
		"parameter 3 is ready; it has 3":     func(ready func(int)) error { ready(3); return nil },
	} {
		err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			m := newPlane()
			m.around = around
			d, err := trainer.New[points](ctx, g, m, &momentum{}, trainer.Config{})
			if err != nil {
				return err
			}
			_, err = d.Step(ctx, whole(0))
			return err
		}).Wait()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}

// A model that fails on one rank ends the others with its words.
func TestFailingModel(t *testing.T) {
	cause, errs := errors.New("out of cheese"), make([]error, 3)
	err := local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
		m := newPlane()
		if g.Rank() == 2 {
			m.around = func(func(int)) error { return cause }
		}
		d, err := trainer.New[points](ctx, g, m, &momentum{}, trainer.Config{})
		if err != nil {
			return err
		}
		_, errs[g.Rank()] = d.Step(ctx, whole(0))
		return errs[g.Rank()]
	}).Wait()
	if !errors.Is(err, cause) {
		t.Errorf("Spawn: %v, want %v", err, cause)
	}
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "out of cheese") || rank != 2 && !strings.Contains(err.Error(), "rank 2") {
			t.Errorf("rank %d: %v, want rank 2 and its words", rank, err)
		}
	}
}

// Saved after each step and restored, a run goes on with the same bits.
func TestSaveRestore(t *testing.T) {
	const steps = 5
	split := [][]int{{0, 5, 12}}
	want, _ := run(t, steps, split)
	for at := range steps + 1 {
		err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			step := func(d *ddp, from, to int) error {
				for k := from; k < to; k++ {
					if _, err := d.Step(ctx, whole(k).cut(split[0][g.Rank()], split[0][g.Rank()+1], g.Rank())); err != nil {
						return err
					}
				}
				return nil
			}
			first, err := newDDP(ctx, g, trainer.Config{Seed: 7})
			if err != nil {
				return err
			}
			if err := step(first, 0, at); err != nil {
				return err
			}
			saved, err := first.Save()
			if err != nil {
				return err
			}
			second, err := newDDP(ctx, g, trainer.Config{Seed: 99})
			if err != nil {
				return err
			}
			if err := second.Restore(ctx, at, saved); err != nil {
				return err
			}
			if err := step(second, at, steps); err != nil {
				return err
			}
			if second.Steps() != steps {
				return fmt.Errorf("%d steps, want %d", second.Steps(), steps)
			}
			saved, err = second.Save()
			var got []float32
			for _, tensor := range saved {
				got = append(got, tensor.Data...)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("restored at step %d: %v, want %v", at, got, want)
			}
			return err
		}).Wait()
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	good := func() []trainer.Tensor {
		return []trainer.Tensor{
			{Name: "first.weight", Shape: []int{2}, Data: make([]float32, 2)},
			{Name: "second.weight", Shape: []int{1}, Data: make([]float32, 1)},
			{Name: "bias", Data: make([]float32, 1)},
		}
	}
	for want, change := range map[string]func(rank int) []trainer.Tensor{
		"the checkpoint lacks bias": func(int) []trainer.Tensor { return good()[:2] },
		"the checkpoint has third, this model has no such parameter": func(int) []trainer.Tensor {
			return append(good(), trainer.Tensor{Name: "third", Data: make([]float32, 1)})
		},
		"the checkpoint's bias has the shape [7], this model's []": func(int) []trainer.Tensor {
			return append(good()[:2], trainer.Tensor{Name: "bias", Shape: []int{7}, Data: make([]float32, 7)})
		},
		"the checkpoint lacks optimizer.momentum.second.weight": func(int) []trainer.Tensor {
			return append(good(), trainer.Tensor{Name: "optimizer.momentum.first.weight", Shape: []int{2}, Data: make([]float32, 2)})
		},
		"rank 1 has restored values": func(rank int) []trainer.Tensor {
			tensors := good()
			tensors[2].Data[0] = float32(rank)
			return tensors
		},
	} {
		errs := make([]error, 2)
		_ = local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			d, err := newDDP(ctx, g, trainer.Config{})
			if err != nil {
				return err
			}
			errs[g.Rank()] = d.Restore(ctx, 3, change(g.Rank()))
			return nil
		}).Wait()
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want …%s…", rank, err, want)
			}
		}
	}
}

// Where the shapes of what two ranks restore differ, though not the values,
// both know.
func TestRestoredShapesDiffer(t *testing.T) {
	errs := make([]error, 2)
	_ = local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		d, err := newDDP(ctx, g, trainer.Config{})
		if err != nil {
			return err
		}
		saved, err := d.Save()
		if err != nil {
			return err
		}
		saved[0].Shape = [][]int{{2}, {1, 2}}[g.Rank()]
		errs[g.Rank()] = d.Restore(ctx, 0, saved)
		return nil
	}).Wait()
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "the ranks differ: rank 1 has restored values") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A state that is not as long as what is trained is an error when it is saved.
func TestStateOfAnotherLength(t *testing.T) {
	err := local.Spawn(t.Context(), 1, func(ctx context.Context, g *local.Group) error {
		m := newPlane()
		m.params[1].Role = trainer.Frozen
		d, err := trainer.New[points](ctx, g, m, &momentum{v: make(trainer.Host, 4)}, trainer.Config{})
		if err != nil {
			return err
		}
		_, err = d.Save()
		return err
	}).Wait()
	if err == nil || !strings.Contains(err.Error(), "the optimizer's state momentum has 4 values, the model trains 3") {
		t.Error(err)
	}
}

func TestTotals(t *testing.T) {
	err := local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
		got, err := trainer.Totals(ctx, g, float64(g.Rank()), 1, 0.5)
		if want := []float64{3, 3, 1.5}; err == nil && !slices.Equal(got, want) {
			return fmt.Errorf("rank %d: totals %v, want %v", g.Rank(), got, want)
		}
		return err
	}).Wait()
	if err != nil {
		t.Error(err)
	}
}
