package gemm

func plain() *Engine { return &Engine{"go", func() Multiplier { return loops{} }} }

// loops is the Multiplier of plain Go: the portable one, and the measure of the
// others in the tests. Each loop body holds four independent sums or reads
// four rows at once, which is what the compiler's scalar code gains most by.
type loops struct{}

func (loops) NT(c, a, b []float32, m, n, k int) {
	for j := 0; j < n; j += 4 {
		// Four rows of b stay in the cache for all rows of a. Behind the last
		// row, the last one is taken again.
		j1, j2, j3 := min(j+1, n-1), min(j+2, n-1), min(j+3, n-1)
		b0, b1, b2, b3 := b[j*k:][:k], b[j1*k:][:k], b[j2*k:][:k], b[j3*k:][:k]
		for i := range m {
			var s0, s1, s2, s3 float32
			for l, v := range a[i*k:][:k] {
				s0 += v * b0[l]
				s1 += v * b1[l]
				s2 += v * b2[l]
				s3 += v * b3[l]
			}
			row := c[i*n:][:n]
			row[j], row[j1], row[j2], row[j3] = s0, s1, s2, s3
		}
	}
}

func (g loops) NN(c, a, b []float32, m, n, k int) {
	clear(c[:m*n])
	for i := range m {
		g.addRows(c[i*n:][:n], a[i*k:], 1, b, k)
	}
}

func (g loops) TN(c, a, b []float32, m, n, k int) {
	for i := range m {
		g.addRows(c[i*n:][:n], a[i:], m, b, k)
	}
}

// addRows adds to c the k rows of b, each times its factor; the factors are
// stride values apart.
func (loops) addRows(c, factor []float32, stride int, b []float32, k int) {
	n, l := len(c), 0
	for ; l+4 <= k; l += 4 {
		f0, f1, f2, f3 := factor[l*stride], factor[(l+1)*stride], factor[(l+2)*stride], factor[(l+3)*stride]
		b0, b1, b2, b3 := b[l*n:][:n], b[(l+1)*n:][:n], b[(l+2)*n:][:n], b[(l+3)*n:][:n]
		for j, v := range c {
			c[j] = v + f0*b0[j] + f1*b1[j] + f2*b2[j] + f3*b3[j]
		}
	}
	for ; l < k; l++ {
		f, row := factor[l*stride], b[l*n:][:n]
		for j := range c {
			c[j] += f * row[j]
		}
	}
}
