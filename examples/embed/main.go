// Embed reads shards in a shuffled order, batch by batch: the whole of
// shardfeed that a program with a training loop of its own needs.
//
//	go run ./examples/embed DIR
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/pinned"
	"github.com/shardfeed/shardfeed/sampler"
)

func main() {
	dev := pinned.NewHost()
	defer dev.Close()
	pool := pinned.NewPool(dev, pinned.PoolConfig{}) // page-locked slabs, used again and again
	defer pool.Close()
	set, err := arrowipc.Open(os.Args[1], arrowipc.Options{Columns: []string{"image", "label"}, Alloc: pool})
	if err != nil {
		log.Fatal(err)
	}
	defer set.Close()
	order := sampler.Distributed{Order: sampler.Keyed(set.Len()), Seed: 42}
	plan := batch.Sampler{Order: order.Epoch, Size: 128}
	feed := loader.New(plan.Epoch, set.Take, loader.Config{})
	for epoch := range 2 { // naming the epoch shuffles it anew
		for b, err := range feed.Epoch(context.Background(), epoch, 0) {
			if err != nil {
				log.Fatal(err)
			}
			images, labels := batch.View[uint8](b.Column("image")), batch.View[uint8](b.Column("label"))
			fmt.Println(epoch, b.Index, b.Samples[0], len(images), labels[0])
		}
	}
}
