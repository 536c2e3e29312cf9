package rendezvous_test

import (
	"context"
	"fmt"
	"log"

	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// A rank finds the others, shares what they need to know, and leaves. Started
// without a launcher it is alone.
func Example() {
	ctx := context.Background()
	world, err := rendezvous.Env()
	if err != nil {
		log.Fatal(err)
	}
	store, err := rendezvous.Join(ctx, world)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if world.Rank == 0 {
		if err := store.Set(ctx, "segment", []byte("where it is")); err != nil {
			store.Fail(err)
			log.Fatal(err)
		}
	}
	segment, err := store.Get(ctx, "segment")
	if err != nil {
		log.Fatal(err) // it names the rank that has failed
	}
	fmt.Printf("rank %d of %d: %s\n", world.Rank, world.Size, segment)
	// Output: rank 0 of 1: where it is
}

func ExampleFromEnv() {
	env := map[string]string{"RANK": "1", "MASTER_ADDR": "node0"}
	_, err := rendezvous.FromEnv(func(name string) string { return env[name] }, nil)
	fmt.Println(err)
	// Output: rendezvous: WORLD_SIZE is not set; MASTER_PORT is not set: start the ranks with shardfeed launch or torchrun, which set all of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or unset these to run alone
}
