// Package layer is the layers of small neural networks, on the CPU.
//
// A layer works on a whole batch, one example a row. All products of matrices
// go through one of a few libraries, see nn.SetBLAS; all computing is on the
// thread that asks for it, so that equal inputs give equal bits. Layers keep
// their scratch memory: after the largest batch nothing is allocated but what
// ranks exchange, and what a call of OpenBLAS takes.
//
// Formulas, parameters and their names are PyTorch's, so that a checkpoint of
// one loads in the other.
package layer

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/internal/gemm"
)

// Matrix is Rows rows of Cols values, one row after the other in Data. A row
// of images is their planes one after the other, and the lines of a plane one
// after the other: C×H×W values.
type Matrix struct {
	Rows, Cols int
	Data       []float32 // Rows*Cols values
}

// Row is row i, in the same memory.
func (m Matrix) Row(i int) []float32 { return m.Data[i*m.Cols : (i+1)*m.Cols : (i+1)*m.Cols] }

// Resize is a matrix in the memory of m, or in more where that is too small.
// Its values are of any content.
func (m Matrix) Resize(rows, cols int) Matrix {
	return Matrix{rows, cols, gemm.Grow(m.Data, rows*cols)}
}

// check fails where the rows of m are not of cols values. Without rows, m fits
// every layer.
func (m Matrix) check(layer string, cols int) error {
	if m.Rows > 0 && m.Cols != cols {
		return fmt.Errorf("layer %s takes rows of %d values, got rows of %d", layer, cols, m.Cols)
	}
	return nil
}

// Pass is one run of a batch through a net: what a layer knows beside its
// input.
type Pass struct {
	Context context.Context // of the call: where it ends, layers stop waiting for other ranks
	Train   bool            // gradients follow; otherwise no state may change
	Layer   int             // the layer's place in the net
	Seed    uint64          // of the run
	Epoch   int
	Samples []int // of each row; nil: the row's number stands for the sample's
}

// Layer is one differentiable step of a net. The matrices that its methods
// return belong to the layer and are valid until the same method's next call.
// A batch without rows passes through every layer, too: its rank takes part in
// what the ranks exchange. A layer serves one goroutine at a time.
type Layer interface {
	// Params are the layer's parameters in order of use, the same at each call.
	Params() []*trainer.Param[trainer.Host]
	// Init sets the parameters' first values, those of chance drawn from r.
	Init(r *rand.Rand)
	// Forward computes the output from x, which must stay as it is until the
	// gradients have been computed. It fails where x does not fit the layer.
	Forward(p *Pass, x Matrix) (y Matrix, err error)
	// Gradient adds the gradients of the loss to the Grad of those parameters
	// that are trained, for the last Forward. dy is the gradient with respect
	// to its y.
	Gradient(dy Matrix)
	// Backward is the gradient with respect to the last Forward's x. It comes
	// after Gradient, with the same dy, and is left out where no one needs it.
	Backward(p *Pass, dy Matrix) (dx Matrix, err error)
}

// bare is the part of a layer that has no parameters.
type bare struct{}

// Params are none.
func (bare) Params() []*trainer.Param[trainer.Host] { return nil }

// Init does nothing.
func (bare) Init(*rand.Rand) {}

// Gradient does nothing.
func (bare) Gradient(Matrix) {}

// add is dst += src.
func add(dst, src []float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] += src[i]
	}
}
