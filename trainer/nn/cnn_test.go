package nn

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

// near fails where ‖got-want‖ > tolerance·‖want‖.
func near(t *testing.T, what string, got, want []float32, tolerance float64) {
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
	if !(math.Sqrt(diff) <= tolerance*math.Sqrt(norm)) {
		t.Errorf("%s: %.2g apart, of %.2g", what, math.Sqrt(diff), math.Sqrt(norm))
	}
}

// A step of CNN is PyTorch's, as testdata/make.py has written it: names, loss,
// gradients and running statistics.
func TestCNNIsPyTorch(t *testing.T) {
	var want struct {
		Rows, Side, Classes    int
		X                      []byte
		Labels                 []int
		Loss                   float64
		Before, Grads, Buffers map[string][]byte
	}
	text, err := os.ReadFile("testdata/cnn.json")
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	floats := func(b []byte) (v []float32) {
		for ; len(b) > 0; b = b[4:] {
			v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
		return v
	}
	for _, e := range engines(t) {
		use(t, e)
		c := model(t, CNN(1, want.Side, want.Side, want.Classes))
		var names []string
		for _, p := range c.Params() {
			names = append(names, p.Name)
			if copy(p.Value, floats(want.Before[p.Name])) != p.Len() {
				t.Errorf("%s has %d values, PyTorch's %d", p.Name, p.Len(), len(want.Before[p.Name])/4)
			}
		}
		if slices.Sort(names); len(names) != len(want.Before) {
			t.Errorf("parameters %v, PyTorch has %d", names, len(want.Before))
		}
		loss := step(t, c, Examples{Values: floats(want.X), Labels: want.Labels, Rows: want.Rows}, 1)
		if math.Abs(loss-want.Loss) > 1e-5*want.Loss {
			t.Errorf("%s: loss %v, want %v", e, loss, want.Loss)
		}
		for _, p := range c.Params() {
			switch {
			case p.Role == trainer.Buffer:
				near(t, e+": "+p.Name, p.Value, floats(want.Buffers[p.Name]), 1e-5)
			case strings.HasPrefix(p.Name, "conv") && strings.HasSuffix(p.Name, "bias"):
				// A BatchNorm follows, which takes every bias away.
				for _, g := range p.Grad {
					if math.Abs(float64(g)) > 1e-6 {
						t.Errorf("%s: %s has the gradient %v, want 0 but for rounding", e, p.Name, g)
					}
				}
			default:
				near(t, e+": gradient of "+p.Name, p.Grad, floats(want.Grads[p.Name]), 1e-5)
			}
		}
	}
}
