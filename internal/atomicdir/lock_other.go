//go:build !unix || solaris || aix

package atomicdir

import "os"

// canLock: no lock tells what another process writes from what one has left,
// so nothing is swept here.
const canLock = false

// lock keeps nothing open: an open directory cannot be renamed everywhere.
func lock(string) (*os.File, error) { return nil, nil }

// SyncDir does nothing: directories cannot be synced here.
func SyncDir(string) error { return nil }
