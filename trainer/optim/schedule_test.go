package optim

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestSchedules(t *testing.T) {
	for _, c := range []struct {
		name string
		at   Schedule
		step int
		want float64
	}{
		{"constant", Constant(0.1), 0, 0.1},
		{"constant", Constant(0.1), 1 << 30, 0.1},
		{"linear", Linear(0.1, 4), 0, 0.1},
		{"linear", Linear(0.1, 4), 1, 0.075},
		{"linear", Linear(0.1, 4), 2, 0.05},
		{"linear", Linear(0.1, 4), 4, 0},
		{"linear", Linear(0.1, 4), 5, 0},
		{"linear over nothing", Linear(0.1, 0), 0, 0},
		{"step", Step(0.8, 2, 0.5), 1, 0.8},
		{"step", Step(0.8, 2, 0.5), 2, 0.4},
		{"step", Step(0.8, 2, 0.5), 5, 0.2},
		{"cosine", Cosine(0.3, 4, 0.1), 0, 0.3},
		{"cosine", Cosine(0.3, 4, 0.1), 2, 0.2},
		{"cosine", Cosine(0.3, 4, 0.1), 4, 0.1},
		{"cosine", Cosine(0.3, 4, 0.1), 9, 0.1},
		{"cosine over nothing", Cosine(0.3, 0, 0.1), 0, 0.1},
		{"warm-up", Warmup(4, 0, Constant(0.4)), 0, 0},
		{"warm-up", Warmup(4, 0, Constant(0.4)), 3, 0.3},
		{"warm-up", Warmup(4, 0, Constant(0.4)), 4, 0.4},
		{"warm-up from half", Warmup(4, 0.5, Constant(0.4)), 0, 0.2},
		{"warm-up from half", Warmup(4, 0.5, Constant(0.4)), 2, 0.3},
		{"warm-up, then linear", Warmup(4, 0, Linear(0.4, 2)), 4, 0.4},
		{"warm-up, then linear", Warmup(4, 0, Linear(0.4, 2)), 5, 0.2},
		{"warm-up, then linear", Warmup(4, 0, Linear(0.4, 2)), 6, 0},
		{"no warm-up", Warmup(0, 0, Linear(0.4, 2)), 0, 0.4},
		{"less than no warm-up", Warmup(-3, 0, Linear(0.4, 2)), 1, 0.2},
	} {
		if got := c.at(c.step); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%s at %d: %v, want %v", c.name, c.step, got, c.want)
		}
	}
}

func TestSchedulePanics(t *testing.T) {
	for want, make := range map[string]func(){
		"after every 0 updates":       func() { Step(0.1, 0, 0.5) },
		"from 1.5: it is a share":     func() { Warmup(3, 1.5, Constant(0.1)) },
		"from -0.5: it is a share":    func() { Warmup(3, -0.5, Constant(0.1)) },
		"from NaN: it is a share":     func() { Warmup(3, math.NaN(), Constant(0.1)) },
		"Warmup of no schedule: give": func() { Warmup(3, 0, nil) },
	} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "optim: ") || !strings.Contains(p, want) {
					t.Errorf("panicked with %q, want %q", p, want)
				}
			}()
			make()
		}()
	}
}
