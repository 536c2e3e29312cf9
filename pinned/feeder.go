package pinned

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardfeed/shardfeed/batch"
)

// Source yields the batches of an epoch without the first skip, and an error
// last if at all. A batch is the loop's until its body returns;
// loader.Loader.Epoch is one.
type Source func(ctx context.Context, epoch, skip int) iter.Seq2[*batch.Batch, error]

// Batch is a step in device memory.
//
// It is the loop's until the body returns, and compute queued in the body may
// use it until it has run. It cannot be retained: its memory is refilled.
type Batch struct {
	batch.Step
	Layout batch.Layout
	Mem    Mem // Layout.Size() bytes, laid out as the host's batch
}

// Column is the named column where the host can reach the device's memory, as
// on the Host device. Only compute queued on the device may touch its data.
// It panics where there is no such column or the host cannot reach it.
func (b *Batch) Column(name string) batch.Column {
	if b.Mem.Bytes == nil {
		panic(fmt.Sprintf("pinned: column %q lies in memory that the host cannot reach", name))
	}
	return b.Layout.Column(b.Mem.Bytes, name)
}

// Bytes is the size of the batch.
func (b *Batch) Bytes() int { return b.Layout.Size() }

// Feeder copies the batches of a Source to a Device, each into one of a few
// slots of device memory, while earlier batches are used.
type Feeder struct {
	source Source
	dev    Device
	slots  []Mem

	busy atomic.Bool // an epoch runs, or Close
	late error       // of the device, when no loop listened any more

	mu    sync.Mutex
	stats FeederStats
}

var errBusy = errors.New("pinned: the feeder is in use by a loop over an epoch: its slots serve one at a time")

// FeederConfig sets up a Feeder.
type FeederConfig struct {
	// Bytes is the size of the largest batch, Layout.Size() of a full step.
	// There is no default.
	Bytes int
	// Depth is the number of slots; 0: 2, one batch in use and one on its
	// way. With 1, copies and compute take turns.
	Depth int
}

// FeederStats is what the loops over a Feeder have done so far, all epochs
// together.
type FeederStats struct {
	Steps int           // batches that reached a loop's body
	Bytes int64         // their size
	Wait  time.Duration // loops waited for a batch: from the end of a body to the next
	Work  time.Duration // spent in bodies
}

// NewFeeder allocates the slots. The caller closes the Feeder before the device.
func NewFeeder(source Source, dev Device, cfg FeederConfig) (*Feeder, error) {
	if cfg.Bytes < 1 || cfg.Depth < 0 {
		return nil, fmt.Errorf("pinned: a feeder with %d slots of %d bytes: Depth is their number, Bytes the size of the largest batch", cfg.Depth, cfg.Bytes)
	}
	if cfg.Depth == 0 {
		cfg.Depth = 2
	}
	f := &Feeder{source: source, dev: dev}
	for k := range cfg.Depth {
		m, err := dev.Alloc(cfg.Bytes)
		if err != nil {
			err = fmt.Errorf("pinned: slot %d of %d, %d bytes: %w", k+1, cfg.Depth, cfg.Bytes, err)
			return nil, errors.Join(err, f.free())
		}
		f.slots = append(f.slots, m)
	}
	return f, nil
}

// Stats may be called at any time.
func (f *Feeder) Stats() FeederStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Close waits for the compute queued so far and frees the slots. It also
// returns what the device reported after a loop had ended. It fails inside a
// loop. Where the device fails it, Close may be called again; after it has
// succeeded it does nothing.
func (f *Feeder) Close() error {
	if !f.busy.CompareAndSwap(false, true) {
		return errBusy
	}
	defer f.busy.Store(false)
	late := f.late
	f.late = nil
	if len(f.slots) == 0 {
		return late
	}
	// A copy of nothing is over when the compute that it is held behind is.
	if err := f.dev.Hold(); err != nil {
		return errors.Join(late, fmt.Errorf("pinned: close: hold: %w", err))
	}
	fence, err := f.dev.Copy(f.slots[0], nil)
	if err == nil {
		err = fence.Wait(context.Background())
	}
	if err != nil {
		return errors.Join(late, fmt.Errorf("pinned: close: wait for compute: %w", err))
	}
	return errors.Join(late, f.free())
}

// free frees the slots; those that the device does not take stay.
func (f *Feeder) free() error {
	var errs []error
	f.slots = slices.DeleteFunc(f.slots, func(m Mem) bool {
		err := f.dev.Free(m)
		if err != nil {
			errs = append(errs, fmt.Errorf("pinned: free a slot of %d bytes: %w", m.Len, err))
		}
		return err == nil
	})
	return errors.Join(errs...)
}

// Epoch yields the source's batches of the epoch without the first skip, in
// device memory. The copy of the next batch has been started before a batch
// is delivered, and compute queued in the loop's body waits for the batch's
// own.
//
// An error comes last, with a nil batch: from the source as it is, from the
// device with the epoch and the step, after the batches copied before it;
// where ctx has ended, at once. One loop at a time may range over a Feeder's
// epochs. Nothing is in flight when the loop has ended, however it ended.
func (f *Feeder) Epoch(ctx context.Context, epoch, skip int) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		if !f.busy.CompareAndSwap(false, true) {
			yield(nil, errBusy)
			return
		}
		defer f.busy.Store(false)
		if len(f.slots) == 0 {
			yield(nil, errors.New("pinned: Epoch of a feeder that is closed"))
			return
		}
		p := &pass{Feeder: f, yield: yield, idle: time.Now()}
		defer p.finish()
		if err := f.dev.Hold(); err != nil { // the loop before may have failed to
			p.fail(fmt.Errorf("pinned: epoch %d: hold: %w", epoch, err))
			return
		}
		err := p.drain(ctx, epoch, skip)
		for !p.over && len(p.flights) > 0 {
			p.deliver(ctx)
		}
		if err != nil && !p.over {
			p.unheard = nil
			p.give(nil, err)
		}
	}
}

