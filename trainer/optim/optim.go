// Package optim applies gradients to parameters: SGD and AdamW by PyTorch's
// formulas, with clipping and learning-rate schedules.
//
// An update is one pass over the memory of values, gradients and state. Every
// operation rounds to float32, so that all processors, and all ways to cut the
// values into parts, give the same bits.
package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
)

// Clip bounds the gradients of an update, after its Scale. Where a bound is
// set, the norm of the gradients is measured first, in a pass of its own that
// only reads them, and one that is not finite is an error that names the first
// parameter with a NaN or an infinity.
type Clip struct {
	// Norm bounds the Euclidean norm of all gradients together: they are
	// multiplied by Norm/(norm+1e-6) where that is below 1, as by
	// torch.nn.utils.clip_grad_norm_. 0: no bound. +Inf: no bound either, but
	// the norm is measured.
	Norm float64
	// Value holds each gradient, after Norm, between -Value and Value, as
	// torch.nn.utils.clip_grad_value_ does. 0: no bound.
	Value float64
}

// Weights says whether a parameter has more than one dimension, as the weights
// of linear and convolutional layers have, and biases and norms have not. As
// Decay it is the usual recipe.
func Weights(p trainer.Part) bool { return len(p.Shape) > 1 }

// memory is what an optimizer keeps between updates.
type memory struct {
	state map[string]trainer.Host // nil before the first update
	norm  float64
}

// Norm is the norm of all gradients in the last Update, after Scale and before
// clipping. It is 0 where Clip is zero, since then nothing measures it.
func (m *memory) Norm() float64 { return m.norm }

// State is the spans that the optimizer keeps, by name: its own memory, which
// the next Update changes. It is empty before the first Update.
func (m *memory) State() map[string]trainer.Host { return maps.Clone(m.state) }

// span is the state of that name for n values, zero at first.
func (m *memory) span(name string, n int) trainer.Host {
	if m.state == nil {
		m.state = map[string]trainer.Host{}
	}
	if m.state[name] == nil {
		m.state[name] = make(trainer.Host, n)
	}
	return m.state[name]
}

// restore copies a state that has all of names and nothing else, or is empty.
func (m *memory) restore(optimizer string, state map[string][]float32, names ...string) error {
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("optim: %s has no state %q: it was saved by another optimizer", optimizer, name)
		}
	}
	if len(state) == 0 {
		m.state = nil
		return nil
	}
	restored := map[string]trainer.Host{}
	for _, name := range names {
		values, ok := state[name]
		if !ok {
			return fmt.Errorf("optim: the state lacks %q: %s needs %q", name, optimizer, names)
		}
		if first := state[names[0]]; len(values) != len(first) {
			return fmt.Errorf("optim: the state has %d values of %q and %d of %q", len(values), name, len(first), names[0])
		}
		if now, ok := m.state[name]; ok && len(now) != len(values) {
			return fmt.Errorf("optim: the state has %d values of %q, the model %d", len(values), name, len(now))
		}
		restored[name] = slices.Clone(values)
	}
	m.state = restored
	return nil
}

// settings are what all optimizers have.
type settings struct {
	lr          Schedule
	weightDecay float64
	decay       func(trainer.Part) bool
	clip        Clip
}

// begin checks an update, measures its gradients and records their norm. It
// either fails and changes nothing, or nothing fails after it.
func (m *memory) begin(u trainer.Update[trainer.Host], s settings) (pass, error) {
	if err := m.check(u); err != nil {
		return pass{}, err
	}
	for _, field := range [...]struct {
		name  string
		value float64
	}{{"WeightDecay", s.weightDecay}, {"Clip.Norm", s.clip.Norm}, {"Clip.Value", s.clip.Value}} {
		if err := notNegative(field.name, field.value); err != nil {
			return pass{}, err
		}
	}
	rate := 0.001
	if s.lr != nil {
		rate = s.lr(u.Step)
	}
	if !(rate >= 0) || math.IsInf(rate, 1) {
		return pass{}, fmt.Errorf("optim: the rate of step %d is %v: a schedule gives finite numbers, not below 0", u.Step, rate)
	}
	norm, scale := 0.0, u.Scale
	if s.clip != (Clip{}) {
		var err error
		if norm, err = measure(u); err != nil {
			return pass{}, err
		}
		if s.clip.Norm > 0 {
			scale *= min(1, s.clip.Norm/(norm+1e-6))
		}
	}
	m.norm = norm
	return pass{u, s, rate, float32(scale)}, nil
}

