package local_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// sizes are those of a first bucket and of a large model, in bytes.
var sizes = []int{4 << 10, 1 << 20, 64 << 20}

// BenchmarkMemcpy is the physical limit beside the all-reduces: on two ranks
// each moves half of three such copies.
func BenchmarkMemcpy(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			dst, src := make([]byte, size), make([]byte, size)
			copy(src, dst)
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

func BenchmarkGoroutines(b *testing.B) {
	for _, w := range works {
		b.Run(w.name, func(b *testing.B) {
			err := local.Spawn(b.Context(), 2, func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 0 {
					return lead(ctx, b, g, w)
				}
				return follow(ctx, g, w)
			})
			if err != nil {
				b.Error(err)
			}
		})
	}
}

// work is what a benchmark repeats.
type work struct {
	name  string
	bytes int
	make  func(ctx context.Context, g *local.Group) (func() error, error)
}

var works = func() (all []work) {
	for _, size := range sizes {
		all = append(all, work{fmt.Sprintf("AllReduce/%dKiB", size>>10), size, func(ctx context.Context, g *local.Group) (func() error, error) {
			v, err := g.Alloc(size / 4)
			return func() error {
				wait, err := g.AllReduce(ctx, v, trainer.Sum)
				if err != nil {
					return err
				}
				return wait()
			}, err
		}})
	}
	return append(all, work{"Exchange/8B", 0, func(ctx context.Context, g *local.Group) (func() error, error) {
		mine := make([]byte, 8)
		return func() error {
			_, err := g.Exchange(ctx, mine)
			return err
		}, nil
	}})
}()

// lead repeats the work b.N times beside follow on the other ranks, which it
// tells the number: b.Loop would leave them behind.
func lead(ctx context.Context, b *testing.B, g *local.Group, w work) error {
	do, err := w.make(ctx, g)
	if err == nil {
		err = do()
	}
	if err != nil {
		return err
	}
	if w.bytes > 0 {
		b.SetBytes(int64(w.bytes))
	}
	b.ReportAllocs()
	b.ResetTimer()
	_, err = g.Exchange(ctx, fmt.Append(nil, b.N))
	for i := 0; i < b.N && err == nil; i++ {
		err = do()
	}
	b.StopTimer()
	return err
}

func follow(ctx context.Context, g *local.Group, w work) error {
	do, err := w.make(ctx, g)
	if err == nil {
		err = do()
	}
	if err != nil {
		return err
	}
	all, err := g.Exchange(ctx, nil)
	if err != nil {
		return err
	}
	var n int
	if _, err := fmt.Sscan(string(all[0]), &n); err != nil {
		return errors.Join(errors.New("the leader's count"), err)
	}
	for range n {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}
