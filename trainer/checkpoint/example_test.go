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
		c, err := checkpoint.Load(dir, checkpoint.Latest, &at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Println("from the beginning")
			c.Tensors = []trainer.Tensor{{Name: "fc1.bias", Shape: []int{2}, Data: []float32{0, 0}}}
		case err != nil:
			panic(err)
		default:
			fmt.Println("from step", c.Step, at, c.Tensors)
		}
		c.Tensors[0].Data[1]++ // training
		accuracy := 0.97       // evaluation
		c = checkpoint.Checkpoint{Step: 500, Tensors: c.Tensors, Metric: &accuracy, State: cursor{1, 20}}
		if err := checkpoint.Save(dir, c, 3); err != nil { // the best one stays, too
			panic(err)
		}
	}
	// Output:
	// from the beginning
	// from step 500 {1 20} [{fc1.bias [2] [0 1]}]
}
