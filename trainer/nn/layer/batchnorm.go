package layer

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shardfeed/shardfeed/trainer"
)

// BatchNorm normalizes each channel of a batch: y = (x-mean)/√(var+1e-5)·weight
// + bias. In training, mean and variance are those of the batch, and the
// running ones go a tenth of the way towards them; in evaluation they are the
// running ones. So do PyTorch's nn.BatchNorm2d and, where a channel is one
// value, nn.BatchNorm1d. With a Group it is nn.SyncBatchNorm.
//
// Its parameters, each of shape [Channels], are Name.weight and Name.bias,
// which are trained, and the buffers Name.running_mean and Name.running_var.
// The buffer Name.num_batches_tracked, of shape [], counts the batches, up to
// the 2^24 that a float32 can count to.
type BatchNorm struct {
	Name     string
	Channels int // planes of a row, equal in size
	// Group is the ranks whose rows make one batch: mean and variance are those
	// of all rows, however they are split. Every rank takes part in every
	// pass of training, one without rows, too. nil means each rank's rows
	// alone.
	Group trainer.Group[trainer.Host]
	// Frozen takes the running mean and variance in training, too, and leaves
	// them as they are.
	Frozen bool

	params     []*trainer.Param[trainer.Host]
	x, y, dx   Matrix
	count      float64   // of values of a channel in the batch, on all ranks
	mean, m2   []float64 // of each channel, and its sum of squared differences from it
	invstd     []float64 // 1/√(var+eps)
	sumDy      []float64 // of each channel's values of dy
	sumDyXmu   []float64 // of those times x-mean
	both       []float64 // the two sums' memory
	message    []byte
	normalized bool // by the batch, in the last Forward
}

const (
	eps      = 1e-5 // added to a variance
	momentum = 0.1  // the share of the batch in running mean and variance
)

// The places of the parameters in Params.
const (
	bnWeight = iota
	bnBias
	bnMean
	bnVar
	bnBatches
)

// Params are weight, bias and the three buffers.
func (l *BatchNorm) Params() []*trainer.Param[trainer.Host] {
	if l.params == nil {
		for i, name := range []string{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"} {
			p := &trainer.Param[trainer.Host]{Name: l.Name + "." + name, Shape: []int{l.Channels}}
			if i >= bnMean {
				p.Role = trainer.Buffer
			}
			if i == bnBatches {
				p.Shape = []int{}
			}
			l.params = append(l.params, p)
		}
	}
	return l.params
}

// Init sets weight and running variance to 1, everything else to 0.
func (l *BatchNorm) Init(*rand.Rand) {
	for i, p := range l.Params() {
		for j := range p.Value {
			p.Value[j] = 0
			if i == bnWeight || i == bnVar {
				p.Value[j] = 1
			}
		}
	}
}

// Forward normalizes x. In training it fails where a channel has a single
// value, whose variance says nothing.
func (l *BatchNorm) Forward(p *Pass, x Matrix) (Matrix, error) {
	if l.Channels < 1 || x.Rows > 0 && (x.Cols == 0 || x.Cols%l.Channels != 0) {
		return Matrix{}, fmt.Errorf("layer %s takes rows of %d channels of equal size, got rows of %d values", l.Name, l.Channels, x.Cols)
	}
	if l.mean == nil {
		l.mean, l.m2, l.invstd = make([]float64, l.Channels), make([]float64, l.Channels), make([]float64, l.Channels)
		l.both = make([]float64, 2*l.Channels)
		l.sumDy, l.sumDyXmu = l.both[:l.Channels], l.both[l.Channels:]
	}
	l.x, l.y = x, l.y.Resize(x.Rows, x.Cols)
	l.normalized = p.Train && !l.Frozen
	if l.normalized {
		l.moments()
		if err := l.combine(p); err != nil {
			return Matrix{}, err
		}
		if l.count == 1 {
			return Matrix{}, fmt.Errorf("layer %s: expected more than 1 value per channel when training, got 1: take larger batches", l.Name)
		}
		if l.count > 0 {
			l.track()
		}
	} else {
		for c := range l.Channels {
			l.mean[c] = float64(l.params[bnMean].Value[c])
			l.invstd[c] = 1 / math.Sqrt(float64(l.params[bnVar].Value[c])+eps)
		}
	}
	weight, bias := l.params[bnWeight].Value, l.params[bnBias].Value
	l.planes(func(c, from, to int) {
		mean, scale, shift := float32(l.mean[c]), float32(l.invstd[c]*float64(weight[c])), bias[c]
		y := l.y.Data[from:to]
		for i, v := range x.Data[from:to] {
			y[i] = (v-mean)*scale + shift
		}
	})
	return l.y, nil
}

// planes calls f for all planes of x: their channel and where in x.Data they
// are.
func (l *BatchNorm) planes(f func(c, from, to int)) {
	size := l.x.Cols / l.Channels
	for i := range l.x.Rows * l.Channels {
		f(i%l.Channels, i*size, (i+1)*size)
	}
}

// moments are count, mean and m2 of this rank's rows: in two passes, so that a
// mean far from 0 does not drown the variance.
func (l *BatchNorm) moments() {
	l.count = float64(l.x.Rows * (l.x.Cols / l.Channels))
	clear(l.mean)
	clear(l.m2)
	l.planes(func(c, from, to int) { l.mean[c] += sum(l.x.Data[from:to]) })
	for c := range l.mean {
		l.mean[c] /= max(l.count, 1)
	}
	l.planes(func(c, from, to int) { l.m2[c] += squares(l.x.Data[from:to], l.mean[c]) })
}

