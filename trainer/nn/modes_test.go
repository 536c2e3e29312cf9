package nn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/nn/layer"
)

// small is a net with a layer of every kind, for rows of 3×6×6 values and four
// classes.
func small() []Layer {
	return []Layer{
		&Conv2D{Name: "conv", In: 3, Out: 4, Height: 6, Width: 6, Kernel: 3, Padding: 1},
		&MaxPool2D{Height: 6, Width: 6, Size: 2},
		&BatchNorm{Name: "bn", Channels: 4},
		new(ReLU),
		&Linear{Name: "fc1", In: 36, Out: 8},
		&BatchNorm{Name: "bn1", Channels: 8},
		new(ReLU),
		&Dropout{P: 0.4},
		&Linear{Name: "fc2", In: 8, Out: 4},
	}
}

// all is a copy of all values and gradients.
func all(params []*trainer.Param[trainer.Host]) (v []float32) {
	for _, p := range params {
		v = append(append(v, p.Value...), p.Grad...)
	}
	return v
}

// Between two steps evaluation and prediction change no bit: values, buffers,
// gradients and losses are those of two steps alone.
func TestEvaluationChangesNothing(t *testing.T) {
	e, other := examples(7, 108, 4), examples(20, 108, 4)
	a, b := model(t, small()), model(t, small())
	for range 3 {
		la := step(t, a, e, 1)
		evaluate(t, b, other)
		if _, err := b.Predict(t.Context(), other, nil); err != nil {
			t.Fatal(err)
		}
		lb := step(t, b, e, 1)
		if la != lb || !slices.Equal(all(a.Params()), all(b.Params())) {
			t.Errorf("loss %v without evaluation, %v with it, or other parameters", la, lb)
		}
	}
	batches := slices.IndexFunc(a.Params(), func(p *trainer.Param[trainer.Host]) bool { return p.Name == "bn.num_batches_tracked" })
	if v := a.Params()[batches].Value[0]; v != 3 {
		t.Errorf("%v batches tracked after 3 steps", v)
	}
	// It uses the running statistics: a row's scores do not depend on the others.
	one := e
	one.Values, one.Labels, one.Rows = e.Values[:108], e.Labels[:1], 1
	rest := e
	rest.Values, rest.Labels, rest.Rows = e.Values[108:], e.Labels[1:], 6
	if x, y, z := evaluate(t, a, e).Loss, evaluate(t, a, one).Loss, evaluate(t, a, rest).Loss; math.Abs(x-y-z) > 1e-5 {
		t.Errorf("the loss of 7 rows is %v, of 1 and 6 alone %v and %v", x, y, z)
	}
}

// What is left to chance depends on the seed, the epoch and the samples, and
// is the same again where they are.
func TestChance(t *testing.T) {
	loss := func(seed uint64, epoch int, samples []int) float64 {
		c, e := model(t, small()), examples(7, 108, 4)
		values := all(c.Params())
		if err := c.Init(seed); err != nil {
			t.Fatal(err)
		}
		for _, p := range c.Params() { // as with seed 1
			values = values[copy(p.Value, values)+len(p.Grad):]
		}
		e.Epoch, e.Samples = epoch, samples
		return step(t, c, e, 1)
	}
	base := loss(1, 2, []int{3, 1, 4, 15, 9, 2, 6})
	if again := loss(1, 2, []int{3, 1, 4, 15, 9, 2, 6}); again != base {
		t.Errorf("loss %v, and then %v", base, again)
	}
	for what, other := range map[string]float64{
		"seed": loss(2, 2, []int{3, 1, 4, 15, 9, 2, 6}), "epoch": loss(1, 3, []int{3, 1, 4, 15, 9, 2, 6}), "sample": loss(1, 2, []int{3, 1, 4, 15, 9, 2, 7}),
	} {
		if other == base {
			t.Errorf("with another %s the loss is %v as before", what, other)
		}
	}
}

// Two Dropouts of one net have masks of their own: a quarter of the values
// passes both.
func TestChanceIsOfTheLayer(t *testing.T) {
	c := model(t, []Layer{&Dropout{P: 0.5}, &Dropout{P: 0.5}})
	c.pass = layer.Pass{Train: true}
	y, err := c.forward(layer.Matrix{Rows: 1, Cols: 1000, Data: slices.Repeat([]float32{1}, 1000)})
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	for _, v := range y.Data {
		if v != 0 {
			passed++
		}
	}
	if passed < 180 || passed > 320 { // 250, and five standard deviations
		t.Errorf("%d of 1000 values pass", passed)
	}
}

