package optim

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/viterin/vek"
	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
)

// optimizer is what the tests of both use.
type optimizer interface {
	trainer.Optimizer[trainer.Host]
	Norm() float64
}

var (
	_ optimizer = new(SGD)
	_ optimizer = new(AdamW)
)

// kinds are optimizers of all settings, each made anew.
var kinds = map[string]func() optimizer{
	"sgd":          func() optimizer { return &SGD{LR: Linear(0.1, 9)} },
	"sgd momentum": func() optimizer { return &SGD{LR: Linear(0.1, 9), Momentum: 0.9} },
	"sgd decay":    func() optimizer { return &SGD{LR: Linear(0.1, 9), WeightDecay: 0.1, Decay: Weights} },
	"sgd nesterov": func() optimizer {
		return &SGD{LR: Linear(0.1, 9), Momentum: 0.9, Nesterov: true, WeightDecay: 0.1, Clip: Clip{Norm: 2}}
	},
	"sgd value": func() optimizer { return &SGD{LR: Linear(0.1, 9), Momentum: 0.5, Clip: Clip{Value: 1.5}} },
	"adamw":     func() optimizer { return &AdamW{LR: Linear(0.1, 9)} },
	"adamw all": func() optimizer {
		return &AdamW{LR: Linear(0.1, 9), Betas: [2]float64{0.5, 0.9}, Eps: 1e-4, WeightDecay: 0.1, Decay: Weights, Clip: Clip{Norm: 2, Value: 0.01}}
	},
}

// twin is both optimizers' formulas, a value at a time. The conversions keep
// the compiler from fusing a product into a sum.
type twin struct{ a, b map[int]float32 }

func (w *twin) update(o optimizer, u update) {
	set, scale := common(o), u.Scale
	var sum float64
	for _, p := range u.Parts {
		for _, g := range u.Grad[p.From:p.To] {
			sum += float64(g) * float64(g)
		}
	}
	if norm := math.Abs(u.Scale) * math.Sqrt(sum); set.clip.Norm > 0 && set.clip.Norm/(norm+1e-6) < 1 {
		scale *= set.clip.Norm / (norm + 1e-6)
	}
	for _, p := range u.Parts {
		decay := set.weightDecay
		if set.decay != nil && !set.decay(p) {
			decay = 0
		}
		for i := p.From; i < p.To; i++ {
			g := float32(float32(scale) * u.Grad[i])
			if limit := float32(set.clip.Value); limit > 0 {
				g = min(max(g, -limit), limit)
			}
			switch o := o.(type) {
			case *SGD:
				w.sgd(o, i, &u.Value[i], g, float32(decay), float32(set.lr(u.Step)))
			case *AdamW:
				w.adamw(o, i, &u.Value[i], g, decay, set.lr(u.Step), u.Step+1)
			}
		}
	}
}

func (w *twin) sgd(o *SGD, i int, v *float32, g, decay, rate float32) {
	if decay != 0 {
		g += float32(decay * *v)
	}
	if mu := float32(o.Momentum); mu != 0 {
		w.a[i] = float32(mu*w.a[i]) + g
		if o.Nesterov {
			g += float32(mu * w.a[i])
		} else {
			g = w.a[i]
		}
	}
	*v -= float32(rate * g)
}

func (w *twin) adamw(o *AdamW, i int, v *float32, g float32, decay, rate float64, t int) {
	betas, eps := o.Betas, o.Eps
	if betas[1] == 0 {
		betas, eps = [2]float64{0.9, 0.999}, 1e-8
	}
	if decay != 0 {
		*v *= float32(1 - rate*decay)
	}
	w.a[i] += float32(float32(1-betas[0]) * (g - w.a[i]))
	w.b[i] = float32(float32(betas[1])*w.b[i]) + float32(float32(float32(1-betas[1])*g)*g)
	root := math.Sqrt(1 - math.Pow(betas[1], float64(t)))
	under := float32(math.Sqrt(float64(w.b[i]))) + float32(eps*root)
	*v -= float32(float32(rate*root/(1-math.Pow(betas[0], float64(t)))) * (w.a[i] / under))
}

