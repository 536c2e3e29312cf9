// Package nn is small neural networks on the CPU: layers, a classifier that
// trainer.DDP can train, and evaluation.
//
// A layer works on a whole batch, one example a row. All products of matrices
// go through one of a few libraries, see [SetBLAS]; all computing is on the
// thread that asks for it, so that equal inputs give equal bits. Layers keep
// their scratch memory, and after the largest batch nothing is allocated.
package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shardfeed/shardfeed/trainer"
)

// Matrix is Rows rows of Cols values, one row after the other in Data.
type Matrix struct {
	Rows, Cols int
	Data       []float32 // Rows*Cols values
}

// Row is row i, in the same memory.
func (m Matrix) Row(i int) []float32 { return m.Data[i*m.Cols : (i+1)*m.Cols : (i+1)*m.Cols] }

// resize is a matrix in the memory of m, or in more where that is too small.
// Its values are of any content.
func (m Matrix) resize(rows, cols int) Matrix { return Matrix{rows, cols, grow(m.Data, rows*cols)} }

// Layer is one differentiable step of a net. The matrices that its methods
// return belong to the layer and are valid until the same method's next call.
// Each batch has a row at least. A layer serves one goroutine at a time.
type Layer interface {
	// Params are the layer's parameters in order of use, the same at each call.
	Params() []*trainer.Param[trainer.Host]
	// Init draws the parameters' first values from r.
	Init(r *rand.Rand)
	// Forward computes the output from x, which must stay as it is until the
	// gradients have been computed. It fails where x does not fit the layer.
	Forward(x Matrix) (y Matrix, err error)
	// Gradient adds the gradients of the loss to the parameters' Grad, for the
	// last Forward. dy is the gradient with respect to its y.
	Gradient(dy Matrix)
	// Backward is the gradient with respect to the last Forward's x. It comes
	// after Gradient, with the same dy, and is left out where no one needs it.
	Backward(dy Matrix) (dx Matrix)
}

// Linear is y = x·Wᵀ + b. Its parameters are named as PyTorch names those of
// nn.Linear: Name.weight, of shape [Out In], and Name.bias, of shape [Out].
type Linear struct {
	Name    string
	In, Out int // values of a row of x, and of y

	params []*trainer.Param[trainer.Host]
	mul    gemm
	x      Matrix
	y, dx  Matrix
}

// Params are the weight and the bias.
func (l *Linear) Params() []*trainer.Param[trainer.Host] {
	if l.params == nil {
		l.params = []*trainer.Param[trainer.Host]{
			{Name: l.Name + ".weight", Shape: []int{l.Out, l.In}},
			{Name: l.Name + ".bias", Shape: []int{l.Out}},
		}
	}
	return l.params
}

// Init draws weight and bias evenly between ±1/√In, as PyTorch does.
func (l *Linear) Init(r *rand.Rand) {
	bound := 1 / math.Sqrt(float64(l.In))
	for _, p := range l.Params() {
		for i := range p.Value {
			p.Value[i] = float32((2*r.Float64() - 1) * bound)
		}
	}
}

// Forward is x·Wᵀ + b.
func (l *Linear) Forward(x Matrix) (Matrix, error) {
	if x.Cols != l.In {
		return Matrix{}, fmt.Errorf("nn: layer %s takes rows of %d values, got rows of %d", l.Name, l.In, x.Cols)
	}
	if l.mul == nil {
		l.mul = current().new()
	}
	l.x, l.y = x, l.y.resize(x.Rows, l.Out)
	weight, bias := l.Params()[0].Value, l.Params()[1].Value
	l.mul.nt(l.y.Data, x.Data, weight, x.Rows, l.Out, l.In)
	for i := range l.y.Rows {
		add(l.y.Row(i), bias)
	}
	return l.y, nil
}

// Gradient adds dyᵀ·x to the weight's and the sum of dy's rows to the bias's.
func (l *Linear) Gradient(dy Matrix) {
	weight, bias := l.params[0].Grad, l.params[1].Grad
	for i := range dy.Rows {
		add(bias, dy.Row(i))
	}
	l.mul.tn(weight, dy.Data, l.x.Data, l.Out, l.In, dy.Rows)
}

// Backward is dy·W.
func (l *Linear) Backward(dy Matrix) Matrix {
	l.dx = l.dx.resize(dy.Rows, l.In)
	l.mul.nn(l.dx.Data, dy.Data, l.params[0].Value, dy.Rows, l.In, l.Out)
	return l.dx
}

// add is dst += src.
func add(dst, src []float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] += src[i]
	}
}

// ReLU is y = max(x, 0). A NaN stays NaN, so that it shows in the loss.
type ReLU struct{ y, dx Matrix }

// Params are none.
func (*ReLU) Params() []*trainer.Param[trainer.Host] { return nil }

// Init does nothing.
func (*ReLU) Init(*rand.Rand) {}

// Forward is max(x, 0).
func (l *ReLU) Forward(x Matrix) (Matrix, error) {
	l.y = l.y.resize(x.Rows, x.Cols)
	for i, v := range x.Data[:len(l.y.Data)] {
		l.y.Data[i] = max(v, 0)
	}
	return l.y, nil
}

// Gradient does nothing.
func (*ReLU) Gradient(Matrix) {}

// Backward is dy where y is above 0, and 0 elsewhere.
func (l *ReLU) Backward(dy Matrix) Matrix {
	l.dx = l.dx.resize(dy.Rows, dy.Cols)
	y := l.y.Data[:len(l.dx.Data)]
	for i, v := range dy.Data[:len(y)] {
		// Half of the values are 0 at random, where a branch costs ten times
		// as much: the sign of -y, spread over a word, is the mask of y > 0.
		mask := uint32(-int32(math.Float32bits(y[i])) >> 31)
		l.dx.Data[i] = math.Float32frombits(math.Float32bits(v) & mask)
	}
	return l.dx
}

// MLP is a multi-layer perceptron: linear layers named fc1, fc2, … with a ReLU
// between each two. sizes are the values of a row before the first, between
// each two, and behind the last layer: MLP(784, 512, 10) tells 28×28 images
// into ten classes. It panics where there are fewer than two sizes or one is
// below 1.
func MLP(sizes ...int) []Layer {
	if len(sizes) < 2 || slices.Min(sizes) < 1 {
		panic(fmt.Sprintf("nn: an MLP of sizes %v: it takes two or more, each 1 or more", sizes))
	}
	var net []Layer
	for i, in := range sizes[:len(sizes)-1] {
		if i > 0 {
			net = append(net, new(ReLU))
		}
		net = append(net, &Linear{Name: fmt.Sprintf("fc%d", i+1), In: in, Out: sizes[i+1]})
	}
	return net
}
