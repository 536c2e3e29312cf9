package batch_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/batch"
)

// counter is an Allocator that counts the slabs which are out.
type counter struct {
	out atomic.Int64
	put []byte // the slab that came back last
	err error
}

func (c *counter) Get(n int) ([]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	c.out.Add(1)
	return make([]byte, n), nil
}

func (c *counter) Put(slab []byte) {
	c.out.Add(-1)
	c.put = slab
}

func layout(t *testing.T, rows int) batch.Layout {
	t.Helper()
	l, err := batch.NewLayout([]batch.Field{{"image", batch.Uint8, []int{4, 4}}, {"label", batch.Int64, nil}}, rows)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestBatch(t *testing.T) {
	step := batch.Step{Epoch: 1, Index: 2, Samples: []int{7, 8, 9}}
	slabs := &counter{}
	b, err := batch.New(step, layout(t, 3), slabs)
	if err != nil {
		t.Fatal(err)
	}
	if b.Bytes() != 128 || len(b.Slab) != 128 || !reflect.DeepEqual(b.Step, step) {
		t.Errorf("a batch of %d bytes, %d in the slab, for %v", b.Bytes(), len(b.Slab), b.Step)
	}
	labels := batch.View[int64](b.Column("label"))
	copy(labels, []int64{1, 2, 3})
	if got := batch.View[int64](b.Column("label")); !reflect.DeepEqual(got, []int64{1, 2, 3}) || len(b.Column("image").Data) != 48 {
		t.Errorf("labels %v", got)
	}

	slab := b.Slab
	b.Retain()
	b.Release()
	if slabs.out.Load() != 1 || b.Slab == nil {
		t.Error("the slab went back although someone holds the batch")
	}
	b.Release()
	if slabs.out.Load() != 0 || &slabs.put[0] != &slab[0] || len(slabs.put) != len(slab) || b.Slab != nil {
		t.Error("the slab did not go back with the last Release")
	}
	panics(t, "out of range", func() { b.Column("label") })
	panics(t, "batch: Retain after the last Release", b.Retain)
}

func TestReleaseTooOften(t *testing.T) {
	slabs := &counter{}
	b, err := batch.New(batch.Step{}, layout(t, 0), slabs)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	panics(t, "batch: released more often than retained", b.Release)
	if n := slabs.out.Load(); n != 0 {
		t.Errorf("%d slabs are out, want 0", n)
	}
}

// Many holders, each on a goroutine of its own: the slab goes back once.
func TestReleaseFromManyGoroutines(t *testing.T) {
	slabs := &counter{}
	b, err := batch.New(batch.Step{Samples: []int{0}}, layout(t, 1), slabs)
	if err != nil {
		t.Fatal(err)
	}
	var holders sync.WaitGroup
	for range 50 {
		b.Retain()
		holders.Go(func() {
			_ = b.Column("image").Data[0]
			b.Release()
		})
	}
	b.Release()
	holders.Wait()
	if n := slabs.out.Load(); n != 0 {
		t.Errorf("%d slabs are out, want 0", n)
	}
}

func TestNewErrors(t *testing.T) {
	full := errors.New("no slab is left")
	for _, tt := range []struct {
		samples []int
		alloc   batch.Allocator
		want    string
	}{
		{[]int{1}, nil, "batch: a layout of 2 rows for a step of 1 samples"},
		{[]int{1, 2}, &counter{err: full}, "batch: 128 bytes for 2 rows: no slab is left"},
	} {
		if b, err := batch.New(batch.Step{Samples: tt.samples}, layout(t, 2), tt.alloc); b != nil || err == nil || err.Error() != tt.want {
			t.Errorf("batch %v, error %v, want %q", b, err, tt.want)
		}
	}
}

// Without an Allocator the slab is the Go heap's.
func TestNewOnHeap(t *testing.T) {
	b, err := batch.New(batch.Step{Samples: []int{1, 2}}, layout(t, 2), nil)
	if err != nil || len(b.Slab) != 128 {
		t.Fatalf("a slab of %d bytes, error %v", len(b.Slab), err)
	}
	b.Release()
}

func samples(n int) []int {
	all := make([]int, n)
	for k := range all {
		all[k] = 100 + k
	}
	return all
}

// The parts come to join in the step's order, whatever the reads' durations,
// and as many reads run at once as the document says.
func TestCollate(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 200} {
		synctest.Test(t, func(t *testing.T) {
			var now, most atomic.Int64
			get := func(_ context.Context, epoch, sample int) (string, error) {
				if k := now.Add(1); k > most.Load() {
					most.Store(k)
				}
				time.Sleep(time.Duration(sample*7919%13+1) * time.Second)
				now.Add(-1)
				return fmt.Sprint(epoch, "/", sample), nil
			}
			fetch := batch.Collate(get, func(parts []string) ([]string, error) { return parts, nil })
			got, err := fetch(t.Context(), batch.Step{Epoch: 5, Samples: samples(n)})
			want := make([]string, n)
			for k := range want {
				want[k] = fmt.Sprint(5, "/", 100+k)
			}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%v, error %v", got, err)
			}
			if most := int(most.Load()); most != min(n, 64) {
				t.Errorf("%d of %d reads at once", most, n)
			}
		})
	}
}

