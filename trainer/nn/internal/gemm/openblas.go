//go:build (linux || darwin) && (amd64 || arm64) && !noopenblas

package gemm

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// sgemm is the address of OpenBLAS's sgemm_, once openBLAS has loaded it.
var sgemm uintptr

// openBLAS is the engine of the system's OpenBLAS, on one thread: ranks on the
// same machine would fight over its pool of threads.
var openBLAS = sync.OnceValues(func() (*Engine, error) {
	names := []string{"libopenblas.so.0", "libopenblas.so"}
	if runtime.GOOS == "darwin" {
		names = []string{"libopenblas.dylib", "/opt/homebrew/opt/openblas/lib/libopenblas.dylib", "/usr/local/opt/openblas/lib/libopenblas.dylib"}
	}
	var lib uintptr
	var err error
	for _, name := range names {
		if lib, err = purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("openblas cannot be loaded: %w: install libopenblas0 (Debian, Ubuntu) or openblas (Fedora, Arch, Homebrew)", err)
	}
	address := map[string]uintptr{}
	for _, f := range []string{"sgemm_", "openblas_set_num_threads", "openblas_get_config", "openblas_get_corename"} {
		if address[f], err = purego.Dlsym(lib, f); err != nil {
			return nil, fmt.Errorf("openblas has no function %s: %w: is the library that was loaded OpenBLAS?", f, err)
		}
	}
	var config, core func() string
	var threads func(int32)
	purego.RegisterFunc(&config, address["openblas_get_config"])
	purego.RegisterFunc(&core, address["openblas_get_corename"])
	purego.RegisterFunc(&threads, address["openblas_set_num_threads"])
	threads(1)
	sgemm = address["sgemm_"]
	name := "openblas"
	if words := strings.Fields(config()); len(words) > 1 && words[0] == "OpenBLAS" { // "OpenBLAS 0.3.21 DYNAMIC_ARCH …"
		name += " " + words[1]
	}
	return &Engine{fmt.Sprintf("%s (%s)", name, core()), func() Multiplier { return new(openGemm) }}, nil
})

// openGemm multiplies by the Fortran interface: all its arguments are
// pointers, and such a call allocates nothing but their list. Its matrices are
// column-major, so that it sees each matrix of ours transposed, and computes
// cᵀ = bᵀ·aᵀ.
type openGemm struct {
	m, n, k, lda, ldb, ldc int32
	alpha, beta            float32
	transA, transB         [1]byte
}

func (g *openGemm) NT(c, a, b []float32, m, n, k int) {
	g.set(n, m, k, 'T', 'N', k, k, 0)
	g.call(c, b, a)
}

func (g *openGemm) NN(c, a, b []float32, m, n, k int) {
	g.set(n, m, k, 'N', 'N', n, k, 0)
	g.call(c, b, a)
}

func (g *openGemm) TN(c, a, b []float32, m, n, k int) {
	g.set(n, m, k, 'N', 'T', n, m, 1)
	g.call(c, b, a)
}

// set is the problem as Fortran sees it: c, of m rows in columns one after the
// other, becomes beta·c + op(a)·op(b).
func (g *openGemm) set(m, n, k int, transA, transB byte, lda, ldb int, beta float32) {
	*g = openGemm{int32(m), int32(n), int32(k), int32(lda), int32(ldb), int32(m), 1, beta, [1]byte{transA}, [1]byte{transB}}
}

func (g *openGemm) call(c, a, b []float32) {
	purego.SyscallN(sgemm,
		uintptr(unsafe.Pointer(&g.transA)), uintptr(unsafe.Pointer(&g.transB)),
		uintptr(unsafe.Pointer(&g.m)), uintptr(unsafe.Pointer(&g.n)), uintptr(unsafe.Pointer(&g.k)),
		uintptr(unsafe.Pointer(&g.alpha)), uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&g.lda)),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&g.ldb)),
		uintptr(unsafe.Pointer(&g.beta)), uintptr(unsafe.Pointer(&c[0])), uintptr(unsafe.Pointer(&g.ldc)),
		1, 1) // the lengths of transA and transB, which Fortran passes behind the others
}
