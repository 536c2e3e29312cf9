package arrowipc_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/sampler"
)

func Example() {
	parent, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "shards")
	if err := writeSquares(dir); err != nil {
		fmt.Println(err)
		return
	}

	set, err := arrowipc.Open(dir, arrowipc.Options{Columns: []string{"square"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	order := sampler.Distributed{Order: sampler.Sequential(set.Len())}
	plan := batch.Sampler{Order: order.Epoch, Size: 4}.Epoch
	for b, err := range loader.New(plan, set.Take, loader.Config{}).Epoch(context.Background(), 0, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(b.Samples, batch.View[float32](b.Column("square")))
	}
	// Output:
	// [0 1 2 3] [0 1 4 9]
	// [4 5 6 7] [16 25 36 49]
	// [8 9] [64 81]
}

func writeSquares(dir string) error {
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{
		Fields:       []batch.Field{{Name: "number", Type: batch.Uint8}, {Name: "square", Type: batch.Float32}},
		RowsPerShard: 3,
	})
	if err != nil {
		return err
	}
	defer w.Abort() // does nothing after Close
	layout, err := batch.NewLayout([]batch.Field{{Name: "square", Type: batch.Float32}}, 1)
	if err != nil {
		return err
	}
	slab := make([]byte, layout.Size())
	for i := range 10 {
		square := layout.At(slab, 0)
		batch.View[float32](square)[0] = float32(i * i)
		if err := w.Write(1, []byte{byte(i)}, square.Data); err != nil {
			return err
		}
	}
	return w.Close()
}
