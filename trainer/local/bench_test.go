package local_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
)

// work is what a benchmark repeats on two ranks.
type work struct {
	name  string
	bytes int
	make  func(ctx context.Context, g *local.Group) (func() error, error)
}

var works = func() (all []work) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1 KiB", 1 << 10}, {"16 KiB", 16 << 10}, {"256 KiB", 256 << 10}, {"4 MiB", 4 << 20}, {"64 MiB", 64 << 20}, {"256 MiB", 256 << 20}} {
		all = append(all, work{size.name, size.bytes, func(ctx context.Context, g *local.Group) (func() error, error) {
			v, err := g.Alloc(size.bytes / 4)
			fill(v)
			return func() error {
				wait, err := g.AllReduce(ctx, v, trainer.Average)
				if err != nil {
					return err
				}
				return wait()
			}, err
		}})
	}
	return append(all, work{"exchange of 8 bytes", 0, func(ctx context.Context, g *local.Group) (func() error, error) {
		mine := make([]byte, 8)
		return func() error {
			_, err := g.Exchange(ctx, mine)
			return err
		}, nil
	}})
}()

func fill(v []float32) {
	for i := range v {
		v[i] = float32(i%1000) / 1000
	}
}

// onProcesses is missing where processes cannot be ranks.
var onProcesses func(b *testing.B, w work)

// BenchmarkAllReduce is an average over two ranks that are goroutines or
// processes, beside memcpy of as many bytes. Each rank reads half of both
// spans and writes half of both: the traffic of two such copies in all.
func BenchmarkAllReduce(b *testing.B) {
	for _, w := range works {
		b.Run(w.name+"/goroutines", func(b *testing.B) {
			err := local.Spawn(b.Context(), 2, func(ctx context.Context, g *local.Group) error {
				if g.Rank() == 0 {
					return lead(ctx, b, g, w)
				}
				return follow(ctx, g, w)
			}).Wait()
			if err != nil {
				b.Error(err)
			}
		})
		if onProcesses != nil {
			b.Run(w.name+"/processes", func(b *testing.B) { onProcesses(b, w) })
		}
		if w.bytes > 0 {
			b.Run(w.name+"/memcpy", func(b *testing.B) {
				dst, src := make([]float32, w.bytes/4), make([]float32, w.bytes/4)
				fill(src)
				b.SetBytes(int64(w.bytes))
				for b.Loop() {
					copy(dst, src)
				}
			})
		}
	}
}

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
