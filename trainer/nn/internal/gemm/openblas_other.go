//go:build !((linux || darwin) && (amd64 || arm64)) || noopenblas

package gemm

import (
	"fmt"
	"runtime"
)

func openBLAS() (*Engine, error) {
	return nil, fmt.Errorf("openblas cannot be loaded by this program, built for %s/%s or with the tag noopenblas: choose vek or go", runtime.GOOS, runtime.GOARCH)
}
