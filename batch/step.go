// Package batch groups samples into steps and holds the bytes of a step.
//
// A [Step] says which samples one rank reads for one step of an epoch; a
// [Sampler] makes steps of an order. A [Batch] is what was read: one slab of
// bytes in which every column has its place, so that copying a batch to a
// device is one call.
package batch

import (
	"fmt"
	"iter"
	"math"
)

// Step is what one rank reads for one step of an epoch.
type Step struct {
	Epoch, Index int   // Index counts from 0 within the epoch
	Samples      []int // in the order in which the rows lie in the batch
	Padded       int   // the last Padded samples repeat earlier ones: weight 0 in loss, gradient, metrics and logs
}

// Rows is the number of samples that count: the padding is left out.
func (s Step) Rows() int { return len(s.Samples) - s.Padded }

// Sampler groups the order of one rank into steps of Size samples.
type Sampler struct {
	// Order yields the samples of an epoch without the first skip;
	// sampler.Distributed.Epoch is one.
	Order func(epoch, skip int) iter.Seq[int]
	// Padded is how many of an epoch's last samples repeat earlier ones;
	// sampler.Distributed.Padded counts them.
	Padded int
	// Size is the number of samples of a step, on this rank.
	Size int
	// DropLast leaves out an epoch's last step where it is short. It is about
	// this rank's last step; whether the ranks get equal numbers of samples
	// is the tail's business (sampler.Tail).
	DropLast bool
}

// Epoch yields the steps of the epoch without the first skip. Each step owns
// its Samples. Epoch panics where Size is below 1, or Padded or skip is
// negative.
func (s Sampler) Epoch(epoch, skip int) iter.Seq[Step] {
	switch {
	case s.Size < 1:
		panic(fmt.Sprintf("batch: Sampler.Size is %d: a step has at least one sample", s.Size))
	case s.Padded < 0:
		panic(fmt.Sprintf("batch: Sampler.Padded is %d", s.Padded))
	case skip < 0:
		panic(fmt.Sprintf("batch: skip is %d", skip))
	}
	return func(yield func(Step) bool) {
		if skip > math.MaxInt/s.Size {
			return // no order is that long
		}
		index, samples := skip, s.buffer()
		for sample := range s.Order(epoch, skip*s.Size) {
			samples = append(samples, sample)
			if len(samples)-s.Padded < s.Size {
				continue // padding may begin within the step: that shows once Padded samples follow it
			}
			if !yield(Step{Epoch: epoch, Index: index, Samples: samples[:s.Size:s.Size]}) {
				return
			}
			index, samples = index+1, append(s.buffer(), samples[s.Size:]...)
		}
		for len(samples) >= s.Size || len(samples) > 0 && !s.DropLast {
			n := min(s.Size, len(samples))
			follow := len(samples) - n // at most Padded
			if !yield(Step{Epoch: epoch, Index: index, Samples: samples[:n:n], Padded: min(n, s.Padded-follow)}) {
				return
			}
			index, samples = index+1, samples[n:]
		}
	}
}

// buffer has room for a step and the padding behind it, or for much of it: a
// Size far beyond the order costs no memory.
func (s Sampler) buffer() []int {
	const enough = 1 << 16
	return make([]int, 0, min(s.Size, enough)+min(s.Padded, enough))
}

// Through is a plan of all steps from an epoch to the last, so that reading
// ahead crosses the boundary between epochs. What is skipped lies in the epoch
// named: after a skip of all its steps, or more, the plan begins with the next.
func (s Sampler) Through(last int) func(epoch, skip int) iter.Seq[Step] {
	return func(epoch, skip int) iter.Seq[Step] {
		return func(yield func(Step) bool) {
			for e, skip := epoch, skip; e <= last; e, skip = e+1, 0 {
				for step := range s.Epoch(e, skip) {
					if !yield(step) {
						return
					}
				}
			}
		}
	}
}
