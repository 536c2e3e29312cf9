package batch_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/shardfeed/shardfeed/batch"
)

func ExampleSampler() {
	s := batch.Sampler{
		Size:   4,
		Padded: 1,
		Order: func(epoch, skip int) iter.Seq[int] { // sampler.Distributed.Epoch, in a real program
			return slices.Values([]int{3, 1, 4, 15, 9, 2, 6, 5, 35, 3}[skip:])
		},
	}
	for step := range s.Epoch(0, 1) { // without the first step
		fmt.Println(step.Index, step.Samples, "of which count", step.Rows())
	}
	// Output:
	// 1 [9 2 6 5] of which count 4
	// 2 [35 3] of which count 1
}

func ExampleBatch() {
	step := batch.Step{Samples: []int{17, 4}}
	layout, err := batch.NewLayout([]batch.Field{
		{Name: "image", Type: batch.Uint8, Shape: []int{28, 28}},
		{Name: "label", Type: batch.Int64},
	}, len(step.Samples))
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := batch.New(step, layout, nil) // nil: on the Go heap
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Release()
	labels := batch.View[int64](b.Column("label"))
	labels[1] = 9
	fmt.Println(b.Column("image").Field, len(b.Column("image").Data), "bytes; labels", labels, "in a slab of", b.Bytes())
	// Output: image uint8[28 28] 1568 bytes; labels [0 9] in a slab of 1664
}

func ExampleCollate() {
	words := []string{"seven", "eight", "nine"}
	read := func(ctx context.Context, epoch, sample int) (string, error) { return words[sample], nil }
	join := func(words []string) (string, error) { return strings.Join(words, "+"), nil }

	fetch := batch.Collate(read, join)
	fmt.Println(fetch(context.Background(), batch.Step{Samples: []int{2, 0}}))
	// Output: nine+seven <nil>
}
