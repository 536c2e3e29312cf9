package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// engines are the libraries of matrix products that this machine has.
func engines(t testing.TB) []*engine {
	t.Helper()
	all := []*engine{plain()}
	for name, load := range map[string]func() (*engine, error){"vek": vek, "openblas": openBLAS} {
		if e, err := load(); err != nil {
			t.Logf("without %s: %v", name, err)
		} else {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *engine) int { return len(a.name) - len(b.name) })
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
		g, r := e.new(), rand.New(rand.NewPCG(1, 2))
		for _, s := range shapes {
			m, n, k := s[0], s[1], s[2]
			a, b := random(r, m*k), random(r, k*n)
			zero, nan := make([]float32, m*n), make([]float32, m*n)
			for i := range nan {
				nan[i] = float32(math.NaN()) // nt and nn overwrite
			}
			row := func(v []float32, cols int) func(i, j int) float32 {
				return func(i, j int) float32 { return v[i*cols+j] }
			}
			column := func(v []float32, rows int) func(i, j int) float32 {
				return func(i, j int) float32 { return v[j*rows+i] }
			}
			name := func(op string) string { return fmt.Sprintf("%s %s %v", e.name, op, s) }
			c := slices.Clone(nan)
			g.nt(c, a, b, m, n, k)
			closeTo(t, name("nt"), c, product(zero, m, n, k, row(a, k), column(b, k)), k)
			c = slices.Clone(nan)
			g.nn(c, a, b, m, n, k)
			closeTo(t, name("nn"), c, product(zero, m, n, k, row(a, k), row(b, n)), k)
			start := random(r, m*n)
			c = slices.Clone(start)
			g.tn(c, a, b, m, n, k)
			closeTo(t, name("tn"), c, product(start, m, n, k, column(a, m), row(b, n)), k)
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
		g, a, b, c := e.new(), make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
		for op, f := range map[string]func(c, a, b []float32, m, n, k int){"nt": g.nt, "nn": g.nn, "tn": g.tn} {
			f(c, a, b, m, n, k) // which allocates the scratch memory
			if allocs := testing.AllocsPerRun(3, func() { f(c, a, b, m, n, k) }); allocs > 0 {
				t.Errorf("%s %v: %v allocations", op, s, allocs)
			}
		}
	}
}

// The products of the model that shardfeed trains, 784-512-10.
func BenchmarkProducts(b *testing.B) {
	for _, e := range engines(b) {
		g, r := e.new(), rand.New(rand.NewPCG(1, 2))
		for _, rows := range []int{64, 128} {
			x, w, y := random(r, rows*784), random(r, 784*512), random(r, rows*512)
			run := func(op string, f func()) {
				b.Run(fmt.Sprintf("%s/%s/%d", e.name, op, rows), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						f()
					}
					b.ReportMetric(2*784*512*float64(rows*b.N)/1e9/b.Elapsed().Seconds(), "GFLOP/s")
				})
			}
			run("nt", func() { g.nt(y, x, w, rows, 512, 784) })
			run("nn", func() { g.nn(x, y, w, rows, 784, 512) })
			run("tn", func() { g.tn(w, y, x, 512, 784, rows) })
		}
	}
}
