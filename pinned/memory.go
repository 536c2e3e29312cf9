//go:build !race

package pinned

import "github.com/shardfeed/shardfeed/internal/mmap"

// Memory of its own mapping: huge pages where there are any, page-locked
// where that is allowed.
func allocate(n int) ([]byte, error) { return mmap.Anonymous(n) }
func lock(b []byte) error            { return mmap.Lock(b) }
func free(b []byte) error            { return mmap.Free(b) }
