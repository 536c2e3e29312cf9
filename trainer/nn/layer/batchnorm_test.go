package layer

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// splits are where a batch of 9 rows is cut for one to five ranks: unequal
// shares, single rows, no rows at the beginning, in the middle, at the end.
var splits = [][]int{{0, 9}, {0, 4, 9}, {0, 1, 9}, {0, 0, 9}, {0, 9, 9}, {0, 3, 3, 9}, {0, 1, 2, 3, 9}, {0, 0, 0, 4, 5, 9}}

func rows(m Matrix, from, to int) Matrix {
	return Matrix{to - from, m.Cols, m.Data[from*m.Cols : to*m.Cols]}
}

// Any split over ranks gives PyTorch's outputs, input gradients and running
// statistics of the whole batch; the gradients of the parameters are those of
// all ranks together.
func TestSyncBatchNormIsPyTorchOnTheWholeBatch(t *testing.T) {
	for _, c := range golden(t).Norm {
		for _, split := range splits {
			ranks := len(split) - 1
			layers := make([]*BatchNorm, ranks)
			for i := range layers {
				layers[i] = &BatchNorm{Name: "l", Channels: c.Channels}
				allocate(layers[i].Params())
			}
			for _, s := range c.Steps {
				var mu sync.Mutex
				y, dx := s.matrix(s.Y), s.matrix(s.Dx) // of the right size
				clear(y.Data)
				clear(dx.Data)
				err := local.Spawn(t.Context(), ranks, func(ctx context.Context, g *local.Group) error {
					l := layers[g.Rank()]
					s.load(t, l.Params())
					l.Group = g
					from, to := s.Rows*split[g.Rank()]/9, s.Rows*split[g.Rank()+1]/9
					p := &Pass{Context: ctx, Train: s.Train}
					part, err := l.Forward(p, rows(s.matrix(s.X), from, to))
					if err != nil {
						return err
					}
					dy := rows(s.matrix(s.Dy), from, to)
					l.Gradient(dy)
					d, err := l.Backward(p, dy)
					mu.Lock()
					defer mu.Unlock()
					copy(rows(y, from, to).Data, part.Data)
					copy(rows(dx, from, to).Data, d.Data)
					return err
				}).Wait()
				if err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprintf("%d channels, %d rows cut at %v: ", c.Channels, s.Rows, split)
				near(t, name+"y", y.Data, s.Y.floats())
				near(t, name+"dx", dx.Data, s.Dx.floats())
				sum := layers[0].Params()
				for _, l := range layers[1:] {
					for i, p := range l.Params() {
						add(sum[i].Grad, p.Grad)
						if p.Role == trainer.Buffer && !slices.Equal(p.Value, sum[i].Value) {
							t.Errorf("%s%s differs between ranks", name, p.Name)
						}
					}
				}
				s.compare(t, sum)
			}
		}
	}
}

func TestBatchNormParams(t *testing.T) {
	var got []string
	for _, p := range (&BatchNorm{Name: "bn", Channels: 3}).Params() {
		got = append(got, fmt.Sprint(p.Name, p.Shape, p.Role == trainer.Buffer))
	}
	want := []string{"bn.weight[3] false", "bn.bias[3] false", "bn.running_mean[3] true", "bn.running_var[3] true", "bn.num_batches_tracked[] true"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A mean far from 0 does not drown the variance, on one rank or on many.
func TestBatchNormFarFromZero(t *testing.T) {
	x := Matrix{Rows: 64, Cols: 1}
	for i := range x.Rows {
		x.Data = append(x.Data, 4096+float32(i%2)) // variance 1/4
	}
	for _, ranks := range []int{1, 4} {
		err := local.Spawn(t.Context(), ranks, func(ctx context.Context, g *local.Group) error {
			l := &BatchNorm{Name: "l", Channels: 1, Group: g}
			allocate(l.Params())
			l.Init(nil)
			n := x.Rows / ranks
			y, err := l.Forward(&Pass{Context: ctx, Train: true}, rows(x, g.Rank()*n, (g.Rank()+1)*n))
			if err != nil {
				return err
			}
			for i, v := range y.Data {
				if want := float64(i%2*2-1) / math.Sqrt(1+4*eps); math.Abs(float64(v)-want) > 1e-6 {
					return fmt.Errorf("y %v, want %v", v, want)
				}
			}
			if got, want := l.Params()[bnVar].Value[0], 0.9+0.1*0.25*64/63; math.Abs(float64(got)-want) > 1e-6 {
				return fmt.Errorf("running variance %v, want %v", got, want)
			}
			return nil
		}).Wait()
		if err != nil {
			t.Errorf("%d ranks: %v", ranks, err)
		}
	}
}

func TestBatchNormOfASingleValue(t *testing.T) {
	for _, split := range [][]int{{1}, {0, 1, 0}} {
		err := local.Spawn(t.Context(), len(split), func(ctx context.Context, g *local.Group) error {
			l := &BatchNorm{Name: "bn", Channels: 2, Group: g}
			allocate(l.Params())
			l.Init(nil)
			n := split[g.Rank()]
			_, err := l.Forward(&Pass{Context: ctx, Train: true}, Matrix{n, 2, make([]float32, 2*n)})
			if err == nil || !strings.Contains(err.Error(), "layer bn: expected more than 1 value per channel when training") {
				return fmt.Errorf("rank %d: %v", g.Rank(), err)
			}
			if _, err := l.Forward(&Pass{Context: ctx}, Matrix{1, 2, make([]float32, 2)}); err != nil {
				return fmt.Errorf("in evaluation: %w", err)
			}
			return nil
		}).Wait()
		if err != nil {
			t.Error(err)
		}
	}
}

// nobody is a group that must not be asked.
type nobody struct{ trainer.Group[trainer.Host] }

// Frozen, it is in training what it is in evaluation, and asks no one.
func TestFrozenBatchNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	x, dy := random(r, 4, 6), random(r, 4, 6)
	a := &BatchNorm{Name: "l", Channels: 3}
	b := &BatchNorm{Name: "l", Channels: 3, Frozen: true, Group: nobody{}}
	var y, dx [2]Matrix
	for i, l := range []*BatchNorm{a, b} {
		allocate(l.Params())
		l.Init(nil)
		copy(l.Params()[bnMean].Value, []float32{1, -1, 0})
		copy(l.Params()[bnVar].Value, []float32{2, 3, 4})
		p := &Pass{Train: l.Frozen}
		var err, err2 error
		y[i], err = l.Forward(p, x)
		l.Gradient(dy)
		dx[i], err2 = l.Backward(p, dy)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}
	if !slices.Equal(y[0].Data, y[1].Data) || !slices.Equal(dx[0].Data, dx[1].Data) || !slices.Equal(all(a.Params()), all(b.Params())) {
		t.Errorf("%v and %v, gradients %v and %v, parameters %v and %v", y[0], y[1], dx[0], dx[1], all(a.Params()), all(b.Params()))
	}
}
