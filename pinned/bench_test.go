package pinned_test

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/pinned"
)

var sizes = []int{64, 100 << 10, 9 << 20} // a step of nothing, of 128 images of 784 bytes, of 64 of 147 KiB

// BenchmarkFeeder is a step through a Feeder and the Host, beside the one
// copy that it consists of. What is added to the copy is the overhead; where
// the feeder copies while the loop's body runs, none of it is waited for.
func BenchmarkFeeder(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("memcpy/%d", n), func(b *testing.B) {
			h := pinned.NewHost()
			src, _ := h.AllocHost(n)
			dst, _ := h.Alloc(n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				copy(dst.Bytes, src)
			}
			h.FreeHost(src)
			h.Free(dst)
			closeAll(b, h)
		})
		b.Run(fmt.Sprintf("feeder/%d", n), func(b *testing.B) {
			h := pinned.NewHost()
			p := pinned.NewPool(h, pinned.PoolConfig{})
			f, err := pinned.NewFeeder(endless(b, p, n), h, pinned.FeederConfig{Bytes: n})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			next, stop := iter.Pull2(f.Epoch(b.Context(), 0, 0))
			for b.Loop() {
				if _, err, _ := next(); err != nil {
					b.Fatal(err)
				}
			}
			stop()
			closeAll(b, f, p, h)
		})
	}
}

// endless is a source of one batch again and again.
func endless(b *testing.B, p *pinned.Pool, n int) pinned.Source {
	layout, err := batch.NewLayout([]batch.Field{{Name: "x", Type: batch.Uint8}}, n)
	if err != nil {
		b.Fatal(err)
	}
	step := batch.Step{Samples: make([]int, n)}
	return func(context.Context, int, int) iter.Seq2[*batch.Batch, error] {
		return func(yield func(*batch.Batch, error) bool) {
			one, err := batch.New(step, layout, p)
			if err != nil {
				yield(nil, err)
				return
			}
			defer one.Release()
			for yield(one, nil) {
			}
		}
	}
}

func BenchmarkPool(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := pinned.NewHost()
			p := pinned.NewPool(h, pinned.PoolConfig{})
			b.ReportAllocs()
			for b.Loop() {
				p.Put(get(b, p, n))
			}
			closeAll(b, p, h)
		})
	}
}

// BenchmarkRun is the round trip of the smallest compute.
func BenchmarkRun(b *testing.B) {
	h := pinned.NewHost()
	b.ReportAllocs()
	for b.Loop() {
		h.Run(func() {})
	}
	closeAll(b, h)
}