func TestCollateErrors(t *testing.T) {
	cause := errors.New("no such file")
	for _, tt := range []struct {
		name string
		fail func() error
		want string
		is   error
	}{
		{"error", func() error { return cause }, "sample 103: no such file", cause},
		{"panic", func() error { panic("boom") }, "sample 103: panic: boom\n", nil},
		{"goexit", func() error { runtime.Goexit(); return nil }, "sample 103: its read ended its goroutine (runtime.Goexit)", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var begun, ended atomic.Int64
				get := func(ctx context.Context, epoch, sample int) (int, error) {
					begun.Add(1)
					defer ended.Add(1)
					if sample == 103 {
						time.Sleep(time.Second / 2) // until 64 reads are under way
						return 0, tt.fail()
					}
					time.Sleep(time.Second) // and does not listen to ctx
					return sample, nil
				}
				joined := false
				fetch := batch.Collate(get, func(parts []int) (int, error) { joined = true; return len(parts), nil })
				got, err := fetch(t.Context(), batch.Step{Samples: samples(150)})
				if b, e := begun.Load(), ended.Load(); b != e {
					t.Errorf("%d of %d reads go on", b-e, b)
				}
				if tt.name != "goexit" && begun.Load() != 64 {
					t.Errorf("%d reads, want 64: none begins after the error", begun.Load())
				}
				var at *batch.SampleError
				if !errors.As(err, &at) || at.Sample != 103 || !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("the error is %v, want %q", err, tt.want)
				}
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("%v does not wrap its cause", err)
				}
				if joined || got != 0 {
					t.Errorf("joined: %v, %d parts", joined, got)
				}
			})
		})
	}
}

// A panic is reported with the stack of the read.
func TestCollateStack(t *testing.T) {
	fetch := batch.Collate(func(context.Context, int, int) (int, error) { panic("boom") }, func([]int) (int, error) { return 0, nil })
	if _, err := fetch(t.Context(), batch.Step{Samples: samples(1)}); !strings.Contains(err.Error(), "TestCollateStack.func1") {
		t.Errorf("%v lacks the function that panicked", err)
	}
}

func TestCollateJoin(t *testing.T) {
	cause := errors.New("rows of different lengths")
	get := func(_ context.Context, _, sample int) (int, error) { return sample, nil }
	fetch := batch.Collate(get, func([]int) (*int, error) { return nil, cause })
	if got, err := fetch(t.Context(), batch.Step{Samples: samples(2)}); got != nil || !errors.Is(err, cause) {
		t.Errorf("%v, error %v", got, err)
	}
}

// A cancelled context ends the step with its cause: no sample is to blame.
func TestCollateCancel(t *testing.T) {
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	get := func(context.Context, int, int) (int, error) { t.Error("a read begins"); return 0, nil }
	_, err := batch.Collate(get, func([]int) (int, error) { return 0, nil })(ctx, batch.Step{Samples: samples(3)})
	if err != stop {
		t.Errorf("the error is %v, want %v", err, stop)
	}
}
