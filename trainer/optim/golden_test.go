package optim

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

// tensors are values by parameter.
type tensors map[string][]float32

// golden is testdata/torch.json, which testdata/make.py has from PyTorch: the
// values of a small model after each of 20 steps, for optimizers of all kinds.
type golden struct {
	Parts []trainer.Part
	Start tensors
	Grads []tensors
	Cases map[string]struct {
		Steps []tensors
		Norms []float64
	}
	Schedules map[string][]float64
}

func readGolden(t *testing.T) (g golden) {
	text, err := os.ReadFile("testdata/torch.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	end := 0
	for i := range g.Parts {
		p := &g.Parts[i]
		p.From, p.To = end, end+len(g.Start[p.Name])
		end = p.To
	}
	return g
}

// arena is the values of all parts, one after the other.
func (g golden) arena(values tensors) (all trainer.Host) {
	for _, p := range g.Parts {
		all = append(all, values[p.Name]...)
	}
	return all
}

func TestTorch(t *testing.T) {
	g := readGolden(t)
	late := map[int][]string{0: {"fc1.bias"}, 3: {"fc1.weight", "fc1.bias"}, 7: {"fc2.weight"}}
	rate, slow := Constant(0.1), Constant(0.01)
	cases := map[string]struct {
		trainer.Optimizer[trainer.Host]
		skip map[int][]string // the parameters without a gradient, by step
	}{
		"sgd":            {Optimizer: &SGD{LR: rate}},
		"sgd momentum":   {Optimizer: &SGD{LR: rate, Momentum: 0.9}},
		"sgd decay":      {Optimizer: &SGD{LR: rate, Momentum: 0.9, WeightDecay: 0.05}},
		"sgd nesterov":   {Optimizer: &SGD{LR: rate, Momentum: 0.9, WeightDecay: 0.05, Nesterov: true, Decay: Weights}},
		"sgd norm":       {Optimizer: &SGD{LR: rate, Momentum: 0.9, Clip: Clip{Norm: 1.5}}},
		"sgd norm value": {Optimizer: &SGD{LR: rate, Momentum: 0.9, Clip: Clip{Norm: 3, Value: 0.5}}},
		"sgd value":      {Optimizer: &SGD{LR: rate, Clip: Clip{Value: 0.5}}},
		"sgd skip":       {&SGD{LR: rate, Momentum: 0.9, WeightDecay: 0.05, Clip: Clip{Norm: 1.5}}, late},
		"adamw":          {Optimizer: &AdamW{LR: slow}},
		"adamw decay":    {Optimizer: &AdamW{LR: slow, WeightDecay: 0.1}},
		"adamw recipe":   {Optimizer: &AdamW{LR: slow, WeightDecay: 0.1, Decay: Weights}},
		"adamw betas":    {Optimizer: &AdamW{LR: slow, WeightDecay: 0.01, Betas: [2]float64{0, 0.9}, Eps: 1e-3}},
		"adamw norm":     {Optimizer: &AdamW{LR: slow, WeightDecay: 0.01, Clip: Clip{Norm: 1.5}}},
	}
	for name, want := range g.Cases {
		t.Run(name, func(t *testing.T) {
			c, ok := cases[name]
			if !ok {
				t.Fatal("PyTorch's numbers have a case that the test has not")
			}
			value := g.arena(g.Start)
			for step, after := range want.Steps {
				u := trainer.Update[trainer.Host]{Step: step, Value: value, Grad: g.arena(g.Grads[step]), Scale: 1}
				for _, p := range g.Parts {
					if slices.Contains(c.skip[step], p.Name) {
						clear(u.Grad[p.From:p.To])
					} else {
						u.Parts = append(u.Parts, p)
					}
				}
				if err := c.Update(u); err != nil {
					t.Fatal(err)
				}
				for _, p := range g.Parts {
					if got := value[p.From:p.To]; distance(got, after[p.Name]) > 1e-5 {
						t.Fatalf("%s after step %d is %v, PyTorch has %v", p.Name, step, got, after[p.Name])
					}
				}
				if norm := c.Optimizer.(interface{ Norm() float64 }).Norm(); want.Norms != nil && !near(norm, want.Norms[step], 1e-6) {
					t.Fatalf("the norm of step %d is %v, PyTorch has %v", step, norm, want.Norms[step])
				}
			}
			if len(want.Steps) != 20 {
				t.Errorf("compared %d steps, want 20", len(want.Steps))
			}
		})
	}
	if len(g.Cases) != len(cases) {
		t.Errorf("PyTorch's numbers have %d cases, the test %d: run testdata/make.py", len(g.Cases), len(cases))
	}
}

// Up to its end every schedule is PyTorch's.
func TestTorchSchedules(t *testing.T) {
	g := readGolden(t)
	for name, at := range map[string]Schedule{
		"linear":          Linear(0.1, 10),
		"step":            Step(0.1, 3, 0.5),
		"cosine":          Cosine(0.1, 19, 0.01),
		"warmup constant": Warmup(5, 1./3, Constant(0.1)),
		"warmup step":     Warmup(5, 0.1, Step(0.1, 3, 0.5)),
		"warmup cosine":   Warmup(5, 0.01, Cosine(0.1, 15, 0.001)),
	} {
		want := g.Schedules[name]
		if len(want) != 20 {
			t.Fatalf("%s: %d rates from PyTorch, want 20", name, len(want))
		}
		for step, w := range want {
			if got := at(step); !near(got, w, 1e-12) {
				t.Errorf("%s at %d: %v, PyTorch has %v", name, step, got, w)
			}
		}
	}
}

// PyTorch's cosine rises again after its end. Ours, which is the same up to
// there, stays.
func TestCosineStays(t *testing.T) {
	at := Cosine(0.1, 10, 0.01)
	for step, torch := range readGolden(t).Schedules["cosine past its end"] {
		switch got := at(step); {
		case step <= 10 && !near(got, torch, 1e-12):
			t.Errorf("at %d: %v, PyTorch has %v", step, got, torch)
		case step > 10 && (got != 0.01 || torch <= got):
			t.Errorf("at %d: %v, want 0.01; PyTorch has %v, which should be above it", step, got, torch)
		}
	}
}

// near says whether got is within a share of want.
func near(got, want, share float64) bool { return math.Abs(got-want) <= share*math.Abs(want) }

// distance is ‖a-b‖/‖b‖.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	var apart, size float64
	for i := range b {
		d := float64(a[i]) - float64(b[i])
		apart += d * d
		size += float64(b[i]) * float64(b[i])
	}
	return math.Sqrt(apart / size)
}
