package loader_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
)

// A loader over a data set of words, three to a batch. A real program takes
// the order from sampler.Distributed and the fetch from arrowipc.Set.
func Example() {
	words := strings.Fields("the quick brown fox jumps over the lazy dog again")
	plan := batch.Sampler{
		Size: 3,
		Order: func(epoch, skip int) iter.Seq[int] { // the epoch's order, without the first skip
			return slices.Values([]int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}[skip:])
		},
	}
	read := func(ctx context.Context, epoch, sample int) (string, error) { return words[sample], nil }
	join := func(words []string) (string, error) { return strings.Join(words, " "), nil }

	l := loader.New(plan.Epoch, batch.Collate(read, join), loader.Config{})
	for sentence, err := range l.Epoch(context.Background(), 0, 1) { // resumes after one step
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(sentence)
	}
	fmt.Println(l.Stats().Steps, "batches")
	// Output:
	// the over jumps
	// fox brown quick
	// the
	// 3 batches
}