func common(o optimizer) settings {
	switch o := o.(type) {
	case *SGD:
		return settings{o.LR, o.WeightDecay, o.Decay, o.Clip}
	case *AdamW:
		return settings{o.LR, o.WeightDecay, o.Decay, o.Clip}
	}
	panic("another optimizer")
}

// cut is parts of those lengths, matrices and biases in turn.
func cut(lengths ...int) (parts []trainer.Part) {
	end := 0
	for i, n := range lengths {
		shape := []int{n, 1}
		if i%2 == 1 {
			shape = []int{n}
		}
		parts = append(parts, trainer.Part{Name: fmt.Sprint("p", i), Shape: shape, From: end, To: end + n})
		end += n
	}
	return parts
}

// gradients fills g with whole numbers, of which a norm has the same bits
// however its sum is cut.
func gradients(g trainer.Host, step int) {
	r := rand.New(rand.NewPCG(2, uint64(step)))
	for i := range g {
		g[i] = float32(r.IntN(9) - 4)
	}
}

// run makes so many steps from the first on and gives back values and state.
func run(t *testing.T, o optimizer, value trainer.Host, first, steps int, scale float64, parts []trainer.Part) {
	t.Helper()
	grad := make(trainer.Host, len(value))
	for step := first; step < first+steps; step++ {
		gradients(grad, step)
		if err := o.Update(update{Step: step, Value: value, Grad: grad, Scale: scale, Parts: parts}); err != nil {
			t.Fatal(err)
		}
	}
}

// start is n values to begin with.
func start(n int) trainer.Host {
	r, value := rand.New(rand.NewPCG(1, 1)), make(trainer.Host, n)
	for i := range value {
		value[i] = float32(r.NormFloat64())
	}
	return value
}

func TestUpdateIsTheFormula(t *testing.T) {
	for name, make := range kinds {
		for _, lengths := range [][]int{{0}, {1}, {7, 3}, {block - 1}, {block}, {block + 1}, {40, 0, 2*block + 33, 5}} {
			parts := cut(lengths...)
			o, slow := make(), &twin{map[int]float32{}, map[int]float32{}}
			value := start(parts[len(parts)-1].To)
			want, grad := slices.Clone(value), slices.Clone(value)
			for step := range 10 {
				gradients(grad, step)
				u := update{Step: step, Value: want, Grad: slices.Clone(grad), Scale: 0.3, Parts: parts}
				slow.update(o, u)
				u.Value, u.Grad = value, grad
				if err := o.Update(u); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(value, want) {
					t.Fatalf("%s, parts of %v: step %d differs from the formula", name, lengths, step)
				}
				if slices.ContainsFunc(grad, func(g float32) bool { return g != 0 }) {
					t.Fatalf("%s, parts of %v: gradients are left after step %d", name, lengths, step)
				}
			}
		}
	}
}

// A hand-made case: 1 falls by the gradients 1, 2 and 4 with momentum 1/2 and
// rate 1/4. The buffer is 1, 2.5, 5.25; all numbers are exact in binary.
func TestSGDByHand(t *testing.T) {
	o := &SGD{LR: Constant(0.25), Momentum: 0.5}
	value, grad := trainer.Host{1}, trainer.Host{0}
	for step, want := range []float32{0.75, 0.125, -1.1875} {
		grad[0] = []float32{1, 2, 4}[step]
		err := o.Update(update{Step: step, Value: value, Grad: grad, Scale: 1, Parts: cut(1)})
		if err != nil || value[0] != want {
			t.Errorf("after step %d: %v, %v, want %v", step, value[0], err, want)
		}
	}
	if got := o.State()[momentum]; got[0] != 5.25 {
		t.Errorf("the momentum is %v, want 5.25", got)
	}
}

