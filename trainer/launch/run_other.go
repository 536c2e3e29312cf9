//go:build !unix

package launch

import (
	"context"
	"errors"
)

// Run fails: it needs process groups, which this system lacks.
func Run(context.Context, Config) error {
	return errors.New("launch: this system has no process groups, in which ranks are ended together: start the ranks one by one, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set")
}
