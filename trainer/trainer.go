// Package trainer trains one model on many ranks with averaged gradients.
//
// A [Group] is the ranks that train together, a [Model] computes losses and
// gradients of a batch, an [Optimizer] applies them, and [DDP] drives the
// three: it averages the gradients of all ranks in buckets while the backward
// pass goes on.
package trainer

import (
	"context"
	"fmt"
)

// Span is a piece of memory of float32, on the host or on a device.
type Span[V any] interface {
	Len() int
	Slice(i, j int) V          // the values i … j-1, in the same memory
	Read(dst []float32) error  // copies Len() values to dst
	Write(src []float32) error // copies Len() values from src
}

// Host is a Span in the host's memory.
type Host []float32

// Len is the number of values.
func (h Host) Len() int { return len(h) }

// Slice is the values i … j-1, in the same memory.
func (h Host) Slice(i, j int) Host { return h[i:j:j] }

// Read copies the values to dst.
func (h Host) Read(dst []float32) error { return sameLen(copy(dst, h), len(dst), len(h)) }

// Write copies the values from src.
func (h Host) Write(src []float32) error { return sameLen(copy(h, src), len(src), len(h)) }

// Op is what an all-reduce does.
type Op uint8

// The operations of AllReduce.
const (
	Sum     Op = iota // the sum over all ranks
	Average           // the sum over all ranks, each scaled by 1/Size before
)

// Group is the ranks that train together. Every rank calls the same methods
// in the same order with spans of the same lengths; a Group checks that and
// returns an error on all ranks where it does not hold. Where a rank dies,
// every call on the others returns an error that names it.
type Group[V any] interface {
	Rank() int
	Size() int
	// Alloc is n zeroed values in memory that AllReduce works on without a
	// copy. They live until Close.
	Alloc(n int) (V, error)
	// AllReduce starts to replace v by the reduction over all ranks, with the
	// same bits on every rank and in every run. v belongs to the group until
	// wait has returned. Calls run in the order in which they were started.
	AllReduce(ctx context.Context, v V, op Op) (wait func() error, err error)
	// Broadcast replaces v by the root's.
	Broadcast(ctx context.Context, v V, root int) error
	// Exchange gives every rank what each rank brought, by rank: fingerprints,
	// counts, metrics. It is a barrier, too. The caller owns all.
	Exchange(ctx context.Context, mine []byte) (all [][]byte, err error)
	// Close leaves the group and frees its memory. It may be called twice.
	Close() error
}

// Param is a parameter of a model. The model gives Name and Shape; New points
// Value and Grad into its arenas.
type Param[V any] struct {
	Name        string // as PyTorch's state_dict has it: fc1.weight
	Shape       []int
	Value, Grad V
}

// Len is the number of values: the product of the shape.
func (p *Param[V]) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Model computes the loss and the gradients of a batch.
type Model[B, V any] interface {
	// Params are the parameters in order of use, the same slice at each call.
	Params() []*Param[V]
	// Init sets the values of the parameters; equal seeds, equal values.
	Init(seed uint64) error
	// Step adds scale times the gradient of the batch's mean loss into each
	// Grad, and returns the mean loss, not scaled. Rows of padding count in
	// neither; a batch of nothing else has loss 0. It calls ready(i) once
	// parameter i's gradient is complete, from any goroutine but before it
	// returns; the gradients behave best when ready goes from the last
	// parameter to the first.
	Step(ctx context.Context, b B, scale float64, ready func(param int)) (loss float64, err error)
}

// Optimizer applies gradients.
type Optimizer[V any] interface {
	// Update changes the values by the gradients and leaves the gradients
	// zero. step counts the updates before this one.
	Update(step int, value, grad V) error
	// State names what must be saved beside the values, for instance momenta:
	// spans as long as the values, in the order of the values. It is empty
	// before the first Update where the state starts at zero; Restore gives
	// back what State gave.
	State() map[string]V
	Restore(state map[string][]float32) error
}

// Tensor is a named array on the host, as checkpoints store it.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

func sameLen(copied, a, b int) error {
	if copied != a || a != b {
		return fmt.Errorf("trainer: a copy between %d and %d values", a, b)
	}
	return nil
}
