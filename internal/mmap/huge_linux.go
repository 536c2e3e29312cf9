package mmap

import "golang.org/x/sys/unix"

const rlimitMemlock = unix.RLIMIT_MEMLOCK

// adviseHuge may fail, where huge pages are switched off: memory is then just
// slower to touch.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
