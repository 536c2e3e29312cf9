//go:build unix

package launch_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardfeed/shardfeed/trainer/launch"
)

// Two ranks of a program, of which one fails.
func Example() {
	err := launch.Run(context.Background(), launch.Config{Nproc: 2, Args: []string{"sh", "-c", "exit $RANK"}})
	if failed, ok := errors.AsType[*launch.Error](err); ok {
		fmt.Printf("rank %d: exit status %d\n", failed.Failures[0].Rank, failed.Failures[0].Exit)
	}
	// Output: rank 1: exit status 1
}
