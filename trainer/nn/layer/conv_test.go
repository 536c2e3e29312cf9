package layer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

func random(r *rand.Rand, rows, cols int) Matrix {
	m := Matrix{rows, cols, make([]float32, rows*cols)}
	for i := range m.Data {
		m.Data[i] = 2*r.Float32() - 1
	}
	return m
}

// convolve is the obvious twin of Conv2D, value by value in float64: it returns
// y, dx and the gradients of weight and bias.
func convolve(l *Conv2D, x, dy Matrix) (y, dx, dw, db []float32) {
	weight, bias := l.Params()[0].Value, l.Params()[1].Value
	height, width := l.Size()
	stride := max(l.Stride, 1)
	ys, dxs := make([]float64, len(dy.Data)), make([]float64, len(x.Data))
	dws, dbs := make([]float64, len(weight)), make([]float64, len(bias))
	for row := range x.Rows {
		for o := range l.Out {
			for oy := range height {
				for ox := range width {
					at := ((row*l.Out+o)*height+oy)*width + ox
					d := float64(dy.Data[at])
					ys[at] = float64(bias[o])
					dbs[o] += d
					for in := range l.In {
						for ky := range l.Kernel {
							for kx := range l.Kernel {
								iy, ix := oy*stride+ky-l.Padding, ox*stride+kx-l.Padding
								if iy < 0 || iy >= l.Height || ix < 0 || ix >= l.Width {
									continue
								}
								from := ((row*l.In+in)*l.Height+iy)*l.Width + ix
								w := ((o*l.In+in)*l.Kernel+ky)*l.Kernel + kx
								ys[at] += float64(weight[w]) * float64(x.Data[from])
								dxs[from] += float64(weight[w]) * d
								dws[w] += float64(x.Data[from]) * d
							}
						}
					}
				}
			}
		}
	}
	return narrow(ys), narrow(dxs), narrow(dws), narrow(dbs)
}

func narrow(v []float64) []float32 {
	n := make([]float32, len(v))
	for i, x := range v {
		n[i] = float32(x)
	}
	return n
}

// Planes, kernels, strides and paddings of all kinds, among them kernels that
// lie in the padding alone, and more rows than one product takes.
func TestConv2DIsTheTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 150 {
		l := &Conv2D{Name: "l", In: 1 + r.IntN(3), Out: 1 + r.IntN(4), Height: 1 + r.IntN(9), Width: 1 + r.IntN(12), Kernel: 1 + r.IntN(4), Stride: r.IntN(4), Padding: r.IntN(4)}
		if i == 0 { // the kernel's left column meets nothing but padding
			l = &Conv2D{Name: "l", In: 1, Out: 1, Height: 1, Width: 1, Kernel: 2, Stride: 3, Padding: 1}
		}
		rows := 1 + r.IntN(12)
		allocate(l.Params())
		height, width := l.Size()
		if height < 1 || width < 1 || l.Height+2*l.Padding < l.Kernel || l.Width+2*l.Padding < l.Kernel {
			if _, err := l.Forward(&Pass{}, random(r, 1, l.In*l.Height*l.Width)); err == nil || !strings.Contains(err.Error(), "layer l has a kernel") {
				t.Errorf("%+v: %v", l, err)
			}
			continue
		}
		l.Init(r)
		x, dy := random(r, rows, l.In*l.Height*l.Width), random(r, rows, l.Out*height*width)
		y, err := l.Forward(&Pass{}, x)
		if err != nil {
			t.Fatal(err)
		}
		l.Gradient(dy)
		dx, err := l.Backward(&Pass{}, dy)
		if err != nil {
			t.Fatal(err)
		}
		wantY, wantDx, wantDw, wantDb := convolve(l, x, dy)
		name := fmt.Sprintf("%d rows of %d×%d×%d, %d kernels of %d, stride %d, padding %d: ", rows, l.In, l.Height, l.Width, l.Out, l.Kernel, l.Stride, l.Padding)
		near(t, name+"y", y.Data, wantY)
		near(t, name+"dx", dx.Data, wantDx)
		near(t, name+"dw", l.Params()[0].Grad, wantDw)
		near(t, name+"db", l.Params()[1].Grad, wantDb)
	}
}

// A second pass over other rows leaves nothing of the first one behind, and
// adds to its gradients.
func TestConv2DTwice(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	l := &Conv2D{Name: "l", In: 2, Out: 3, Height: 5, Width: 6, Kernel: 3, Padding: 1}
	allocate(l.Params())
	l.Init(r)
	var dws [][]float32
	for _, rows := range []int{40, 3} {
		x, dy := random(r, rows, 60), random(r, rows, 90)
		y, _ := l.Forward(&Pass{}, x)
		l.Gradient(dy)
		dx, _ := l.Backward(&Pass{}, dy)
		wantY, wantDx, dw, _ := convolve(l, x, dy)
		near(t, "y", y.Data, wantY)
		near(t, "dx", dx.Data, wantDx)
		dws = append(dws, dw)
	}
	add(dws[0], dws[1])
	near(t, "dw", l.Params()[0].Grad, dws[0])
}

