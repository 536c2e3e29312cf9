package sampler_test

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/shardfeed/shardfeed/internal/torchrand"
	"github.com/shardfeed/shardfeed/sampler"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txt")

// Orders, random numbers and fingerprints stay what they are: a run that was
// stopped with one version goes on with the next. Whoever has to change them
// changes the order's version, too.
func TestGolden(t *testing.T) {
	var text bytes.Buffer
	print := func(format string, args ...any) { fmt.Fprintf(&text, format, args...) }
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		for _, epoch := range []int{0, 1, 1_000_000} {
			for _, n := range []int{2, 3, 5, 10, 30} {
				print("%v seed %d epoch %d: %v\n", sampler.Keyed(n), seed, epoch, list(sampler.Keyed(n), seed, epoch))
			}
			for _, n := range []int{1000, 60_000, 65_537, 1_281_167, 1e9, math.MaxInt} {
				order := sampler.Keyed(n)
				at := order.Epoch(seed, epoch)
				print("%v seed %d epoch %d: %d %d %d … %d\n", order, seed, epoch, at(0), at(1), at(2), at(n-1))
			}
			r := sampler.Rand(seed, epoch, 17)
			print("rand seed %d epoch %d sample 17: %d %d %v\n", seed, epoch, r.Uint64(), r.Uint32(), r.Float64())
			for _, order := range []sampler.Order{sampler.Sequential(10), sampler.Keyed(100_000), sampler.Torch(100_000)} {
				d := sampler.Distributed{Order: order, Seed: seed, Tail: sampler.Drop, Global: 96}
				print("fingerprint of %v seed %d epoch %d: %016x\n", order, seed, epoch, d.Fingerprint(epoch))
			}
		}
	}
	const name = "testdata/golden.txt"
	if *update {
		if err := os.WriteFile(name, text.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got, lines := strings.Split(text.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(lines)) {
		if i >= len(got) || i >= len(lines) || got[i] != lines[i] {
			t.Fatalf("line %d of %s differs: %q, want %q", i+1, name, got[min(i, len(got)-1)], lines[min(i, len(lines)-1)])
		}
	}
}

func TestByName(t *testing.T) {
	for name, want := range map[string]string{"sequential": "sequential/1(9)", "keyed": "keyed/1(9)", "torch": "torch/2(9)"} {
		order, err := sampler.ByName(name, 9)
		if err != nil || order.String() != want || order.Len() != 9 {
			t.Errorf("ByName(%q, 9) = %v, %v, want %s", name, order, err, want)
		}
	}
	for want, f := range map[string]func() (sampler.Order, error){
		`sampler: no order is called "random": use keyed, torch or sequential`: func() (sampler.Order, error) { return sampler.ByName("random", 9) },
		"sampler: an order of -1 samples: give 0 or more":                      func() (sampler.Order, error) { return sampler.ByName("torch", -1) },
	} {
		if order, err := f(); err == nil || err.Error() != want || order != nil {
			t.Errorf("%v, %v, want %q", order, err, want)
		}
	}
}

func TestNegativeLengths(t *testing.T) {
	for name, f := range map[string]func(int) sampler.Order{"Sequential": sampler.Sequential, "Keyed": sampler.Keyed, "Torch": sampler.Torch} {
		if p := panics(func() { f(-1) }); p != "sampler: an order of -1 samples" {
			t.Errorf("%s(-1) panics with %v", name, p)
		}
	}
}

// Torch's seed is seed+epoch modulo 2^64, whatever the sign of the epoch.
func TestTorchSeed(t *testing.T) {
	for _, tt := range []struct {
		seed  uint64
		epoch int
		sum   uint64
	}{
		{0, 0, 0}, {40, 2, 42}, {42, 0, 42}, {math.MaxUint64, 43, 42}, {43, -1, 42}, {0, -1, math.MaxUint64}, {1<<32 + 40, 2, 42},
	} {
		want := torchrand.Perm[int64](torchrand.New(tt.sum), 50)
		for pos, sample := range list(sampler.Torch(50), tt.seed, tt.epoch) {
			if sample != int(want[pos]) {
				t.Errorf("seed %d, epoch %d: sample %d at position %d, want %d", tt.seed, tt.epoch, sample, pos, want[pos])
				break
			}
		}
	}
}

// at may be called by many goroutines at once: go test -race checks it.
func TestOrdersAreSafeForConcurrentUse(t *testing.T) {
	for _, order := range []sampler.Order{sampler.Sequential(500), sampler.Keyed(500), sampler.Torch(500)} {
		want, at := list(order, 1, 2), order.Epoch(1, 2)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for pos, sample := range want {
					if got := at(pos); got != sample {
						t.Errorf("%v: position %d has the sample %d, want %d", order, pos, got, sample)
					}
				}
			})
		}
		all.Wait()
	}
}

