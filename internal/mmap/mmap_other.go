//go:build !unix || aix || solaris

package mmap

import (
	"errors"
	"io"
	"os"
	"unsafe"
)

func mapFile(f *os.File, size int) ([]byte, error) {
	b := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), b)
	return b, err
}

func unmapFile([]byte) error { return nil }

func anonymous(n int) ([]byte, error) {
	page := os.Getpagesize()
	b := make([]byte, n+page)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (page - 1)
	return b[skip : skip+n : skip+n], nil
}

func lock([]byte) error { return errors.New("not possible on this system") }

func free([]byte) error { return nil }
