package optim

import (
	"errors"

	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
)

// SGD is stochastic gradient descent as torch.optim.SGD has it, with dampening
// 0. With rate r, momentum μ and weight decay λ, an update of a value v by its
// gradient g is
//
//	g = g + λ·v
//	b = μ·b + g      b is 0 before the first update
//	v = v - r·b      Nesterov: v = v - r·(g + μ·b)
//
// in float32. Without momentum v falls by r·g, and nothing is kept between
// updates; with it, b is the state "momentum".
type SGD struct {
	LR          Schedule                // nil: Constant(0.001), as PyTorch
	Momentum    float64                 // 0: none
	Nesterov    bool                    // needs Momentum
	WeightDecay float64                 // 0: none
	Decay       func(trainer.Part) bool // which parameters decay, for instance Weights; nil: all
	Clip        Clip                    // zero: gradients are taken as they are

	memory
}

// momentum is the state's name for the b of all values.
const momentum = "momentum"

// Update is one update of the values in u.Parts. Values of other parameters
// stay as they are, their gradients and momenta, too. It fails, and changes
// nothing, where spans differ in length, parts overlap, a setting is out of
// range, or a norm that Clip needs is not finite.
func (o *SGD) Update(u trainer.Update[trainer.Host]) error {
	if err := notNegative("Momentum", o.Momentum); err != nil {
		return err
	}
	if o.Nesterov && o.Momentum == 0 {
		return errors.New("optim: Nesterov needs Momentum, which is 0")
	}
	p, err := o.begin(u, settings{o.LR, o.WeightDecay, o.Decay, o.Clip})
	if err != nil {
		return err
	}
	rate, mu := float32(p.rate), float32(o.Momentum)
	var momenta trainer.Host
	if o.Momentum > 0 {
		momenta = o.span(momentum, len(u.Value))
	}
	var scratch [block]float32
	for b := range p.pieces {
		t, change := scratch[:len(b.grad)], b.grad
		if b.weightDecay != 0 {
			vek32.Add_Inplace(b.grad, vek32.MulNumber_Into(t, b.value, float32(b.weightDecay)))
		}
		if momenta != nil {
			m := momenta[b.from:b.to]
			vek32.MulNumber_Inplace(m, mu)
			vek32.Add_Inplace(m, b.grad)
			if o.Nesterov {
				vek32.Add_Inplace(b.grad, vek32.MulNumber_Into(t, m, mu))
			} else {
				change = m
			}
		}
		vek32.Sub_Inplace(b.value, vek32.MulNumber_Into(t, change, rate))
	}
	return nil
}

// Restore takes back what State gave, as a copy; an empty state is that before
// the first Update. It fails, and changes nothing, where the state is another
// optimizer's or of another number of values.
func (o *SGD) Restore(state map[string][]float32) error {
	if _, ok := state[momentum]; ok && o.Momentum == 0 {
		return errors.New("optim: the state has momenta, but Momentum is 0: set it as it was when the state was saved")
	}
	return o.restore("SGD", state, momentum)
}
