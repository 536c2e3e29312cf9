package devicetest

import (
	"bytes"
	"context"
	"iter"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/pinned"
)

// feeding is a loop over batches of which all bytes are checked on the device.
type feeding struct {
	steps, depth int
	slowCopies   bool // the copy stream lags behind the host
	slowCompute  bool // the compute stream does
}

func feeders(d *device) {
	for _, f := range []feeding{
		{steps: 0}, {steps: 1}, {steps: 9},
		{steps: 9, depth: 1}, {steps: 9, depth: 5}, {steps: 3, depth: 5},
		{steps: 9, slowCopies: true}, {steps: 9, slowCompute: true},
		{steps: 5, depth: 3, slowCopies: true, slowCompute: true}, {steps: 5, depth: 1, slowCopies: true, slowCompute: true},
	} {
		if wrong := d.feed(d.Harness, f); len(wrong) > 0 {
			d.Errorf("%+v: wrong batches: %v", f, wrong)
		}
	}
}

// feed loops over two epochs, the first to a break in its middle, and says
// which steps arrived wrong.
func (d *device) feed(dev pinned.Device, f feeding) (wrong []batch.Step) {
	// To allocate may wait for the device, so it is done before.
	epochs := [2][]pinned.Mem{make([]pinned.Mem, (f.steps+1)/2), make([]pinned.Mem, f.steps)}
	for _, results := range epochs {
		for k := range results {
			results[k] = d.alloc(size(k, f.steps))
		}
	}
	pool := pinned.NewPool(dev, pinned.PoolConfig{Poison: true})
	feeder, err := pinned.NewFeeder(d.source(pool, f), dev, pinned.FeederConfig{Bytes: size(0, f.steps), Depth: f.depth})
	d.check("NewFeeder", err)
	for epoch, results := range epochs {
		n := 0
		for b, err := range feeder.Epoch(context.Background(), epoch, 0) {
			d.check("Epoch", err)
			if f.slowCompute {
				d.compute(results[n], b.Mem, busy)
			} else {
				d.compute(results[n], b.Mem, 0)
			}
			if n++; n == len(results) {
				break
			}
		}
		if n != len(results) {
			d.Errorf("%+v: %d batches of epoch %d, want %d", f, n, epoch, len(results))
		}
	}
	d.check("Feeder.Close", feeder.Close())
	d.check("Pool.Close", pool.Close())
	for epoch, results := range epochs {
		for k, result := range results {
			got, err := d.Read(result)
			d.check("Read", err)
			if !bytes.Equal(got, pattern(size(k, f.steps), content(epoch, k))) {
				wrong = append(wrong, batch.Step{Epoch: epoch, Index: k})
			}
		}
	}
	return wrong
}

// source makes batches as a loader does: each is released when the body of
// its loop returns.
func (d *device) source(pool *pinned.Pool, f feeding) pinned.Source {
	return func(ctx context.Context, epoch, skip int) iter.Seq2[*batch.Batch, error] {
		return func(yield func(*batch.Batch, error) bool) {
			for k := skip; k < f.steps; k++ {
				n := size(k, f.steps)
				layout, err := batch.NewLayout([]batch.Field{{Name: "x", Type: batch.Uint8}}, n)
				d.check("NewLayout", err)
				b, err := batch.New(batch.Step{Epoch: epoch, Index: k, Samples: make([]int, n)}, layout, pool)
				d.check("batch.New", err)
				copy(b.Slab, pattern(n, content(epoch, k)))
				if f.slowCopies {
					d.check("Stall", d.Stall(busy))
				}
				more := yield(b, nil)
				b.Release()
				if !more {
					return
				}
			}
		}
	}
}

// size is the size of a batch: the last is shorter.
func size(index, steps int) int {
	if index == steps-1 {
		return 64 * 10
	}
	return 64 * 100
}

func content(epoch, index int) int { return 10*epoch + index + 1 }

// mistake is a device with which a Feeder forgets an ordering.
type mistake struct {
	Harness
	name             string
	join, hold, wait bool
}

// Free waits for what the mistake has left running.
func (m mistake) Free(mem pinned.Mem) error {
	if err := m.Sync(); err != nil {
		return err
	}
	return m.Harness.Free(mem)
}

func (m mistake) Hold() error {
	if m.hold {
		return nil
	}
	return m.Harness.Hold()
}

func (m mistake) Copy(dst pinned.Mem, src []byte) (pinned.Fence, error) {
	f, err := m.Harness.Copy(dst, src)
	return mistaken{f, m}, err
}

type mistaken struct {
	pinned.Fence
	m mistake
}

func (f mistaken) Join() error {
	if f.m.join {
		return nil
	}
	return f.Fence.Join()
}

func (f mistaken) Wait(ctx context.Context) error {
	if f.m.wait {
		return nil
	}
	return f.Fence.Wait(ctx)
}
