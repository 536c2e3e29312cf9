package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/pinned"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/nn"
	"github.com/shardfeed/shardfeed/trainer/ranklog"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

const testSize = 250 // samples of a step of the evaluation, on each rank

// reach is called where a run comes to a place at which tests let a rank fail.
var reach = func(place string) {}

// trainRank is one rank of a run, from the rendezvous to the summary.
func trainRank(ctx context.Context, o *trainOptions) (err error) {
	// Who is this rank, and who are the others?
	reach("rendezvous")
	world, err := rendezvous.URL(o.initMethod)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && world.Size > 1 {
			err = fmt.Errorf("rank %d: %w", world.Rank, err)
		}
	}()
	group, err := local.Config{Timeout: o.timeout}.Join(ctx, world)
	if err != nil {
		return err
	}
	defer closing(&err, group.Close)
	defer func() {
		p := recover()
		if p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		group.Fail(err)
		if p != nil {
			panic(p)
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

	// Order: which samples this rank visits in an epoch, and where the run is.
	order, err := o.ordering(train.Len(), world.Rank, world.Size)
	if err != nil {
		return err
	}
	begin, err := o.begin(order)
	if err != nil {
		return err
	}

	// Plan: which samples go together. An epoch's last step may be short.
	plan := batch.Sampler{Order: order.Epoch, Padded: order.Padded(), Size: sampler.PerRank(o.globalBatch, world.Size, world.Rank)}
	r := &replica{
		o: o, group: group, test: test, order: order, perEpoch: stepsPerEpoch(order), at: begin.at,
		log: slog.New(ranklog.New(slog.NewTextHandler(os.Stderr, nil), world.Rank, world.Size)),
	}
	if begin.resumed {
		r.log.Info("resumed", "checkpoint", o.checkpoint, "update", begin.updates, "epoch", begin.at.Epoch, "step", begin.at.Step)
	}

	// Feed and device: batches are fetched ahead, across the boundary between
	// epochs, and copied to the device while earlier ones are used.
	feeder, err := feed(plan.Through(o.epochs-1), train, dev, plan.Size)
	if err != nil {
		return err
	}
	defer closing(&err, feeder.Close)

	// Model: the same on every rank, and the same as at the checkpoint.
	net, err := o.net(train, group)
	if err != nil {
		return err
	}
	last := begin.updates + updates(r.at, r.perEpoch, o.epochs, o.accumulate)
	r.model = &nn.Classifier[*pinned.Batch]{Net: net, Examples: examples(), Run: dev.Run}
	r.ddp, err = trainer.New(ctx, group, r.model, o.newOptimizer(last), o.ddp(order, begin))
	if err != nil {
		return err
	}
	if begin.resumed {
		if err := r.ddp.Restore(ctx, begin.updates, begin.tensors); err != nil {
			return fmt.Errorf("checkpoint %s: %w", o.checkpoint, err)
		}
	} else if err := r.save(nil); err != nil {
		return err
	}
	if r.samples, err = o.openSamplesLog(ctx, group, begin.saved); err != nil {
		return err
	}
	defer closing(&err, r.samples.Close)

	// Evaluation: every sample of the test set once, whatever the world size.
	exact := sampler.Distributed{Order: sampler.Sequential(test.Len()), Rank: world.Rank, World: world.Size, Tail: sampler.Uneven}
	if r.tests, err = feed(batch.Sampler{Order: exact.Epoch, Size: testSize}.Epoch, test, dev, testSize); err != nil {
		return err
	}
	defer closing(&err, r.tests.Close)

	if r.stop = last; o.steps > 0 {
		r.stop = min(last, o.steps)
	}
	r.report = newReporter(world.Rank, o.json, r.ddp.Steps(), r.stop)
	defer r.report.bar.close()
	if err := r.loop(ctx, feeder); err != nil {
		return nameSample(err, train)
	}
	return r.summary(ctx, feeder)
}

// replica is a rank's part of the training.
type replica struct {
	o        *trainOptions
	group    *local.Group
	test     *images
	tests    *pinned.Feeder
	order    sampler.Distributed
	perEpoch int // global steps
	model    *nn.Classifier[*pinned.Batch]
	ddp      *trainer.DDP[*pinned.Batch, trainer.Host]
	report   *reporter
	samples  *samplesLog
	log      *slog.Logger // of which rank 0 speaks alone

	at     sampler.Cursor // behind the steps that have been made
	stop   int            // updates at the end of this process
	result nn.Score       // of the test set,
	tested int            // taken after so many updates
	losses mean           // of the running epoch

	began, firstStep time.Time
	rows             int
	aside            time.Duration // that is not training: evaluation, checkpoints
	training         time.Duration
}

// loop trains until the end, or until it is to stop.
func (r *replica) loop(ctx context.Context, feeder *pinned.Feeder) error {
	r.began, r.tested = time.Now(), -1
	defer func() { r.training = time.Since(r.began) - r.aside }()
	if r.ddp.Steps() >= r.stop {
		return nil
	}
	reach("first step")
	for s, err := range globalSteps(feeder.Epoch(ctx, r.at.Epoch, r.at.Step), r.at, r.perEpoch, r.o.epochs) {
		if err != nil {
			return err
		}
		if err := r.step(ctx, s); err != nil {
			return fmt.Errorf("epoch %d, step %d: %w", s.epoch, s.index, err)
		}
		paused := time.Now()
		if err := r.pause(ctx, s); err != nil {
			return err
		}
		r.aside += time.Since(paused)
		if r.ddp.Steps() == r.stop {
			break
		}
	}
	return nil
}

// step trains on one global step.
func (r *replica) step(ctx context.Context, s globalStep) (err error) {
	before, skipped, loss := r.ddp.Steps(), r.ddp.Stats().Skipped, 0.0
	if s.batch != nil {
		loss, err = r.ddp.Step(ctx, s.batch)
	} else {
		loss, err = r.ddp.Idle(ctx)
	}
	if err == nil && s.index == r.perEpoch-1 && r.ddp.Pending() > 0 {
		loss, err = r.ddp.Flush(ctx)
	}
	bad := new(trainer.NonFiniteError)
	switch {
	case errors.As(err, &bad):
		return fmt.Errorf("%w: try a lower --lr than %v, or --clip-norm", err, r.o.lr)
	case err != nil && s.batch != nil:
		return &stepError{s.batch.Step, err}
	case err != nil:
		return err
	}
	r.at = r.order.Cursor(r.o.globalBatch, s.epoch, s.index+1)
	if s.batch != nil {
		r.rows += s.batch.Rows()
		if err := r.samples.write(s.batch.Step); err != nil {
			return err
		}
	}
	if r.ddp.Steps() == before {
		return nil // gradients are accumulated
	}
	if r.firstStep.IsZero() {
		r.firstStep = time.Now()
	}
	if stats := r.ddp.Stats(); stats.Skipped > skipped {
		r.log.Info("update skipped", "reason", stats.Reason)
	}
	r.losses.add(loss)
	return r.report.step(s.epoch, s.index, loss)
}

// pause is what there is to do between two steps: the evaluation at the end of
// an epoch, and checkpoints.
func (r *replica) pause(ctx context.Context, s globalStep) error {
	if s.index == r.perEpoch/2 {
		reach("mid-epoch")
	}
	updates := r.ddp.Steps()
	var metric *float64
	ended := r.at.Step == r.perEpoch
	if ended {
		r.at = r.order.Cursor(r.o.globalBatch, s.epoch+1, 0)
		if err := r.evaluate(ctx); err != nil {
			return err
		}
		accuracy := r.result.All().Accuracy()
		metric = &accuracy
		if err := r.report.epoch(s.epoch, r.losses.mean(), r.result); err != nil {
			return err
		}
		if updates < r.stop {
			r.losses = mean{}
		}
	}
	every := r.o.checkpointEvery
	if r.ddp.Pending() == 0 && (ended || updates == r.stop || every > 0 && updates%every == 0) {
		return r.save(metric)
	}
	return nil
}

// evaluate scores the model on the test set, each sample once over all ranks.
func (r *replica) evaluate(ctx context.Context) (err error) {
	reach("evaluation")
	var mine nn.Score
	for b, err := range r.tests.Epoch(ctx, 0, 0) {
		if err != nil {
			return err
		}
		if err := r.model.Evaluate(ctx, b, &mine); err != nil {
			return nameSample(&stepError{b.Step, err}, r.test)
		}
	}
	r.result, err = mine.Sum(ctx, r.group)
	r.tested = r.ddp.Steps()
	return err
}

// summary ends a run, one that was stopped or complete before it began, too.
func (r *replica) summary(ctx context.Context, feeder *pinned.Feeder) error {
	if r.tested != r.ddp.Steps() {
		if err := r.evaluate(ctx); err != nil {
			return err
		}
	}
	wait := 0.0
	if r.rows > 0 {
		wait = feeder.Stats().Wait.Seconds() / r.training.Seconds()
	}
	world, stats := float64(r.group.Size()), r.ddp.Stats()
	totals, err := trainer.Totals(ctx, r.group, float64(r.rows), r.training.Seconds()/world, wait/world, stats.Overlap()/world)
	if err != nil {
		return err
	}
	all := r.result.All()
	s := summary{
		Accuracy: all.Accuracy(), Loss: number(r.result.MeanLoss()), Samples: all.Rows, TrainLoss: number(r.losses.mean()),
		World: r.group.Size(), Epochs: r.at.Epoch, Steps: r.ddp.Steps(), Skipped: stats.Skipped,
		Rate: totals[0] / totals[1], Wait: totals[2], Overlap: totals[3],
		Seconds: time.Since(r.o.began).Seconds(), BLAS: nn.BLAS(),
	}
	for _, class := range r.result.Classes {
		s.PerClass = append(s.PerClass, class.Accuracy())
	}
	if !r.firstStep.IsZero() {
		s.FirstStep = r.firstStep.Sub(r.o.began).Seconds()
	}
	return r.report.summary(s)
}

// summary is the last line of train --json.
type summary struct {
	Accuracy  float64   `json:"test_accuracy"`
	Loss      number    `json:"test_loss"`
	Samples   int       `json:"test_samples"`
	PerClass  []float64 `json:"per_class_accuracy"` // of the test set, by label
	TrainLoss number    `json:"loss"`               // mean over the updates of the last epoch that this process trained in; null where it made none
	World     int       `json:"world"`
	Epochs    int       `json:"epochs"`             // complete, those before a resume included
	Steps     int       `json:"steps"`              // updates, likewise
	Skipped   int       `json:"skipped"`            // of them by this process, because something was not finite
	Rate      float64   `json:"samples_per_second"` // of all ranks, training alone
	Wait      float64   `json:"loader_wait_share"`  // of the training time, mean over the ranks
	Overlap   float64   `json:"overlap"`            // share of the all-reduces hidden by the backward pass, likewise
	FirstStep float64   `json:"first_step_seconds"` // from the start of the command to the end of the first update
	Seconds   float64   `json:"seconds"`            // from the start of the command
	BLAS      string    `json:"blas"`
}

// globalStep is a step of all ranks, with this rank's batch; nil where the
// others alone have rows.
type globalStep struct {
	epoch, index int
	batch        *pinned.Batch
}

// globalSteps ranges over the steps from the cursor to the end of the last
// epoch. Where this rank's batches leave a step out, it comes without one.
func globalSteps(batches iter.Seq2[*pinned.Batch, error], at sampler.Cursor, perEpoch, epochs int) iter.Seq2[globalStep, error] {
	return func(yield func(globalStep, error) bool) {
		next := at.Epoch*perEpoch + at.Step
		until := func(end int) bool {
			for ; next < end; next++ {
				if !yield(globalStep{next / perEpoch, next % perEpoch, nil}, nil) {
					return false
				}
			}
			return true
		}
		for b, err := range batches {
			if err != nil {
				yield(globalStep{}, err)
				return
			}
			if !until(b.Epoch*perEpoch+b.Index) || !yield(globalStep{b.Epoch, b.Index, b}, nil) {
				return
			}
			next++
		}
		until(epochs * perEpoch)
	}
}

// stepsPerEpoch is the global steps of an epoch: those of rank 0, which has no
// fewer than any other.
func stepsPerEpoch(order sampler.Distributed) int {
	order.Rank = 0
	each := sampler.PerRank(order.Global, order.World, 0)
	return (order.Len() + each - 1) / each
}

// updates is how many updates follow from the cursor to the end of the run. An
// epoch's last one may have fewer accumulated steps than the others.
func updates(at sampler.Cursor, perEpoch, epochs, accumulate int) int {
	ofEpoch := func(steps int) int { return (steps + accumulate - 1) / accumulate }
	return ofEpoch(perEpoch-at.Step) + (epochs-at.Epoch-1)*ofEpoch(perEpoch)
}

// mean is a running mean of what is finite; NaN of nothing.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(x float64) {
	if !math.IsNaN(x) && !math.IsInf(x, 0) {
		m.sum, m.n = m.sum+x, m.n+1
	}
}

func (m *mean) mean() float64 { return m.sum / float64(m.n) }

// closing closes what a function has opened, and reports a failure where
// nothing else has failed.
func closing(err *error, close func() error) {
	if e := close(); *err == nil {
		*err = e
	}
}