func TestMaxPool2DIsTheTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		l := &MaxPool2D{Height: 1 + r.IntN(9), Width: 1 + r.IntN(9), Size: 1 + r.IntN(3)}
		planes := 1 + r.IntN(5)
		x := random(r, 2, planes*l.Height*l.Width)
		if min(l.Height, l.Width) < l.Size {
			if _, err := l.Forward(&Pass{}, x); err == nil || !strings.Contains(err.Error(), "layer: MaxPool2D takes squares of") {
				t.Errorf("%+v: %v", l, err)
			}
			continue
		}
		for i := range x.Data {
			x.Data[i] = float32(math.Round(3 * float64(x.Data[i]))) // equals, too
		}
		height, width := l.Height/l.Size, l.Width/l.Size
		dy := random(r, 2, planes*height*width)
		wantY, wantDx := []float32{}, make([]float32, len(x.Data))
		for plane := range 2 * planes {
			for oy := range height {
				for ox := range width {
					best, at := float32(math.Inf(-1)), 0
					for i := range l.Size * l.Size {
						from := (plane*l.Height+oy*l.Size+i/l.Size)*l.Width + ox*l.Size + i%l.Size
						if x.Data[from] > best {
							best, at = x.Data[from], from
						}
					}
					wantDx[at] = dy.Data[len(wantY)]
					wantY = append(wantY, best)
				}
			}
		}
		y, err := l.Forward(&Pass{}, x)
		if err != nil || !slices.Equal(y.Data, wantY) {
			t.Errorf("%+v: %v, %v, want %v", l, err, y, wantY)
		}
		if dx, _ := l.Backward(&Pass{}, dy); !slices.Equal(dx.Data, wantDx) {
			t.Errorf("%+v: dx %v, want %v", l, dx, wantDx)
		}
	}
}

// A NaN shows wherever it lies in its square, whose first value has the
// gradient then.
func TestMaxPool2DKeepsNaN(t *testing.T) {
	l := &MaxPool2D{Height: 2, Width: 2, Size: 2}
	for i := range 4 {
		x := Matrix{1, 8, []float32{1, 2, 3, 4 /**/, 5, 6, 7, 8}}
		x.Data[i] = float32(math.NaN())
		y, err := l.Forward(&Pass{}, x)
		if err != nil || y.Data[0] == y.Data[0] || y.Data[1] != 8 {
			t.Errorf("%v: %v, %v", x.Data, y.Data, err)
		}
		dx, _ := l.Backward(&Pass{}, Matrix{1, 2, []float32{1, 2}})
		if want := []float32{1, 0, 0, 0 /**/, 0, 0, 0, 2}; !slices.Equal(dx.Data, want) {
			t.Errorf("%v: dx %v, want %v", x.Data, dx.Data, want)
		}
	}
}

// Every layer takes a batch without rows, of any width, after a batch with
// rows: its output has the right width, and nothing changes.
func TestNoRows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for want, l := range map[int]Layer{
		7:      &Linear{Name: "l", In: 48, Out: 7},
		5 * 16: &Conv2D{Name: "l", In: 3, Out: 5, Height: 4, Width: 4, Kernel: 3, Padding: 1},
		12:     &MaxPool2D{Height: 4, Width: 4, Size: 2},
		48:     &BatchNorm{Name: "l", Channels: 3},
		-1:     &Dropout{P: 0.5},
		-2:     new(ReLU),
	} {
		allocate(l.Params())
		l.Init(r)
		var before []float32
		for _, x := range []Matrix{random(r, 4, 48), {Rows: 0, Cols: 48}, {}} {
			before = all(l.Params())
			y, err := l.Forward(&Pass{Train: true}, x)
			if err != nil || y.Rows != x.Rows || len(y.Data) != y.Rows*y.Cols || x.Cols > 0 && y.Cols != max(want, 0) && want > 0 {
				t.Errorf("%T: %v, %v", l, y, err)
			}
			l.Gradient(y)
			if dx, err := l.Backward(&Pass{Train: true}, y); err != nil || dx.Rows != x.Rows || len(dx.Data) != dx.Rows*dx.Cols {
				t.Errorf("%T: dx %v, %v", l, dx, err)
			}
			if x.Rows == 0 && !slices.Equal(before, all(l.Params())) {
				t.Errorf("%T: a batch without rows changed parameters or gradients", l)
			}
		}
	}
}

// all is a copy of all values and gradients.
func all(params []*trainer.Param[trainer.Host]) (v []float32) {
	for _, p := range params {
		v = append(append(v, p.Value...), p.Grad...)
	}
	return v
}

func TestBadRows(t *testing.T) {
	for want, l := range map[string]Layer{
		"layer l takes rows of 48 values, got rows of 49":                &Conv2D{Name: "l", In: 3, Out: 5, Height: 4, Width: 4, Kernel: 3},
		"layer: MaxPool2D takes planes of 4×4 values, got rows of 49":    &MaxPool2D{Height: 4, Width: 4, Size: 2},
		"layer: MaxPool2D takes squares of 3×3 out of planes of 49×1":    &MaxPool2D{Height: 49, Width: 1, Size: 3},
		"layer: MaxPool2D takes squares of 0×0 out of planes of 7×7":     &MaxPool2D{Height: 7, Width: 7},
		"layer l takes rows of 3 channels of equal size, got rows of 49": &BatchNorm{Name: "l", Channels: 3},
		"layer l: In is 3, Out 5, Kernel 0: each must be 1 or more":      &Conv2D{Name: "l", In: 3, Out: 5, Height: 4, Width: 4},
		"layer l takes rows of 0 channels":                               &BatchNorm{Name: "l"},
		"layer: Dropout of the share 1.5: it must be 0 to 1":             &Dropout{P: 1.5},
		"layer: Dropout of the share -0.1":                               &Dropout{P: -0.1},
		"layer: Dropout of the share NaN":                                &Dropout{P: math.NaN()},
	} {
		allocate(l.Params())
		if _, err := l.Forward(&Pass{Train: true}, Matrix{2, 49, make([]float32, 98)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
