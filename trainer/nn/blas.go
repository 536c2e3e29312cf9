package nn

import (
	"fmt"

	"github.com/shardfeed/shardfeed/trainer/nn/internal/gemm"
)

// SetBLAS chooses the library of matrix products: "vek" (Go assembly for AVX2),
// "openblas" (loaded from the system now) or "go" (plain loops). The empty
// name takes vek where the processor has AVX2 and go elsewhere, as without
// SetBLAS. Layers that have computed before keep the library that they used.
func SetBLAS(name string) error {
	if err := gemm.Use(name); err != nil {
		return fmt.Errorf("nn: %w", err)
	}
	return nil
}

// BLAS names the library of matrix products in use, with its version and the
// kind of processor that it is built for: "vek (AVX2)", "openblas 0.3.21 (Zen)", "go".
func BLAS() string { return gemm.Current().Name }
