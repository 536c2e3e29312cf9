package local_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// Three ranks add up what each has.
func ExampleSpawn() {
	err := local.Spawn(context.Background(), 3, func(ctx context.Context, g *local.Group) error {
		v, err := g.Alloc(2)
		if err != nil {
			return err
		}
		v[0], v[1] = float32(g.Rank()), 1
		wait, err := g.AllReduce(ctx, v, trainer.Sum)
		if err != nil {
			return err
		}
		// Compute something else here, meanwhile.
		if err := wait(); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Println(v)
		}
		return nil
	}).Wait()
	fmt.Println(err)
	// Output:
	// [3 3]
	// <nil>
}

// A rank that is a process of its own, started with torchrun's variables: it
// joins the others, waits no longer than a minute for any of them, and if it
// fails it tells them why.
func ExampleJoin() {
	work := func(ctx context.Context, g *local.Group) error {
		all, err := g.Exchange(ctx, []byte("hello"))
		fmt.Printf("%s\n", all)
		return err
	}
	w, err := rendezvous.Env()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	ctx := context.Background()
	g, err := local.Config{Timeout: time.Minute}.Join(ctx, w)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := work(ctx, g); err != nil {
		g.Fail(err)
		fmt.Println(err)
	}
	g.Close()
	// Output: [hello]
}