func TestRand(t *testing.T) {
	draw := func(seed uint64, epoch, sample int) [2]uint64 {
		r := sampler.Rand(seed, epoch, sample)
		return [2]uint64{r.Uint64(), r.Uint64()}
	}
	seen := map[[2]uint64]string{}
	var bits [64]int
	for seed := range uint64(10) {
		for epoch := range 10 {
			for sample := range 10 {
				got, name := draw(seed, epoch, sample), fmt.Sprintf("seed %d epoch %d sample %d", seed, epoch, sample)
				if got != draw(seed, epoch, sample) {
					t.Errorf("%s: two sources differ", name)
				}
				if seen[got] != "" {
					t.Errorf("%s is %s", name, seen[got])
				}
				seen[got] = name
				for b := range bits {
					bits[b] += int(got[0] >> b & 1)
				}
			}
		}
	}
	for b, ones := range bits { // of 1,000 draws: 500 ± 5 deviations of 15.8
		if ones < 421 || ones > 579 {
			t.Errorf("bit %d of the first draw is set in %d of 1,000", b, ones)
		}
	}
}

// A new epoch of a keyed order takes two small allocations, and a sample none.
func TestAllocations(t *testing.T) {
	order := sampler.Keyed(1e9)
	epoch := 0
	if n := testing.AllocsPerRun(100, func() { epoch++; order.Epoch(1, epoch) }); n > 2 {
		t.Errorf("a new epoch of Keyed allocates %v times", n)
	}
	const epochs = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for epoch := range epochs {
		order.Epoch(1, epoch)
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / epochs; n > 1024 {
		t.Errorf("a new epoch of Keyed takes %d bytes", n)
	}
	d := sampler.Distributed{Order: order, World: 8}
	take := func(samples int) func() {
		return func() {
			left := samples
			for range d.Epoch(0, 0) {
				if left--; left == 0 {
					break
				}
			}
		}
	}
	if few, many := testing.AllocsPerRun(10, take(1)), testing.AllocsPerRun(10, take(1000)); many > few {
		t.Errorf("1 sample takes %v allocations, 1,000 take %v", few, many)
	}
}

func BenchmarkKeyedIndex(b *testing.B) {
	for _, n := range []int{60_000, 1_281_167, 1e9} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			at, pos := sampler.Keyed(n).Epoch(1, 0), 0
			for b.Loop() {
				at(pos)
				if pos++; pos == n {
					pos = 0
				}
			}
		})
	}
}

func BenchmarkNewEpoch(b *testing.B) {
	for _, order := range []sampler.Order{sampler.Keyed(1e9), sampler.Torch(1_000_000)} {
		b.Run(order.String(), func(b *testing.B) {
			b.ReportAllocs()
			epoch := 0
			for b.Loop() {
				order.Epoch(1, epoch)
				epoch++
			}
		})
	}
}

// One rank's epoch, from making the order to the last sample. Bytes are those
// of the numbers.
func BenchmarkDistributed(b *testing.B) {
	const n = 1_000_000
	for _, order := range []sampler.Order{sampler.Sequential(n), sampler.Keyed(n), sampler.Torch(n)} {
		for _, global := range []int{0, 100} {
			b.Run(fmt.Sprintf("%v/global=%d", order, global), func(b *testing.B) {
				d := sampler.Distributed{Order: order, Rank: 1, World: 3, Global: global}
				b.ReportAllocs()
				b.SetBytes(int64(8 * d.Len()))
				epoch := 0
				for b.Loop() {
					for range d.Epoch(epoch, 0) {
					}
					epoch++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(d.Len()), "ns/sample")
			})
		}
	}
}

func BenchmarkRand(b *testing.B) {
	b.ReportAllocs()
	sample := 0
	for b.Loop() {
		sampler.Rand(1, 2, sample).Uint64()
		sample++
	}
}

func BenchmarkFingerprint(b *testing.B) {
	b.ReportAllocs()
	d := sampler.Distributed{Order: sampler.Keyed(1e9)}
	for b.Loop() {
		d.Fingerprint(1)
	}
}
