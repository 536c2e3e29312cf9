package optim_test

import (
	"fmt"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/optim"
)

// The rate falls from 1/2 to 0 over four updates.
func ExampleSGD() {
	opt := &optim.SGD{LR: optim.Linear(0.5, 4), Momentum: 0.5}
	value, grad := trainer.Host{8}, trainer.Host{0}
	for step := range 4 {
		grad[0] = value[0] // of half the square
		if err := opt.Update(step, value, grad); err != nil {
			panic(err)
		}
		fmt.Println(value[0])
	}
	// Output:
	// 4
	// 1
	// -0.25
	// -0.53125
}
