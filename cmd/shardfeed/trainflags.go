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
	"strings"
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
	launch     launchOptions
	initMethod string
	timeout    time.Duration

	data, cache string
	classes     int
	order, tail string
	globalBatch int
	seed        uint64

	epochs, steps int
	model         string
	dropout       float64
	syncBN        bool
	freeze        string

	optimizer           string
	lr                  float64
	schedule            string
	warmup              int
	momentum            float64
	nesterov            bool
	weightDecay         float64
	clipNorm, clipValue float64
	nonFinite           string
	accumulate          int
	firstBucket, bucket float64 // MiB

	checkpoint      string
	checkpointEvery int
	keep            int
	resume          bool

	compare, out string
	samplesLog   string
	json         bool
	config       string

	began  time.Time // of the command that the user gave
	values map[string]string
}

func newTrain() *cobra.Command {
	o := &trainOptions{}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a classifier on shards of images, on several ranks",
		Long: `Train a classifier on shards of images: a perceptron of one hidden layer, or a
small convolutional network.

Without --data it trains on MNIST, which it finds in Go's module cache (or
fetches through the go command) and converts once. It starts --nproc ranks on
this machine; under a launcher that sets RANK it is one rank itself.

Every option can also be given as a variable (SHARDFEED_GLOBAL_BATCH for
--global-batch) or in a TOML file (--config); an option wins over a variable,
a variable over the file.`,
		Example: `  shardfeed train
  shardfeed train --nproc 4 --epochs 10 --json
  shardfeed train --model cnn --syncbn --optimizer adamw --schedule cosine --warmup 100
  shardfeed train --compare 1,2,4 --out compared
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
	o.launch.flags(f)
	f.StringVar(&o.initMethod, "init-method", "env://", "how ranks that another program has started find each other: env://, tcp://HOST:PORT or file:///PATH, each with ?rank=R&world_size=W unless RANK and WORLD_SIZE are set")
	f.DurationVar(&o.timeout, "timeout", 60*time.Second, "how long a rank waits for another one, which is named then (0: for ever)")

	f.StringVar(&o.data, "data", "", "directory with train/ and test/ shards of image and label columns (default: MNIST)")
	f.StringVar(&o.cache, "cache", "", "directory for the converted MNIST (default: shardfeed in the user's cache directory)")
	f.IntVar(&o.classes, "classes", 10, "number of classes: labels are 0 … classes-1")
	f.StringVar(&o.order, "order", "keyed", "order of the samples: keyed, torch or sequential")
	f.StringVar(&o.tail, "tail", "pad", "the end of an epoch that the ranks cannot share evenly: pad, drop, or uneven (ranks without samples take part without)")
	f.IntVar(&o.globalBatch, "global-batch", 128, "samples of a step, over all ranks")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order, of the model's first values and of dropout")

	f.IntVar(&o.epochs, "epochs", 4, "passes over the training data")
	f.IntVar(&o.steps, "steps", 0, "stop after so many updates, counted from the beginning of the run (0: at the end)")
	oneOf(f, &o.model, "model", "the model", models)
	f.Float64Var(&o.dropout, "dropout", 0, "share of the values before the last layer that training drops")
	f.BoolVar(&o.syncBN, "syncbn", false, "normalize by the statistics of all ranks, as SyncBatchNorm")
	f.StringVar(&o.freeze, "freeze", "", "parameters that stay as they are, by the beginnings of their names: conv1,bn1")

	oneOf(f, &o.optimizer, "optimizer", "the optimizer", optimizers)
	f.Float64Var(&o.lr, "lr", 0, "learning rate (0: with sgd 0.2 for the mlp and 0.04 for the cnn, with adamw 0.002)")
	oneOf(f, &o.schedule, "schedule", "how the learning rate falls over the run; step: to a tenth after each third", schedules)
	f.IntVar(&o.warmup, "warmup", 0, "updates in which the learning rate rises linearly, before the schedule")
	f.Float64Var(&o.momentum, "momentum", 0.9, "momentum of sgd")
	f.BoolVar(&o.nesterov, "nesterov", false, "Nesterov's momentum")
	f.Float64Var(&o.weightDecay, "weight-decay", 0, "weight decay, of weights but not of biases and norms")
	f.Float64Var(&o.clipNorm, "clip-norm", 0, "bound of the norm of all gradients together (0: none)")
	f.Float64Var(&o.clipValue, "clip-value", 0, "bound of each gradient (0: none)")
	oneOf(f, &o.nonFinite, "non-finite", "what a loss or gradient that is infinite or NaN does to the run", policies)
	f.IntVar(&o.accumulate, "accumulate", 1, "steps whose gradients make one update")
	f.Float64Var(&o.firstBucket, "first-bucket-mb", 1, "MiB of the gradients that are averaged first")
	f.Float64Var(&o.bucket, "bucket-mb", 25, "MiB of those that follow, at a time")

	f.StringVar(&o.checkpoint, "checkpoint", "", "directory for checkpoints (default: none are written)")
	f.IntVar(&o.checkpointEvery, "checkpoint-every", 0, "updates between checkpoints (0: at the end of each epoch only)")
	f.IntVar(&o.keep, "keep", 2, "newest checkpoints that stay, beside the one of the best test accuracy (0: all)")
	f.BoolVar(&o.resume, "resume", false, "go on from the newest checkpoint in --checkpoint")

	f.StringVar(&o.compare, "compare", "", "train once for each of these numbers of ranks and draw the runs side by side: 1,2,4,4+syncbn")
	f.StringVar(&o.out, "out", "", "directory for compare.png, compare.svg and compare.json")
	f.StringVar(&o.samplesLog, "samples-log", "", "directory for a list of the samples that each rank trained on")
	f.BoolVar(&o.json, "json", false, "print a JSON object a line: each update, each epoch, a summary")
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

// oneOf is an option that takes one of some words; the first is its default.
func oneOf(f *pflag.FlagSet, p *string, name, usage string, words []string) {
	*p = words[0]
	f.Var(&choice{p, words}, name, usage+": "+strings.Join(words, ", "))
}

// choice is the value of an option that takes one of some words.
type choice struct {
	value *string
	words []string
}

func (c *choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

func (c *choice) Type() string { return "word" }

func (c *choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("use one of %s", strings.Join(c.words, ", "))
	}
	*c.value = word
	return nil
}

func (o *trainOptions) validate() error {
	var errs []error
	atLeast := func(name string, value, least int) {
		if value < least {
			errs = append(errs, fmt.Errorf("--%s is %d: give at least %d", name, value, least))
		}
	}
	atLeast("epochs", o.epochs, 1)
	atLeast("steps", o.steps, 0)
	atLeast("global-batch", o.globalBatch, 1)
	atLeast("classes", o.classes, 2)
	atLeast("warmup", o.warmup, 0)
	atLeast("accumulate", o.accumulate, 1)
	atLeast("checkpoint-every", o.checkpointEvery, 0)
	atLeast("keep", o.keep, 0)
	between := func(name string, value, low, high float64) { // from low to below high
		if !(value >= low && value < high) {
			errs = append(errs, fmt.Errorf("--%s is %v: give a number from %v to below %v", name, value, low, high))
		}
	}
	between("momentum", o.momentum, 0, 1)
	between("dropout", o.dropout, 0, 1)
	for _, number := range []struct {
		name  string
		value float64
		zero  bool // is allowed
	}{
		{"lr", o.lr, true}, {"weight-decay", o.weightDecay, true}, {"clip-norm", o.clipNorm, true}, {"clip-value", o.clipValue, true},
		{"first-bucket-mb", o.firstBucket, false}, {"bucket-mb", o.bucket, false},
	} {
		if !(number.value >= 0) || math.IsInf(number.value, 0) || number.value == 0 && !number.zero {
			errs = append(errs, fmt.Errorf("--%s is %v: give a number above 0", number.name, number.value))
		}
	}
	if o.timeout < 0 {
		errs = append(errs, fmt.Errorf("--timeout is %v: give a duration such as 30s, or 0", o.timeout))
	}
	if o.nesterov && (o.momentum == 0 || o.optimizer != "sgd") {
		errs = append(errs, errors.New("--nesterov needs --optimizer sgd and a --momentum above 0"))
	}
	if o.syncBN && o.model != "cnn" {
		errs = append(errs, fmt.Errorf("--syncbn needs --model cnn: the %s has no batch norm", o.model))
	}
	if o.checkpoint == "" && (o.resume || o.checkpointEvery > 0) {
		errs = append(errs, errors.New("--resume and --checkpoint-every need --checkpoint DIR"))
	}
	if o.out != "" && o.compare == "" {
		errs = append(errs, errors.New("--out is for --compare"))
	}
	if o.compare != "" {
		if _, err := newComparison(o.compare, o.out); err != nil {
			errs = append(errs, err)
		}
		if o.checkpoint != "" || o.samplesLog != "" {
			errs = append(errs, errors.New("--compare trains several models: it goes without --checkpoint and --samples-log"))
		}
		if o.syncBN {
			errs = append(errs, errors.New("--syncbn does not go with --compare: write +syncbn behind the entries that are to have it, as in 1,2,2+syncbn"))
		}
		if o.isRank() {
			errs = append(errs, errors.New("--compare starts its ranks itself: it goes without RANK in the environment and without --init-method"))
		}
	}
	if _, err := sampler.ByName(o.order, 0); err != nil {
		errs = append(errs, fmt.Errorf("--order is %q: %w", o.order, err))
	}
	if _, err := sampler.ParseTail(o.tail); err != nil {
		errs = append(errs, fmt.Errorf("--tail is %q: %w", o.tail, err))
	}
	return errors.Join(errs...)
}

// run is the command: one rank where a launcher has said so, else the
// launcher of --nproc ranks, or of those of each entry of --compare.
func (o *trainOptions) run(ctx context.Context, f *pflag.FlagSet) error {
	starting := givenLaunchFlag(f) // on the command line: variables and files may be for other commands, too
	if err := overlay(f, os.Getenv, o.config); err != nil {
		return err
	}
	switch err := o.validate(); {
	case err != nil:
		return usageError{err}
	case starting != "" && o.isRank():
		return usagef("--%s is for the command that starts the ranks: RANK or --init-method is set, so this process is one of them", starting)
	case starting != "" && o.compare != "":
		return usagef("--%s does not go with --compare, which starts its ranks itself", starting)
	}
	if err := nn.SetBLAS(os.Getenv("SHARDFEED_BLAS")); err != nil {
		return fmt.Errorf("SHARDFEED_BLAS: %w", err)
	}
	if err := o.prepare(ctx, f); err != nil {
		return err
	}
	switch {
	case o.isRank():
		return trainRank(ctx, o)
	case o.compare != "":
		return o.comparison(ctx)
	}
	nproc := o.launch.ranks()
	if err := o.check(nproc); err != nil {
		return err
	}
	if nproc == 1 && !o.launch.used() {
		return trainRank(ctx, o)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg := o.launch.config()
	cfg.Args = append([]string{self, "train"}, o.args()...)
	cfg.Env = append(os.Environ(), beganVariable+"="+strconv.FormatInt(o.began.UnixNano(), 10))
	cfg.Timeout = 2 * o.timeout // after the ranks themselves have had their say
	return launch.Run(ctx, cfg)
}

// isRank says whether something else starts the ranks, and this process is one.
func (o *trainOptions) isRank() bool { return os.Getenv("RANK") != "" || o.initMethod != "env://" }

// args are the options of each rank: all but those that start it.
func (o *trainOptions) args() (args []string) {
	starting := launchFlags()
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		if name != "config" && starting.Lookup(name) == nil {
			args = append(args, "--"+name+"="+o.values[name])
		}
	}
	return args
}

// comparison trains for each entry of --compare.
func (o *trainOptions) comparison(ctx context.Context) error {
	c, err := newComparison(o.compare, o.out)
	if err != nil {
		return err
	}
	train, err := openImages(filepath.Join(o.data, "train"), nil)
	if err != nil {
		return err
	}
	order, err := o.ordering(train.Len(), 0, 1)
	if err := errors.Join(err, train.Close()); err != nil {
		return err
	}
	for _, e := range c.entries {
		each := *o
		each.compare, each.out, each.syncBN = "", "", e.syncBN
		if err := each.validate(); err != nil {
			return usageError{fmt.Errorf("--compare, entry %v: %w", e, err)}
		}
		if err := o.check(e.ranks); err != nil {
			return fmt.Errorf("--compare, entry %v: %w", e, err)
		}
	}
	c.json, c.steps = o.json, updates(order.Cursor(o.globalBatch, 0, 0), stepsPerEpoch(order), o.epochs, o.accumulate)
	if o.steps > 0 {
		c.steps = min(c.steps, o.steps)
	}
	c.train = trainAlone(o.args())
	return c.run(ctx, os.Stdout)
}

// rates are the learning rates where none is given.
var rates = map[string]string{"sgd mlp": "0.2", "sgd cnn": "0.04", "adamw mlp": "0.002", "adamw cnn": "0.002"}

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
	if o.lr == 0 {
		if err := f.Set("lr", rates[o.optimizer+" "+o.model]); err != nil {
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