// The first step of AdamW goes by the rate, whatever the gradient's size.
func TestZeroOptimizers(t *testing.T) {
	for _, c := range []struct {
		optimizer
		want float64
	}{{new(SGD), 0.001 * 4}, {new(AdamW), 0.001}} {
		value, grad := trainer.Host{0}, trainer.Host{4}
		err := c.Update(update{Value: value, Grad: grad, Scale: 1, Parts: cut(1)})
		if err != nil || !near(float64(value[0]), -c.want, 1e-6) {
			t.Errorf("%T: %v, %v, want -%v: PyTorch's rate is 0.001", c.optimizer, value[0], err, c.want)
		}
	}
}

// However the values are cut, an update is the same to the bit.
func TestPartsAreTheWhole(t *testing.T) {
	const n = 3*block + 17
	for name, make := range kinds {
		if common(make()).decay != nil {
			continue // it tells the parts apart
		}
		whole, value := make(), start(n)
		run(t, whole, value, 0, 8, 1, cut(n))
		for _, lengths := range [][]int{{1, n - 1}, {block, block, block, 17}, {33, 0, 2, 1500, n - 1535}, slices.Repeat([]int{1}, n)} {
			parts, cutValue := make(), start(n)
			run(t, parts, cutValue, 0, 8, 1, cut(lengths...))
			if !slices.Equal(cutValue, value) || !maps.EqualFunc(parts.State(), whole.State(), slices.Equal[trainer.Host]) {
				t.Errorf("%s: %d parts give another result than one", name, len(lengths))
			}
		}
	}
}

// Parts side by side are one run where they decay alike.
func TestRuns(t *testing.T) {
	for _, c := range []struct {
		weightDecay float64
		decay       func(trainer.Part) bool
		parts       []trainer.Part
		want        [][2]int
	}{
		{1, nil, cut(3, 2, 4, 1), [][2]int{{0, 10}}},
		{1, Weights, cut(3, 2, 4, 1), [][2]int{{0, 3}, {3, 5}, {5, 9}, {9, 10}}},
		{0, Weights, cut(3, 2, 4, 1), [][2]int{{0, 10}}},
		{1, func(p trainer.Part) bool { return p.Name > "p1" }, cut(3, 2, 4, 1), [][2]int{{0, 5}, {5, 10}}},
		{1, nil, slices.Delete(cut(3, 2, 4, 1), 1, 2), [][2]int{{0, 3}, {5, 10}}},
		{1, nil, cut(block, 5), [][2]int{{0, block}, {block, block + 5}}},
		{1, nil, cut(0, 0), nil},
		{1, nil, nil, nil},
	} {
		value := make(trainer.Host, 2*block)
		p := pass{Update: update{Value: value, Grad: value, Parts: c.parts}, settings: settings{weightDecay: c.weightDecay, decay: c.decay}}
		var got [][2]int
		for b := range p.pieces {
			got = append(got, [2]int{b.from, b.to})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: pieces %v, want %v", c.parts, got, c.want)
		}
	}
}

// A parameter without a gradient keeps its value and its state.
func TestOtherParametersStay(t *testing.T) {
	for name, make := range kinds {
		all := cut(5, 7, 40, 3)
		o, value := make(), start(55)
		run(t, o, value, 0, 2, 1, all)
		before, states := slices.Clone(value), map[string]trainer.Host{}
		for name, s := range o.State() {
			states[name] = slices.Clone(s)
		}
		u := update{Step: 2, Value: value, Grad: start(55), Scale: 1, Parts: []trainer.Part{all[0], all[2]}}
		if err := o.Update(u); err != nil {
			t.Fatal(err)
		}
		states["value"], states["gradients"] = before, start(55)
		now := o.State()
		if now == nil {
			now = map[string]trainer.Host{}
		}
		now["value"], now["gradients"] = value, u.Grad
		for of, was := range states {
			for i, p := range all {
				if same := slices.Equal(now[of][p.From:p.To], was[p.From:p.To]); same != (i%2 == 1) {
					t.Errorf("%s: %s of %s: unchanged %v", name, of, p.Name, same)
				}
			}
		}
	}
}

