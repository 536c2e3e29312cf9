package optim

import (
	"fmt"
	"math"
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

// Step multiplies the rate by gamma after every so many updates, as StepLR of
// torch.optim.lr_scheduler. It panics where every is below 1.
func Step(rate float64, every int, gamma float64) Schedule {
	if every < 1 {
		panic(fmt.Sprintf("optim: Step after every %d updates: it is 1 or more", every))
	}
	return func(step int) float64 { return rate * math.Pow(gamma, float64(step/every)) }
}

// Cosine falls along half a cosine from rate at the first update to least
// after total updates, and stays there. A total below 1 is least from the
// start.
//
//	least + (rate-least) · (1 + cos(π·step/total)) / 2
//
// is CosineAnnealingLR of torch.optim.lr_scheduler up to there; after that
// PyTorch's rate rises again, with the cosine.
func Cosine(rate float64, total int, least float64) Schedule {
	return func(step int) float64 {
		if step >= total {
			return least
		}
		return least + (rate-least)*(1+math.Cos(math.Pi*float64(step)/float64(total)))/2
	}
}

// Warmup puts a linear rise in front of then: over steps updates the rate goes
// from a share of then's first rate up to all of it, which is the rate of
// update steps, where then begins with its step 0. A then of total updates
// makes steps+total together. Steps below 1 are no warm-up.
//
// It is SequentialLR of a LinearLR and then. PyTorch's start_factor is above 0
// and 1/3 by default; from may be 0. Warmup panics where from is not between 0
// and 1, or then is nil.
func Warmup(steps int, from float64, then Schedule) Schedule {
	if !(from >= 0 && from <= 1) {
		panic(fmt.Sprintf("optim: Warmup from %v: it is a share of the rate, between 0 and 1", from))
	}
	if then == nil {
		panic("optim: Warmup of no schedule: give it Constant(rate) at least")
	}
	return func(step int) float64 {
		if step >= steps {
			return then(step - max(steps, 0))
		}
		return then(0) * (from + (1-from)*float64(step)/float64(steps))
	}
}