// Frozen parameters have no gradient, need no memory for one and are never
// ready; below the lowest trained parameter nothing is computed.
func TestRoles(t *testing.T) {
	for _, frozen := range [][]string{{"conv"}, {"conv", "bn.", "fc1"}, {"fc2"}, {"weight"}, {"bias"}, {"conv", "bn", "fc1", "fc2.weight"}, {""}} {
		whole, c := model(t, small()), model(t, small())
		var want, got []string
		for _, p := range c.Params() {
			if slices.ContainsFunc(frozen, func(part string) bool { return strings.Contains(p.Name, part) }) && p.Role == trainer.Trained {
				if p.Role = trainer.Frozen; len(frozen) > 1 {
					p.Grad = nil
				}
			}
			if p.Role == trainer.Trained {
				want = append(want, p.Name)
			}
		}
		slices.Reverse(want)
		e := examples(7, 108, 4)
		step(t, whole, e, 1)
		if _, err := c.Step(t.Context(), e, 1, func(i int) { got = append(got, c.Params()[i].Name) }); err != nil {
			t.Error(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("without %v: ready are %v, want %v", frozen, got, want)
		}
		for i, p := range c.Params() {
			if p.Role == trainer.Frozen && slices.ContainsFunc(p.Grad, func(g float32) bool { return g != 0 }) {
				t.Errorf("without %v: %s has a gradient", frozen, p.Name)
			}
			if q := whole.Params()[i]; p.Role == trainer.Trained && !slices.Equal(p.Grad, q.Grad) {
				t.Errorf("without %v: %s has another gradient", frozen, p.Name)
			}
		}
		lowest := slices.IndexFunc(c.Net, func(l Layer) bool { return slices.ContainsFunc(l.Params(), trained) })
		for i, l := range c.Net {
			dx := reflect.ValueOf(l).Elem().FieldByName("dx").FieldByName("Data")
			if computed := !dx.IsNil(); computed != (lowest >= 0 && i > lowest) {
				t.Errorf("without %v, the lowest trained parameter in layer %d: layer %d has its input's gradient: %v", frozen, lowest, i, computed)
			}
		}
	}
}

// Ranks with any share of the rows, a rank of padding alone or idle among
// them, train as one rank does with the whole batch.
func TestRanksTrainAsOne(t *testing.T) {
	const steps = 20
	e := examples(9, 108, 4)
	e.Samples, e.Epoch = []int{4, 8, 15, 16, 23, 42, 7, 9, 11}, 1
	run := func(split []int, idle int) []float32 {
		t.Helper()
		var values []float32
		err := local.Spawn(t.Context(), len(split)-1, func(ctx context.Context, g *local.Group) error {
			c := &Classifier[share]{Net: SyncBatchNorm(small(), g), Examples: func(s share) (Examples, error) { return s.Examples, nil }}
			ddp, err := trainer.New(ctx, g, c, descent(0.1), trainer.Config{Seed: 1, GlobalBatch: 9, FirstBucket: 4, Bucket: 4})
			if err != nil {
				return err
			}
			from, to := split[g.Rank()], split[g.Rank()+1]
			mine := share{Examples{Values: e.Values[from*108 : to*108], Labels: e.Labels[from:to], Samples: e.Samples[from:to], Epoch: e.Epoch, Rows: to - from}}
			for range steps {
				if g.Rank() == idle {
					_, err = ddp.Idle(ctx)
				} else {
					_, err = ddp.Step(ctx, mine)
				}
				if err != nil {
					return err
				}
			}
			if g.Rank() == 0 {
				for _, p := range c.Params() {
					values = append(values, p.Value...)
				}
			}
			return nil
		}).Wait()
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	one := run([]int{0, 9}, -1)
	for _, split := range [][]int{{0, 4, 9}, {0, 1, 9}, {0, 0, 9}, {0, 9, 9}, {0, 3, 3, 9}, {0, 1, 2, 3, 9}, {0, 0, 0, 4, 5, 9}} {
		near(t, fmt.Sprint("cut at ", split), run(split, -1), one, 1e-4)
	}
	near(t, "with an idle rank", run([]int{0, 4, 4, 9}, 1), one, 1e-4)
}

// share is examples with the method by which DDP weighs a batch.
type share struct{ Examples }

func (s share) Rows() int { return s.Examples.Rows }

// descent is the simplest optimizer: a rate.
type descent float32

func (d descent) Update(u trainer.Update[trainer.Host]) error {
	for i, g := range u.Grad {
		u.Value[i] -= float32(d) * float32(u.Scale) * g
	}
	clear(u.Grad)
	return nil
}

func (descent) State() map[string]trainer.Host     { return nil }
func (descent) Restore(map[string][]float32) error { return nil }

// A batch of nothing but padding and Idle do the same: they exchange, and
// change no gradient.
func TestIdle(t *testing.T) {
	for name, pass := range map[string]func(*Classifier[Examples]) error{
		"Idle": func(c *Classifier[Examples]) error { return c.Idle(t.Context(), func(int) {}) },
		"Step": func(c *Classifier[Examples]) error {
			_, err := c.Step(t.Context(), Examples{}, 1, func(int) {})
			return err
		},
	} {
		left := 4
		c := model(t, SyncBatchNorm(small(), broken{left: &left}))
		before := all(c.Params())
		if err := pass(c); err != nil || left != 0 || !slices.Equal(all(c.Params()), before) {
			t.Errorf("%s: %v, %d exchanges left of 4, or parameters have changed", name, err, left)
		}
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := model(t, small()).Idle(ctx, func(int) {}); !errors.Is(err, cause) {
		t.Errorf("with a cancelled context: %v", err)
	}
}

// broken is a group whose ranks are dead, after so many exchanges, or which
// brings what no one asked for.
type broken struct {
	trainer.Group[trainer.Host]
	left  *int
	bring []byte
}

var errDead = errors.New("rank 1 is dead")

func (b broken) Rank() int { return 0 }
func (b broken) Size() int { return 2 }

func (b broken) Exchange(_ context.Context, mine []byte) ([][]byte, error) {
	if b.left == nil || *b.left == 0 {
		return nil, errDead
	}
	*b.left--
	if b.bring == nil {
		return [][]byte{mine, mine}, nil
	}
	return [][]byte{mine, b.bring}, nil
}

// What goes wrong between the ranks in the forward or in the backward pass
// reaches Step's caller, with the layer's name.
func TestStepReturnsWhatRanksDidWrong(t *testing.T) {
	for exchanges, layer := range []string{"bn1", "bn2", "bn2", "bn1", ""} {
		left := exchanges
		c := model(t, SyncBatchNorm(CNN(1, 16, 16, 3), broken{left: &left}))
		_, err := c.Step(t.Context(), examples(5, 256, 3), 1, func(int) {})
		if layer == "" && err != nil || layer != "" && (!errors.Is(err, errDead) || !strings.Contains(err.Error(), "layer "+layer)) {
			t.Errorf("after %d exchanges: %v, want one of %s", exchanges, err, layer)
		}
		if left = exchanges; layer != "" {
			if err := c.Idle(t.Context(), func(int) {}); !errors.Is(err, errDead) {
				t.Errorf("Idle after %d exchanges: %v", exchanges, err)
			}
		}
	}
	left := 9
	c := model(t, SyncBatchNorm(CNN(1, 16, 16, 3), broken{left: &left, bring: []byte("what?")}))
	_, err := c.Step(t.Context(), examples(5, 256, 3), 1, func(int) {})
	if want := "layer bn1: rank 1 brought 5 bytes of statistics, expected 200"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// Scores of ranks add up, those of ranks that have seen fewer classes or none,
// too.
func TestScoreSum(t *testing.T) {
	scores := []Score{
		{Classes: []Tally{{3, 2}, {4, 4}}, Loss: 1.5},
		{},
		{Classes: []Tally{{0, 0}, {1, 0}, {2, 1}}, Loss: 0.25},
	}
	want := Score{Classes: []Tally{{3, 2}, {5, 4}, {2, 1}}, Loss: 1.75}
	err := local.Spawn(t.Context(), len(scores), func(ctx context.Context, g *local.Group) error {
		sum, err := scores[g.Rank()].Sum(ctx, g)
		if err == nil && !reflect.DeepEqual(sum, want) {
			err = fmt.Errorf("%+v, want %+v", sum, want)
		}
		return err
	}).Wait()
	if err != nil {
		t.Error(err)
	}
	if a := want.All(); a != (Tally{10, 7}) || a.Accuracy() != 0.7 || want.MeanLoss() != 0.175 || want.Classes[1].Accuracy() != 0.8 {
		t.Errorf("%+v: accuracy %v, loss %v", a, a.Accuracy(), want.MeanLoss())
	}
	var none Score
	if none.All().Accuracy() != 0 || none.MeanLoss() != 0 {
		t.Errorf("nothing: %v, %v", none.All().Accuracy(), none.MeanLoss())
	}
	for _, bring := range [][]byte{{}, []byte("12345"), binary.LittleEndian.AppendUint64(nil, 1)[:7], make([]byte, 16)} {
		left := 1
		if _, err := none.Sum(t.Context(), broken{left: &left, bring: bring}); err == nil || !strings.Contains(err.Error(), "rank 1 brought") {
			t.Errorf("%d bytes: %v", len(bring), err)
		}
	}
	if _, err := none.Sum(t.Context(), broken{}); !errors.Is(err, errDead) {
		t.Errorf("of a dead group: %v", err)
	}
}

// After the largest batch a net with every layer allocates nothing.
func TestAllocationsOfAllLayers(t *testing.T) {
	for _, e := range engines(t) {
		if strings.HasPrefix(e, "openblas") {
			continue // see TestAllocations
		}
		use(t, e)
		c, ready, ctx := model(t, small()), func(int) {}, t.Context()
		large, few := examples(32, 108, 4), examples(5, 108, 4)
		step(t, c, large, 1)
		score := evaluate(t, c, large)
		if n := testing.AllocsPerRun(10, func() {
			for _, ex := range []Examples{large, few} {
				c.Step(ctx, ex, 1, ready)
				c.Evaluate(ctx, ex, &score)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", e, n)
		}
	}
}
