package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/nn"
	"github.com/shardfeed/shardfeed/trainer/optim"
)

// How much of the all-reduce of gradients the backward pass hides, on 2 ranks:
// overlap is the share of its time, allreduce-ms the time itself, of a step.
// Only what is computed after a bucket was complete can hide it, so the last
// bucket of a net whose first layer is large is never hidden.
func BenchmarkOverlap(b *testing.B) {
	const rows = 64
	for _, c := range []struct {
		model       string
		net         func() []nn.Layer
		first, rest int // bytes of the buckets
	}{
		{"784-512-10", func() []nn.Layer { return nn.MLP(784, 512, 10) }, 1 << 20, 25 << 20},
		{"784-1024-1024-1024-10", func() []nn.Layer { return nn.MLP(784, 1024, 1024, 1024, 10) }, 1 << 20, 25 << 20},
		{"784-1024-1024-1024-10", func() []nn.Layer { return nn.MLP(784, 1024, 1024, 1024, 10) }, 1 << 20, 4 << 20},
		{"cnn", func() []nn.Layer { return nn.CNN(1, 28, 28, 10) }, 1 << 20, 25 << 20},
		{"cnn", func() []nn.Layer { return nn.CNN(1, 28, 28, 10) }, 32 << 10, 32 << 10},
	} {
		b.Run(fmt.Sprintf("%s/buckets of %d and %d KiB", c.model, c.first>>10, c.rest>>10), func(b *testing.B) {
			var stats trainer.Stats
			err := local.Spawn(b.Context(), 2, func(ctx context.Context, g *local.Group) error {
				model := &nn.Classifier[nn.Examples]{Net: c.net(), Examples: func(e nn.Examples) (nn.Examples, error) { return e, nil }}
				ddp, err := trainer.New(ctx, g, model, &optim.SGD{LR: optim.Constant(0.001)}, trainer.Config{FirstBucket: c.first, Bucket: c.rest})
				if err != nil {
					return err
				}
				r := rand.New(rand.NewPCG(1, uint64(g.Rank())))
				e := nn.Examples{Pixels: make([]uint8, rows*784), Labels: make([]int, rows), Rows: rows}
				for i := range e.Pixels {
					e.Pixels[i] = uint8(r.Uint32())
				}
				for i := range e.Labels {
					e.Labels[i] = r.IntN(10)
				}
				if g.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N {
					if _, err := ddp.Step(ctx, e); err != nil {
						return err
					}
				}
				if g.Rank() == 0 {
					stats = ddp.Stats()
				}
				return nil
			}).Wait()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(stats.Overlap(), "overlap")
			b.ReportMetric(stats.AllReduce.Seconds()*1e3/float64(b.N), "allreduce-ms/op")
			b.ReportMetric(float64(b.N*rows*2)/b.Elapsed().Seconds(), "samples/s")
		})
	}
}
