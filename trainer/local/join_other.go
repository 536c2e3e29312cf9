//go:build !linux

package local

import (
	"context"
	"fmt"
	"runtime"

	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

func (Config) joinProcesses(_ context.Context, w rendezvous.World) (*Group, error) {
	return nil, fmt.Errorf("local: %d ranks as processes: shared memory is there on linux only, not on %s: train in one process with Spawn", w.Size, runtime.GOOS)
}
