package batch_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/stagetest"
)

// order is an epoch of n samples that tell their epoch and position.
func order(n int) func(epoch, skip int) iter.Seq[int] {
	return func(epoch, skip int) iter.Seq[int] {
		return func(yield func(int) bool) {
			for k := skip; k < n && yield(1000*epoch+k); k++ {
			}
		}
	}
}

// plain is the slow twin: it lists the epoch, cuts it up and drops the first skip.
func plain(s batch.Sampler, epoch, skip int) []batch.Step {
	samples := slices.Collect(s.Order(epoch, 0))
	var steps []batch.Step
	for i := 0; i < len(samples); i += s.Size {
		step := batch.Step{Epoch: epoch, Index: len(steps)}
		for k := i; k < min(i+s.Size, len(samples)); k++ {
			step.Samples = append(step.Samples, samples[k])
			if k >= len(samples)-s.Padded {
				step.Padded++
			}
		}
		if len(step.Samples) == s.Size || !s.DropLast {
			steps = append(steps, step)
		}
	}
	return steps[min(skip, len(steps)):]
}

func TestSampler(t *testing.T) {
	type steps = []batch.Step
	for _, tt := range []struct {
		name string
		batch.Sampler
		skip int
		want steps
	}{
		{"even", batch.Sampler{Order: order(4), Size: 2}, 0, steps{{0, 0, []int{0, 1}, 0}, {0, 1, []int{2, 3}, 0}}},
		{"short", batch.Sampler{Order: order(5), Size: 2}, 1, steps{{0, 1, []int{2, 3}, 0}, {0, 2, []int{4}, 0}}},
		{"dropped", batch.Sampler{Order: order(5), Size: 2, DropLast: true}, 1, steps{{0, 1, []int{2, 3}, 0}}},
		{"padded", batch.Sampler{Order: order(4), Size: 2, Padded: 1}, 0, steps{{0, 0, []int{0, 1}, 0}, {0, 1, []int{2, 3}, 1}}},
		{"a short step is all padding", batch.Sampler{Order: order(3), Size: 2, Padded: 1}, 0, steps{{0, 0, []int{0, 1}, 0}, {0, 1, []int{2}, 1}}},
		{"and some of the step before", batch.Sampler{Order: order(5), Size: 2, Padded: 2}, 1, steps{{0, 1, []int{2, 3}, 1}, {0, 2, []int{4}, 1}}},
		{"the padding is dropped", batch.Sampler{Order: order(5), Size: 2, Padded: 1, DropLast: true}, 1, steps{{0, 1, []int{2, 3}, 0}}},
		{"more padding than steps", batch.Sampler{Order: order(3), Size: 2, Padded: 9}, 0, steps{{0, 0, []int{0, 1}, 2}, {0, 1, []int{2}, 1}}},
		{"skip to the end", batch.Sampler{Order: order(4), Size: 2}, 2, nil},
		{"skip beyond any end", batch.Sampler{Order: order(4), Size: 4}, math.MaxInt, nil},
		{"size beyond the order", batch.Sampler{Order: order(2), Size: math.MaxInt, Padded: 1}, 0, steps{{0, 0, []int{0, 1}, 1}}},
		{"nothing", batch.Sampler{Order: order(0), Size: 2, Padded: 1}, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := slices.Collect(tt.Sampler.Epoch(0, tt.skip))
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("steps %v, want %v", got, tt.want)
			}
		})
	}
}

