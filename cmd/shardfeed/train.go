package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/pinned"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/checkpoint"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/nn"
	"github.com/shardfeed/shardfeed/trainer/optim"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

const (
	hidden   = 512 // units of the model's hidden layer
	testSize = 250 // samples of a step of the evaluation, on each rank
	keep     = 2   // checkpoints
)

// trainRank is one rank of a run, from the data to the summary.
func trainRank(ctx context.Context, o *trainOptions) (err error) {
	// Who is this rank, and who are the others?
	world, err := rendezvous.Env()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && world.Size > 1 {
			err = fmt.Errorf("rank %d: %w", world.Rank, err)
		}
	}()
	group, err := local.Join(ctx, world)
	if err != nil {
		return err
	}
	defer closing(&err, group.Close)
	defer func() {
		if err != nil {
			group.Fail(err)
		}
	}()

	// Data: rows of memory-mapped shards, gathered into page-locked slabs.
	dev := pinned.NewHost()
	defer closing(&err, dev.Close)
	pool := pinned.NewPool(dev, pinned.PoolConfig{})
	defer closing(&err, pool.Close)
	train, test, err := openData(o.data, pool)
	if err != nil {
		return err
	}
	defer closing(&err, train.Close)
	defer closing(&err, test.Close)

	// Order: which samples this rank visits in an epoch.
	order, err := o.ordering(train.Len(), world.Rank, world.Size)
	if err != nil {
		return err
	}

	// Plan: which of them go together. An epoch's last step may be short.
	plan := batch.Sampler{Order: order.Epoch, Padded: order.Padded(), Size: sampler.PerRank(o.globalBatch, world.Size, world.Rank)}
	perEpoch := (train.Len() + o.globalBatch - 1) / o.globalBatch
	last := o.epochs * perEpoch

	// Feed and device: batches are fetched ahead, across the boundary between
	// epochs, and copied to the device while earlier ones are used.
	feeder, err := feed(plan.Through(o.epochs-1), train, dev, plan.Size)
	if err != nil {
		return err
	}
	defer closing(&err, feeder.Close)

	// Model: the same on every rank, and the same as at the checkpoint.
	tensors, saved, done, err := o.load(order)
	if err != nil {
		return err
	}
	model := &nn.Classifier[*pinned.Batch]{Net: nn.MLP(train.pixels, hidden, o.classes), Examples: examples(), Run: dev.Run}
	sgd := &optim.SGD{LR: optim.Linear(o.lr, last), Momentum: o.momentum}
	ddp, err := trainer.New(ctx, group, model, sgd, trainer.Config{Seed: o.seed, Agree: []string{
		fmt.Sprintf("order %v with fingerprint %016x", order.Order, order.Fingerprint(0)),
		fmt.Sprintf("global batch %d, %d epochs, learning rate %v, momentum %v", o.globalBatch, o.epochs, o.lr, o.momentum),
	}})
	if err != nil {
		return err
	}
	at := order.Cursor(o.globalBatch, 0, 0)
	if saved != nil {
		if err := ddp.Restore(ctx, done, tensors); err != nil {
			return fmt.Errorf("checkpoint %s: %w", o.checkpoint, err)
		}
		at = saved.Cursor
	}
	save := func(c sampler.Cursor) error {
		if o.checkpoint == "" || world.Rank != 0 {
			return nil
		}
		tensors, err := ddp.Save()
		if err != nil {
			return err
		}
		return checkpoint.Save(o.checkpoint, ddp.Steps(), tensors, state{c, world.Size, o.values}, keep)
	}
	if saved == nil {
		if err := save(at); err != nil {
			return err
		}
	}
	samples, err := o.openSamplesLog(ctx, group, at)
	if err != nil {
		return err
	}
	defer closing(&err, samples.Close)

	// Evaluation: every sample of the test set once, whatever the world size.
	exact := sampler.Distributed{Order: sampler.Sequential(test.Len()), Rank: world.Rank, World: world.Size, Tail: sampler.Uneven}
	tests, err := feed(batch.Sampler{Order: exact.Epoch, Size: testSize}.Epoch, test, dev, testSize)
	if err != nil {
		return err
	}
	defer closing(&err, tests.Close)
	var result evaluation
	tested := -1 // steps that had been made when result was taken

	// The loop.
	stop := last
	if o.steps > 0 {
		stop = min(last, o.steps)
	}
	report := newReporter(world.Rank, o.json, ddp.Steps(), stop)
	defer report.bar.close()
	var firstStep time.Time
	var rows int
	began, aside := time.Now(), time.Duration(0) // time that is not training: evaluation, checkpoints
	if ddp.Steps() < stop {
		for b, err := range feeder.Epoch(ctx, at.Epoch, at.Step) {
			if err != nil {
				return err
			}
			loss, err := ddp.Step(ctx, b)
			switch {
			case err != nil:
				return nameSample(err, b.Step, train)
			case math.IsNaN(loss) || math.IsInf(loss, 0):
				return fmt.Errorf("epoch %d, step %d: the loss is %v: try a lower --lr than %v", b.Epoch, b.Index, loss, o.lr)
			}
			if firstStep.IsZero() {
				firstStep = time.Now()
			}
			rows += b.Rows()
			if err := samples.write(b.Step); err != nil {
				return err
			}
			if err := report.step(b.Epoch, b.Index, loss); err != nil {
				return err
			}
			paused := time.Now()
			at = order.Cursor(o.globalBatch, b.Epoch, b.Index+1)
			if at.Step == perEpoch {
				at = order.Cursor(o.globalBatch, b.Epoch+1, 0)
				if result, err = evaluate(ctx, group, test, tests, model); err != nil {
					return err
				}
				tested = ddp.Steps()
				if err := report.epoch(b.Epoch, loss, result); err != nil {
					return err
				}
			}
			if at.Step == 0 || ddp.Steps() == stop || o.checkpointEvery > 0 && ddp.Steps()%o.checkpointEvery == 0 {
				if err := save(at); err != nil {
					return err
				}
			}
			aside += time.Since(paused)
			if ddp.Steps() == stop {
				break
			}
		}
	}
	training := time.Since(began) - aside

	// The summary, of a run that was stopped or complete before it began, too.
	if tested != ddp.Steps() {
		if result, err = evaluate(ctx, group, test, tests, model); err != nil {
			return err
		}
	}
	share := 0.0
	if rows > 0 {
		share = feeder.Stats().Wait.Seconds() / training.Seconds()
	}
	totals, err := trainer.Totals(ctx, group, float64(rows), training.Seconds()/float64(world.Size), share/float64(world.Size))
	if err != nil {
		return err
	}
	s := summary{
		Accuracy: result.accuracy(), Loss: result.loss, Samples: result.samples,
		World: world.Size, Epochs: at.Epoch, Steps: ddp.Steps(),
		Rate: totals[0] / totals[1], Wait: totals[2],
		Seconds: time.Since(o.began).Seconds(), BLAS: nn.BLAS(),
	}
	if !firstStep.IsZero() {
		s.FirstStep = firstStep.Sub(o.began).Seconds()
	}
	return report.summary(s)
}

