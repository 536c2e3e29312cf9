package layer

import (
	"math"
	"math/rand/v2"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/internal/gemm"
)

// Linear is y = x·Wᵀ + b. Its parameters are named as PyTorch names those of
// nn.Linear: Name.weight, of shape [Out In], and Name.bias, of shape [Out].
type Linear struct {
	Name    string
	In, Out int // values of a row of x, and of y

	affine
	x     Matrix
	y, dx Matrix
}

// Params are the weight and the bias.
func (l *Linear) Params() []*trainer.Param[trainer.Host] {
	if l.params == nil {
		l.params = weightAndBias(l.Name, l.Out, l.In)
	}
	return l.params
}

// Init draws weight and bias evenly between ±1/√In, as PyTorch does.
func (l *Linear) Init(r *rand.Rand) { uniform(r, l.Params(), l.In) }

// Forward is x·Wᵀ + b.
func (l *Linear) Forward(_ *Pass, x Matrix) (Matrix, error) {
	if err := x.check(l.Name, l.In); err != nil {
		return Matrix{}, err
	}
	l.x, l.y = x, l.y.Resize(x.Rows, l.Out)
	if x.Rows == 0 {
		return l.y, nil
	}
	weight, bias := l.Params()[0].Value, l.Params()[1].Value
	l.product().NT(l.y.Data, x.Data, weight, x.Rows, l.Out, l.In)
	for i := range l.y.Rows {
		add(l.y.Row(i), bias)
	}
	return l.y, nil
}

// Gradient adds dyᵀ·x to the weight's and the sum of dy's rows to the bias's.
func (l *Linear) Gradient(dy Matrix) {
	weight, bias := l.params[0], l.params[1]
	if bias.Role == trainer.Trained {
		for i := range dy.Rows {
			add(bias.Grad, dy.Row(i))
		}
	}
	if weight.Role == trainer.Trained && dy.Rows > 0 {
		l.mul.TN(weight.Grad, dy.Data, l.x.Data, l.Out, l.In, dy.Rows)
	}
}

// Backward is dy·W.
func (l *Linear) Backward(_ *Pass, dy Matrix) (Matrix, error) {
	l.dx = l.dx.Resize(dy.Rows, l.In)
	if dy.Rows > 0 {
		l.mul.NN(l.dx.Data, dy.Data, l.params[0].Value, dy.Rows, l.In, l.Out)
	}
	return l.dx, nil
}

// affine is what layers share that multiply by a weight and add a bias.
type affine struct {
	params []*trainer.Param[trainer.Host]
	mul    gemm.Multiplier
}

// product is the library in use when the layer first computed.
func (a *affine) product() gemm.Multiplier {
	if a.mul == nil {
		a.mul = gemm.Current().New()
	}
	return a.mul
}

// weightAndBias are a weight of the given shape, and a bias for each of its
// first dimension.
func weightAndBias(name string, shape ...int) []*trainer.Param[trainer.Host] {
	return []*trainer.Param[trainer.Host]{
		{Name: name + ".weight", Shape: shape},
		{Name: name + ".bias", Shape: shape[:1:1]},
	}
}

// uniform draws the values of params evenly between ±1/√inputs.
func uniform(r *rand.Rand, params []*trainer.Param[trainer.Host], inputs int) {
	bound := 1 / math.Sqrt(float64(inputs))
	for _, p := range params {
		for i := range p.Value {
			p.Value[i] = float32((2*r.Float64() - 1) * bound)
		}
	}
}

// ReLU is y = max(x, 0). A NaN stays NaN, so that it shows in the loss.
type ReLU struct {
	bare
	y, dx Matrix
}

// Forward is max(x, 0).
func (l *ReLU) Forward(_ *Pass, x Matrix) (Matrix, error) {
	l.y = l.y.Resize(x.Rows, x.Cols)
	for i, v := range x.Data[:len(l.y.Data)] {
		l.y.Data[i] = max(v, 0)
	}
	return l.y, nil
}

// Backward is dy where y is above 0, and 0 elsewhere.
func (l *ReLU) Backward(_ *Pass, dy Matrix) (Matrix, error) {
	l.dx = l.dx.Resize(dy.Rows, dy.Cols)
	y := l.y.Data[:len(l.dx.Data)]
	for i, v := range dy.Data[:len(y)] {
		// Half of the values are 0 at random, where a branch costs ten times
		// as much: the sign of -y, spread over a word, is the mask of y > 0.
		mask := uint32(-int32(math.Float32bits(y[i])) >> 31)
		l.dx.Data[i] = math.Float32frombits(math.Float32bits(v) & mask)
	}
	return l.dx, nil
}
