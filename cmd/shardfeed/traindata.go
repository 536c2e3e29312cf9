package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/pinned"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer/nn"
)

// images is a set of images and their labels.
type images struct {
	*arrowipc.Set
	dir    string
	pixels int   // of an image
	shape  []int // of an image
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
	return &images{set, dir, image.Values(), image.Shape}, nil
}

// ordering is the order of rank's samples of n.
func (o *trainOptions) ordering(n, rank, world int) (sampler.Distributed, error) {
	order, err := sampler.ByName(o.order, n)
	if err != nil {
		return sampler.Distributed{}, err
	}
	tail, err := sampler.ParseTail(o.tail)
	if err != nil {
		return sampler.Distributed{}, err
	}
	d := sampler.Distributed{Order: order, Rank: rank, World: world, Seed: o.seed, Tail: tail, Global: o.globalBatch}
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
		return nn.Examples{Pixels: b.Column("image").Data, Labels: labels, Rows: b.Rows(), Epoch: b.Epoch, Samples: b.Samples}, nil
	}
}

func appendInts[T uint8 | int32 | int64](ints []int, values []T) []int {
	for _, v := range values {
		ints = append(ints, int(v))
	}
	return ints
}

// stepError is an error with one step of this rank.
type stepError struct {
	step batch.Step
	error
}

func (e *stepError) Unwrap() error { return e.error }

// nameSample says which sample has a wrong label.
func nameSample(err error, set *images) error {
	at, label := new(stepError), new(nn.LabelError)
	if errors.As(err, &at) && errors.As(err, &label) {
		return fmt.Errorf("%s: sample %d has the label %d, outside 0 … %d: correct it, or say with --classes how many there are", set.dir, at.step.Samples[label.Row], label.Label, label.Classes-1)
	}
	return err
}
