package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// on runs f on ranks that share a group, each with a DDP of a plane, and
// returns the values that all of them have in the end.
func on(t *testing.T, ranks int, cfg trainer.Config, change func(rank int, m *plane), f func(ctx context.Context, d *ddp, g *local.Group) error) []float32 {
	t.Helper()
	all := make([][]float32, ranks)
	err := local.Spawn(t.Context(), ranks, func(ctx context.Context, g *local.Group) error {
		m := newPlane()
		if change != nil {
			change(g.Rank(), m)
		}
		d, err := trainer.New[points](ctx, g, m, &momentum{}, cfg)
		if err != nil {
			return err
		}
		if err := f(ctx, d, g); err != nil {
			return err
		}
		for _, p := range m.params {
			all[g.Rank()] = append(all[g.Rank()], p.Value...)
		}
		return nil
	}).Wait()
	if err != nil {
		t.Fatal(err)
	}
	for rank, values := range all {
		if !slices.Equal(values, all[0]) {
			t.Fatalf("rank %d has the values %v, rank 0 %v", rank, values, all[0])
		}
	}
	return all[0]
}

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= 1e-5*math.Abs(float64(want[i]))) {
			t.Errorf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// A global batch that is cut over ranks and over accumulated steps, in shares
// of any size, makes the update of the whole, and its loss.
func TestAccumulate(t *testing.T) {
	const updates = 20
	want, losses := run(t, updates, [][]int{{0, 12}})
	for name, cuts := range map[string][2][]int{ // where a rank's part of 12 rows is cut, by rank
		"equal":         {{0, 2, 4, 6}, {6, 8, 10, 12}},
		"uneven":        {{0, 1, 1, 5}, {5, 11, 12, 12}},
		"one rank only": {{0, 0, 0, 0}, {0, 4, 9, 12}},
	} {
		for _, global := range []int{0, 12, 100} {
			for _, byHand := range []bool{false, true} {
				cfg := trainer.Config{Seed: 7, Accumulate: 3, GlobalBatch: global}
				if byHand {
					cfg.Accumulate = 0
				}
				got := on(t, 2, cfg, nil, func(ctx context.Context, d *ddp, g *local.Group) error {
					for k := range updates {
						var loss float64
						var err error
						for micro := range 3 {
							step := d.Step
							if byHand && micro < 2 {
								step = d.NoSync
							}
							at := cuts[g.Rank()]
							if loss, err = step(ctx, whole(k).cut(at[micro], at[micro+1], micro)); err != nil {
								return err
							}
							if want := (micro + 1) % 3; d.Pending() != want {
								return fmt.Errorf("%d steps pending, want %d", d.Pending(), want)
							}
						}
						if math.Abs(loss-losses[k]) > 1e-5*losses[k] || d.Steps() != k+1 {
							return fmt.Errorf("update %d (%d counted) has the loss %v, want %v", k, d.Steps(), loss, losses[k])
						}
					}
					return nil
				})
				near(t, fmt.Sprintf("%s, global batch %d, by hand %v", name, global, byHand), got, want[:4])
			}
		}
	}
}

// Steps that are left at the end of an epoch make an update by Flush.
func TestFlush(t *testing.T) {
	want := on(t, 2, trainer.Config{}, nil, func(ctx context.Context, d *ddp, g *local.Group) error {
		_, err := d.Step(ctx, whole(1).cut(6*g.Rank(), 6*g.Rank()+6, 0))
		return err
	})
	got := on(t, 2, trainer.Config{Accumulate: 5}, nil, func(ctx context.Context, d *ddp, g *local.Group) error {
		if loss, err := d.Flush(ctx); loss != 0 || err != nil || d.Steps() != 0 {
			return fmt.Errorf("Flush of nothing: loss %v, %v, %d updates", loss, err, d.Steps())
		}
		for half := range 2 {
			at := 6*g.Rank() + 3*half
			if _, err := d.Step(ctx, whole(1).cut(at, at+3, 0)); err != nil {
				return err
			}
		}
		if _, err := d.Flush(ctx); err != nil || d.Steps() != 1 || d.Pending() != 0 {
			return fmt.Errorf("Flush: %v, %d updates, %d pending", err, d.Steps(), d.Pending())
		}
		return nil
	})
	near(t, "flushed", got, want)
}

// A step without communication has none.
func TestNoSyncIsSilent(t *testing.T) {
	err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		d, err := newDDP(ctx, g, trainer.Config{Accumulate: 3})
		if err != nil || g.Rank() == 1 {
			return errors.Join(err, trainer.Barrier(ctx, g))
		}
		for range 2 { // rank 1 makes none of them
			if _, err := d.Step(ctx, whole(0)); err != nil {
				return err
			}
		}
		return trainer.Barrier(ctx, g)
	}).Wait()
	if err != nil {
		t.Error(err)
	}
}

