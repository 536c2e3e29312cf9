//go:build unix && !aix && !solaris && !linux

package mmap

import "golang.org/x/sys/unix"

const rlimitMemlock = unix.RLIMIT_MEMLOCK

func adviseHuge([]byte) {}
