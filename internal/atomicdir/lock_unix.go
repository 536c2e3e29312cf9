//go:build unix && !solaris && !aix

package atomicdir

import (
	"os"

	"golang.org/x/sys/unix"
)

func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func syncFile(f *os.File) error { return f.Sync() }
