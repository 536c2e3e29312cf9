// Package gemm is the seam behind which all products of matrices lie: a few
// libraries that compute the same.
package gemm

import (
	"fmt"
	"sync/atomic"
)

// Multiplier is the three products that layers need. Matrices are row-major,
// without gaps, and do not overlap; no dimension is 0. A Multiplier has scratch
// memory of its own and serves one goroutine; it computes on the thread that
// calls it, and equal inputs give equal bits.
type Multiplier interface {
	// NT is c = a·bᵀ, where c is m×n, a is m×k and b is n×k.
	NT(c, a, b []float32, m, n, k int)
	// NN is c = a·b, where c is m×n, a is m×k and b is k×n.
	NN(c, a, b []float32, m, n, k int)
	// TN is c += aᵀ·b, where c is m×n, a is k×m and b is k×n.
	TN(c, a, b []float32, m, n, k int)
}

// Engine is a library of matrix products.
type Engine struct {
	Name string // with version and kind of processor, where they are known
	New  func() Multiplier
}

var chosen atomic.Pointer[Engine]

// Use chooses the engine that Current returns: vek (Go assembly for AVX2),
// openblas (loaded from the system now) or go (plain loops). The empty name is
// vek where the processor has AVX2 and go elsewhere, as without Use. It fails,
// and changes nothing, where this machine lacks what is named.
func Use(name string) error {
	e, err := named(name)
	if err == nil {
		chosen.Store(e)
	}
	return err
}

// Current is the engine in use.
func Current() *Engine {
	if e := chosen.Load(); e != nil {
		return e
	}
	e, _ := named("") // which every machine has
	return e
}

func named(name string) (*Engine, error) {
	switch name {
	case "":
		if e, err := vek(); err == nil {
			return e, nil
		}
		return plain(), nil
	case "vek":
		return vek()
	case "openblas":
		return openBLAS()
	case "go":
		return plain(), nil
	}
	return nil, fmt.Errorf("%q is not a library of matrix products: there are vek, openblas and go", name)
}

// Grow is buf with room for n values, of any content.
func Grow(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	return buf[:n]
}
