// Package optim applies gradients to parameters.
package optim

import (
	"fmt"
	"slices"

	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
)

// Schedule is the learning rate of an update; step counts the updates before it.
type Schedule func(step int) float64

// Constant is the same rate for all updates.
func Constant(rate float64) Schedule { return func(int) float64 { return rate } }

// Linear falls evenly from rate at the first update to 0 after total updates,
// and stays there. A total below 1 is 0 from the start.
func Linear(rate float64, total int) Schedule {
	return func(step int) float64 {
		if step >= total {
			return 0
		}
		return rate * float64(total-step) / float64(total)
	}
}

// SGD is stochastic gradient descent as torch.optim.SGD has it, with dampening
// 0. With momentum μ and rate r, an update of a value v by its gradient g is
//
//	b = μ·b + g    b is g at the first update
//	v = v - r·b
//
// in float32. Without momentum v falls by r·g, and nothing is kept between
// updates.
type SGD struct {
	LR       Schedule // nil: Constant(0.001), as PyTorch
	Momentum float64  // 0: none

	momentum trainer.Host
}

// momentum is the state's name for the b of all values.
const momentum = "momentum"

// Update is one update of all values. It fails, and changes nothing, where
// values, gradients and restored momenta differ in number.
func (o *SGD) Update(step int, value, grad trainer.Host) error {
	if len(value) != len(grad) {
		return fmt.Errorf("optim: %d values and %d gradients", len(value), len(grad))
	}
	rate := float32(0.001)
	if o.LR != nil {
		rate = float32(o.LR(step))
	}
	if o.Momentum == 0 {
		apply(value, grad, nil, rate, 0)
		return nil
	}
	if o.momentum == nil {
		o.momentum = make(trainer.Host, len(value))
	}
	if len(o.momentum) != len(value) {
		return fmt.Errorf("optim: %d momenta for %d values: the state restored is another model's", len(o.momentum), len(value))
	}
	apply(value, grad, o.momentum, rate, float32(o.Momentum))
	return nil
}

// State is the momenta, under "momentum": the optimizer's own memory, which
// the next Update changes. It is empty without momentum and before the first
// Update.
func (o *SGD) State() map[string]trainer.Host {
	if o.momentum == nil {
		return nil
	}
	return map[string]trainer.Host{momentum: o.momentum}
}

// Restore takes back what State gave, as a copy; an empty state is that before
// the first Update. It fails, and changes nothing, where the state is another
// optimizer's or of another number of values.
func (o *SGD) Restore(state map[string][]float32) error {
	for name, values := range state {
		switch {
		case name != momentum:
			return fmt.Errorf("optim: SGD has no state %q: it was saved by another optimizer", name)
		case o.Momentum == 0:
			return fmt.Errorf("optim: the state has momenta, but Momentum is 0: set it as it was when the state was saved")
		case o.momentum != nil && len(o.momentum) != len(values):
			return fmt.Errorf("optim: the state has %d momenta, the model %d values", len(values), len(o.momentum))
		}
	}
	o.momentum = slices.Clone(state[momentum])
	return nil
}

// block is how many values an update takes at once: so few that they stay in
// the cache from one operation to the next, and memory is read once.
const block = 1024

// apply is one update. Every operation rounds to float32, so that all
// processors give the same bits; nil momenta stand for none.
func apply(value, grad, momentum []float32, rate, mu float32) {
	var change [block]float32
	for len(value) > 0 {
		n := min(block, len(value))
		v, b := value[:n], grad[:n]
		if momentum != nil {
			b, momentum = momentum[:n], momentum[n:]
			vek32.MulNumber_Inplace(b, mu)
			vek32.Add_Inplace(b, grad[:n])
		}
		vek32.Sub_Inplace(v, vek32.MulNumber_Into(change[:n], b, rate))
		clear(grad[:n])
		value, grad = value[n:], grad[n:]
	}
}
