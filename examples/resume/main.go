// Resume shows that a killed run goes on exactly, on any number of ranks: it
// reads shards on 2 ranks, kills one with SIGKILL, goes on with 3 ranks, kills
// one, goes on with 4, and compares every sample of every global step with a
// run that nobody disturbed.
//
//	go run ./examples/resume
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer/launch"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

const (
	rows   = 10_007 // a prime: no number of ranks divides it
	global = 64
	epochs = 2
)

func main() {
	log.SetFlags(0)
	run := show
	if os.Getenv("RESUME_DIR") != "" {
		run = func() error { return rank(context.Background(), os.Getenv("RESUME_DIR"), os.Getenv("RESUME_KILL")) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// show makes the runs and compares what they have read.
func show() error {
	temp, err := os.MkdirTemp("", "resume")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := write(filepath.Join(temp, "shards")); err != nil {
		return err
	}
	whole, killed := filepath.Join(temp, "whole"), filepath.Join(temp, "killed")
	runs := []struct {
		dir   string
		ranks int
		kill  string // rank:epoch:step
	}{{whole, 1, ""}, {killed, 2, "1:0:61"}, {killed, 3, "0:1:33"}, {killed, 4, ""}}
	for _, r := range runs {
		err := start(temp, r.dir, r.ranks, r.kill)
		switch {
		case r.kill == "" && err != nil:
			return err
		case r.kill == "":
			fmt.Printf("on %d: to the end\n", r.ranks)
		case err == nil:
			return fmt.Errorf("the run on %d ranks survived the kill of %s", r.ranks, r.kill)
		default:
			who, at, _ := strings.Cut(r.kill, ":")
			fmt.Printf("on %d: rank %s killed with SIGKILL at epoch:step %s\n", r.ranks, who, at)
		}
	}
	want, _, err := visited(whole)
	if err != nil {
		return err
	}
	got, again, err := visited(killed)
	if err != nil {
		return err
	}
	for step, samples := range want {
		if !slices.Equal(got[step], samples) {
			return fmt.Errorf("epoch:step %s: the killed run read %v, the other %v", step, got[step], samples)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("the killed run made %d steps, the other %d", len(got), len(want))
	}
	fmt.Printf("compared %d samples in %d global steps: all equal (%d steps were done again after a kill)\n", epochs*rows, len(want), again)
	return nil
}

// write makes shards of rows rows: row i holds the number i.
func write(dir string) error {
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: []batch.Field{{Name: "value", Type: batch.Int32}}, RowsPerShard: 3000})
	if err != nil {
		return err
	}
	defer w.Abort()
	values := make([]byte, 0, 4*rows)
	for i := range rows {
		values = append(values, byte(i), byte(i>>8), byte(i>>16), byte(i>>24))
	}
	if err := w.Write(rows, values); err != nil {
		return err
	}
	return w.Close()
}

// start runs this program as ranks that go on where dir's cursor says.
func start(temp, dir string, ranks int, kill string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	stderr := os.Stderr
	if kill != "" { // the survivors complain, as they should
		if stderr, err = os.Create(filepath.Join(temp, "stderr")); err != nil {
			return err
		}
		defer stderr.Close()
	}
	return launch.Run(context.Background(), launch.Config{
		Nproc: ranks, Args: []string{self}, Stderr: stderr,
		Env: append(os.Environ(), "RESUME_DIR="+dir, "RESUME_KILL="+kill),
	})
}

// rank reads what is left of the epochs, writes down what it has read, and
// kills itself where it is told to. Rank 0 saves the cursor every 10 steps.
func rank(ctx context.Context, dir, kill string) error {
	world, err := rendezvous.Env()
	if err != nil {
		return err
	}
	group, err := local.Join(ctx, world)
	if err != nil {
		return err
	}
	defer group.Close()
	set, err := arrowipc.Open(filepath.Join(dir, "..", "shards"), arrowipc.Options{})
	if err != nil {
		return err
	}
	defer set.Close()
	order := sampler.Distributed{Order: sampler.Keyed(set.Len()), Rank: world.Rank, World: world.Size, Seed: 7, Global: global}
	at, saved := order.Cursor(global, 0, 0), filepath.Join(dir, "cursor.json")
	if text, err := os.ReadFile(saved); err == nil {
		if err := json.Unmarshal(text, &at); err != nil {
			return err
		}
		if at, err = order.Resume(at, global); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("rank-%d-of-%d.txt", world.Rank, world.Size)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	defer log.Close()
	plan := batch.Sampler{Order: order.Epoch, Padded: order.Padded(), Size: sampler.PerRank(global, world.Size, world.Rank)}
	feed := loader.New(plan.Through(epochs-1), set.Take, loader.Config{})
	for b, err := range feed.Epoch(ctx, at.Epoch, at.Step) {
		if err != nil {
			return err
		}
		if kill == fmt.Sprintf("%d:%d:%d", world.Rank, b.Epoch, b.Index) {
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			return self.Kill()
		}
		line := fmt.Appendf(nil, "%d:%d", b.Epoch, b.Index)
		for _, v := range batch.View[int32](b.Column("value"))[:b.Rows()] {
			line = fmt.Appendf(line, " %d", v)
		}
		if _, err := log.Write(append(line, '\n')); err != nil {
			return err
		}
		if _, err := group.Exchange(ctx, nil); err != nil { // the step that trains: all ranks or none
			return err
		}
		if world.Rank == 0 && b.Index%10 == 9 {
			text, err := json.Marshal(order.Cursor(global, b.Epoch, b.Index+1))
			if err != nil {
				return err
			}
			if err := os.WriteFile(saved+".new", text, 0o666); err != nil {
				return err
			}
			if err := os.Rename(saved+".new", saved); err != nil {
				return err
			}
		}
	}
	return nil
}

// visited is the samples of each global step, sorted. A step that several
// runs made counts once, from the run with the most ranks, which came last;
// again counts those steps.
func visited(dir string) (steps map[string][]int, again int, err error) {
	steps = map[string][]int{}
	for ranks := 4; ranks > 0; ranks-- {
		run := map[string][]int{}
		logs, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("rank-*-of-%d.txt", ranks)))
		if err != nil {
			return nil, 0, err
		}
		for _, name := range logs {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, 0, err
			}
			for line := range bytes.Lines(text) {
				fields := strings.Fields(string(line))
				for _, f := range fields[1:] {
					sample, err := strconv.Atoi(f)
					if err != nil {
						return nil, 0, fmt.Errorf("%s: %w", name, err)
					}
					run[fields[0]] = append(run[fields[0]], sample)
				}
			}
		}
		for step, samples := range run {
			if steps[step] != nil {
				again++
				continue
			}
			slices.Sort(samples)
			steps[step] = samples
		}
	}
	return steps, again, nil
}
