//go:build unix && !aix && !solaris

package mmap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
}

func unmapFile(b []byte) error { return unix.Munmap(b) }

func anonymous(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	if n >= hugePage {
		adviseHuge(b)
	}
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 0 // a write: a read would find the zero page
	}
	return b, nil
}

func lock(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	err := unix.Mlock(b)
	if err == nil {
		return nil
	}
	var limit unix.Rlimit
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN) {
		if unix.Getrlimit(rlimitMemlock, &limit) == nil {
			return fmt.Errorf("%w: RLIMIT_MEMLOCK allows %d bytes: raise it by ulimit -l or LimitMEMLOCK, or grant CAP_IPC_LOCK", err, limit.Cur)
		}
	}
	return err
}

func free(b []byte) error { return unix.Munmap(b) }
