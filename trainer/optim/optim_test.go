package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

var _ trainer.Optimizer[trainer.Host] = new(SGD)

// twin is the formula of torch.optim.SGD, a value at a time. The conversions
// keep the compiler from fusing a product into a sum.
type twin struct {
	mu     float32
	buffer []float32
}

func (o *twin) update(rate float32, value, grad []float32) {
	first := o.buffer == nil
	if first {
		o.buffer = slices.Clone(grad)
	}
	for i, g := range grad {
		if !first {
			o.buffer[i] = float32(o.mu*o.buffer[i]) + g
		}
		value[i] -= float32(rate * o.buffer[i])
	}
}

func TestSGDIsTheFormula(t *testing.T) {
	for _, mu := range []float64{0, 0.5, 0.9} {
		for _, n := range []int{0, 1, 7, block - 1, block, block + 1, 2*block + 33} {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			o, slow := &SGD{LR: Linear(0.1, 5), Momentum: mu}, &twin{mu: float32(mu)}
			value, grad := make(trainer.Host, n), make(trainer.Host, n)
			for i := range value {
				value[i] = r.Float32()
			}
			want := slices.Clone(value)
			for step := range 7 {
				for i := range grad {
					grad[i] = r.Float32() - 0.5
				}
				slow.update(float32(Linear(0.1, 5)(step)), want, grad)
				if err := o.Update(step, value, grad); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(value, want) {
					t.Fatalf("momentum %v, %d values: step %d differs from the formula", mu, n, step)
				}
				if slices.ContainsFunc(grad, func(g float32) bool { return g != 0 }) {
					t.Fatalf("momentum %v, %d values: gradients are left after step %d", mu, n, step)
				}
			}
		}
	}
}

// A hand-made case: 1 falls by the gradients 1, 2 and 4 with momentum 1/2 and
// rate 1/4. The buffer is 1, 2.5, 5.25; all numbers are exact in binary.
func TestSGDByHand(t *testing.T) {
	o := &SGD{LR: Constant(0.25), Momentum: 0.5}
	value, grad := trainer.Host{1}, trainer.Host{0}
	for step, want := range []float32{0.75, 0.125, -1.1875} {
		grad[0] = []float32{1, 2, 4}[step]
		if err := o.Update(step, value, grad); err != nil || value[0] != want {
			t.Errorf("after step %d: %v, %v, want %v", step, value[0], err, want)
		}
	}
	if got := o.State()[momentum]; got[0] != 5.25 {
		t.Errorf("the momentum is %v, want 5.25", got)
	}
}

func TestZeroSGD(t *testing.T) {
	value, grad := trainer.Host{1}, trainer.Host{1}
	if err := new(SGD).Update(0, value, grad); err != nil || value[0] != 1-float32(0.001) {
		t.Errorf("%v, %v, want PyTorch's rate of 0.001", value, err)
	}
}

// An optimizer restored goes on with the same bits.
func TestRestore(t *testing.T) {
	grad := func(step int) trainer.Host { return trainer.Host{float32(step) + 0.1, -0.3} }
	update := func(o *SGD, step int, value trainer.Host) {
		if err := o.Update(step, value, grad(step)); err != nil {
			t.Fatal(err)
		}
	}
	for stop := range 4 {
		whole, first := &SGD{LR: Constant(0.1), Momentum: 0.9}, &SGD{LR: Constant(0.1), Momentum: 0.9}
		a, b := trainer.Host{1, 2}, trainer.Host{1, 2}
		for step := range 6 {
			update(whole, step, a)
		}
		for step := range stop {
			update(first, step, b)
		}
		state := map[string][]float32{}
		for name, v := range first.State() {
			state[name] = slices.Clone(v)
		}
		rest := &SGD{LR: Constant(0.1), Momentum: 0.9}
		if err := rest.Restore(state); err != nil {
			t.Fatal(err)
		}
		for _, v := range state {
			clear(v) // Restore has copied
		}
		for step := stop; step < 6; step++ {
			update(rest, step, b)
		}
		if !slices.Equal(a, b) {
			t.Errorf("restored at %d: %v, want %v", stop, b, a)
		}
	}
}

func TestSGDErrors(t *testing.T) {
	used := func() *SGD {
		o := &SGD{Momentum: 0.9}
		if err := o.Update(0, trainer.Host{1, 2}, trainer.Host{1, 1}); err != nil {
			t.Fatal(err)
		}
		return o
	}
	restored := &SGD{Momentum: 0.9}
	if err := restored.Restore(map[string][]float32{momentum: {1, 2, 3}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		err        error
	}{
		{"lengths", "2 values and 1 gradients", new(SGD).Update(0, trainer.Host{1, 2}, trainer.Host{1})},
		{"another optimizer's state", `no state "exp_avg"`, used().Restore(map[string][]float32{"exp_avg": {1, 2}})},
		{"momenta without momentum", "Momentum is 0", new(SGD).Restore(map[string][]float32{momentum: {1, 2}})},
		{"another model's state", "3 momenta, the model 2 values", used().Restore(map[string][]float32{momentum: {1, 2, 3}})},
		{"another model's state, found late", "3 momenta for 2 values", restored.Update(0, trainer.Host{1, 2}, trainer.Host{1, 1})},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) || !strings.HasPrefix(c.err.Error(), "optim: ") {
			t.Errorf("%s: %v, want %q", c.name, c.err, c.want)
		}
	}
}

func TestSchedules(t *testing.T) {
	for _, c := range []struct {
		name string
		at   Schedule
		step int
		want float64
	}{
		{"constant", Constant(0.1), 0, 0.1},
		{"constant", Constant(0.1), 1 << 40, 0.1},
		{"linear", Linear(0.1, 4), 0, 0.1},
		{"linear", Linear(0.1, 4), 1, 0.075},
		{"linear", Linear(0.1, 4), 2, 0.05},
		{"linear", Linear(0.1, 4), 4, 0},
		{"linear", Linear(0.1, 4), 5, 0},
		{"linear over nothing", Linear(0.1, 0), 0, 0},
	} {
		if got := c.at(c.step); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%s at %d: %v, want %v", c.name, c.step, got, c.want)
		}
	}
}

func TestUpdateAllocates(t *testing.T) {
	o := &SGD{Momentum: 0.9}
	value, grad := make(trainer.Host, 3*block), make(trainer.Host, 3*block)
	if n := testing.AllocsPerRun(10, func() { o.Update(0, value, grad) }); n > 0 {
		t.Errorf("%v allocations an update", n)
	}
}

// An update moves 6 times the bytes of the values, or 4 without momentum;
// memmove, beside it, 2 times.
func BenchmarkUpdate(b *testing.B) {
	const n = 784*512 + 512 + 512*10 + 10
	value, grad, other := make(trainer.Host, n), make(trainer.Host, n), make(trainer.Host, n)
	for _, mu := range []float64{0, 0.9} {
		b.Run(fmt.Sprintf("momentum=%v", mu), func(b *testing.B) {
			o := &SGD{Momentum: mu}
			b.SetBytes(4 * n)
			b.ReportAllocs()
			for b.Loop() {
				if err := o.Update(0, value, grad); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("memmove", func(b *testing.B) {
		b.SetBytes(4 * n)
		for b.Loop() {
			copy(other, value)
		}
	})
}
