package sampler_test

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/sampler"
)

func ExampleDistributed() {
	for rank := range 3 {
		d := sampler.Distributed{Order: sampler.Keyed(10), Rank: rank, World: 3, Seed: 42}
		if err := d.Validate(); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("rank", rank, "epoch 0", slices.Collect(d.Epoch(0, 0)), "epoch 1", slices.Collect(d.Epoch(1, 0)), "of which padding", d.Padded())
	}
	// Output:
	// rank 0 epoch 0 [1 2 0 4] epoch 1 [1 3 6 2] of which padding 0
	// rank 1 epoch 0 [9 3 5 1] epoch 1 [5 9 8 1] of which padding 1
	// rank 2 epoch 0 [6 7 8 9] epoch 1 [4 7 0 5] of which padding 1
}

// The order that PyTorch's DistributedSampler gives with seed=42 after
// set_epoch(3).
func ExampleTorch() {
	d := sampler.Distributed{Order: sampler.Torch(10), Rank: 1, World: 2, Seed: 42}
	fmt.Println(slices.Collect(d.Epoch(3, 0)))
	// Output:
	// [6 3 9 8 1]
}

// Three ranks share a global batch of 8, which they cannot do evenly. Every
// step visits the samples that one rank alone would visit.
func ExamplePerRank() {
	const global, world = 8, 3
	for rank := range world {
		d := sampler.Distributed{Order: sampler.Sequential(20), Rank: rank, World: world, Global: global}
		plan := batch.Sampler{Order: d.Epoch, Padded: d.Padded(), Size: sampler.PerRank(global, world, rank)}
		var steps [][]int
		for step := range plan.Epoch(0, 0) {
			steps = append(steps, step.Samples[:step.Rows()])
		}
		fmt.Println(steps)
	}
	// Output:
	// [[0 3 6] [8 11 14] [16 19]]
	// [[1 4 7] [9 12 15] [17]]
	// [[2 5] [10 13] [18]]
}

// A run of two ranks goes on with three, and with another global batch.
func ExampleDistributed_Resume() {
	const global = 6
	d := sampler.Distributed{Order: sampler.Keyed(60), Rank: 0, World: 2, Seed: 1, Global: global}
	checkpoint, err := json.Marshal(d.Cursor(global, 0, 9)) // nine steps of epoch 0 are done
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(checkpoint))

	var c sampler.Cursor
	if err := json.Unmarshal(checkpoint, &c); err != nil {
		fmt.Println(err)
		return
	}
	d = sampler.Distributed{Order: sampler.Keyed(60), Rank: 2, World: 3, Seed: 1, Global: global}
	at, err := d.Resume(c, global)
	if err != nil {
		fmt.Println(err)
		return
	}
	share := sampler.PerRank(global, d.World, d.Rank)
	fmt.Println("rank 2 of 3 goes on with", slices.Collect(d.Epoch(at.Epoch, at.Step*share)))

	d.Global = 9 // another global batch, at the same position
	at, err = d.Resume(c, d.Global)
	fmt.Println("step", at.Step, err)

	d.Seed = 2
	_, err = d.Resume(c, d.Global)
	fmt.Println(err)
	// Output:
	// {"order":"keyed/1(60)","seed":1,"tail":"pad","global":6,"epoch":0,"step":9}
	// rank 2 of 3 goes on with [58 53]
	// step 6 <nil>
	// sampler: the cursor is of another run: seed 1, now 2
}

func ExampleRand() {
	flip := func(seed uint64, epoch, sample int) bool { return sampler.Rand(seed, epoch, sample).IntN(2) == 1 }
	for epoch := range 3 {
		fmt.Println(flip(42, epoch, 17)) // on whatever rank and worker
	}
	// Output:
	// true
	// false
	// false
}
