package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/checkpoint"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// state is what a checkpoint holds beside the tensors.
type state struct {
	Cursor  sampler.Cursor    `json:"cursor"`
	World   int               `json:"world"`
	Options map[string]string `json:"options"`
}

// beginning is where a run begins or goes on.
type beginning struct {
	at      sampler.Cursor
	saved   sampler.Cursor   // the same place, in steps of the batch that the checkpoint was written with
	resumed bool             // from a checkpoint,
	updates int              // after so many,
	tensors []trainer.Tensor // with these
}

func (b beginning) String() string {
	if b.resumed {
		return fmt.Sprintf("a run resumed after update %d", b.updates)
	}
	return "a run from the beginning"
}

// begin reads the checkpoint to go on from.
func (o *trainOptions) begin(order sampler.Distributed) (beginning, error) {
	b, err := o.resumable(order)
	if err != nil || !b.resumed {
		return b, err
	}
	c, err := checkpoint.Load(o.checkpoint, checkpoint.Latest, nil)
	b.updates, b.tensors = c.Step, c.Tensors
	return b, err
}

// resumable is begin without reading the tensors.
func (o *trainOptions) resumable(order sampler.Distributed) (beginning, error) {
	start := order.Cursor(o.globalBatch, 0, 0)
	if o.checkpoint == "" {
		return beginning{at: start, saved: start}, nil
	}
	var saved state
	c, err := checkpoint.Peek(o.checkpoint, checkpoint.Latest, &saved)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return beginning{at: start, saved: start}, nil
	case err != nil:
		return beginning{}, err
	case !o.resume && !restarted():
		return beginning{}, fmt.Errorf("--checkpoint %s holds a run at step %d: add --resume to go on from it, or name another directory", o.checkpoint, c.Step)
	}
	at, err := order.Resume(saved.Cursor, o.globalBatch)
	if err != nil {
		return beginning{}, fmt.Errorf("checkpoint %s: %w", o.checkpoint, err)
	}
	return beginning{at: at, saved: saved.Cursor, resumed: true, updates: c.Step}, nil
}

// restarted says whether a launcher has started this rank anew, after a
// failure: then it goes on from its own checkpoint.
func restarted() bool {
	n, err := strconv.Atoi(os.Getenv("TORCHELASTIC_RESTART_COUNT"))
	return err == nil && n > 0
}

// save writes a checkpoint, on rank 0. metric is nil in the middle of an epoch.
func (r *replica) save(metric *float64) error {
	if r.o.checkpoint == "" {
		return nil
	}
	reach("checkpoint")
	if r.group.Rank() != 0 {
		return nil
	}
	tensors, err := r.ddp.Save()
	if err != nil {
		return err
	}
	return checkpoint.Save(r.o.checkpoint, checkpoint.Checkpoint{
		Step: r.ddp.Steps(), Tensors: tensors, Metric: metric, State: state{r.at, r.group.Size(), r.o.values},
	}, r.o.keep)
}

// check fails, once, where every rank would.
func (o *trainOptions) check(nproc int) error {
	if o.globalBatch < nproc {
		return usageError{fmt.Errorf("--global-batch is %d, below --nproc, which is %d: every rank needs a sample of each step", o.globalBatch, nproc)}
	}
	train, test, err := openData(o.data, nil)
	if err != nil {
		return err
	}
	order, err := o.ordering(train.Len(), 0, nproc)
	if err == nil {
		_, err = o.resumable(order)
	}
	if err == nil {
		_, err = o.net(train, nil)
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
	if err := trainer.Barrier(ctx, group); err != nil {
		return nil, err
	}
	return openSamplesLog(o.samplesLog, group.Rank())
}