// An update by Scale times Grad is one by their product.
func TestScale(t *testing.T) {
	for name, make := range kinds {
		a, b := make(), make()
		value, other := start(70), start(70)
		for step := range 5 {
			u := update{Step: step, Value: value, Grad: start(70), Scale: -0.25, Parts: cut(33, 37)}
			if err := a.Update(u); err != nil {
				t.Fatal(err)
			}
			u.Value, u.Grad, u.Scale = other, start(70), 1
			for i := range u.Grad {
				u.Grad[i] *= -0.25
			}
			if err := b.Update(u); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(value, other) || a.Norm() != b.Norm() {
			t.Errorf("%s: gradients that Scale multiplies give another result than those multiplied before", name)
		}
	}
}

func TestNorm(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 5, 1003} {
		u := update{Value: start(n), Grad: start(n), Scale: -3, Parts: cut(n/3, n-n/3)}
		want := 0.0
		for _, g := range u.Grad {
			want = math.Hypot(want, 3*float64(g))
		}
		o := &SGD{Clip: Clip{Norm: math.Inf(1)}}
		free := &SGD{}
		value := slices.Clone(u.Value)
		if err := free.Update(update{Value: value, Grad: slices.Clone(u.Grad), Scale: -3, Parts: u.Parts}); err != nil {
			t.Fatal(err)
		}
		if err := o.Update(u); err != nil || !near(o.Norm(), want, 1e-12) {
			t.Errorf("%d gradients: the norm is %v, %v, want %v", n, o.Norm(), err, want)
		}
		if !slices.Equal(u.Value, value) || free.Norm() != 0 {
			t.Errorf("%d gradients: measuring changed the update, or nothing measured %v", n, free.Norm())
		}
	}
}

// Squares beyond float32 are no infinity: the largest gradients are clipped as
// small ones are. PyTorch's 1e-6 shows where the norm is as small.
func TestClipByNorm(t *testing.T) {
	for _, c := range []struct {
		grad  float32
		bound float64
		share float64 // that is left of the gradient
	}{
		{0.5, 1, 1},
		{4, 1, 1 / (4 + 1e-6)},
		{1e30, 1, 1e-30},
		{math.MaxFloat32, 1, 1 / math.MaxFloat32},
		{1e-18, 1, 1},
		{1e-6, 1e-6, 0.5},
		{0, 1, 1},
	} {
		u := update{Value: trainer.Host{0}, Grad: trainer.Host{-c.grad}, Scale: 1, Parts: cut(1)}
		o := &SGD{LR: Constant(1), Clip: Clip{Norm: c.bound}}
		if err := o.Update(u); err != nil {
			t.Fatal(err)
		}
		if want := c.share * float64(c.grad); !near(float64(u.Value[0]), want, 1e-6) || o.Norm() != float64(c.grad) {
			t.Errorf("a gradient of %g with the bound %g: the norm is %g, the change %g, want %g", c.grad, c.bound, o.Norm(), u.Value[0], want)
		}
	}
}

// The processor's vector instructions give the bits that it has without them.
func TestAllProcessorsAgree(t *testing.T) {
	if !vek.Info().Acceleration {
		t.Skip("this processor has no vector instructions that vek32 knows")
	}
	defer vek32.SetAcceleration(true)
	for name, make := range kinds {
		fast, slow := start(2*block+45), start(2*block+45)
		a, b := make(), make()
		vek32.SetAcceleration(true)
		run(t, a, fast, 0, 8, 0.7, cut(33, 2, 2*block+10))
		vek32.SetAcceleration(false)
		run(t, b, slow, 0, 8, 0.7, cut(33, 2, 2*block+10))
		if !slices.Equal(fast, slow) || a.Norm() != b.Norm() || !maps.EqualFunc(a.State(), b.State(), slices.Equal[trainer.Host]) {
			t.Errorf("%s: another result without vector instructions", name)
		}
	}
}

