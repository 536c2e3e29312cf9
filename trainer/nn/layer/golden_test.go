package layer

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/internal/gemm"
)

// tensor is a tensor of golden.json: in base64, as Go's JSON reads bytes.
type tensor []byte

func (b tensor) floats() []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

// sample is one batch of PyTorch's through a layer.
type sample struct {
	Train         bool
	Rows          int
	X, Dy, Y, Dx  tensor
	Before, Grads map[string]tensor // by the parameter's name
	Buffers       map[string]tensor // after it
}

func (s sample) matrix(t tensor) Matrix {
	v := t.floats()
	return Matrix{s.Rows, len(v) / s.Rows, v}
}

// golden is what testdata/make.py wrote.
func golden(t *testing.T) (g struct {
	Conv []struct {
		Conv2D
		sample
	}
	Pool []struct {
		MaxPool2D
		sample
	}
	Norm []struct {
		Channels int
		Steps    []sample
	}
}) {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// near fails where ‖got-want‖ > 1e-5·‖want‖.
func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	var diff, norm float64
	for i, w := range want {
		diff += (float64(got[i]) - float64(w)) * (float64(got[i]) - float64(w))
		norm += float64(w) * float64(w)
	}
	if !(math.Sqrt(diff) <= 1e-5*math.Sqrt(norm)) {
		t.Errorf("%s: %v, want %v: they are %.2g apart, of %.2g", what, head(got), head(want), math.Sqrt(diff), math.Sqrt(norm))
	}
}

func head(v []float32) []float32 { return v[:min(len(v), 6)] }

// allocate gives parameters memory, as trainer.New does.
func allocate(params []*trainer.Param[trainer.Host]) {
	for _, p := range params {
		p.Value = make(trainer.Host, p.Len())
		if p.Role == trainer.Trained {
			p.Grad = make(trainer.Host, p.Len())
		}
	}
}

// load sets the parameters of a layer named l to PyTorch's, and their gradients
// to 0.
func (s sample) load(t *testing.T, params []*trainer.Param[trainer.Host]) {
	t.Helper()
	for _, p := range params {
		from := s.Before[strings.TrimPrefix(p.Name, "l.")].floats()
		if copy(p.Value, from) != len(from) || len(p.Value) != len(from) {
			t.Errorf("%s has %d values, PyTorch's %d", p.Name, len(p.Value), len(from))
		}
		clear(p.Grad)
	}
	if len(params) != len(s.Before) {
		t.Errorf("%d parameters, PyTorch has %d", len(params), len(s.Before))
	}
}

// compare holds gradients and buffers against PyTorch's.
func (s sample) compare(t *testing.T, params []*trainer.Param[trainer.Host]) {
	t.Helper()
	for _, p := range params {
		name := strings.TrimPrefix(p.Name, "l.")
		switch p.Role {
		case trainer.Trained:
			near(t, "gradient of "+name, p.Grad, s.Grads[name].floats())
		case trainer.Buffer:
			near(t, name, p.Value, s.Buffers[name].floats())
		}
	}
}

// check runs the sample through the layer and compares everything.
func (s sample) check(t *testing.T, l Layer) {
	t.Helper()
	s.load(t, l.Params())
	p := &Pass{Context: t.Context(), Train: s.Train}
	y, err := l.Forward(p, s.matrix(s.X))
	if err != nil {
		t.Error(err)
		return
	}
	near(t, "y", y.Data, s.Y.floats())
	l.Gradient(s.matrix(s.Dy))
	dx, err := l.Backward(p, s.matrix(s.Dy))
	if err != nil {
		t.Error(err)
	}
	near(t, "dx", dx.Data, s.Dx.floats())
	s.compare(t, l.Params())
}

func TestConv2DIsPyTorch(t *testing.T) {
	t.Cleanup(func() { gemm.Use("") })
	for _, engine := range []string{"go", "vek", "openblas"} {
		if err := gemm.Use(engine); err != nil {
			t.Logf("without %s: %v", engine, err)
			continue
		}
		for _, c := range golden(t).Conv {
			l := &c.Conv2D
			l.Name = "l"
			allocate(l.Params())
			c.check(t, l)
		}
	}
}

func TestMaxPool2DIsPyTorch(t *testing.T) {
	for _, c := range golden(t).Pool {
		c.check(t, &c.MaxPool2D)
	}
}

func TestBatchNormIsPyTorch(t *testing.T) {
	for _, c := range golden(t).Norm {
		l := &BatchNorm{Name: "l", Channels: c.Channels}
		allocate(l.Params())
		for _, s := range c.Steps {
			s.check(t, l)
		}
	}
}
