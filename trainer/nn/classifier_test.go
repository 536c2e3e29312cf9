package nn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/internal/gemm"
)

var _ trainer.Model[Examples, trainer.Host] = new(Classifier[Examples])

// engines are the names of the libraries of matrix products that this machine
// has.
func engines(t testing.TB) (names []string) {
	t.Helper()
	t.Cleanup(func() { gemm.Use("") })
	for _, name := range []string{"go", "vek", "openblas"} {
		if err := gemm.Use(name); err != nil {
			t.Logf("without %s: %v", name, err)
		} else {
			names = append(names, name)
		}
	}
	return names
}

// use makes the layers of a test compute by the library of that name.
func use(t testing.TB, name string) {
	t.Cleanup(func() { gemm.Use("") })
	if err := gemm.Use(name); err != nil {
		t.Fatal(err)
	}
}

// classifier is the model of an MLP.
func classifier(t testing.TB, sizes ...int) *Classifier[Examples] { return model(t, MLP(sizes...)) }

// model is a model of examples as they are, with memory as trainer.New would
// give it, initialized by seed 1.
func model(t testing.TB, net []Layer) *Classifier[Examples] {
	t.Helper()
	c := &Classifier[Examples]{Net: net, Examples: func(e Examples) (Examples, error) { return e, nil }}
	for _, p := range c.Params() {
		p.Value, p.Grad = make(trainer.Host, p.Len()), make(trainer.Host, p.Len())
	}
	if err := c.Init(1); err != nil {
		t.Fatal(err)
	}
	return c
}

func examples(rows, width, classes int) Examples {
	r := rand.New(rand.NewPCG(3, 4))
	e := Examples{Values: make([]float32, rows*width), Labels: make([]int, rows), Rows: rows}
	for i := range e.Values {
		e.Values[i] = 2*r.Float32() - 1
	}
	for i := range e.Labels {
		e.Labels[i] = r.IntN(classes)
	}
	return e
}

func step(t testing.TB, c *Classifier[Examples], e Examples, scale float64) float64 {
	t.Helper()
	loss, err := c.Step(context.Background(), e, scale, func(int) {})
	if err != nil {
		t.Error(err)
	}
	return loss
}

func evaluate(t testing.TB, c *Classifier[Examples], e Examples) (s Score) {
	t.Helper()
	if err := c.Evaluate(context.Background(), e, &s); err != nil {
		t.Error(err)
	}
	return s
}

// gradients is a copy of all gradients, one parameter after the other.
func gradients(c *Classifier[Examples]) (g []float32) {
	for _, p := range c.Params() {
		g = append(g, p.Grad...)
	}
	return g
}

// meanLoss is the obvious twin of the forward pass, in float64: params are the
// weights and biases of an MLP of the given sizes, one after the other.
func meanLoss(params []float64, sizes []int, e Examples) float64 {
	sum := 0.0
	for row := range e.Rows {
		rest, y := params, []float64{}
		for _, v := range e.Values[row*sizes[0] : (row+1)*sizes[0]] {
			y = append(y, float64(v))
		}
		for l, out := range sizes[1:] {
			x := y
			w, b := rest[:out*len(x)], rest[out*len(x):][:out]
			rest = rest[out*len(x)+out:]
			y = slices.Clone(b)
			for j := range y {
				for i, v := range x {
					y[j] += w[j*len(x)+i] * v
				}
				if l < len(sizes)-2 {
					y[j] = max(y[j], 0)
				}
			}
		}
		norm := 0.0
		for _, v := range y {
			norm += math.Exp(v)
		}
		sum += math.Log(norm) - y[e.Labels[row]]
	}
	return sum / float64(e.Rows)
}

// Loss and gradients are those of the twin, by central differences.
func TestStepIsTheFormula(t *testing.T) {
	for _, e := range engines(t) {
		use(t, e)
		for _, sizes := range [][]int{{3, 2}, {5, 7, 3}, {4, 33, 6, 3}} {
			const scale, before = 0.7, 0.25 // Step adds scale times the gradient to what it finds
			c, ex := classifier(t, sizes...), examples(9, sizes[0], sizes[len(sizes)-1])
			var params []float64
			for _, p := range c.Params() {
				for i, v := range p.Value {
					params = append(params, float64(v))
					p.Grad[i] = before
				}
			}
			if loss, want := step(t, c, ex, scale), meanLoss(params, sizes, ex); math.Abs(loss-want) > 1e-6 {
				t.Errorf("%s %v: loss %v, want %v", e, sizes, loss, want)
			}
			for i, got := range gradients(c) {
				const h = 1e-5
				at := params[i]
				params[i] = at + h
				up := meanLoss(params, sizes, ex)
				params[i] = at - h
				down := meanLoss(params, sizes, ex)
				params[i] = at
				if want := before + scale*(up-down)/(2*h); math.Abs(float64(got)-want) > 1e-6 {
					t.Fatalf("%s %v: gradient %d is %v, want %v", e, sizes, i, got, want)
				}
			}
		}
	}
}

