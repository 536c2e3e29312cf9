package nn_test

import (
	"context"
	"fmt"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn"
)

// A net of two layers learns exclusive or. trainer.DDP does the same on many
// ranks: it gives the parameters their memory, steps and updates.
func ExampleClassifier() {
	xor := nn.Examples{Values: []float32{0, 0 /**/, 0, 1 /**/, 1, 0 /**/, 1, 1}, Labels: []int{0, 1, 1, 0}, Rows: 4}
	model := &nn.Classifier[nn.Examples]{
		Net:      nn.MLP(2, 16, 2),
		Examples: func(b nn.Examples) (nn.Examples, error) { return b, nil },
	}
	params := model.Params()
	for _, p := range params {
		p.Value, p.Grad = make(trainer.Host, p.Len()), make(trainer.Host, p.Len())
	}
	if err := model.Init(1); err != nil {
		panic(err)
	}
	ctx := context.Background()
	for range 200 {
		if _, err := model.Step(ctx, xor, 1, func(int) {}); err != nil {
			panic(err)
		}
		for _, p := range params {
			for i, g := range p.Grad {
				p.Value[i] -= 0.5 * g
			}
			clear(p.Grad)
		}
	}
	fmt.Println(model.Predict(ctx, xor, nil))
	// Output: [0 1 1 0] <nil>
}
