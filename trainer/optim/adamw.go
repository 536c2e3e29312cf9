package optim

import (
	"fmt"
	"math"

	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
)

// AdamW is Adam with decoupled weight decay as torch.optim.AdamW has it,
// without AMSGrad. With rate r, decay rates β₁ and β₂ and weight decay λ,
// update t (1 for the first) of a value v by its gradient g is
//
//	v = v - r·λ·v
//	m = m + (1-β₁)·(g-m)
//	s = β₂·s + (1-β₂)·g²
//	v = v - r/(1-β₁ᵗ) · m/(√(s/(1-β₂ᵗ)) + ε)
//
// in float32. It keeps m and s, the states "exp_avg" and "exp_avg_sq".
//
// t is the update's Step + 1, for all parameters. PyTorch counts for each
// parameter the updates that it had a gradient in, so the two differ where one
// goes without, or an update was skipped: here the correction of the averages
// has gone on.
type AdamW struct {
	LR          Schedule                // nil: Constant(0.001), as PyTorch
	Betas       [2]float64              // both 0: 0.9 and 0.999
	Eps         float64                 // 0: 1e-8
	WeightDecay float64                 // 0: none, which is Adam; PyTorch's default is 0.01
	Decay       func(trainer.Part) bool // which parameters decay, for instance Weights; nil: all
	Clip        Clip                    // zero: gradients are taken as they are

	memory
}

// The state's names for the m and s of all values.
const (
	average = "exp_avg"
	squared = "exp_avg_sq"
)

// Update is one update of the values in u.Parts. Values of other parameters
// stay as they are, their gradients and averages, too. It fails, and changes
// nothing, where spans differ in length, parts overlap, a setting is out of
// range, or a norm that Clip needs is not finite.
func (o *AdamW) Update(u trainer.Update[trainer.Host]) error {
	betas, eps := o.Betas, o.Eps
	if betas == [2]float64{} {
		betas = [2]float64{0.9, 0.999}
	}
	for i, beta := range betas {
		if !(beta >= 0 && beta < 1) {
			return fmt.Errorf("optim: Betas[%d] is %v: it is 0 or more, and below 1", i, beta)
		}
	}
	if eps == 0 {
		eps = 1e-8
	}
	if err := notNegative("Eps", eps); err != nil {
		return err
	}
	if u.Step < 0 {
		return fmt.Errorf("optim: step %d: the first is 0", u.Step)
	}
	p, err := o.begin(u, settings{o.LR, o.WeightDecay, o.Decay, o.Clip})
	if err != nil {
		return err
	}
	averages, squares := o.span(average, len(u.Value)), o.span(squared, len(u.Value))
	// The root of 1-β₂ᵗ is drawn out of the fraction, where it is a factor for
	// all values at once: r·√(1-β₂ᵗ)/(1-β₁ᵗ) · m/(√s + ε·√(1-β₂ᵗ)).
	t := float64(u.Step + 1)
	root := math.Sqrt(1 - math.Pow(betas[1], t))
	rate, small := float32(p.rate*root/(1-math.Pow(betas[0], t))), float32(eps*root)
	fresh, kept, freshSquare := float32(1-betas[0]), float32(betas[1]), float32(1-betas[1])
	var scratch [block]float32
	for b := range p.pieces {
		t, m, s := scratch[:len(b.grad)], averages[b.from:b.to], squares[b.from:b.to]
		if b.weightDecay != 0 {
			vek32.MulNumber_Inplace(b.value, float32(1-p.rate*b.weightDecay))
		}
		vek32.Sub_Into(t, b.grad, m)
		vek32.MulNumber_Inplace(t, fresh)
		vek32.Add_Inplace(m, t)
		vek32.MulNumber_Into(t, b.grad, freshSquare)
		vek32.Mul_Inplace(t, b.grad)
		vek32.MulNumber_Inplace(s, kept)
		vek32.Add_Inplace(s, t)
		descend(b.value, m, s, rate, small)
	}
	return nil
}

// descend is v - rate·m/(√s + small), where vek32 would not do: its roots and
// quotients are approximations that differ between processors.
func descend(v, m, s []float32, rate, small float32) {
	m, s = m[:len(v)], s[:len(v)]
	for i := range v {
		v[i] -= float32(rate * (m[i] / (float32(math.Sqrt(float64(s[i]))) + small)))
	}
}

// Restore takes back what State gave, as a copy; an empty state is that before
// the first Update. It fails, and changes nothing, where the state is another
// optimizer's or of another number of values.
func (o *AdamW) Restore(state map[string][]float32) error {
	return o.restore("AdamW", state, average, squared)
}