// leaving is a model that leaves out parameters.
func leaving(out ...int) func(ready func(int)) error {
	return func(ready func(int)) error {
		for i := 2; i >= 0; i-- {
			if !slices.Contains(out, i) {
				ready(i)
			}
		}
		return nil
	}
}

// Unused parameters are an error in the same step, by name, on all ranks: the
// others get it from the rank that found it.
func TestUnusedIsNamed(t *testing.T) {
	errs := make([]error, 2)
	_ = local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		m := newPlane()
		if g.Rank() == 1 {
			m.around = leaving(0, 2)
		}
		d, err := trainer.New[points](ctx, g, m, &momentum{}, trainer.Config{})
		if err != nil {
			return err
		}
		_, errs[g.Rank()] = d.Step(ctx, whole(0))
		return errs[g.Rank()]
	}).Wait()
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "step 0 gave no gradient for first.weight, bias") || rank == 0 && !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// With FindUnused, what one rank leaves out counts as zeros there, and what
// all leave out stays as it is, momenta included. What an accumulated step has
// used is used.
func TestFindUnused(t *testing.T) {
	cfg := trainer.Config{Seed: 7, FindUnused: true, FirstBucket: 4, Bucket: 4}
	steps := func(out [2][][]int) []float32 {
		return on(t, 2, cfg, func(rank int, m *plane) {
			calls := 0
			m.around = func(ready func(int)) error {
				for i := range m.params { // without a gradient
					if slices.Contains(out[rank][calls], i) {
						clear(m.params[i].Grad)
					}
				}
				calls++
				return leaving(out[rank][calls-1]...)(ready)
			}
		}, func(ctx context.Context, d *ddp, g *local.Group) error {
			for k := range out[0] {
				if _, err := d.Step(ctx, whole(k).cut(6*g.Rank(), 6*g.Rank()+6, 0)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	both := steps([2][][]int{{{}}, {{}}})
	one := steps([2][][]int{{{2}}, {{}}})
	first := on(t, 2, cfg, nil, func(context.Context, *ddp, *local.Group) error { return nil })
	if one[3] == both[3] || one[3] == first[3] || !slices.Equal(one[:3], both[:3]) {
		t.Errorf("left out by rank 0: %v; by none: %v; at first %v", one, both, first)
	}
	// Left out by all in the second step: with its momentum a value would move.
	then := steps([2][][]int{{{}, {1}}, {{}, {1}}})
	if then[2] != both[2] || then[0] == both[0] {
		t.Errorf("left out by all in the second step: %v, after the first %v", then, both)
	}
}

// A rank whose rows are all padding has no gradient, whatever its model says:
// what the ranks with rows leave out stays as it is there, too.
func TestPaddingUsesNothing(t *testing.T) {
	steps := func(out ...int) []float32 {
		return on(t, 2, trainer.Config{Seed: 7, FindUnused: true}, func(rank int, m *plane) {
			calls := 0
			m.around = func(ready func(int)) error {
				if calls++; rank == 1 || calls == 1 {
					return leaving()(ready)
				}
				for _, i := range out {
					clear(m.params[i].Grad)
				}
				return leaving(out...)(ready)
			}
		}, func(ctx context.Context, d *ddp, g *local.Group) error {
			for k := range 2 {
				if _, err := d.Step(ctx, whole(k).cut(0, 12*(1-g.Rank()), g.Rank())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	first, _ := run(t, 1, [][]int{{0, 12}})
	if got := steps(1); got[2] != first[2] || got[0] == first[0] {
		t.Errorf("left out by the rank with rows: %v, after the step before %v", got, first)
	}
}

// Accumulated steps may use different parameters where FindUnused allows it,
// and what one of them has used is used. Without it each step uses them all.
func TestAccumulatedUse(t *testing.T) {
	for bad := range 2 {
		err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
			m, calls := newPlane(), 0
			m.around = func(ready func(int)) error {
				if calls++; calls == bad+1 {
					return leaving(1)(ready)
				}
				return leaving()(ready)
			}
			d, err := trainer.New[points](ctx, g, m, &momentum{}, trainer.Config{Accumulate: 2})
			for k := 0; k < 2 && err == nil; k++ {
				_, err = d.Step(ctx, whole(k))
			}
			if calls != bad+1 {
				return fmt.Errorf("step %d: %w", calls-1, err)
			}
			return err
		}).Wait()
		if err == nil || !strings.Contains(err.Error(), "failed: trainer: step 0 gave no gradient for second.weight") {
			t.Errorf("accumulated step %d leaves out a parameter: %v", bad, err)
		}
	}
	first := on(t, 2, trainer.Config{Seed: 7}, nil, func(context.Context, *ddp, *local.Group) error { return nil })
	got := on(t, 2, trainer.Config{Seed: 7, Accumulate: 2, FindUnused: true, FirstBucket: 4, Bucket: 4}, func(_ int, m *plane) {
		calls := 0
		m.around = func(ready func(int)) error { calls++; return leaving(calls % 2)(ready) } // first 1, then 0
	}, func(ctx context.Context, d *ddp, _ *local.Group) error {
		for k := range 2 {
			if _, err := d.Step(ctx, whole(k)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range got {
		if got[i] == first[i] {
			t.Errorf("value %d is %v as before: one of the steps has used it", i, got[i])
		}
	}
}

// A frozen parameter keeps its value, has no gradient and takes no part in
// averaging; it is in the checkpoint, and the optimizer has no state of it.
func TestFrozen(t *testing.T) {
	freeze := func(_ int, m *plane) {
		m.params[1].Role = trainer.Frozen
		m.around = leaving(1)
	}
	var before []float32
	got := on(t, 2, trainer.Config{Seed: 7}, freeze, func(ctx context.Context, d *ddp, g *local.Group) error {
		saved, err := d.Save()
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			before = saved[1].Data
		}
		if _, err := d.Step(ctx, whole(0).cut(6*g.Rank(), 6*g.Rank()+6, 0)); err != nil {
			return err
		}
		if saved, err = d.Save(); err != nil {
			return err
		}
		var names []string
		for _, tensor := range saved {
			names = append(names, tensor.Name)
		}
		if want := []string{"first.weight", "second.weight", "bias", "optimizer.momentum.first.weight", "optimizer.momentum.bias"}; !slices.Equal(names, want) {
			return fmt.Errorf("saved %v, want %v", names, want)
		}
		return d.Restore(ctx, 1, saved)
	})
	if got[2] != before[0] {
		t.Errorf("the frozen value was %v, is %v", before[0], got[2])
	}
	free := on(t, 2, trainer.Config{Seed: 7}, nil, func(ctx context.Context, d *ddp, g *local.Group) error {
		_, err := d.Step(ctx, whole(0).cut(6*g.Rank(), 6*g.Rank()+6, 0))
		return err
	})
	if got[0] != free[0] || got[3] != free[3] || got[2] == free[2] {
		t.Errorf("with a frozen parameter %v, without %v: the others should be equal", got, free)
	}
	err := local.Spawn(t.Context(), 1, func(ctx context.Context, g *local.Group) error {
		m := newPlane()
		for _, p := range m.params {
			p.Role = trainer.Frozen
		}
		_, err := trainer.New[points](ctx, g, m, &momentum{}, trainer.Config{})
		return err
	}).Wait()
	if err == nil || !strings.Contains(err.Error(), "no parameter of the model is trained") {
		t.Errorf("all frozen: %v", err)
	}
}

// After a step all ranks have the buffers of the lowest rank that had rows.
func TestBuffers(t *testing.T) {
	got := on(t, 3, trainer.Config{}, func(rank int, m *plane) {
		m.params[0].Role = trainer.Buffer
		m.around = func(ready func(int)) error {
			m.params[0].Value[0] = float32(rank) // a statistic of the rank's rows
			return leaving(0)(ready)
		}
	}, func(ctx context.Context, d *ddp, g *local.Group) error {
		_, err := d.Step(ctx, whole(0).cut(0, []int{0, 4, 8}[g.Rank()], 0))
		return err
	})
	if got[0] != 1 {
		t.Errorf("the buffer is %v, want rank 1's", got[0])
	}
}

// counting is a model that counts its batches in a buffer, as BatchNorm does.
func counting(_ int, m *plane) {
	m.params[1].Role = trainer.Buffer
	m.around = func(ready func(int)) error {
		m.params[1].Value[0]++
		return leaving(1)(ready)
	}
}

// A skipped update leaves buffers as they were before it: what is not finite
// would stay in a running mean for ever.
func TestSkippedBuffers(t *testing.T) {
	cfg := trainer.Config{SkipNonFinite: true}
	start := on(t, 2, cfg, counting, func(context.Context, *ddp, *local.Group) error { return nil })
	for _, accumulate := range []int{1, 2} {
		cfg.Accumulate = accumulate
		got := on(t, 2, cfg, counting, func(ctx context.Context, d *ddp, g *local.Group) error {
			for k := range 3 * accumulate {
				b := whole(k)
				if k == 2*accumulate-1 {
					b.y[0] = float32(math.Inf(g.Rank()))
				}
				if _, err := d.Step(ctx, b); err != nil {
					return err
				}
			}
			return nil
		})
		if n := math.Round(float64(got[2] - start[2])); n != float64(2*accumulate) {
			t.Errorf("%d steps an update: the buffer has counted %v of 3 updates, one of which was skipped", accumulate, n)
		}
	}
}

// A checkpoint that is taken while steps are pending has nothing of them, nor
// has a run that is restored then.
func TestPendingIsNotSaved(t *testing.T) {
	cfg := trainer.Config{Seed: 7, Accumulate: 2}
	updates := func(ctx context.Context, d *ddp, from, to int) error {
		for k := 2 * from; k < 2*to; k++ {
			if _, err := d.Step(ctx, whole(k)); err != nil {
				return err
			}
		}
		return nil
	}
	want := on(t, 2, cfg, counting, func(ctx context.Context, d *ddp, _ *local.Group) error { return updates(ctx, d, 0, 2) })
	got := on(t, 2, cfg, counting, func(ctx context.Context, d *ddp, _ *local.Group) error {
		if err := updates(ctx, d, 0, 1); err != nil {
			return err
		}
		if _, err := d.NoSync(ctx, whole(9)); err != nil {
			return err
		}
		saved, err := d.Save()
		if err != nil {
			return err
		}
		if err := d.Restore(ctx, 1, saved); err != nil {
			return err
		}
		if d.Pending() != 0 {
			return fmt.Errorf("%d steps are pending after Restore", d.Pending())
		}
		return updates(ctx, d, 1, 2)
	})
	if !slices.Equal(got, want) {
		t.Errorf("restored %v, want %v", got, want)
	}
}

// Two trainers share a group, as a generator and a discriminator do.
func TestTwoOfAGroup(t *testing.T) {
	want, _ := run(t, 5, [][]int{{0, 5, 12}})
	both := on(t, 2, trainer.Config{Seed: 7, FirstBucket: 4, Bucket: 8}, nil, func(ctx context.Context, d *ddp, g *local.Group) error {
		other, err := newDDP(ctx, g, trainer.Config{Seed: 1})
		if err != nil {
			return err
		}
		for k := range 5 {
			for _, each := range []*ddp{other, d} {
				if _, err := each.Step(ctx, whole(k).cut([]int{0, 5}[g.Rank()], []int{5, 12}[g.Rank()], 0)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	near(t, "beside another one", both, want[:4])
}

// batches are a rank's batches of an epoch.
func batches(n int, b func(k int) points) iter.Seq2[points, error] {
	return func(yield func(points, error) bool) {
		for k := range n {
			if !yield(b(k), nil) {
				return
			}
		}
	}
}

// counter counts the calls of collectives.
type counter struct {
	*local.Group
	calls int
}

func (c *counter) AllReduce(ctx context.Context, v trainer.Host, op trainer.Op) (func() error, error) {
	c.calls++
	return c.Group.AllReduce(ctx, v, op)
}

func (c *counter) Exchange(ctx context.Context, mine []byte) ([][]byte, error) {
	c.calls++
	return c.Group.Exchange(ctx, mine)
}

// Ranks with fewer batches than others take part until the last one has ended:
// the updates are those of one rank with all rows. Where all have as many
// Join costs nothing.
func TestJoin(t *testing.T) {
	has := []int{2, 6, 4}
	rowsOf := func(k int) (at []int) { // the rows of step k are shared by the ranks that have it
		at = []int{0}
		var live int
		for _, n := range has {
			if n > k {
				live++
			}
		}
		for _, n := range has {
			last := at[len(at)-1]
			if n > k {
				last += 12 / live
			}
			at = append(at, last)
		}
		return at
	}
	want, _ := run(t, 6, [][]int{{0, 12}})
	got := on(t, 3, trainer.Config{Seed: 7}, nil, func(ctx context.Context, d *ddp, g *local.Group) error {
		mine := has[g.Rank()]
		all, err := trainer.Gather(ctx, g, mine)
		if err != nil || !slices.Equal(all, has) {
			return fmt.Errorf("gathered %v: %w", all, err)
		}
		k := 0
		for b, err := range d.Join(ctx, slices.Max(all), batches(mine, func(k int) points {
			at := rowsOf(k)
			return whole(k).cut(at[g.Rank()], at[g.Rank()+1], 0)
		})) {
			if err != nil {
				return err
			}
			if _, err := d.Step(ctx, b); err != nil {
				return err
			}
			k++
		}
		if k != mine || d.Steps() != 6 {
			return fmt.Errorf("rank %d made %d steps of %d, and %d updates", g.Rank(), k, mine, d.Steps())
		}
		return nil
	})
	near(t, "joined", got, want[:4])

	err := local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		c := &counter{Group: g}
		d, err := trainer.New[points](ctx, c, newPlane(), &momentum{}, trainer.Config{})
		if err != nil {
			return err
		}
		for _, join := range []bool{false, true} {
			c.calls = 0
			seq := batches(3, whole)
			if join {
				seq = d.Join(ctx, 3, seq)
			}
			for b, err := range seq {
				if err != nil {
					return err
				}
				if _, err := d.Step(ctx, b); err != nil {
					return err
				}
			}
			if want := 3 * 2; c.calls != want { // a bucket and the losses
				return fmt.Errorf("joined %v: %d collectives in 3 steps, want %d", join, c.calls, want)
			}
		}
		for _, err := range d.Join(ctx, 1, batches(2, whole)) {
			if err != nil {
				if !strings.Contains(err.Error(), "more than the 1 batches") {
					return err
				}
				return nil
			}
		}
		return errors.New("a second batch where Join was told of one")
	}).Wait()
	if err != nil {
		t.Error(err)
	}
}

// A loss or gradient that is not finite ends every rank with the name of the
// rank that has it and of the parameter, and changes nothing.
func TestNonFinite(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *plane)
		batch  func(b points)
		want   trainer.NonFiniteError
	}{
		{"a gradient", func(m *plane) {
			m.around = func(ready func(int)) error { m.params[0].Grad[1] = float32(math.Inf(1)); return leaving()(ready) }
		}, nil, trainer.NonFiniteError{Rank: 1, Param: "first.weight"}},
		{"the loss", nil, func(b points) { b.y[2] = float32(math.NaN()) }, trainer.NonFiniteError{Rank: 1, Param: "bias", Loss: math.NaN()}},
	} {
		for _, skip := range []bool{false, true} {
			errs := make([]*trainer.NonFiniteError, 3)
			var before, after [3][]float32
			err := local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
				m := newPlane()
				if g.Rank() == 1 && c.change != nil {
					c.change(m)
				}
				d, err := trainer.New[points](ctx, g, m, &momentum{}, trainer.Config{SkipNonFinite: skip, FirstBucket: 4, Bucket: 4})
				if err != nil {
					return err
				}
				values := func(to *[]float32) {
					for _, p := range m.params {
						*to = append(*to, p.Value...)
					}
				}
				values(&before[g.Rank()])
				b := whole(0)
				if g.Rank() == 1 && c.batch != nil {
					c.batch(b)
				}
				_, err = d.Step(ctx, b)
				values(&after[g.Rank()])
				if !skip && !errors.As(err, &errs[g.Rank()]) || skip && err != nil {
					return fmt.Errorf("Step: %w", err)
				}
				if skip {
					if s := d.Stats(); s.Skipped != 1 || s.Updates != 1 || d.Steps() != 1 || s.Reason.Rank != c.want.Rank || s.Reason.Param != c.want.Param {
						return fmt.Errorf("%+v after a skipped update", s)
					}
					m.around = nil
					if _, err := d.Step(ctx, whole(1)); err != nil {
						return fmt.Errorf("the step after a skipped one: %w", err)
					}
					if slices.Equal(m.params[0].Value, after[g.Rank()][:2]) {
						return errors.New("the step after a skipped one changes nothing")
					}
				}
				return nil
			}).Wait()
			if err != nil {
				t.Errorf("%s, skip %v: %v", c.name, skip, err)
				continue
			}
			for rank := range errs {
				if !slices.Equal(before[rank], after[rank]) {
					t.Errorf("%s, skip %v: rank %d changes %v to %v", c.name, skip, rank, before[rank], after[rank])
				}
				if e := errs[rank]; !skip && (e.Rank != c.want.Rank || e.Param != c.want.Param || math.IsNaN(c.want.Loss) != math.IsNaN(e.Loss)) {
					t.Errorf("%s: rank %d says %v", c.name, rank, e)
				}
			}
		}
	}
}

func TestFinite(t *testing.T) {
	for _, n := range []int{0, 1, 7, 64, 1000} {
		h := make(trainer.Host, n)
		for i := range h {
			h[i] = 1e30 // whose square overflows
		}
		if !h.Finite() {
			t.Errorf("%d large values are not finite", n)
		}
		for i := range h {
			for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
				was := h[i]
				if h[i] = float32(bad); h.Finite() {
					t.Errorf("%d values are finite with %v at %d", n, bad, i)
				}
				h[i] = was
			}
		}
	}
}

func TestGather(t *testing.T) {
	err := local.Spawn(t.Context(), 3, func(ctx context.Context, g *local.Group) error {
		all, err := trainer.Gather(ctx, g, map[string]int{"rank": g.Rank()})
		if err != nil || len(all) != 3 || all[2]["rank"] != 2 || all[0]["rank"] != 0 {
			return fmt.Errorf("gathered %v: %w", all, err)
		}
		return nil
	}).Wait()
	if err != nil {
		t.Error(err)
	}
	err = local.Spawn(t.Context(), 2, func(ctx context.Context, g *local.Group) error {
		_, err := trainer.Gather(ctx, g, math.NaN())
		return err
	}).Wait()
	if err == nil || !strings.Contains(err.Error(), "brings to Gather") {
		t.Errorf("Gather of what JSON cannot say: %v", err)
	}
}