// The values are numpy's, of the textbook's formula in float64.
func TestCrossEntropy(t *testing.T) {
	for _, c := range []struct {
		scores []float32
		label  int
		loss   float64
		grad   []float32
	}{
		{[]float32{1, 2, 3}, 2, 0.4076059644443806, []float32{0.09003057, 0.24472847, -0.33475904}},
		{[]float32{1, 2, 3}, 0, 2.4076059644443806, []float32{-0.90996943, 0.24472847, 0.66524096}},
		{[]float32{0, 0}, 1, math.Ln2, []float32{0.5, -0.5}},
		{[]float32{7}, 0, 0, []float32{0}},
		{[]float32{1000, 0}, 0, 0, []float32{0, 0}},
		{[]float32{1000, 0}, 1, 1000, []float32{1, -1}},
		{[]float32{0, 1000}, 0, 1000, []float32{-1, 1}},
		{[]float32{-1000, -1000}, 0, math.Ln2, []float32{-0.5, 0.5}},
	} {
		d := make([]float32, len(c.scores))
		if loss := crossEntropy(c.scores, c.label, 1, d); math.Abs(loss-c.loss) > 1e-14 {
			t.Errorf("%v, label %d: loss %v, want %v", c.scores, c.label, loss, c.loss)
		}
		for j := range d {
			if math.Abs(float64(d[j]-c.grad[j])) > 1e-7 {
				t.Errorf("%v, label %d: gradient %v, want %v", c.scores, c.label, d, c.grad)
				break
			}
		}
	}
	if loss := crossEntropy([]float32{float32(math.NaN()), 1}, 1, 1, make([]float32, 2)); !math.IsNaN(loss) {
		t.Errorf("the loss of a NaN is %v", loss)
	}
}

// The shares of a batch that unequal ranks take, each with the scale n/N, sum
// up to the batch.
func TestSharesSumUp(t *testing.T) {
	const rows = 23
	e := examples(rows, 20, 4)
	whole := classifier(t, 20, 17, 4)
	loss := step(t, whole, e, 1)
	want := gradients(whole)
	for _, cuts := range [][]int{{0, 23}, {0, 11, 23}, {0, 0, 23}, {0, 1, 2, 20, 23}} {
		c := classifier(t, 20, 17, 4)
		sum := 0.0
		for i, start := range cuts[:len(cuts)-1] {
			n := cuts[i+1] - start
			share := Examples{Values: e.Values[start*20 : (start+n)*20], Labels: e.Labels[start : start+n], Rows: n}
			scale := float64(n) / rows
			sum += scale * step(t, c, share, scale)
		}
		if math.Abs(sum-loss) > 1e-6 {
			t.Errorf("cut at %v: loss %v, want %v", cuts, sum, loss)
		}
		for i, g := range gradients(c) {
			if math.Abs(float64(g-want[i])) > 1e-6 {
				t.Fatalf("cut at %v: gradient %d is %v, want %v", cuts, i, g, want[i])
			}
		}
	}
}

// Padding of any content, labels that name no class included, changes no bit.
func TestPaddingChangesNothing(t *testing.T) {
	plain, padded := classifier(t, 6, 5, 3), classifier(t, 6, 5, 3)
	e := examples(7, 6, 3)
	long := e
	long.Values = append(slices.Clone(e.Values), slices.Repeat([]float32{float32(math.NaN())}, 2*6)...)
	long.Labels = append(slices.Clone(e.Labels), 99, -1)
	if a, b := step(t, plain, e, 1), step(t, padded, long, 1); a != b {
		t.Errorf("the loss is %v with padding, %v without", b, a)
	}
	if !slices.Equal(gradients(plain), gradients(padded)) {
		t.Error("the gradients differ")
	}
	if a, b := evaluate(t, plain, e), evaluate(t, padded, long); !reflect.DeepEqual(a, b) {
		t.Errorf("Evaluate: %+v with padding, %+v without", b, a)
	}
}