// An optimizer restored goes on with the same bits.
func TestRestore(t *testing.T) {
	for name, make := range kinds {
		for stop := range 4 {
			whole, first, rest := make(), make(), make()
			a, b := start(40), start(40)
			run(t, whole, a, 0, 6, 1, cut(33, 7))
			run(t, first, b, 0, stop, 1, cut(33, 7))
			state := map[string][]float32{}
			for name, v := range first.State() {
				state[name] = slices.Clone(v)
			}
			if err := rest.Restore(state); err != nil {
				t.Fatal(err)
			}
			for _, v := range state {
				clear(v) // Restore has copied
			}
			run(t, rest, b, stop, 6-stop, 1, cut(33, 7))
			if !slices.Equal(a, b) {
				t.Errorf("%s restored at %d differs", name, stop)
			}
		}
	}
}

// An empty state is that before the first update, of an optimizer in use, too.
func TestRestoreNothing(t *testing.T) {
	for name, make := range kinds {
		o, fresh, a, b := make(), make(), start(40), start(40)
		run(t, o, start(40), 0, 3, 1, cut(40))
		if err := o.Restore(map[string][]float32{}); err != nil {
			t.Fatal(err)
		}
		if len(o.State()) > 0 {
			t.Errorf("%s: the state is %v after nothing was restored", name, o.State())
		}
		run(t, o, a, 0, 3, 1, cut(40))
		run(t, fresh, b, 0, 3, 1, cut(40))
		if !slices.Equal(a, b) {
			t.Errorf("%s: the state before has an effect after nothing was restored", name)
		}
	}
}

// State is named as PyTorch's and is the optimizer's own memory; what is done
// to the map itself is not its concern.
func TestState(t *testing.T) {
	for _, c := range []struct {
		optimizer
		want []string
	}{
		{new(SGD), nil},
		{&SGD{Momentum: 0.9}, []string{"momentum"}},
		{new(AdamW), []string{"exp_avg", "exp_avg_sq"}},
	} {
		if got := c.State(); len(got) > 0 {
			t.Errorf("%T: the state before the first update is %v", c.optimizer, got)
		}
		run(t, c, start(9), 0, 1, 1, cut(4, 5))
		state := c.State()
		if got := slices.Sorted(maps.Keys(state)); !slices.Equal(got, c.want) {
			t.Errorf("%T: the state is %q, want %q", c.optimizer, got, c.want)
		}
		for _, name := range c.want {
			if len(state[name]) != 9 {
				t.Errorf("%T: %d values of %s, want 9", c.optimizer, len(state[name]), name)
			}
			before := slices.Clone(state[name])
			run(t, c, start(9), 1, 1, 1, cut(4, 5))
			if slices.Equal(state[name], before) {
				t.Errorf("%T: %s is as before the update", c.optimizer, name)
			}
			delete(state, name)
			if c.State()[name] == nil {
				t.Errorf("%T: %s is gone from the optimizer, too", c.optimizer, name)
			}
		}
	}
}

