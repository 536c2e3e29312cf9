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
	u := trainer.Update[trainer.Host]{Value: value, Grad: grad, Scale: 1, Parts: []trainer.Part{{Name: "x", To: 1}}}
	for u.Step = range 4 {
		grad[0] = value[0] // of half the square
		if err := opt.Update(u); err != nil {
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

// The usual recipe: a rise over the first tenth of the steps, then a cosine;
// weights decay, biases and norms do not; gradients of a norm above 1 are cut.
func ExampleAdamW() {
	const steps = 1000
	opt := &optim.AdamW{
		LR:          optim.Warmup(steps/10, 0, optim.Cosine(1e-3, steps-steps/10, 0)),
		WeightDecay: 0.01,
		Decay:       optim.Weights,
		Clip:        optim.Clip{Norm: 1},
	}
	for _, step := range []int{0, 50, 100, 550, 1000} {
		fmt.Printf("%4d %.5f\n", step, opt.LR(step))
	}
	// Output:
	//    0 0.00000
	//   50 0.00050
	//  100 0.00100
	//  550 0.00050
	// 1000 0.00000
}
