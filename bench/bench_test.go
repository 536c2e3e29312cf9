package bench

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/pinned"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/nn"
	"github.com/shardfeed/shardfeed/trainer/optim"
)

// workload is rows of one size, in batches of a usual number.
type workload struct {
	name        string
	shape       []int
	rows, batch int
}

var workloads = []workload{
	{"mnist 784 B", []int{28, 28}, 50_000, 128},
	{"image 150528 B", []int{3, 224, 224}, 1024, 64},
}

// shards writes rows of random bytes; zeros would be cheaper than data.
func (w workload) shards(b *testing.B, alloc batch.Allocator) *arrowipc.Set {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "shards")
	image, label := batch.Field{Name: "image", Type: batch.Uint8, Shape: w.shape}, batch.Field{Name: "label", Type: batch.Uint8}
	out, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: []batch.Field{image, label}})
	if err != nil {
		b.Fatal(err)
	}
	defer out.Abort()
	random, row := rand.NewChaCha8([32]byte{1}), make([]byte, image.RowBytes())
	for i := range w.rows {
		random.Read(row)
		if err := out.Write(1, row, []byte{byte(i % 10)}); err != nil {
			b.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		b.Fatal(err)
	}
	set, err := arrowipc.Open(dir, arrowipc.Options{Alloc: alloc})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { set.Close() })
	return set
}

// steps yields batches of a shuffled order without end.
func (w workload) steps(b *testing.B) func() batch.Step {
	order, epoch := sampler.Keyed(w.rows).Epoch(1, 0), 0
	next := 0
	return func() batch.Step {
		step := batch.Step{Epoch: epoch, Index: next, Samples: make([]int, w.batch)}
		for k := range step.Samples {
			step.Samples[k] = order((next*w.batch + k) % w.rows)
		}
		next++
		return step
	}
}

// Gather: rows in random order, with their labels, from the mapping into a
// slab, beside memcpy of rows of the same bytes in the same order.
func BenchmarkGather(b *testing.B) {
	for _, w := range workloads {
		bytes := w.batch * batch.Field{Type: batch.Uint8, Shape: w.shape}.RowBytes()
		b.Run(w.name+"/shardfeed", func(b *testing.B) {
			dev := pinned.NewHost()
			defer dev.Close()
			pool := pinned.NewPool(dev, pinned.PoolConfig{})
			defer pool.Close()
			set, next := w.shards(b, pool), w.steps(b)
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				got, err := set.Take(b.Context(), next())
				if err != nil {
					b.Fatal(err)
				}
				got.Release()
			}
		})
		b.Run(w.name+"/memcpy", func(b *testing.B) {
			row := bytes / w.batch
			src, dst, next := make([]byte, w.rows*row), make([]byte, bytes), w.steps(b)
			rand.NewChaCha8([32]byte{1}).Read(src)
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				for k, sample := range next().Samples {
					copy(dst[k*row:(k+1)*row], src[sample*row:])
				}
			}
		})
	}
}

// The loader's own cost: an empty fetch, beside a loop without a loader.
func BenchmarkEmptyFetch(b *testing.B) {
	plan := func(epoch, skip int) iter.Seq[batch.Step] {
		return func(yield func(batch.Step) bool) {
			for k := 0; yield(batch.Step{Epoch: epoch, Index: k}); k++ {
			}
		}
	}
	fetch := func(context.Context, batch.Step) (*batch.Batch, error) { return nil, nil }
	for workers := 1; workers <= 2; workers++ {
		b.Run(fmt.Sprintf("loader/workers %d", workers), func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for _, err := range loader.New(plan, fetch, loader.Config{Workers: workers}).Epoch(b.Context(), 0, 0) {
				if err != nil {
					b.Fatal(err)
				}
				if n++; n >= b.N {
					break
				}
			}
		})
	}
	b.Run("plain loop", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for step := range plan(0, 0) {
			if _, err := fetch(b.Context(), step); err != nil {
				b.Fatal(err)
			}
			if n++; n >= b.N {
				break
			}
		}
	})
}

// Feeder: a batch that is there already, copied to the Host device, beside
// memcpy of the same bytes.
func BenchmarkFeeder(b *testing.B) {
	for _, w := range workloads {
		layout, err := batch.NewLayout([]batch.Field{{Name: "image", Type: batch.Uint8, Shape: w.shape}}, w.batch)
		if err != nil {
			b.Fatal(err)
		}
		host, err := batch.New(batch.Step{Samples: make([]int, w.batch)}, layout, nil)
		if err != nil {
			b.Fatal(err)
		}
		rand.NewChaCha8([32]byte{1}).Read(host.Slab)
		b.Run(w.name+"/shardfeed", func(b *testing.B) {
			dev := pinned.NewHost()
			defer dev.Close()
			source := func(context.Context, int, int) iter.Seq2[*batch.Batch, error] {
				return func(yield func(*batch.Batch, error) bool) {
					for yield(host, nil) {
					}
				}
			}
			feeder, err := pinned.NewFeeder(source, dev, pinned.FeederConfig{Bytes: layout.Size()})
			if err != nil {
				b.Fatal(err)
			}
			defer feeder.Close()
			b.SetBytes(int64(layout.Size()))
			b.ReportAllocs()
			b.ResetTimer()
			n := 0
			for _, err := range feeder.Epoch(b.Context(), 0, 0) {
				if err != nil {
					b.Fatal(err)
				}
				if n++; n >= b.N {
					break
				}
			}
		})
		b.Run(w.name+"/memcpy", func(b *testing.B) {
			dst := make([]byte, len(host.Slab))
			b.SetBytes(int64(layout.Size()))
			for b.Loop() {
				copy(dst, host.Slab)
			}
		})
	}
}

