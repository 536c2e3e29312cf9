package layer

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/internal/gemm"
)

// Conv2D is the convolution of PyTorch's nn.Conv2d: an output plane is its bias
// and the sum, over all input planes, of each plane's cross-correlation with a
// square kernel. Its parameters are Name.weight, of shape [Out In Kernel
// Kernel], and Name.bias, of shape [Out].
type Conv2D struct {
	Name          string
	In, Out       int // planes of a row of x, and of y
	Height, Width int // of a plane of x
	Kernel        int // height and width of a kernel
	Stride        int // from one place of the kernel to the next; 0 means 1
	Padding       int // zeros at each edge of x's planes

	affine
	x, y, dx   Matrix
	cols, side []float32 // scratch: what the kernels meet, and their planes side by side
	sum        []float32 // scratch: the weight's gradient of a few rows
}

// Size is the height and width of a plane of y: the kernel's places, none
// where it is larger than the padded plane of x.
func (l *Conv2D) Size() (height, width int) {
	places := func(n int) int { return (n + 2*l.Padding - l.Kernel + l.stride()) / l.stride() }
	return max(0, places(l.Height)), max(0, places(l.Width))
}

func (l *Conv2D) stride() int { return max(l.Stride, 1) }

// area is the number of values of a plane of y, inputs that of the values
// that one of them is computed from.
func (l *Conv2D) area() int   { h, w := l.Size(); return h * w }
func (l *Conv2D) inputs() int { return l.In * l.Kernel * l.Kernel }

// Params are the weight and the bias.
func (l *Conv2D) Params() []*trainer.Param[trainer.Host] {
	if l.params == nil {
		l.params = weightAndBias(l.Name, l.Out, l.In, l.Kernel, l.Kernel)
	}
	return l.params
}

// Init draws weight and bias evenly between ±1/√(In·Kernel²), as PyTorch does.
func (l *Conv2D) Init(r *rand.Rand) { uniform(r, l.Params(), l.inputs()) }

// Forward is the convolution of x. It fails where the kernel is larger than
// the padded planes.
func (l *Conv2D) Forward(_ *Pass, x Matrix) (Matrix, error) {
	if min(l.In, l.Out, l.Kernel) < 1 {
		return Matrix{}, fmt.Errorf("layer %s: In is %d, Out %d, Kernel %d: each must be 1 or more", l.Name, l.In, l.Out, l.Kernel)
	}
	if l.area() == 0 {
		return Matrix{}, fmt.Errorf("layer %s has a kernel of %d×%d, which is more than planes of %d×%d with %d zeros at each edge",
			l.Name, l.Kernel, l.Kernel, l.Height, l.Width, l.Padding)
	}
	if err := x.check(l.Name, l.In*l.Height*l.Width); err != nil {
		return Matrix{}, err
	}
	area := l.area()
	l.x, l.y = x, l.y.Resize(x.Rows, l.Out*area)
	weight, bias := l.Params()[0].Value, l.Params()[1].Value
	for from := 0; from < x.Rows; from += l.group() {
		to := min(from+l.group(), x.Rows)
		width := (to - from) * area
		l.unfold(from, to)
		l.side = gemm.Grow(l.side, l.Out*width)
		l.product().NN(l.side, weight, l.cols, l.Out, width, l.inputs())
		for row := from; row < to; row++ {
			for o := range l.Out {
				vek32.AddNumber_Into(l.y.Row(row)[o*area:], l.side[o*width+(row-from)*area:][:area], bias[o])
			}
		}
	}
	return l.y, nil
}

// Gradient adds the sums of dy's planes to the bias's, and the correlations of
// x's planes with dy's to the weight's.
func (l *Conv2D) Gradient(dy Matrix) {
	weight, bias, area := l.params[0], l.params[1], l.area()
	if bias.Role == trainer.Trained {
		for o := range l.Out {
			total := 0.0
			for row := range dy.Rows {
				total += sum(dy.Row(row)[o*area:][:area])
			}
			bias.Grad[o] += float32(total)
		}
	}
	if weight.Role != trainer.Trained {
		return
	}
	l.sum = gemm.Grow(l.sum, len(weight.Grad))
	for from := 0; from < dy.Rows; from += l.group() {
		to := min(from+l.group(), dy.Rows)
		l.unfold(from, to)
		l.join(dy, from, to)
		l.mul.NT(l.sum, l.side, l.cols, l.Out, l.inputs(), (to-from)*area)
		vek32.Add_Inplace(weight.Grad, l.sum)
	}
}

// Backward sends each value of dy back through the kernels to the values of x
// that it came from.
func (l *Conv2D) Backward(_ *Pass, dy Matrix) (Matrix, error) {
	l.dx = l.dx.Resize(dy.Rows, l.In*l.Height*l.Width)
	clear(l.dx.Data)
	for from := 0; from < dy.Rows; from += l.group() {
		to := min(from+l.group(), dy.Rows)
		width := (to - from) * l.area()
		l.join(dy, from, to)
		l.cols = gemm.Grow(l.cols, l.inputs()*width)
		clear(l.cols)
		l.mul.TN(l.cols, l.params[0].Value, l.side, l.inputs(), width, l.Out)
		l.fold(from, to)
	}
	return l.dx, nil
}

// group is how many rows go into one product: a few, so that it is wide enough
// to be fast and small enough for the cache.
func (l *Conv2D) group() int {
	const wide = 512
	return max(1, wide/l.area())
}