// summary is the last line of train --json.
type summary struct {
	Accuracy  float64 `json:"test_accuracy"`
	Loss      float64 `json:"test_loss"`
	Samples   int     `json:"test_samples"`
	World     int     `json:"world"`
	Epochs    int     `json:"epochs"`             // complete, those before a resume included
	Steps     int     `json:"steps"`              // likewise
	Rate      float64 `json:"samples_per_second"` // of all ranks, training alone
	Wait      float64 `json:"loader_wait_share"`  // of the training time, mean over the ranks
	FirstStep float64 `json:"first_step_seconds"` // from the start of the command to the end of the first step
	Seconds   float64 `json:"seconds"`            // from the start of the command
	BLAS      string  `json:"blas"`
}

// state is what a checkpoint holds beside the tensors.
type state struct {
	Cursor  sampler.Cursor    `json:"cursor"`
	World   int               `json:"world"`
	Options map[string]string `json:"options"`
}

// evaluation is what a model makes of the test set.
type evaluation struct {
	correct, samples int
	loss             float64 // mean
}

func (e evaluation) accuracy() float64 { return float64(e.correct) / float64(max(1, e.samples)) }

func evaluate(ctx context.Context, group *local.Group, test *images, tests *pinned.Feeder, model *nn.Classifier[*pinned.Batch]) (evaluation, error) {
	var correct, samples int
	var loss float64
	for b, err := range tests.Epoch(ctx, 0, 0) {
		if err != nil {
			return evaluation{}, err
		}
		right, sum, err := model.Evaluate(ctx, b)
		if err != nil {
			return evaluation{}, nameSample(err, b.Step, test)
		}
		correct, samples, loss = correct+right, samples+b.Rows(), loss+sum
	}
	all, err := trainer.Totals(ctx, group, float64(correct), float64(samples), loss)
	if err != nil {
		return evaluation{}, err
	}
	return evaluation{int(all[0]), int(all[1]), all[2] / max(1, all[1])}, nil
}

// images is a set of images and their labels.
type images struct {
	*arrowipc.Set
	dir    string
	pixels int // of an image
}

// openData opens the shards below dir and checks that a classifier can use them.
func openData(dir string, alloc batch.Allocator) (train, test *images, err error) {
	if train, err = openImages(filepath.Join(dir, "train"), alloc); err != nil {
		return nil, nil, err
	}
	if test, err = openImages(filepath.Join(dir, "test"), alloc); err != nil {
		return nil, nil, errors.Join(err, train.Close())
	}
	if train.pixels != test.pixels {
		err := fmt.Errorf("images of %d values in %s, of %d in %s", train.pixels, train.dir, test.pixels, test.dir)
		return nil, nil, errors.Join(err, train.Close(), test.Close())
	}
	return train, test, nil
}

