package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardfeed/shardfeed/internal/mnist"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer/launch"
	"github.com/shardfeed/shardfeed/trainer/nn"
)

// trainOptions are the options of train. values are their effective values by
// name, as ranks get them and checkpoints store them.
type trainOptions struct {
	nproc           int
	epochs          int
	steps           int
	globalBatch     int
	seed            uint64
	order           string
	lr              float64
	momentum        float64
	classes         int
	data            string
	cache           string
	checkpoint      string
	checkpointEvery int
	resume          bool
	samplesLog      string
	json            bool
	config          string

	began  time.Time // of the command that the user gave
	values map[string]string
}

func newTrain() *cobra.Command {
	o := &trainOptions{}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a classifier on shards of images, on several ranks",
		Long: `Train a classifier of one hidden layer on shards of images.

Without --data it trains on MNIST, which it finds in Go's module cache (or
fetches through the go command) and converts once. It starts --nproc ranks on
this machine; under a launcher that sets RANK it is one rank itself.

Every option can also be given as a variable (SHARDFEED_GLOBAL_BATCH for
--global-batch) or in a TOML file (--config); an option wins over a variable,
a variable over the file.`,
		Example: `  shardfeed train
  shardfeed train --nproc 4 --epochs 10 --json
  shardfeed train --checkpoint runs/a --checkpoint-every 100 --steps 250
  shardfeed train --checkpoint runs/a --checkpoint-every 100 --resume --nproc 3
  shardfeed train --data shards --classes 100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.Flags())
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *trainOptions) flags(f *pflag.FlagSet) {
	f.IntVar(&o.nproc, "nproc", 2, "ranks to start on this machine")
	f.IntVar(&o.epochs, "epochs", 4, "passes over the training data")
	f.IntVar(&o.steps, "steps", 0, "stop after so many global steps, counted from the beginning of the run (0: at the end)")
	f.IntVar(&o.globalBatch, "global-batch", 128, "samples of a step, over all ranks")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order and of the model's first values")
	f.StringVar(&o.order, "order", "keyed", "order of the samples: keyed, torch or sequential")
	f.Float64Var(&o.lr, "lr", 0.2, "learning rate; it falls linearly to 0 over all epochs")
	f.Float64Var(&o.momentum, "momentum", 0.9, "momentum of SGD")
	f.IntVar(&o.classes, "classes", 10, "number of classes: labels are 0 … classes-1")
	f.StringVar(&o.data, "data", "", "directory with train/ and test/ shards of image and label columns (default: MNIST)")
	f.StringVar(&o.cache, "cache", "", "directory for the converted MNIST (default: shardfeed in the user's cache directory)")
	f.StringVar(&o.checkpoint, "checkpoint", "", "directory for checkpoints (default: none are written)")
	f.IntVar(&o.checkpointEvery, "checkpoint-every", 0, "steps between checkpoints (0: at the end of each epoch only)")
	f.BoolVar(&o.resume, "resume", false, "go on from the newest checkpoint in --checkpoint")
	f.StringVar(&o.samplesLog, "samples-log", "", "directory for a list of the samples that each rank trained on")
	f.BoolVar(&o.json, "json", false, "print a JSON object a line: each step, each epoch, a summary")
	f.StringVar(&o.config, "config", "", "TOML file with values for these options")
	// Old launchers add it, in one of two spellings; rendezvous.Env compares it
	// with LOCAL_RANK.
	f.Int(relic, 0, "")
	if err := f.MarkHidden(relic); err != nil {
		panic(err)
	}
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "local_rank" {
			name = relic
		}
		return pflag.NormalizedName(name)
	})
}

const relic = "local-rank"

func (o *trainOptions) validate() error {
	var errs []error
	atLeast := func(name string, value, least int) {
		if value < least {
			errs = append(errs, fmt.Errorf("--%s is %d: give at least %d", name, value, least))
		}
	}
	atLeast("nproc", o.nproc, 1)
	atLeast("epochs", o.epochs, 1)
	atLeast("steps", o.steps, 0)
	atLeast("global-batch", o.globalBatch, 1)
	atLeast("classes", o.classes, 2)
	atLeast("checkpoint-every", o.checkpointEvery, 0)
	if !(o.lr > 0) || math.IsInf(o.lr, 0) {
		errs = append(errs, fmt.Errorf("--lr is %v: give a number above 0", o.lr))
	}
	if !(o.momentum >= 0 && o.momentum < 1) {
		errs = append(errs, fmt.Errorf("--momentum is %v: give a number from 0 to below 1", o.momentum))
	}
	if o.checkpoint == "" && (o.resume || o.checkpointEvery > 0) {
		errs = append(errs, errors.New("--resume and --checkpoint-every need --checkpoint DIR"))
	}
	if _, err := sampler.ByName(o.order, 0); err != nil {
		errs = append(errs, fmt.Errorf("--order is %q: %w", o.order, err))
	}
	return errors.Join(errs...)
}

// run is the command: one rank where a launcher has said so, else the
// launcher of --nproc ranks.
func (o *trainOptions) run(ctx context.Context, f *pflag.FlagSet) error {
	rank := os.Getenv("RANK") != ""
	if rank && f.Changed("nproc") {
		return usageError{errors.New("--nproc is for the command that starts the ranks: RANK is set, so this process is one of them")}
	}
	if err := overlay(f, os.Getenv, o.config); err != nil {
		return err
	}
	if err := o.validate(); err != nil {
		return usageError{err}
	}
	if err := nn.SetBLAS(os.Getenv("SHARDFEED_BLAS")); err != nil {
		return fmt.Errorf("SHARDFEED_BLAS: %w", err)
	}
	if err := o.prepare(ctx, f); err != nil {
		return err
	}
	if rank {
		return trainRank(ctx, o)
	}
	if o.globalBatch < o.nproc {
		return usageError{fmt.Errorf("--global-batch is %d, below --nproc, which is %d: every rank needs a sample of each step", o.globalBatch, o.nproc)}
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.nproc == 1 {
		return trainRank(ctx, o)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{self, "train"}
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		if name != "nproc" && name != "config" {
			args = append(args, "--"+name+"="+o.values[name])
		}
	}
	env := append(os.Environ(), beganVariable+"="+strconv.FormatInt(o.began.UnixNano(), 10))
	return launch.Run(ctx, launch.Config{Nproc: o.nproc, Args: args, Env: env})
}

// beganVariable tells the ranks when the user's command began.
const beganVariable = "SHARDFEED_TRAIN_BEGAN"

// prepare finds the data and fixes the effective values.
func (o *trainOptions) prepare(ctx context.Context, f *pflag.FlagSet) error {
	o.began = time.Now()
	if ns, err := strconv.ParseInt(os.Getenv(beganVariable), 10, 64); err == nil {
		o.began = time.Unix(0, ns)
	}
	if o.data == "" {
		cache := o.cache
		if cache == "" {
			user, err := os.UserCacheDir()
			if err != nil {
				return fmt.Errorf("no cache directory for MNIST: %w: name one with --cache DIR, or shards of your own with --data DIR", err)
			}
			cache = filepath.Join(user, "shardfeed")
		}
		dir, err := mnist.Prepare(ctx, cache, func(what string) { fmt.Fprintln(os.Stderr, "shardfeed:", what) })
		if err != nil {
			return err
		}
		if err := f.Set("data", dir); err != nil {
			return err
		}
	}
	o.values = map[string]string{}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "help" && flag.Name != relic {
			o.values[flag.Name] = flag.Value.String()
		}
	})
	return nil
}