// All-reduce of float32 between two ranks that are goroutines, beside memcpy
// of as many bytes. Between processes it is the same code: trainer/local
// measures that, in a benchmark of the same name.
func BenchmarkAllReduce(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1 KiB", 1 << 10}, {"16 KiB", 16 << 10}, {"256 KiB", 256 << 10}, {"4 MiB", 4 << 20}, {"64 MiB", 64 << 20}, {"256 MiB", 256 << 20}} {
		fill := func(v []float32) {
			for i := range v {
				v[i] = float32(i%1000) / 1000
			}
		}
		b.Run(size.name+"/goroutines", func(b *testing.B) {
			b.SetBytes(int64(size.bytes))
			b.ReportAllocs()
			err := local.Spawn(b.Context(), 2, func(ctx context.Context, g *local.Group) error {
				v, err := g.Alloc(size.bytes / 4)
				if err != nil {
					return err
				}
				fill(v)
				if _, err := g.Exchange(ctx, nil); err != nil {
					return err
				}
				if g.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N {
					wait, err := g.AllReduce(ctx, v, trainer.Average)
					if err != nil {
						return err
					}
					if err := wait(); err != nil {
						return err
					}
				}
				return nil
			}).Wait()
			if err != nil {
				b.Fatal(err)
			}
		})
		b.Run(size.name+"/memcpy", func(b *testing.B) {
			dst, src := make([]float32, size.bytes/4), make([]float32, size.bytes/4)
			fill(src)
			b.SetBytes(int64(size.bytes))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

// A step of DDP on the model 784-512-10 with 128 rows a rank: on one fixed
// batch, and on batches from shards through loader and feeder. The figure to
// read is samples/s.
func BenchmarkDDPStep(b *testing.B) {
	const rows = 128
	for ranks := 1; ranks <= 2; ranks++ {
		for _, data := range []string{"fixed batch", "from shards"} {
			b.Run(fmt.Sprintf("ranks %d/%s", ranks, data), func(b *testing.B) {
				set := workloads[0].shards(b, nil)
				b.ReportAllocs()
				err := local.Spawn(b.Context(), ranks, func(ctx context.Context, g *local.Group) error {
					dev := pinned.NewHost()
					defer dev.Close()
					order := sampler.Distributed{Order: sampler.Keyed(set.Len()), Rank: g.Rank(), World: ranks, Tail: sampler.Drop}
					plan := batch.Sampler{Order: order.Epoch, Size: rows, DropLast: true}
					source := loader.New(plan.Through(1<<30), set.Take, loader.Config{}).Epoch
					if data == "fixed batch" {
						one, err := set.Take(ctx, batch.Step{Samples: make([]int, rows)})
						if err != nil {
							return err
						}
						source = func(context.Context, int, int) iter.Seq2[*batch.Batch, error] {
							return func(yield func(*batch.Batch, error) bool) {
								for yield(one, nil) {
								}
							}
						}
					}
					layout, err := set.Layout(rows)
					if err != nil {
						return err
					}
					feeder, err := pinned.NewFeeder(source, dev, pinned.FeederConfig{Bytes: layout.Size()})
					if err != nil {
						return err
					}
					defer feeder.Close()
					model := &nn.Classifier[*pinned.Batch]{Net: nn.MLP(784, 512, 10), Examples: examples, Run: dev.Run}
					ddp, err := trainer.New(ctx, g, model, &optim.SGD{LR: optim.Constant(0.01), Momentum: 0.9}, trainer.Config{})
					if err != nil {
						return err
					}
					if g.Rank() == 0 {
						b.ResetTimer()
					}
					n := 0
					for batch, err := range feeder.Epoch(ctx, 0, 0) {
						if err != nil {
							return err
						}
						if _, err := ddp.Step(ctx, batch); err != nil {
							return err
						}
						if n++; n >= b.N {
							break
						}
					}
					return nil
				}).Wait()
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(b.N*rows*ranks)/b.Elapsed().Seconds(), "samples/s")
			})
		}
	}
}

func examples(b *pinned.Batch) (nn.Examples, error) {
	labels := make([]int, 0, 128)
	for _, label := range batch.View[uint8](b.Column("label")) {
		labels = append(labels, int(label))
	}
	return nn.Examples{Pixels: b.Column("image").Data, Labels: labels, Rows: b.Rows()}, nil
}
