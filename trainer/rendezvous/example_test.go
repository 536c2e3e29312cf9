package rendezvous_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

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

// The three ways to say where the ranks meet. env:// takes all from the
// variables, which are not set here: the process is alone.
func ExampleFromURL() {
	for _, url := range []string{
		"env://",
		"tcp://127.0.0.1:29500?rank=1&world_size=2",
		"file:///shared/run7?rank=1&world_size=2",
		"tcp://node0?rank=2&world_size=2",
	} {
		w, err := rendezvous.FromURL(url, func(string) string { return "" }, nil)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("rank %d of %d by %q\n", w.Rank, w.Size, w.Addr+filepath.ToSlash(w.File))
	}
	// Output:
	// rank 0 of 1 by ""
	// rank 1 of 2 by "127.0.0.1:29500"
	// rank 1 of 2 by "/shared/run7"
	// rendezvous: URL "tcp://node0?rank=2&world_size=2": "node0" has no port; RANK is 2, but WORLD_SIZE is 2: ranks count from 0: give env://, tcp://host:port or file:///path, with ?rank=R&world_size=W where RANK and WORLD_SIZE are not set
}

// Ranks that share nothing but a folder meet by a file, which need not be there
// before and is gone afterwards. Here they are goroutines of one process.
func ExampleJoin_file() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "run7")
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			store, err := rendezvous.Join(context.Background(), rendezvous.World{Rank: rank, Size: 2, File: file})
			if err != nil {
				log.Fatal(err)
			}
			if err := store.Close(); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	_, err = os.Stat(file)
	fmt.Println("gone:", os.IsNotExist(err))
	// Output: gone: true
}
