// Package mmap maps files into memory and makes memory outside the Go heap.
// Where the system has no mmap, a file is read and memory is the heap's.
package mmap

import (
	"fmt"
	"math"
	"os"
	"sync"
)

// hugePage is the size from which memory asks for huge pages, in bytes.
const hugePage = 2 << 20

// File is a whole file in memory, for reading. Writing to its bytes is a
// fault.
type File struct {
	mu    sync.Mutex
	bytes []byte
}

// Map maps all of f as it is now. f may be closed afterwards. A file that
// becomes shorter while it is mapped makes reads of what it lost a fault,
// which debug.SetPanicOnFault turns into a panic.
func Map(f *os.File) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	switch size := info.Size(); {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("mmap: %s is not a regular file", f.Name())
	case size == 0:
		return &File{}, nil
	case size > math.MaxInt:
		return nil, fmt.Errorf("mmap: %s has %d bytes, more than can be addressed", f.Name(), size)
	default:
		b, err := mapFile(f, int(size))
		if err != nil {
			return nil, fmt.Errorf("mmap: %s, %d bytes: %w", f.Name(), size, err)
		}
		return &File{bytes: b}, nil
	}
}

// Bytes is the file's content until Close, nil afterwards.
func (m *File) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Close ends the mapping: reading from what Bytes gave is a fault from now on.
// It may be called twice.
func (m *File) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.bytes
	m.bytes = nil
	if b == nil {
		return nil
	}
	if err := unmapFile(b); err != nil {
		return fmt.Errorf("mmap: unmap %d bytes: %w", len(b), err)
	}
	return nil
}

// Anonymous is n zeroed bytes of memory that begin a page. From 2 MiB on it
// asks for huge pages, which make the first touch of it some fifty times
// faster. All of it is present when Anonymous returns. The caller owns it
// until Free.
func Anonymous(n int) ([]byte, error) {
	if n < 1 {
		return nil, fmt.Errorf("mmap: memory of %d bytes", n)
	}
	b, err := anonymous(n)
	if err != nil {
		return nil, fmt.Errorf("mmap: memory of %d bytes: %w", n, err)
	}
	return b, nil
}

// Lock keeps memory from Anonymous from being paged out. It fails where the
// system or its limits do not allow that.
func Lock(b []byte) error {
	if err := lock(b); err != nil {
		return fmt.Errorf("mmap: locking %d bytes: %w", len(b), err)
	}
	return nil
}

// Free takes what Anonymous gave, whole. The memory must not be used any more.
func Free(b []byte) error {
	if err := free(b); err != nil {
		return fmt.Errorf("mmap: freeing %d bytes: %w", len(b), err)
	}
	return nil
}
