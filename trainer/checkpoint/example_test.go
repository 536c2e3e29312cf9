package checkpoint_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/checkpoint"
)

// A run goes on where the last one stopped, or begins.
func Example() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	type cursor struct{ Epoch, Step int }
	for range 2 {
		var at cursor
		tensors, step, err := checkpoint.Load(dir, &at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Println("from the beginning")
			tensors = []trainer.Tensor{{Name: "fc1.bias", Shape: []int{2}, Data: []float32{0, 0}}}
		case err != nil:
			panic(err)
		default:
			fmt.Println("from step", step, at, tensors)
		}
		tensors[0].Data[1]++ // training
		if err := checkpoint.Save(dir, 500, tensors, cursor{1, 20}, 3); err != nil {
			panic(err)
		}
	}
	// Output:
	// from the beginning
	// from step 500 {1 20} [{fc1.bias [2] [0 1]}]
}