// An update that fails says why and changes nothing: values, gradients, state
// and norm.
func TestUpdateErrors(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for want, spoil := range map[string]func(*SGD, *update){
		"5 values and 4 gradients":                   func(_ *SGD, u *update) { u.Grad = u.Grad[:4] },
		`5 values of "momentum", the model 4`:        func(_ *SGD, u *update) { u.Value, u.Grad, u.Parts = u.Value[:4], u.Grad[:4], cut(4) },
		"scale is NaN":                               func(_ *SGD, u *update) { u.Scale = nan },
		"scale is -Inf":                              func(_ *SGD, u *update) { u.Scale = -inf },
		"scale is 1e+39":                             func(_ *SGD, u *update) { u.Scale = 1e39 },
		"p1 is 3 … 6, which does not lie between 3":  func(_ *SGD, u *update) { u.Parts[1].To = 6 },
		"p1 is 2 … 5, which does not lie between 3":  func(_ *SGD, u *update) { u.Parts[1].From = 2 },
		"p1 is 5 … 4, which does not lie between 3":  func(_ *SGD, u *update) { u.Parts[1].From, u.Parts[1].To = 5, 4 },
		"p0 is -1 … 3, which does not lie between 0": func(_ *SGD, u *update) { u.Parts[0].From = -1 },
		"the rate of step 1 is NaN":                  func(o *SGD, _ *update) { o.LR = Constant(nan) },
		"the rate of step 1 is +Inf":                 func(o *SGD, _ *update) { o.LR = Constant(inf) },
		"the rate of step 1 is -0.1":                 func(o *SGD, _ *update) { o.LR = Constant(-0.1) },
		"Momentum is -0.5":                           func(o *SGD, _ *update) { o.Momentum = -0.5 },
		"Nesterov needs Momentum":                    func(o *SGD, _ *update) { o.Momentum, o.Nesterov = 0, true },
		"WeightDecay is -1":                          func(o *SGD, _ *update) { o.WeightDecay = -1 },
		"Clip.Norm is NaN":                           func(o *SGD, _ *update) { o.Clip.Norm = nan },
		"Clip.Value is -2":                           func(o *SGD, _ *update) { o.Clip.Value = -2 },
		"the gradient of p1 is NaN at 1 of its 2":    func(_ *SGD, u *update) { u.Grad[4] = float32(nan) },
		"the gradient of p0 is -Inf at 2 of its 3":   func(_ *SGD, u *update) { u.Grad[2], u.Grad[4] = float32(-inf), float32(nan) },
	} {
		o := &SGD{Momentum: 0.9, Clip: Clip{Norm: 1}}
		fails(t, o, want, func(u *update) { spoil(o, u) })
	}
	for want, spoil := range map[string]func(*AdamW, *update){
		", the model 4: it is another model's": func(_ *AdamW, u *update) { u.Value, u.Grad, u.Parts = u.Value[:4], u.Grad[:4], cut(4) },
		"step -1: the first is 0":              func(_ *AdamW, u *update) { u.Step = -1 },
		"Betas[0] is -1":                       func(o *AdamW, _ *update) { o.Betas = [2]float64{-1, 0.9} },
		"Betas[1] is 1":                        func(o *AdamW, _ *update) { o.Betas = [2]float64{0.9, 1} },
		"Betas[1] is NaN":                      func(o *AdamW, _ *update) { o.Betas = [2]float64{0.9, nan} },
		"Eps is -1":                            func(o *AdamW, _ *update) { o.Eps = -1 },
		"the rate of step 1 is NaN":            func(o *AdamW, _ *update) { o.LR = Constant(nan) },
		"the gradient of p0 is +Inf at 0":      func(_ *AdamW, u *update) { u.Grad[0] = float32(inf) },
	} {
		o := &AdamW{Clip: Clip{Value: 1}}
		fails(t, o, want, func(u *update) { spoil(o, u) })
	}
}

// update is one of values in the host's memory.
type update = trainer.Update[trainer.Host]

// fails makes one good update and one that spoil has touched.
func fails(t *testing.T, o optimizer, want string, spoil func(*update)) {
	t.Helper()
	u := update{Value: start(5), Grad: start(5), Scale: 1, Parts: cut(3, 2)}
	if err := o.Update(u); err != nil {
		t.Fatal(err)
	}
	u.Step, u.Grad = 1, start(5)
	spoil(&u)
	look := func() string { return fmt.Sprint(u.Value, u.Grad, o.State(), o.Norm()) }
	before := look()
	err := o.Update(u)
	if err == nil || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), want) {
		t.Errorf("%T: %v, want %q", o, err, want)
	}
	if now := look(); now != before {
		t.Errorf("%T, %q: an update that failed changed something: %s, before it %s", o, want, now, before)
	}
}

// Nor does a first update that fails begin a state.
func TestFirstUpdateFails(t *testing.T) {
	for name, make := range kinds {
		o := make()
		if o.Update(update{Value: start(5), Grad: start(4), Scale: 1, Parts: cut(5)}) == nil || len(o.State()) > 0 {
			t.Errorf("%s: an update with too few gradients passed, or left the state %v", name, o.State())
		}
	}
}

