package layer

import (
	"math"
	"slices"
	"testing"
)

// masks is what Dropout makes of rows of ones.
func masks(t *testing.T, share float64, p Pass, rows, cols int) Matrix {
	t.Helper()
	x := Matrix{rows, cols, slices.Repeat([]float32{1}, rows*cols)}
	p.Train = true
	y, err := (&Dropout{P: share}).Forward(&p, x)
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// The share of zeros is P within five standard deviations, in all, in each
// column, and where the column before it is zero, too; the others are scaled
// so that the mean stays.
func TestDropoutShare(t *testing.T) {
	const rows, cols = 4000, 50
	for _, share := range []float64{0, 0.1, 0.5, 0.9, 1} {
		m := masks(t, share, Pass{Seed: 3}, rows, cols)
		zeros, after, pairs := make([]int, cols), 0, 0
		for i, v := range m.Data {
			if v == 0 {
				zeros[i%cols]++
				if i%cols > 0 && m.Data[i-1] == 0 {
					pairs++
				}
			} else if want := float32(1 / (1 - share)); v != want {
				t.Fatalf("share %v: a 1 became %v, want %v", share, v, want)
			}
			if i%cols > 0 && m.Data[i-1] == 0 {
				after++
			}
		}
		total := 0
		within := func(what string, count, of int) {
			if sd := math.Sqrt(share * (1 - share) * float64(of)); math.Abs(float64(count)-share*float64(of)) > 5*sd {
				t.Errorf("%s: %d zeros of %d, want a share of %v", what, count, of, share)
			}
		}
		for _, n := range zeros {
			total += n
			within("a column", n, rows)
		}
		within("all", total, rows*cols)
		within("after a zero", pairs, after)
	}
}

// A mask belongs to seed, layer, epoch and sample: equal ones give equal masks
// wherever the row lies, any other one gives masks that agree by chance only.
func TestDropoutIsOfTheSample(t *testing.T) {
	const cols = 2000
	base := Pass{Seed: 1, Layer: 2, Epoch: 3, Samples: []int{10, 11, 12, 13}}
	all := masks(t, 0.5, base, 4, cols)
	other := base
	other.Samples = []int{13, 10}
	two := masks(t, 0.5, other, 2, cols)
	if !slices.Equal(two.Row(0), all.Row(3)) || !slices.Equal(two.Row(1), all.Row(0)) {
		t.Error("a sample's mask depends on its place in the batch")
	}
	numbered := base
	numbered.Samples = nil
	if !slices.Equal(masks(t, 0.5, numbered, 12, cols).Row(11), all.Row(1)) {
		t.Error("without Samples the row's number does not stand for the sample")
	}
	differ := map[string][]float32{"the next sample": all.Row(1)}
	for name, p := range map[string]Pass{
		"seed":            {Seed: 2, Layer: 2, Epoch: 3, Samples: base.Samples},
		"layer":           {Seed: 1, Layer: 1, Epoch: 3, Samples: base.Samples},
		"epoch":           {Seed: 1, Layer: 2, Epoch: 4, Samples: base.Samples},
		"seed and epoch":  {Seed: 3, Layer: 2, Epoch: 1, Samples: base.Samples},
		"layer and epoch": {Seed: 1, Layer: 3, Epoch: 2, Samples: base.Samples},
	} {
		differ[name] = masks(t, 0.5, p, 1, cols).Row(0)
	}
	for name, row := range differ {
		same := 0
		for i, v := range all.Row(0) {
			if v == row[i] {
				same++
			}
		}
		if sd := math.Sqrt(cols) / 2; math.Abs(float64(same)-cols/2) > 5*sd {
			t.Errorf("another %s: %d of %d values of the mask are the same", name, same, cols)
		}
	}
}

// What a layer computed before leaves nothing behind.
func TestDropoutTwice(t *testing.T) {
	l, x := &Dropout{P: 0.5}, Matrix{3, 40, slices.Repeat([]float32{1}, 120)}
	for epoch := range 3 {
		p := Pass{Train: true, Epoch: epoch}
		if y, err := l.Forward(&p, x); err != nil || !slices.Equal(y.Data, masks(t, 0.5, p, 3, 40).Data) {
			t.Errorf("epoch %d: %v, %v", epoch, y, err)
		}
	}
}

// Gradients pass where values passed; in evaluation everything passes.
func TestDropoutBackward(t *testing.T) {
	l, p := &Dropout{P: 0.3}, &Pass{Train: true}
	x, dy := Matrix{2, 50, make([]float32, 100)}, Matrix{2, 50, make([]float32, 100)}
	for i := range x.Data {
		x.Data[i], dy.Data[i] = float32(i+1), float32(2*i+2)
	}
	y, _ := l.Forward(p, x)
	y.Data = slices.Clone(y.Data)
	dx, _ := l.Backward(p, dy)
	for i, v := range y.Data {
		if v != 0 && v != float32(i+1)*float32(1/0.7) || dx.Data[i] != 2*v {
			t.Fatalf("value %d: y %v, dx %v", i, v, dx.Data[i])
		}
	}
	if y, err := l.Forward(&Pass{}, x); err != nil || !slices.Equal(y.Data, x.Data) {
		t.Errorf("in evaluation: %v, %v", y, err)
	}
}