// Steps are those of torch.utils.data.BatchSampler. The file holds what
// PyTorch 2.6.0 gave over SequentialSampler(range(n)).
func TestSamplerAsPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/batch_sampler.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		N        int     `json:"n"`
		Size     int     `json:"batch_size"`
		DropLast bool    `json:"drop_last"`
		Len      int     `json:"len"`
		Batches  [][]int `json:"batches"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != 40 {
		t.Fatalf("%d cases, want 40", len(cases))
	}
	for _, tt := range cases {
		got := [][]int{}
		for step := range (batch.Sampler{Order: order(tt.N), Size: tt.Size, DropLast: tt.DropLast}).Epoch(0, 0) {
			got = append(got, step.Samples)
		}
		if len(got) != tt.Len || !reflect.DeepEqual(got, tt.Batches) {
			t.Errorf("%d samples, batches of %d, drop last %v: %v, want %v", tt.N, tt.Size, tt.DropLast, got, tt.Batches)
		}
	}
}

func TestSamplerSeek(t *testing.T) {
	for _, s := range []batch.Sampler{
		{Order: order(11), Size: 3},
		{Order: order(11), Size: 3, Padded: 1},
		{Order: order(11), Size: 3, Padded: 5, DropLast: true},
	} {
		stagetest.Seek(t, s.Epoch, 0, 1, 7)
	}
}

func FuzzSampler(f *testing.F) {
	f.Add(uint8(10), uint8(3), uint8(1), uint8(0), false)
	f.Add(uint8(11), uint8(4), uint8(5), uint8(2), true)
	f.Add(uint8(0), uint8(1), uint8(0), uint8(1), false)
	f.Add(uint8(255), uint8(255), uint8(255), uint8(0), true)
	f.Fuzz(func(t *testing.T, n, size, padded, skip uint8, drop bool) {
		s := batch.Sampler{Order: order(int(n)), Size: int(size) + 1, Padded: int(padded), DropLast: drop}
		got, want := slices.Collect(s.Epoch(3, int(skip))), plain(s, 3, int(skip))
		if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("steps %v, want %v", got, want)
		}
	})
}

// A step is yielded once no padding can be in it, not later: a source that
// takes its time holds nothing back.
func TestSamplerReadsNoFurther(t *testing.T) {
	for _, padded := range []int{0, 1, 4} {
		read := 0
		s := batch.Sampler{Size: 3, Padded: padded, Order: func(epoch, skip int) iter.Seq[int] {
			return func(yield func(int) bool) {
				for read = 1; yield(read); read++ {
				}
			}
		}}
		for range s.Epoch(0, 0) {
			break
		}
		if read != 3+padded {
			t.Errorf("padding of %d: the first step of 3 took %d samples, want %d", padded, read, 3+padded)
		}
	}
}

// Whoever has a step may change its samples and append to them.
func TestStepOwnsItsSamples(t *testing.T) {
	s := batch.Sampler{Order: order(10), Size: 3, Padded: 2}
	var got []batch.Step
	for step := range s.Epoch(0, 0) {
		got = append(got, batch.Step{Epoch: step.Epoch, Index: step.Index, Samples: slices.Clone(step.Samples), Padded: step.Padded})
		clear(append(step.Samples, 77)[:len(step.Samples)])
	}
	if want := plain(s, 0, 0); !reflect.DeepEqual(got, want) {
		t.Errorf("steps %v, want %v", got, want)
	}
}

func TestSamplerPanics(t *testing.T) {
	for _, tt := range []struct {
		batch.Sampler
		skip int
		want string
	}{
		{batch.Sampler{}, 0, "batch: Sampler.Size is 0: a step has at least one sample"},
		{batch.Sampler{Size: -1}, 0, "batch: Sampler.Size is -1: a step has at least one sample"},
		{batch.Sampler{Size: 1, Padded: -1}, 0, "batch: Sampler.Padded is -1"},
		{batch.Sampler{Size: 1}, -1, "batch: skip is -1"},
	} {
		panics(t, tt.want, func() { tt.Sampler.Epoch(0, tt.skip) })
	}
}

func panics(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), want) {
			t.Errorf("it panics with %v, want %q", p, want)
		}
	}()
	f()
}

func TestThrough(t *testing.T) {
	s := batch.Sampler{Order: order(5), Size: 2}
	var all []batch.Step
	for epoch := range 4 {
		all = append(all, plain(s, epoch, 0)...)
	}
	for _, tt := range []struct {
		last, epoch, skip int
		want              []batch.Step
	}{
		{3, 0, 0, all},
		{3, 0, 2, all[2:]},
		{3, 0, 3, all[3:]}, // a cursor at an epoch's end
		{3, 0, 9, all[3:]},
		{3, 2, 1, all[7:]},
		{1, 1, 0, all[3:6]},
		{0, 1, 0, nil},
	} {
		if got := slices.Collect(s.Through(tt.last)(tt.epoch, tt.skip)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("Through(%d)(%d, %d) = %v, want %v", tt.last, tt.epoch, tt.skip, got, tt.want)
		}
	}
	for step := range s.Through(3)(0, 2) { // a break within an epoch ends it all
		if step.Epoch == 1 {
			break
		}
	}
}

func TestRows(t *testing.T) {
	if got := (batch.Step{Samples: []int{4, 5, 4}, Padded: 1}).Rows(); got != 2 {
		t.Errorf("Rows() = %d, want 2", got)
	}
}

// A step of 128 samples, beside the copy of as many from a list.
func BenchmarkSampler(b *testing.B) {
	const size = 128
	endless := func(epoch, skip int) iter.Seq[int] {
		return func(yield func(int) bool) {
			for k := skip; yield(k); k++ {
			}
		}
	}
	b.Run("epoch", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(8 * size)
		for range (batch.Sampler{Order: endless, Size: size}).Epoch(0, 0) {
			if !b.Loop() {
				break
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(8 * size)
		list := slices.Collect(order(size)(0, 0))
		for b.Loop() {
			sink = slices.Clone(list)
		}
	})
}

var sink []int