// join lays planes of the rows side by side: a line holds one output plane of
// all rows.
func (l *Conv2D) join(dy Matrix, from, to int) {
	area := l.area()
	width := (to - from) * area
	l.side = gemm.Grow(l.side, l.Out*width)
	for row := from; row < to; row++ {
		for o := range l.Out {
			copy(l.side[o*width+(row-from)*area:], dy.Row(row)[o*area:][:area])
		}
	}
}

// unfold fills cols, which has a line for each weight of an output plane: the
// value of x, or of its padding, that the weight meets at each place of the
// kernel, in all rows.
func (l *Conv2D) unfold(from, to int) {
	l.cols = gemm.Grow(l.cols, l.inputs()*(to-from)*l.area())
	clear(l.cols)
	stride := l.stride()
	l.meet(from, to, func(col, at, n int) {
		dst, src := l.cols[col:col+n], l.x.Data[at:]
		if stride == 1 {
			copy(dst, src)
			return
		}
		for i := range dst {
			dst[i] = src[i*stride]
		}
	})
}

// fold is the reverse: it adds all values of cols to those of dx where they
// came from.
func (l *Conv2D) fold(from, to int) {
	stride := l.stride()
	l.meet(from, to, func(col, at, n int) {
		src, dst := l.cols[col:col+n], l.dx.Data[at:]
		for i, v := range src {
			dst[i*stride] += v
		}
	})
}

// meet calls f for all values of x in the rows that a weight meets: n of them,
// from x.Data[at] on and a stride apart, belong to cols[col:col+n].
func (l *Conv2D) meet(from, to int, f func(col, at, n int)) {
	height, width := l.Size()
	stride, col := l.stride(), 0
	for in := range l.In {
		for ky := range l.Kernel {
			for kx := range l.Kernel {
				left, right := l.inside(kx, l.Width, width)
				for row := from; row < to; row++ {
					for oy := range height {
						if y := oy*stride + ky - l.Padding; 0 <= y && y < l.Height && left < right {
							at := ((row*l.In+in)*l.Height+y)*l.Width + left*stride + kx - l.Padding
							f(col+left, at, right-left)
						}
						col += width
					}
				}
			}
		}
	}
}

// inside says from and before which of the kernel's places its column k meets
// no padding, in lines of n values.
func (l *Conv2D) inside(k, n, places int) (from, to int) {
	stride, skip := l.stride(), k-l.Padding // place i meets the value i·stride + skip
	if skip < 0 {
		from = (-skip + stride - 1) / stride
	}
	if skip < n {
		to = min(places, (n-1-skip)/stride+1)
	}
	return from, to
}

// MaxPool2D is the highest value of each square of Size×Size values, in planes
// of Height×Width. What is left over at the right and at the bottom is left
// out.
type MaxPool2D struct {
	bare
	Height, Width, Size int

	x, y, dx Matrix
	at       []int // scratch: where in x.Data the values of a line of y were
}

// Forward is the highest values. A NaN is higher than all. It fails where not
// one square fits into a plane.
func (l *MaxPool2D) Forward(_ *Pass, x Matrix) (Matrix, error) {
	if l.Size < 1 || l.Size > min(l.Height, l.Width) {
		return Matrix{}, fmt.Errorf("layer: MaxPool2D takes squares of %d×%d out of planes of %d×%d: Size must be 1 or more, and fit", l.Size, l.Size, l.Height, l.Width)
	}
	plane := l.Height * l.Width
	if x.Rows > 0 && x.Cols%plane != 0 {
		return Matrix{}, fmt.Errorf("layer: MaxPool2D takes planes of %d×%d values, got rows of %d", l.Height, l.Width, x.Cols)
	}
	l.x, l.y = x, l.y.Resize(x.Rows, x.Cols/plane*(l.Height/l.Size)*(l.Width/l.Size))
	l.lines(func(y []float32, first int) {
		for j := range y {
			y[j] = float32(math.Inf(-1))
		}
		for k := range l.Size * l.Size {
			src := x.Data[l.place(first, k):]
			for j, v := range y {
				y[j] = max(v, src[j*l.Size])
			}
		}
	}, l.y.Data)
	return l.y, nil
}

// Backward is dy where the highest values were, the first one of equals, and 0
// elsewhere.
func (l *MaxPool2D) Backward(_ *Pass, dy Matrix) (Matrix, error) {
	l.dx = l.dx.Resize(l.x.Rows, l.x.Cols)
	clear(l.dx.Data)
	if l.at == nil {
		l.at = make([]int, l.Width/l.Size)
	}
	y := l.y.Data
	l.lines(func(dy []float32, first int) {
		at := l.at[:len(dy)]
		for j := range at {
			at[j] = first + j*l.Size
		}
		for k := l.Size*l.Size - 1; k >= 0; k-- {
			place := l.place(first, k)
			src := l.x.Data[place:]
			for j, v := range y[:len(dy)] {
				a := at[j]
				if src[j*l.Size] == v {
					a = place + j*l.Size
				}
				at[j] = a
			}
		}
		for j, v := range dy {
			l.dx.Data[at[j]] = v
		}
		y = y[len(dy):]
	}, dy.Data)
	return l.dx, nil
}

// lines calls f for each line of the output's planes in data, with the place
// of its first square in x.Data.
func (l *MaxPool2D) lines(f func(line []float32, first int), data []float32) {
	width := l.Width / l.Size
	for plane := 0; plane < len(l.x.Data); plane += l.Height * l.Width {
		for i := range l.Height / l.Size {
			f(data[:width:width], plane+i*l.Size*l.Width)
			data = data[width:]
		}
	}
}

// place is where the value k of the square at first is.
func (l *MaxPool2D) place(first, k int) int { return first + k/l.Size*l.Width + k%l.Size }
