package pinned_test

import (
	"context"
	"fmt"
	"iter"
	"log"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/pinned"
)

// A program that has its data in memory feeds it to a device. With files a
// loader takes the place of the source.
func Example() {
	data := []float32{0, 1, 2, 3, 4, 5, 6}
	const rows = 3

	dev := pinned.NewHost()
	pool := pinned.NewPool(dev, pinned.PoolConfig{})
	fields := []batch.Field{{Name: "x", Type: batch.Float32}}
	plan := batch.Sampler{Size: rows, Order: func(_, skip int) iter.Seq[int] {
		return func(yield func(int) bool) {
			for k := skip; k < len(data) && yield(k); k++ {
			}
		}
	}}
	source := func(_ context.Context, epoch, skip int) iter.Seq2[*batch.Batch, error] {
		return func(yield func(*batch.Batch, error) bool) {
			for step := range plan.Epoch(epoch, skip) {
				b, err := fill(step, fields, pool, data)
				if err != nil {
					yield(nil, err)
					return
				}
				more := yield(b, nil)
				b.Release()
				if !more {
					return
				}
			}
		}
	}
	full, err := batch.NewLayout(fields, rows)
	if err != nil {
		log.Fatal(err)
	}
	feeder, err := pinned.NewFeeder(source, dev, pinned.FeederConfig{Bytes: full.Size()})
	if err != nil {
		log.Fatal(err)
	}

	for b, err := range feeder.Epoch(context.Background(), 0, 0) {
		if err != nil {
			log.Fatal(err)
		}
		dev.Queue(func() {
			sum := float32(0)
			for _, x := range batch.View[float32](b.Column("x")) {
				sum += x
			}
			fmt.Println("step", b.Index, "of", b.Rows(), "rows: sum", sum)
		})
	}

	for _, close := range []func() error{dev.Sync, feeder.Close, pool.Close, dev.Close} {
		if err := close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// step 0 of 3 rows: sum 3
	// step 1 of 3 rows: sum 12
	// step 2 of 1 rows: sum 6
}

func fill(step batch.Step, fields []batch.Field, pool *pinned.Pool, data []float32) (*batch.Batch, error) {
	layout, err := batch.NewLayout(fields, len(step.Samples))
	if err != nil {
		return nil, err
	}
	b, err := batch.New(step, layout, pool)
	if err != nil {
		return nil, err
	}
	x := batch.View[float32](b.Column("x"))
	for row, sample := range step.Samples {
		x[row] = data[sample]
	}
	return b, nil
}