// check says what is wrong with the spans and parts of an update.
func (m *memory) check(u trainer.Update[trainer.Host]) error {
	n := len(u.Value)
	if len(u.Grad) != n {
		return fmt.Errorf("optim: %d values and %d gradients", n, len(u.Grad))
	}
	for name, span := range m.state {
		if len(span) != n {
			return fmt.Errorf("optim: the state has %d values of %q, the model %d: it is another model's", len(span), name, n)
		}
	}
	if !(math.Abs(u.Scale) <= math.MaxFloat32) {
		return fmt.Errorf("optim: the gradients' scale is %v: it is a finite float32", u.Scale)
	}
	end := 0
	for _, p := range u.Parts {
		if p.From < end || p.To < p.From || p.To > n {
			return fmt.Errorf("optim: the part %s is %d … %d, which does not lie between %d, the end of the one before, and %d", p.Name, p.From, p.To, end, n)
		}
		end = p.To
	}
	return nil
}

// notNegative is an error where a setting is below 0 or NaN.
func notNegative(field string, x float64) error {
	if x >= 0 {
		return nil
	}
	return fmt.Errorf("optim: %s is %v: it is 0 or more", field, x)
}

// measure is the norm of the gradients.
func measure(u trainer.Update[trainer.Host]) (float64, error) {
	sum := 0.0
	for _, p := range u.Parts {
		grad := u.Grad[p.From:p.To]
		if sum += squares(grad); math.IsNaN(sum) || math.IsInf(sum, 0) {
			i := slices.IndexFunc(grad, func(g float32) bool { return g-g != 0 })
			return 0, fmt.Errorf("optim: step %d: the gradient of %s is %v at %d of its %d values: look at the batch and its loss, or lower the rate", u.Step, p.Name, grad[i], i, len(grad))
		}
	}
	return math.Abs(u.Scale) * math.Sqrt(sum), nil
}

// squares is the sum of squares, which is finite where the values are: float64
// holds the square of a float32 exactly, and the sum of more of them than fit
// into memory. There are four sums, since each addition waits for the one before.
func squares(x []float32) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		a, b, c, d = a+p*p, b+q*q, c+r*r, d+s*s
	}
	for _, v := range x {
		a += float64(v) * float64(v)
	}
	return a + b + (c + d)
}

// pass is an update that has been checked.
type pass struct {
	trainer.Update[trainer.Host]
	settings
	rate  float64
	scale float32 // of the gradients, to clip their norm, too
}

// block is how many values an update takes at once: so few that they stay in
// the cache from one operation to the next, and memory is read once.
const block = 1024

// piece is a block, or less at the end of a run.
type piece struct {
	from, to    int
	value, grad []float32
	weightDecay float64 // 0 for parameters that do not decay
}

// pieces are the values that change. A piece comes with its gradients scaled
// and clipped, and leaves them zero. Parts that lie side by side and decay
// alike are one run, so that small ones cost no more than others.
func (p *pass) pieces(yield func(piece) bool) {
	for parts := p.Parts; len(parts) > 0; {
		from, to, decay := parts[0].From, parts[0].To, p.decays(parts[0])
		for parts = parts[1:]; len(parts) > 0 && parts[0].From == to && p.decays(parts[0]) == decay; parts = parts[1:] {
			to = parts[0].To
		}
		for ; from < to; from += block {
			end := min(from+block, to)
			b := piece{from: from, to: end, value: p.Value[from:end], grad: p.Grad[from:end]}
			if decay {
				b.weightDecay = p.weightDecay
			}
			p.bound(b.grad)
			if !yield(b) {
				return
			}
			clear(b.grad)
		}
	}
}

func (p *pass) decays(part trainer.Part) bool {
	return p.weightDecay != 0 && (p.decay == nil || p.decay(part))
}

// bound scales gradients and clips them by value.
func (p *pass) bound(grad []float32) {
	if p.scale != 1 {
		vek32.MulNumber_Inplace(grad, p.scale)
	}
	if p.clip.Value > 0 {
		vek32.MinimumNumber_Inplace(grad, float32(p.clip.Value))
		vek32.MaximumNumber_Inplace(grad, -float32(p.clip.Value))
	}
}
