package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Allocator gives slabs and takes them back. Get never waits for a slab to
// come back: it makes a new one or fails. pinned.Pool is one.
type Allocator interface {
	Get(n int) ([]byte, error) // n bytes, at a multiple of Align, of any content
	Put(slab []byte)           // a slab from Get, with its length unchanged
}

// Batch is the bytes of one step: one slab that holds all columns.
//
// It is counted: New gives it one holder, Retain adds one, Release takes one
// away, and the last Release gives the slab back. A loader releases the batch
// when the body of the loop returns; whoever keeps it longer retains it.
type Batch struct {
	Step
	Layout Layout
	Slab   []byte // Layout.Size() bytes, until the last Release

	alloc Allocator
	refs  atomic.Int32
}

// New is a batch of the step with a slab from alloc, one holder and any
// content; the caller fills it. A nil alloc means the Go heap.
func New(step Step, layout Layout, alloc Allocator) (*Batch, error) {
	if layout.Rows() != len(step.Samples) {
		return nil, fmt.Errorf("batch: a layout of %d rows for a step of %d samples", layout.Rows(), len(step.Samples))
	}
	if alloc == nil {
		alloc = heap{}
	}
	slab, err := alloc.Get(layout.Size())
	if err != nil {
		return nil, fmt.Errorf("batch: %d bytes for %d rows: %w", layout.Size(), layout.Rows(), err)
	}
	b := &Batch{Step: step, Layout: layout, Slab: slab, alloc: alloc}
	b.refs.Store(1)
	return b, nil
}

// Column is the named column. It panics where there is none.
func (b *Batch) Column(name string) Column { return b.Layout.Column(b.Slab, name) }

// Bytes is the size of the slab.
func (b *Batch) Bytes() int { return b.Layout.Size() }

// Retain adds a holder.
func (b *Batch) Retain() {
	if b.refs.Add(1) <= 1 {
		panic("batch: Retain after the last Release")
	}
}

// Release takes a holder away; the last one gives the slab back.
func (b *Batch) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		slab := b.Slab
		b.Slab = nil // a use after release is an index out of range, not another batch's bytes
		b.alloc.Put(slab)
	case n < 0:
		panic("batch: released more often than retained")
	}
}

// heap is the Allocator of the Go heap.
type heap struct{}

func (heap) Get(n int) ([]byte, error) {
	b := make([]byte, n+Align)
	skip := -address(b) & (Align - 1)
	return b[skip : skip+uintptr(n) : skip+uintptr(n)], nil
}

func (heap) Put([]byte) {}

// SampleError says which sample could not be read.
type SampleError struct {
	Sample int
	Err    error
}

// Error names the sample and the cause.
func (e *SampleError) Error() string { return fmt.Sprintf("sample %d: %v", e.Sample, e.Err) }

// Unwrap is the cause.
func (e *SampleError) Unwrap() error { return e.Err }

// Collate makes a fetch, as a loader takes it, from a function that reads one
// sample and one that joins the samples of a step in their order.
//
// The samples of a step are read side by side, at most 64 at once, so get is
// called from several goroutines. The first sample that fails, by an error or
// a panic, ends the step with a *SampleError, after the reads that had begun
// have returned.
func Collate[S, T any](get func(ctx context.Context, epoch, sample int) (S, error), join func([]S) (T, error)) func(context.Context, Step) (T, error) {
	return func(ctx context.Context, step Step) (t T, err error) {
		parts, read := make([]S, len(step.Samples)), make([]bool, len(step.Samples))
		reads, ctx := errgroup.WithContext(ctx)
		reads.SetLimit(64) // enough for a slow disk, and no flood where a step has thousands of samples
		for k, sample := range step.Samples {
			reads.Go(func() (err error) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				defer func() {
					if p := recover(); p != nil {
						err = &SampleError{sample, fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
					}
				}()
				if parts[k], err = get(ctx, step.Epoch, sample); err != nil {
					return &SampleError{sample, err}
				}
				read[k] = true
				return nil
			})
		}
		if err := reads.Wait(); err != nil {
			return t, err
		}
		if k := slices.Index(read, false); k >= 0 {
			return t, &SampleError{step.Samples[k], errors.New("its read ended its goroutine (runtime.Goexit)")}
		}
		return join(parts)
	}
}
