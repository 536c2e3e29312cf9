package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
)

// engines are the libraries of matrix products that this machine has.
func engines(t testing.TB) []*Engine {
	t.Helper()
	all := []*Engine{plain()}
	for name, load := range map[string]func() (*Engine, error){"vek": vek, "openblas": openBLAS} {
		if e, err := load(); err != nil {
			t.Logf("without %s: %v", name, err)
		} else {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *Engine) int { return len(a.Name) - len(b.Name) })
	return all
}

// product is the obvious twin of the three products: c + Σ a(i,l)·b(l,j) in
// float64.
func product(c []float32, m, n, k int, a, b func(i, j int) float32) []float64 {
	sum := make([]float64, m*n)
	for i := range m {
		for j := range n {
			sum[i*n+j] = float64(c[i*n+j])
			for l := range k {
				sum[i*n+j] += float64(a(i, l)) * float64(b(l, j))
			}
		}
	}
	return sum
}

func random(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = 2*r.Float32() - 1
	}
	return v
}

func closeTo(t *testing.T, what string, got []float32, want []float64, k int) {
	t.Helper()
	for i := range want {
		// k roundings of sums whose terms are at most 1.
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= 1e-7*float64(k+1)) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// Shapes around the width of vector registers, around the blocks of each
// engine, of one row and of one column.
func TestProducts(t *testing.T) {
	shapes := [][3]int{{1, 1, 1}, {2, 3, 4}, {3, 1, 64}, {4, 5, 31}, {5, 4, 32}, {6, 33, 33}, {7, 16, 63}, {16, 17, 1},
		{33, 10, 65}, {1, 50, 784}, {64, 10, 512}, {64, 512, 10}, {19, 96, 130}, {3, 7, 40_000}, {50_001, 2, 3}}
	for _, e := range engines(t) {
		g, r := e.New(), rand.New(rand.NewPCG(1, 2))
		for _, s := range shapes {
			m, n, k := s[0], s[1], s[2]
			a, b := random(r, m*k), random(r, k*n)
			zero, nan := make([]float32, m*n), make([]float32, m*n)
			for i := range nan {
				nan[i] = float32(math.NaN()) // NT and NN overwrite
			}
			row := func(v []float32, cols int) func(i, j int) float32 {
				return func(i, j int) float32 { return v[i*cols+j] }
			}
			column := func(v []float32, rows int) func(i, j int) float32 {
				return func(i, j int) float32 { return v[j*rows+i] }
			}
			name := func(op string) string { return fmt.Sprintf("%s %s %v", e.Name, op, s) }
			c := slices.Clone(nan)
			g.NT(c, a, b, m, n, k)
			closeTo(t, name("NT"), c, product(zero, m, n, k, row(a, k), column(b, k)), k)
			c = slices.Clone(nan)
			g.NN(c, a, b, m, n, k)
			closeTo(t, name("NN"), c, product(zero, m, n, k, row(a, k), row(b, n)), k)
			start := random(r, m*n)
			c = slices.Clone(start)
			g.TN(c, a, b, m, n, k)
			closeTo(t, name("TN"), c, product(start, m, n, k, column(a, m), row(b, n)), k)
		}
	}
}

// vek allocates where it takes more threads.
func TestProductsStayOnOneThread(t *testing.T) {
	e, err := vek()
	if err != nil {
		t.Skip(err)
	}
	for _, s := range [][3]int{{4, 64, 50_000}, {4, 500, 784}, {300, 40, 300}, {2, 33_000, 20}} {
		m, n, k := s[0], s[1], s[2]
		g, a, b, c := e.New(), make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
		for op, f := range map[string]func(c, a, b []float32, m, n, k int){"NT": g.NT, "NN": g.NN, "TN": g.TN} {
			f(c, a, b, m, n, k) // which allocates the scratch memory
			if allocs := testing.AllocsPerRun(3, func() { f(c, a, b, m, n, k) }); allocs > 0 {
				t.Errorf("%s %v: %v allocations", op, s, allocs)
			}
		}
	}
}

func TestOpenBLAS(t *testing.T) {
	e, err := openBLAS()
	if err != nil {
		t.Skip(err) // it says what to install
	}
	if !regexp.MustCompile(`^openblas \d+\.\d+\.\d+ \(\w+\)$`).MatchString(e.Name) {
		t.Errorf("the name is %q", e.Name)
	}
}

// The products of the nets that shardfeed trains: of the layer 784-512 with 64
// and 128 rows, and of the CNN's second convolution with 8 rows.
func BenchmarkProducts(b *testing.B) {
	for _, e := range engines(b) {
		g, r := e.New(), rand.New(rand.NewPCG(1, 2))
		for _, s := range []struct {
			op      string
			f       func(c, a, b []float32, m, n, k int)
			m, n, k int
		}{
			{"NT", g.NT, 64, 512, 784}, {"NN", g.NN, 64, 784, 512}, {"TN", g.TN, 512, 784, 64},
			{"NT", g.NT, 128, 512, 784}, {"NN", g.NN, 128, 784, 512}, {"TN", g.TN, 512, 784, 128},
			{"NN", g.NN, 32, 512, 300}, {"NT", g.NT, 32, 300, 512}, {"TN", g.TN, 300, 512, 32},
		} {
			c, x, y := random(r, s.m*s.n), random(r, s.m*s.k), random(r, s.k*s.n)
			b.Run(fmt.Sprintf("%s/%s/%dx%dx%d", e.Name, s.op, s.m, s.n, s.k), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.f(c, x, y, s.m, s.n, s.k)
				}
				b.ReportMetric(2*float64(s.m*s.n*s.k*b.N)/1e9/b.Elapsed().Seconds(), "GFLOP/s")
			})
		}
	}
}