// combine makes count, mean and m2 those of all ranks, in their order, by the
// formula of Chan, Golub and LeVeque.
func (l *BatchNorm) combine(p *Pass) error {
	if l.Group == nil {
		return nil
	}
	l.message = appendFloats(appendFloats(appendFloats(l.message[:0], l.count), l.mean...), l.m2...)
	all, err := l.Group.Exchange(p.Context, l.message)
	if err != nil {
		return fmt.Errorf("layer %s: %w", l.Name, err)
	}
	l.count = 0
	clear(l.mean)
	clear(l.m2)
	for rank, theirs := range all {
		if len(theirs) != len(l.message) {
			return fmt.Errorf("layer %s: rank %d brought %d bytes of statistics, expected %d: do all ranks run the same net?", l.Name, rank, len(theirs), len(l.message))
		}
		float := func(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(theirs[8*i:])) }
		n := float(0)
		if n == 0 {
			continue
		}
		total := l.count + n
		for c := range l.Channels {
			delta := float(1+c) - l.mean[c]
			l.mean[c] += delta * n / total
			l.m2[c] += float(1+l.Channels+c) + delta*delta*l.count*n/total
		}
		l.count = total
	}
	return nil
}

// track makes invstd that of the batch, and lets the running statistics
// follow. The running variance follows the unbiased one.
func (l *BatchNorm) track() {
	mean, variance := l.params[bnMean].Value, l.params[bnVar].Value
	for c := range l.Channels {
		l.invstd[c] = 1 / math.Sqrt(l.m2[c]/l.count+eps)
		mean[c] = float32((1-momentum)*float64(mean[c]) + momentum*l.mean[c])
		variance[c] = float32((1-momentum)*float64(variance[c]) + momentum*l.m2[c]/(l.count-1))
	}
	l.params[bnBatches].Value[0]++
}

// Gradient adds the sums of dy to the bias's and those of dy·(x-mean)·invstd to
// the weight's: of this rank's rows, as with every layer.
func (l *BatchNorm) Gradient(dy Matrix) {
	clear(l.both)
	l.planes(func(c, from, to int) {
		a, b := sums(dy.Data[from:to], l.x.Data[from:to], l.mean[c])
		l.sumDy[c] += a
		l.sumDyXmu[c] += b
	})
	weight, bias := l.params[bnWeight], l.params[bnBias]
	for c := range l.Channels {
		if weight.Role == trainer.Trained {
			weight.Grad[c] += float32(l.sumDyXmu[c] * l.invstd[c])
		}
		if bias.Role == trainer.Trained {
			bias.Grad[c] += float32(l.sumDy[c])
		}
	}
}

// Backward is (dy - mean(dy) - (x-mean)·invstd²·mean(dy·(x-mean)))·invstd·weight,
// where all means are those of the whole batch; without the two of dy where
// mean and variance were the running ones.
func (l *BatchNorm) Backward(p *Pass, dy Matrix) (Matrix, error) {
	l.dx = l.dx.Resize(dy.Rows, dy.Cols)
	total := l.both
	if l.normalized && l.Group != nil {
		var err error
		if total, err = trainer.Totals(p.Context, l.Group, l.both...); err != nil {
			return Matrix{}, fmt.Errorf("layer %s: %w", l.Name, err)
		}
	}
	weight := l.params[bnWeight].Value
	l.planes(func(c, from, to int) {
		scale := l.invstd[c] * float64(weight[c])
		var shift, slope float64
		if l.normalized {
			shift = total[c] / l.count
			slope = total[l.Channels+c] / l.count * l.invstd[c] * l.invstd[c]
		}
		shift32, slope32, scale32, mean := float32(shift), float32(slope), float32(scale), float32(l.mean[c])
		x, dx := l.x.Data[from:to], l.dx.Data[from:to]
		for i, v := range dy.Data[from:to] {
			dx[i] = (v - shift32 - (x[i]-mean)*slope32) * scale32
		}
	})
	return l.dx, nil
}

func appendFloats(b []byte, v ...float64) []byte {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

// sum is the sum of v, in four independent sums: one would wait for itself.
func sum(v []float32) float64 {
	var s0, s1, s2, s3 float64
	for len(v) >= 4 {
		s0 += float64(v[0])
		s1 += float64(v[1])
		s2 += float64(v[2])
		s3 += float64(v[3])
		v = v[4:]
	}
	for _, x := range v {
		s0 += float64(x)
	}
	return s0 + s1 + s2 + s3
}

// squares is the sum of the squared differences from mean.
func squares(v []float32, mean float64) float64 {
	var s0, s1 float64
	for len(v) >= 2 {
		d0, d1 := float64(v[0])-mean, float64(v[1])-mean
		s0 += d0 * d0
		s1 += d1 * d1
		v = v[2:]
	}
	for _, x := range v {
		s0 += (float64(x) - mean) * (float64(x) - mean)
	}
	return s0 + s1
}

// sums are those of dy and of dy·(x-mean).
func sums(dy, x []float32, mean float64) (a, b float64) {
	x = x[:len(dy)]
	for i, d := range dy {
		a += float64(d)
		b += float64(d) * (float64(x[i]) - mean)
	}
	return a, b
}
