// Ddp trains a classifier on shards of 28×28 images, on as many ranks as it is
// started on.
//
//	go run ./cmd/shardfeed launch --nproc 2 -- go run ./examples/ddp DIR
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
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/nn"
	"github.com/shardfeed/shardfeed/trainer/optim"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

func main() {
	if err := train(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func train(ctx context.Context, dir string) (err error) {
	const global, epochs = 128, 2
	world, err := rendezvous.Env() // RANK, WORLD_SIZE, MASTER_ADDR, …, as torchrun sets them
	if err != nil {
		return err
	}
	group, err := local.Join(ctx, world)
	if err != nil {
		return err
	}
	defer group.Close()
	defer func() {
		if err != nil {
			group.Fail(err) // the others end with it, too
		}
	}()
	set, err := arrowipc.Open(dir, arrowipc.Options{Columns: []string{"image", "label"}})
	if err != nil {
		return err
	}
	defer set.Close()
	order := sampler.Distributed{Order: sampler.Keyed(set.Len()), Rank: world.Rank, World: world.Size, Seed: 42, Global: global}
	plan := batch.Sampler{Order: order.Epoch, Padded: order.Padded(), Size: sampler.PerRank(global, world.Size, world.Rank)}
	feed := loader.New(plan.Through(epochs-1), set.Take, loader.Config{})
	layout, err := set.Layout(plan.Size)
	if err != nil {
		return err
	}
	dev := pinned.NewHost()
	defer dev.Close()
	feeder, err := pinned.NewFeeder(feed.Epoch, dev, pinned.FeederConfig{Bytes: layout.Size()})
	if err != nil {
		return err
	}
	defer feeder.Close()
	model := &nn.Classifier[*pinned.Batch]{Net: nn.MLP(784, 512, 10), Examples: examples, Run: dev.Run}
	sgd := &optim.SGD{LR: optim.Linear(0.1, epochs*((set.Len()+global-1)/global)), Momentum: 0.9}
	ddp, err := trainer.New(ctx, group, model, sgd, trainer.Config{Seed: 42})
	if err != nil {
		return err
	}
	for b, err := range feeder.Epoch(ctx, 0, 0) {
		if err != nil {
			return err
		}
		loss, err := ddp.Step(ctx, b)
		if err != nil {
			return err
		}
		if world.Rank == 0 && b.Index%100 == 0 {
			fmt.Printf("epoch %d, step %d: loss %.4f\n", b.Epoch, b.Index, loss)
		}
	}
	return nil
}

func examples(b *pinned.Batch) (nn.Examples, error) {
	var labels []int
	for _, label := range batch.View[uint8](b.Column("label")) {
		labels = append(labels, int(label))
	}
	return nn.Examples{Pixels: b.Column("image").Data, Labels: labels, Rows: b.Rows()}, nil
}
