package nn

import (
	"fmt"
	"sync/atomic"
)

// gemm is the seam behind which all matrix products lie: the three of a
// linear layer. Matrices are row-major, without gaps, and do not overlap; no
// dimension is 0. A gemm has scratch memory of its own and serves one
// goroutine; it computes on the thread that calls it, and equal inputs give
// equal bits.
type gemm interface {
	// nt is c = a·bᵀ, where c is m×n, a is m×k and b is n×k.
	nt(c, a, b []float32, m, n, k int)
	// nn is c = a·b, where c is m×n, a is m×k and b is k×n.
	nn(c, a, b []float32, m, n, k int)
	// tn is c += aᵀ·b, where c is m×n, a is k×m and b is k×n.
	tn(c, a, b []float32, m, n, k int)
}

// engine is a library of matrix products.
type engine struct {
	name string // with version and kind of processor, where they are known
	new  func() gemm
}

var chosen atomic.Pointer[engine]

// SetBLAS chooses the library of matrix products: "vek" (Go assembly for AVX2),
// "openblas" (loaded from the system now) or "go" (plain loops). The empty
// name takes vek where the processor has AVX2 and go elsewhere, as without
// SetBLAS. Layers that have computed before keep the library that they used.
func SetBLAS(name string) error {
	var e *engine
	var err error
	switch name {
	case "":
		e = automatic()
	case "vek":
		e, err = vek()
	case "openblas":
		e, err = openBLAS()
	case "go":
		e = plain()
	default:
		err = fmt.Errorf("%q is not a library of matrix products: there are vek, openblas and go", name)
	}
	if err != nil {
		return fmt.Errorf("nn: %w", err)
	}
	chosen.Store(e)
	return nil
}

// BLAS names the library of matrix products in use, with its version and the
// kind of processor that it is built for: "vek (AVX2)", "openblas 0.3.21 (Zen)", "go".
func BLAS() string { return current().name }

func current() *engine {
	if e := chosen.Load(); e != nil {
		return e
	}
	return automatic()
}

func automatic() *engine {
	if e, err := vek(); err == nil {
		return e
	}
	return plain()
}

// grow is buf with room for n values, of any content.
func grow(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	return buf[:n]
}
