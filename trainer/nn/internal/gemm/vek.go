package gemm

import (
	"errors"

	lib "github.com/viterin/vek"
	"github.com/viterin/vek/vek32"
)

// vek is the engine of github.com/viterin/vek: AVX2 and FMA in Go assembly.
func vek() (*Engine, error) {
	if !lib.Info().Acceleration {
		return nil, errors.New("vek needs a processor with AVX2 and FMA, and not macOS: choose go or openblas")
	}
	return &Engine{"vek (AVX2)", func() Multiplier { return new(vekGemm) }}, nil
}

// vekGemm multiplies by vek32.MatMul_Into, which has two kernels. For a matrix
// times a column it takes inner products, otherwise it adds multiples of the
// rows of the right matrix. Both go along rows by 32 values and then one by
// one, which is so slow that rows of other lengths are filled up with zeros.
//
// MatMul_Into splits a product among goroutines unless that has fewer than 4
// rows or fewer than 100,000 multiplications. A rank has one thread, so all
// products here are smaller.
type vekGemm struct {
	a, b, sum []float32 // scratch
}

const (
	vekRows  = 3       // rows of a product that vek leaves on one thread whatever its size
	vekTimes = 100_000 // multiplications from which on it takes more threads
	vekBlock = 16      // rows of b in NT that meet each row of a in turn, so that they stay in the cache
)

// NT takes inner products of rows.
func (g *vekGemm) NT(c, a, b []float32, m, n, k int) {
	a = widen(&g.a, a[:m*k], k)
	for j := 0; j < n; j += vekBlock {
		end := min(j+vekBlock, n)
		block := widen(&g.b, b[j*k:end*k], k)
		for i := range m {
			dots(c[i*n+j:i*n+end], block, a[i*wide(k):(i+1)*wide(k)])
		}
	}
}

// dots is c = b·x for a column x.
func dots(c, b, x []float32) {
	for len(c) > 0 {
		rows := min(max(vekRows, (vekTimes-1)/len(x)), len(c))
		vek32.MatMul_Into(c[:rows], b[:rows*len(x)], x, len(x))
		c, b = c[rows:], b[rows*len(x):]
	}
}

func (g *vekGemm) NN(c, a, b []float32, m, n, k int) {
	clear(c[:m*n])
	g.add(c, a, b, m, n, k)
}

func (g *vekGemm) TN(c, a, b []float32, m, n, k int) {
	g.a = Grow(g.a, m*k)
	transpose(g.a, a, k, m)
	g.add(c, g.a, b, m, n, k)
}

// add is c += a·b. MatMul_Into replaces what it finds, so the sums pass
// through scratch memory, which stays in the cache.
func (g *vekGemm) add(c, a, b []float32, m, n, k int) {
	b = widen(&g.b, b[:k*n], n)
	g.sum = Grow(g.sum, vekRows*wide(n))
	for i := 0; i < m; i += vekRows {
		end := min(i+vekRows, m)
		sum := vek32.MatMul_Into(g.sum, a[i*k:end*k], b, k)
		for row := i; row < end; row++ {
			vek32.Add_Inplace(c[row*n:(row+1)*n], sum[:n])
			sum = sum[wide(n):]
		}
	}
}

// wide is the length of a row of n values that the kernels like.
func wide(n int) int { return (n + 31) &^ 31 }

// widen is a matrix whose rows of n values are filled up with zeros to
// wide(n): the matrix itself where that changes nothing, else a copy in buf.
func widen(buf *[]float32, matrix []float32, n int) []float32 {
	if wide(n) == n {
		return matrix
	}
	*buf = Grow(*buf, len(matrix)/n*wide(n))
	for dst := *buf; len(dst) > 0; dst = dst[wide(n):] {
		copy(dst[:n], matrix)
		clear(dst[n:wide(n)])
		matrix = matrix[n:]
	}
	return *buf
}

// transpose copies src, of rows×cols values, to dst, of cols×rows. It goes by
// tiles whose rows and columns both stay in the cache.
func transpose(dst, src []float32, rows, cols int) {
	const tile = 16
	for i := 0; i < rows; i += tile {
		for j := 0; j < cols; j += tile {
			for col := j; col < min(j+tile, cols); col++ {
				for row := i; row < min(i+tile, rows); row++ {
					dst[col*rows+row] = src[row*cols+col]
				}
			}
		}
	}
}