// pass is one range loop over an epoch.
type pass struct {
	*Feeder
	yield   func(*Batch, error) bool
	flights []flight  // what has not landed, in order; at most one for each slot
	slot    int       // the next to fill
	idle    time.Time // when the loop began to wait
	inBody  bool
	over    bool  // the loop has ended, or has its error
	unheard error // of the device, and the loop has not been told
}

// flight is a batch on its way to the device. The host's batch is retained
// until the fence has passed.
type flight struct {
	*Batch
	host  *batch.Batch
	fence Fence
}

// drain copies all batches of the source and delivers all but the last few.
// Its error is that of the first batch that could not be had.
func (p *pass) drain(ctx context.Context, epoch, skip int) (err error) {
	defer func() {
		if p.inBody {
			return // the loop's own panic
		}
		if v := recover(); v != nil {
			err = fmt.Errorf("pinned: epoch %d: the source panicked: %v\n%s", epoch, v, debug.Stack())
			if p.over {
				p.unheard = errors.Join(p.unheard, err)
			}
		}
	}()
	for host, err := range p.source(ctx, epoch, skip) {
		if err != nil {
			return err
		}
		if err := p.start(host); err != nil {
			return err
		}
		if len(p.flights) == len(p.slots) {
			p.deliver(ctx)
			if p.over {
				return nil
			}
		}
	}
	return nil
}

// start starts the copy of a batch.
func (p *pass) start(host *batch.Batch) error {
	slot := p.slots[p.slot]
	if host.Bytes() > slot.Len {
		return at(host.Step, "copy", fmt.Errorf("the batch has %d bytes and the feeder's slots %d: FeederConfig.Bytes is the size of the largest batch", host.Bytes(), slot.Len))
	}
	mem := slot.Slice(0, host.Bytes())
	fence, err := p.dev.Copy(mem, host.Slab)
	if err != nil {
		p.unheard = at(host.Step, "copy", err)
		return p.unheard
	}
	host.Retain()
	p.flights = append(p.flights, flight{&Batch{host.Step, host.Layout, mem}, host, fence})
	p.slot = (p.slot + 1) % len(p.slots)
	return nil
}

// deliver runs the loop's body on the oldest batch in flight.
func (p *pass) deliver(ctx context.Context) {
	b := p.flights[0].Batch
	if ctx.Err() != nil {
		p.fail(at(b.Step, "deliver", context.Cause(ctx)))
		return
	}
	if err := p.flights[0].fence.Join(); err != nil {
		p.fail(at(b.Step, "join", err))
		return
	}
	hold := p.body(b)
	if err := errors.Join(hold, p.land()); err != nil {
		p.fail(err)
	}
}

// body runs the loop's body and then holds the copies behind what it queued,
// however it ended.
func (p *pass) body(b *Batch) (err error) {
	begin := time.Now()
	defer func() {
		wait := begin.Sub(p.idle)
		p.idle = time.Now()
		p.mu.Lock()
		p.stats.Steps++
		p.stats.Bytes += int64(b.Bytes())
		p.stats.Wait += wait
		p.stats.Work += p.idle.Sub(begin)
		p.mu.Unlock()
		if err = p.dev.Hold(); err != nil {
			err = at(b.Step, "hold", err)
		}
		if p.inBody { // by a panic, which takes no error along
			p.unheard = errors.Join(p.unheard, err)
		}
	}()
	p.give(b, nil)
	return nil
}

// give runs the loop's body.
func (p *pass) give(b *Batch, err error) {
	p.inBody = true
	more := p.yield(b, err)
	p.inBody = false
	p.over = !more || err != nil
}

// fail ends the loop with an error, which is for Close where it has ended.
func (p *pass) fail(err error) {
	if p.over {
		p.unheard = errors.Join(p.unheard, err)
	} else {
		p.give(nil, err)
	}
}

// land waits until the oldest copy in flight has ended and releases its host batch.
func (p *pass) land() error {
	f := p.flights[0]
	p.flights = slices.Delete(p.flights, 0, 1)
	defer f.host.Release()
	// A copy that has started ends, and until then its batch cannot go, whatever ctx says.
	if err := f.fence.Wait(context.Background()); err != nil {
		return at(f.Step, "copy", err)
	}
	return nil
}

// finish leaves nothing in flight.
func (p *pass) finish() {
	for len(p.flights) > 0 {
		p.unheard = errors.Join(p.unheard, p.land())
	}
	p.late = errors.Join(p.late, p.unheard)
}

// at says where the device failed.
func at(step batch.Step, what string, err error) error {
	return fmt.Errorf("pinned: epoch %d, step %d: %s: %w", step.Epoch, step.Index, what, err)
}