func TestRestoreErrors(t *testing.T) {
	type state = map[string][]float32
	used := func(o optimizer) optimizer { run(t, o, start(2), 0, 1, 1, cut(2)); return o }
	for _, c := range []struct {
		want string
		optimizer
		state
	}{
		{`SGD has no state "exp_avg"`, used(&SGD{Momentum: 0.9}), state{"exp_avg": {1, 2}, "momentum": {1, 2}}},
		{"Momentum is 0", new(SGD), state{"momentum": {1, 2}}},
		{`3 values of "momentum", the model 2`, used(&SGD{Momentum: 0.9}), state{"momentum": {1, 2, 3}}},
		{`AdamW has no state "momentum"`, used(new(AdamW)), state{"momentum": {1, 2}}},
		{`lacks "exp_avg_sq"`, used(new(AdamW)), state{"exp_avg": {1, 2}}},
		{`lacks "exp_avg"`, new(AdamW), state{"exp_avg_sq": {1, 2}}},
		{`3 values of "exp_avg_sq" and 2 of "exp_avg"`, new(AdamW), state{"exp_avg": {1, 2}, "exp_avg_sq": {1, 2, 3}}},
		{`3 values of "exp_avg", the model 2`, used(new(AdamW)), state{"exp_avg": {1, 2, 3}, "exp_avg_sq": {1, 2, 3}}},
	} {
		before := fmt.Sprint(c.State())
		err := c.Restore(c.state)
		if err == nil || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if now := fmt.Sprint(c.State()); now != before {
			t.Errorf("%q: the state is %s after an error, before it %s", c.want, now, before)
		}
	}
	// A fresh optimizer cannot know the model, so that the first update finds it.
	o := &SGD{Momentum: 0.9}
	if err := o.Restore(state{"momentum": {1, 2, 3}}); err != nil {
		t.Fatal(err)
	}
	err := o.Update(update{Value: start(2), Grad: start(2), Scale: 1, Parts: cut(2)})
	if err == nil || !strings.Contains(err.Error(), `3 values of "momentum", the model 2`) {
		t.Errorf("%v, want the two lengths", err)
	}
}

func TestUpdateAllocates(t *testing.T) {
	for name, make := range kinds {
		o, u := make(), update{Value: start(3*block + 5), Grad: start(3*block + 5), Scale: 0.5, Parts: cut(5, block, 2*block)}
		if n := testing.AllocsPerRun(10, func() { o.Update(u) }); n > 0 {
			t.Errorf("%s: %v allocations an update", name, n)
		}
	}
}

// An update reads and writes the values, the gradients and each state, and
// with a norm reads the gradients once more; the bytes are those of both
// directions. memmove, beside it, reads half of as many and writes the rest.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{784*512 + 512 + 512*10 + 10, 25_000_000} {
		u := update{Value: make(trainer.Host, n), Grad: make(trainer.Host, n), Scale: 1, Parts: cut(n)}
		move := func(spans int) {
			b.Run(fmt.Sprintf("memmove/%d/%d", 8*spans, n), func(b *testing.B) {
				from, to := make(trainer.Host, spans*n), make(trainer.Host, spans*n)
				b.SetBytes(int64(8 * spans * n))
				for b.Loop() {
					copy(to, from)
				}
			})
		}
		for _, c := range []struct {
			name  string
			spans int
			optimizer
		}{
			{"sgd", 2, &SGD{}},
			{"momentum", 3, &SGD{Momentum: 0.9}},
			{"momentum-norm", 3, &SGD{Momentum: 0.9, Clip: Clip{Norm: 1}}},
			{"adamw", 4, &AdamW{WeightDecay: 0.01}},
			{"adamw-norm", 4, &AdamW{WeightDecay: 0.01, Clip: Clip{Norm: 1}}},
		} {
			b.Run(fmt.Sprintf("%s/%d/%d", c.name, 8*c.spans, n), func(b *testing.B) {
				b.SetBytes(int64(8 * c.spans * n))
				b.ReportAllocs()
				for b.Loop() {
					if err := c.Update(u); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		for spans := 2; spans <= 4; spans++ {
			move(spans)
		}
	}
}
