package loader_test

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
)

// endless plans the same step for ever, without allocating.
func endless(epoch, skip int) iter.Seq[batch.Step] {
	samples := make([]int, 32)
	return func(yield func(batch.Step) bool) {
		for i := skip; yield(batch.Step{Epoch: epoch, Index: i, Samples: samples}); i++ {
		}
	}
}

// empty costs nothing: what is left is the loader's own time.
func empty(context.Context, batch.Step) (*batch.Batch, error) { return nil, nil }

func BenchmarkEmptyFetch(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			b.ReportAllocs()
			l := loader.New(endless, empty, loader.Config{Workers: workers})
			for range l.Epoch(b.Context(), 0, 0) {
				if !b.Loop() {
					break
				}
			}
		})
	}
}

func BenchmarkPlainLoop(b *testing.B) {
	b.ReportAllocs()
	for step := range endless(0, 0) {
		if !b.Loop() {
			break
		}
		if _, err := empty(b.Context(), step); err != nil {
			b.Fatal(err)
		}
	}
}
