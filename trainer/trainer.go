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
	"math"

	"github.com/viterin/vek/vek32"
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

// Finite says whether no value is infinite or NaN. DDP asks memory that can
// tell before it averages gradients.
func (h Host) Finite() bool {
	if len(h) == 0 {
		return true
	}
	if square := vek32.Dot(h, h); !math.IsNaN(float64(square)) && !math.IsInf(float64(square), 0) {
		return true
	}
	for _, x := range h {
		if math.Float32bits(x)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true // only the square was too large
}

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

// Role is what becomes of a parameter in training.
type Role uint8

// The roles of a parameter.
const (
	Trained Role = iota // the optimizer changes it by its gradient
	Frozen              // nothing changes it; it has no gradient
	Buffer              // the model itself changes it, as BatchNorm its running mean; it has no gradient
)

// Param is a parameter of a model. The model gives Name, Shape and Role; New
// points Value, and Grad of a trained one, into its arenas.
type Param[V any] struct {
	Name        string // as PyTorch's state_dict has it: fc1.weight
	Shape       []int
	Role        Role // what it is when New is called
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

// Model computes the loss and the gradients of a batch. One that also has the
// method
//
//	Idle(ctx context.Context, ready func(param int)) error
//
// takes part by it, without a row of its own, in what its layers exchange
// during a Step of the other ranks, and calls ready where Step does: DDP.Idle
// calls it.
type Model[B, V any] interface {
	// Params are the parameters in order of use, the same slice at each call.
	Params() []*Param[V]
	// Init sets the values of the parameters; equal seeds, equal values.
	Init(seed uint64) error
	// Step adds scale times the gradient of the batch's mean loss into each
	// Grad, and returns the mean loss, not scaled. Rows of padding count in
	// neither; a batch of nothing else has loss 0. It calls ready(i) once the
	// gradient of the trained parameter i is complete, from any goroutine but
	// before it returns, and not at all for one that the batch did not use;
	// ready behaves best when it goes from the last parameter to the first.
	Step(ctx context.Context, b B, scale float64, ready func(param int)) (loss float64, err error)
}

// Optimizer applies gradients.
type Optimizer[V any] interface {
	// Update changes the values of u by the gradients and leaves the gradients
	// zero.
	Update(u Update[V]) error
	// State names what must be saved beside the values, for instance momenta:
	// spans as long as Update's Value, in its order. It is empty before the
	// first Update where the state starts at zero; Restore gives back what
	// State gave.
	State() map[string]V
	Restore(state map[string][]float32) error
}

// Update is one step of an optimizer.
type Update[V any] struct {
	Step        int     // the number of those before
	Value, Grad V       // of all trained parameters, one after the other
	Scale       float64 // the gradient is Scale times Grad
	Parts       []Part  // the parameters that change, in order: those with a gradient on any rank
}

// Part is where a parameter lies among the values of an Update: those from
// From to before To.
type Part struct {
	Name     string
	Shape    []int
	From, To int
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