// A batch of padding alone has no loss and no gradient, but is ready.
func TestNothingButPadding(t *testing.T) {
	for _, e := range []Examples{
		{},
		{Values: []float32{1, 2, 3, 4, 5, 6}, Labels: []int{0}},
		{Pixels: make([]uint8, 12), Labels: []int{0, 9}},
	} {
		c := classifier(t, 6, 5, 3)
		var order []int
		loss, err := c.Step(t.Context(), e, 1, func(i int) { order = append(order, i) })
		if loss != 0 || err != nil || !slices.Equal(order, []int{3, 2, 1, 0}) {
			t.Errorf("%+v: loss %v, error %v, ready in the order %v", e, loss, err, order)
		}
		for i, g := range gradients(c) {
			if g != 0 {
				t.Fatalf("gradient %d is %v", i, g)
			}
		}
		if score := evaluate(t, c, e); score.Classes != nil || score.Loss != 0 {
			t.Errorf("Evaluate: %+v", score)
		}
	}
}

// Parameters are ready from the last to the first, each with its whole
// gradient, and a layer's before the layers below have begun.
func TestReady(t *testing.T) {
	c, e := classifier(t, 6, 5, 4, 3), examples(8, 6, 3)
	at := map[int][]float32{}
	var order []int
	if _, err := c.Step(t.Context(), e, 1, func(i int) {
		order = append(order, i)
		at[i] = slices.Clone(c.Params()[i].Grad)
		for below, p := range c.Params()[:i/2*2] { // two parameters a layer
			if slices.ContainsFunc(p.Grad, func(g float32) bool { return g != 0 }) {
				t.Errorf("parameter %d has a gradient before parameter %d was ready", below, i)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []int{5, 4, 3, 2, 1, 0}) {
		t.Errorf("ready in the order %v", order)
	}
	for i, p := range c.Params() {
		if !slices.Equal(at[i], p.Grad) {
			t.Errorf("the gradient of %s changed after it was ready", p.Name)
		}
	}
}

func TestBadExamples(t *testing.T) {
	cause := errors.New("unreadable")
	for _, c := range []struct {
		name, want string
		e          Examples
		err        error
	}{
		{"label too high", "row 1 has the label 3: the model has 3 classes, so labels go from 0 to 2", Examples{Values: make([]float32, 12), Labels: []int{2, 3}, Rows: 2}, nil},
		{"label below 0", "row 0 has the label -1", Examples{Values: make([]float32, 6), Labels: []int{-1}, Rows: 1}, nil},
		{"another width", "fc1 takes rows of 6 values, got rows of 7", Examples{Values: make([]float32, 14), Labels: []int{0, 0}, Rows: 2}, nil},
		{"ragged", "13 values do not make 2 rows", Examples{Pixels: make([]uint8, 13), Labels: []int{0, 0}, Rows: 2}, nil},
		{"no labels", "6 values do not make 0 rows", Examples{Values: make([]float32, 6)}, nil},
		{"more rows than there are", "3 rows of examples count, but there are 2 labels", Examples{Values: make([]float32, 12), Labels: []int{0, 0}, Rows: 3}, nil},
		{"fewer rows than none", "-1 rows", Examples{Values: make([]float32, 6), Labels: []int{0}, Rows: -1}, nil},
		{"no values", "got rows of 0", Examples{Labels: []int{0}, Rows: 1}, nil},
		{"twice", "both Pixels and Values", Examples{Values: make([]float32, 6), Pixels: make([]uint8, 6), Labels: []int{0}, Rows: 1}, nil},
		{"too few samples", "1 samples, but there are 2 labels", Examples{Values: make([]float32, 12), Labels: []int{0, 0}, Rows: 2, Samples: []int{7}}, nil},
		{"unreadable", "unreadable", Examples{}, cause},
	} {
		m := classifier(t, 6, 5, 3)
		m.Examples = func(e Examples) (Examples, error) { return e, c.err }
		_, err := m.Step(t.Context(), c.e, 1, func(int) { t.Errorf("%s: ready", c.name) })
		if err == nil || !strings.Contains(err.Error(), c.want) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if slices.ContainsFunc(gradients(m), func(g float32) bool { return g != 0 }) {
			t.Errorf("%s: gradients have changed", c.name)
		}
		var score Score
		if err := m.Evaluate(t.Context(), c.e, &score); err == nil || score.Classes != nil {
			t.Errorf("%s: Evaluate: %v, %+v", c.name, err, score)
		}
	}
	var label *LabelError
	_, err := classifier(t, 6, 3).Step(t.Context(), Examples{Values: make([]float32, 12), Labels: []int{0, 7}, Rows: 2}, 1, nil)
	if !errors.As(err, &label) || *label != (LabelError{Row: 1, Label: 7, Classes: 3}) {
		t.Errorf("the label's error is %#v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := classifier(t, 6, 3).Step(ctx, Examples{}, 1, nil); !errors.Is(err, cause) {
		t.Errorf("with a cancelled context: %v", err)
	}
}

// Pixels are values over 255, as PyTorch's float() / 255.
func TestPixels(t *testing.T) {
	a, b, e := classifier(t, 256, 3), classifier(t, 256, 3), Examples{Labels: []int{1}, Rows: 1}
	pixels, values := e, e
	for p := range 256 {
		pixels.Pixels = append(pixels.Pixels, uint8(p))
		values.Values = append(values.Values, float32(p)/255)
	}
	if la, lb := step(t, a, pixels, 1), step(t, b, values, 1); la != lb || !slices.Equal(gradients(a), gradients(b)) {
		t.Errorf("loss %v of pixels, %v of values", la, lb)
	}
}

func TestPredictAndEvaluate(t *testing.T) {
	// One layer that hands its input on: the scores are the values.
	c := classifier(t, 3, 3)
	clear(c.Params()[1].Value)
	for i := range 9 {
		c.Params()[0].Value[i] = 0
		if i%4 == 0 {
			c.Params()[0].Value[i] = 1
		}
	}
	e := Examples{Values: []float32{1, 2, 3 /**/, 5, 4, 5 /**/, 0, 0, 0 /**/, -3, -2, -1 /* padding */, 0, 9, 0}, Labels: []int{2, 2, 1, 0, 1}, Rows: 4}
	classes, err := c.Predict(t.Context(), e, []int{-7})
	if want := []int{-7, 2, 0, 0, 2}; !slices.Equal(classes, want) || err != nil {
		t.Errorf("Predict: %v, %v, want %v", classes, err, want)
	}
	score := evaluate(t, c, e)
	loss := 0.4076059644443806 + math.Log(2+math.Exp(-1)) + math.Log(3) + 2.4076059644443806
	if want := []Tally{{1, 0}, {1, 0}, {2, 1}}; !slices.Equal(score.Classes, want) || math.Abs(score.Loss-loss) > 1e-12 {
		t.Errorf("Evaluate: %+v, want %v, loss %v", score, want, loss)
	}
	e.Labels = []int{99, 99, 99, 99, 99}
	if _, err := c.Predict(t.Context(), e, nil); err != nil {
		t.Errorf("Predict looks at labels: %v", err)
	}
}

// Everything that touches the batch happens inside Run.
func TestRun(t *testing.T) {
	c, inside, runs := classifier(t, 6, 5, 3), false, 0
	c.Run = func(f func()) {
		inside = true
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
		inside = false
		runs++
	}
	c.Examples = func(e Examples) (Examples, error) {
		if !inside {
			t.Error("the batch is read outside Run")
		}
		return e, nil
	}
	e, ready := examples(4, 6, 3), 0
	if _, err := c.Step(t.Context(), e, 1, func(int) { ready++ }); err != nil || ready != 4 || runs != 1 {
		t.Errorf("%v, %d times ready, %d runs", err, ready, runs)
	}
}

// Models that start alike end alike to the last bit, however many threads
// there are and whatever computes beside them.
func TestDeterminism(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, e := range engines(t) {
		use(t, e)
		var want []float32
		for _, procs := range []int{1, 2, 5} {
			runtime.GOMAXPROCS(procs)
			models := []*Classifier[Examples]{classifier(t, 784, 100, 10), classifier(t, 784, 100, 10)}
			var ranks sync.WaitGroup
			for _, c := range models {
				ranks.Go(func() {
					for n := range 4 {
						step(t, c, examples(64-n, 784, 10), 1)
					}
				})
			}
			ranks.Wait()
			for _, c := range models {
				if want == nil {
					want = gradients(c)
				}
				if !slices.Equal(gradients(c), want) {
					t.Errorf("%s: other gradients with GOMAXPROCS %d", e, procs)
				}
			}
		}
	}
}

func TestInit(t *testing.T) {
	values := func(seed uint64) (v []float32) {
		c := classifier(t, 100, 50, 10)
		if err := c.Init(seed); err != nil {
			t.Fatal(err)
		}
		for _, p := range c.Params() {
			bound := float32(0.1) // 1/√100
			if strings.HasPrefix(p.Name, "fc2") {
				bound = float32(1 / math.Sqrt(50))
			}
			low, high := slices.Min(p.Value), slices.Max(p.Value)
			if low < -bound || high > bound || len(p.Value) > 100 && (low > -0.95*bound || high < 0.95*bound) {
				t.Errorf("%s lies between %v and %v, want ±%v", p.Name, low, high, bound)
			}
			v = append(v, p.Value...)
		}
		return v
	}
	if !slices.Equal(values(7), values(7)) {
		t.Error("equal seeds give other values")
	}
	if slices.Equal(values(7), values(8)) {
		t.Error("other seeds give equal values")
	}
	c := &Classifier[Examples]{Net: MLP(2, 1)}
	if err := c.Init(1); err == nil || !strings.Contains(err.Error(), "fc1.weight") {
		t.Errorf("without memory: %v", err)
	}
}

func TestNames(t *testing.T) {
	var got []string
	for _, p := range classifier(t, 784, 512, 10).Params() {
		got = append(got, fmt.Sprint(p.Name, p.Shape))
	}
	if want := []string{"fc1.weight[512 784]", "fc1.bias[512]", "fc2.weight[10 512]", "fc2.bias[10]"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// After the largest batch neither training nor evaluation allocates, in any
// size of batch. A product by OpenBLAS allocates the list of its arguments, and
// under the race detector now and then a frame of purego's pool.
func TestAllocations(t *testing.T) {
	for _, e := range engines(t) {
		use(t, e)
		c, ready, ctx := classifier(t, 784, 32, 10), func(int) {}, t.Context()
		c.Run = func(f func()) { f() }
		large, small := examples(32, 784, 10), examples(5, 784, 10)
		classes, score := make([]int, 0, 32), evaluate(t, c, large)
		step(t, c, large, 1)
		allowed := 0.0
		if strings.HasPrefix(e, "openblas") {
			allowed = 2 * 2 * (5 + 2 + 2)
		}
		if n := testing.AllocsPerRun(10, func() {
			for _, ex := range []Examples{large, small} {
				c.Step(ctx, ex, 1, ready)
				c.Evaluate(ctx, ex, &score)
				c.Predict(ctx, ex, classes)
			}
		}); n > allowed {
			t.Errorf("%s: %v allocations", e, n)
		}
	}
}

func TestSetBLAS(t *testing.T) {
	use(t, "")
	automatic := BLAS()
	for _, c := range []struct{ name, want string }{{"go", "go"}, {"vek", "vek (AVX2)"}, {"openblas", "openblas "}, {"", automatic}} {
		if err := SetBLAS(c.name); err != nil {
			t.Logf("without %s: %v", c.name, err)
			if c.name == "go" || c.name == "" || !strings.HasPrefix(err.Error(), "nn: "+c.name) {
				t.Error(err)
			}
		} else if !strings.HasPrefix(BLAS(), c.want) {
			t.Errorf("SetBLAS(%q) chose %s", c.name, BLAS())
		}
	}
	before := BLAS()
	if err := SetBLAS("mkl"); err == nil || !strings.Contains(err.Error(), `"mkl"`) || BLAS() != before {
		t.Errorf("SetBLAS(mkl): %v, and BLAS is %s", err, BLAS())
	}
}

func TestNetsPanic(t *testing.T) {
	for _, sizes := range [][]int{nil, {3}, {3, 0}, {-1, 3}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("MLP(%v) did not panic", sizes)
				}
			}()
			MLP(sizes...)
		}()
	}
	for _, sizes := range [][4]int{{0, 28, 28, 10}, {1, 15, 28, 10}, {1, 28, 15, 10}, {1, 28, 28, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("CNN of %v did not panic", sizes)
				}
			}()
			CNN(sizes[0], sizes[1], sizes[2], sizes[3])
		}()
	}
}
