//go:build !((linux || darwin) && (amd64 || arm64))

package nn

import (
	"fmt"
	"runtime"
)

func openBLAS() (*engine, error) {
	return nil, fmt.Errorf("openblas is not loaded on %s/%s: choose vek or go", runtime.GOOS, runtime.GOARCH)
}
