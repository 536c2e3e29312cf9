//go:build !unix || solaris || aix

package atomicdir

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// lock is for the process that made the directory a moment ago: without locks
// nothing tells what another process writes from what it left.
func lock(f *os.File) error {
	info, err := os.Stat(filepath.Clean(f.Name()))
	if err == nil && time.Since(info.ModTime()) > time.Minute {
		err = errors.New("it may be in use")
	}
	return err
}

// syncFile does nothing: directories cannot be synced here.
func syncFile(*os.File) error { return nil }