func openImages(dir string, alloc batch.Allocator) (*images, error) {
	set, err := arrowipc.Open(dir, arrowipc.Options{Columns: []string{"image", "label"}, Alloc: alloc})
	if err != nil {
		return nil, err
	}
	image, label := set.Fields()[0], set.Fields()[1]
	switch {
	case image.Type != batch.Uint8 || image.Values() == 0:
		err = fmt.Errorf("%s: column %v: train takes images as fixed-size lists of uint8", dir, image)
	case len(label.Shape) > 0 || label.Type != batch.Uint8 && label.Type != batch.Int32 && label.Type != batch.Int64:
		err = fmt.Errorf("%s: column %v: train takes labels as uint8, int32 or int64, one a row", dir, label)
	case set.Len() == 0:
		err = fmt.Errorf("%s has no rows", dir)
	}
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return &images{set, dir, image.Values()}, nil
}

// ordering is the order of rank's samples of n.
func (o *trainOptions) ordering(n, rank, world int) (sampler.Distributed, error) {
	order, err := sampler.ByName(o.order, n)
	if err != nil {
		return sampler.Distributed{}, err
	}
	d := sampler.Distributed{Order: order, Rank: rank, World: world, Seed: o.seed, Global: o.globalBatch}
	return d, d.Validate()
}

// feed is a loader of the set's rows and a feeder that copies its batches of
// at most size rows to the device.
func feed(plan loader.Plan, set *images, dev pinned.Device, size int) (*pinned.Feeder, error) {
	layout, err := set.Layout(size)
	if err != nil {
		return nil, err
	}
	batches := loader.New(plan, set.Take, loader.Config{})
	return pinned.NewFeeder(batches.Epoch, dev, pinned.FeederConfig{Bytes: layout.Size()})
}

// load reads the checkpoint to go on from. saved is nil where the run begins
// at step 0.
func (o *trainOptions) load(order sampler.Distributed) (tensors []trainer.Tensor, saved *state, steps int, err error) {
	if o.checkpoint == "" {
		return nil, nil, 0, nil
	}
	saved = &state{}
	tensors, steps, err = checkpoint.Load(o.checkpoint, saved)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, 0, nil
	case err != nil:
		return nil, nil, 0, err
	case !o.resume:
		return nil, nil, 0, fmt.Errorf("--checkpoint %s holds a run at step %d: add --resume to go on from it, or name another directory", o.checkpoint, steps)
	}
	if err := order.Resume(saved.Cursor, o.globalBatch); err != nil {
		return nil, nil, 0, fmt.Errorf("checkpoint %s: %w: give the values that it was written with, or another --checkpoint", o.checkpoint, err)
	}
	return tensors, saved, steps, nil
}

// check fails, once, where every rank would.
func (o *trainOptions) check() error {
	train, test, err := openData(o.data, nil)
	if err != nil {
		return err
	}
	order, err := o.ordering(train.Len(), 0, o.nproc)
	if err == nil {
		_, _, _, err = o.load(order)
	}
	return errors.Join(err, train.Close(), test.Close())
}

// openSamplesLog opens this rank's list of samples, after rank 0 has cut those
// of all ranks at the cursor.
func (o *trainOptions) openSamplesLog(ctx context.Context, group *local.Group, at sampler.Cursor) (*samplesLog, error) {
	if o.samplesLog == "" {
		return &samplesLog{}, nil
	}
	if group.Rank() == 0 {
		if err := cutSamplesLogs(o.samplesLog, at); err != nil {
			return nil, err
		}
	}
	if _, err := group.Exchange(ctx, nil); err != nil {
		return nil, err
	}
	return openSamplesLog(o.samplesLog, group.Rank())
}

// examples is a function that reads batches on the device.
func examples() func(*pinned.Batch) (nn.Examples, error) {
	var labels []int // of the batch that was read last
	return func(b *pinned.Batch) (nn.Examples, error) {
		labels = labels[:0]
		switch c := b.Column("label"); c.Type {
		case batch.Uint8:
			labels = appendInts(labels, batch.View[uint8](c))
		case batch.Int32:
			labels = appendInts(labels, batch.View[int32](c))
		case batch.Int64:
			labels = appendInts(labels, batch.View[int64](c))
		}
		return nn.Examples{Pixels: b.Column("image").Data, Labels: labels, Rows: b.Rows()}, nil
	}
}

func appendInts[T uint8 | int32 | int64](ints []int, values []T) []int {
	for _, v := range values {
		ints = append(ints, int(v))
	}
	return ints
}

// nameSample says which sample has a wrong label.
func nameSample(err error, step batch.Step, set *images) error {
	var label *nn.LabelError
	if errors.As(err, &label) {
		return fmt.Errorf("%s: sample %d has the label %d, outside 0 … %d: correct it, or say with --classes how many there are", set.dir, step.Samples[label.Row], label.Label, label.Classes-1)
	}
	return err
}

// closing closes what a function has opened, and reports a failure where
// nothing else has failed.
func closing(err *error, close func() error) {
	if e := close(); *err == nil {
		*err = e
	}
}
