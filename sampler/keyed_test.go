package sampler

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"testing"
)

// Each test of chance has fixed seeds and a bound of five standard deviations:
// a good order fails it once in a million tries or so, and these tests are a
// few hundred. That they see a bad order is tested, too: weak orders have
// fewer rounds.

// chance is how many standard deviations chi-square is above or below what
// chance makes of it, for counts that are expected to be equal: the cube root
// of chi-square over the degrees of freedom is nearly normal (Wilson and
// Hilferty, 1931).
func chance(counts []int, freedom int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	want, chi := float64(total)/float64(len(counts)), 0.0
	for _, c := range counts {
		chi += (float64(c) - want) * (float64(c) - want) / want
	}
	variance := 2 / (9 * float64(freedom))
	return (math.Cbrt(chi/float64(freedom)) - 1 + variance) / math.Sqrt(variance)
}

const bound = 5

// weak is Keyed with fewer rounds.
type weak struct {
	keyed
	pairs int
}

func (w weak) Epoch(seed uint64, epoch int) func(pos int) int {
	f := w.feistel(seed, epoch)
	f.pairs = w.pairs
	return f.at
}

func list(o Order, seed uint64, epoch int) []int {
	at, all := o.Epoch(seed, epoch), make([]int, o.Len())
	for pos := range all {
		all[pos] = at(pos)
	}
	return all
}

func checkBijection(t *testing.T, n int, seed uint64, epoch int) {
	t.Helper()
	seen := make([]bool, n)
	for pos, sample := range list(Keyed(n), seed, epoch) {
		if sample < 0 || sample >= n || seen[sample] {
			t.Fatalf("n %d, seed %d, epoch %d: position %d has the sample %d, which is out of range or there twice", n, seed, epoch, pos, sample)
		}
		seen[sample] = true
	}
}

func TestKeyedIsBijective(t *testing.T) {
	for n := range 5001 {
		checkBijection(t, n, uint64(n), n)
	}
	for _, n := range []int{65_535, 65_536, 65_537, 262_145, 1_048_577} { // at powers of two the radices change
		checkBijection(t, n, 1, 0)
	}
}

func FuzzKeyed(f *testing.F) {
	f.Add(uint32(0), uint64(0), 0)
	f.Add(uint32(1), uint64(math.MaxUint64), -1)
	f.Add(uint32(65_537), uint64(1), math.MaxInt)
	f.Fuzz(func(t *testing.T, n uint32, seed uint64, epoch int) { checkBijection(t, int(n%300_000), seed, epoch) })
}

// A long order cannot be written out, but a round can be undone: that every
// position leads to a sample from which it is found again proves a bijection.
func TestKeyedIsBijectiveWhereLong(t *testing.T) {
	for _, n := range []int{1e9, 1<<40 - 1, 1 << 40, 1<<40 + 1, 1<<62 + 1, math.MaxInt - 1, math.MaxInt} {
		f := keyed(n).feistel(3, 4)
		if domain := float64(f.radix) * math.Exp2(float64(f.low)); domain < float64(n) || domain > 1.01*float64(n) || math.Abs(math.Log2(float64(f.radix))-float64(f.low)) > 1.01 {
			t.Errorf("n %d: radices %d and 2^%d", n, f.radix, f.low)
		}
		for i := range 10_000 {
			pos := int(hash(uint64(i)) % uint64(n))
			if i < 10 {
				pos = n - 1 - i
			}
			sample := f.at(pos)
			if sample < 0 || sample >= n {
				t.Fatalf("n %d: position %d has the sample %d", n, pos, sample)
			}
			if back := f.inverse(sample); back != pos {
				t.Fatalf("n %d: position %d has the sample %d, which belongs to %d", n, pos, sample, back)
			}
		}
	}
}

// inverse undoes at, round by round.
func (f *feistel) inverse(sample int) int {
	for x := uint64(sample); ; {
		l, r := x>>f.low, x&(1<<f.low-1)
		for _, key := range slices.Backward(f.keys[:f.pairs]) {
			add, _ := bits.Mul64(hash(r^key[1]), f.radix)
			l = (l + f.radix - add) % f.radix
			r = (r - hash(l^key[0])>>(64-f.low)) & (1<<f.low - 1)
		}
		if x = l<<f.low | r; x < f.n {
			return int(x)
		}
	}
}

// neighbours is the worst chance of the differences, modulo n, between
// samples some positions apart.
func neighbours(o Order, seed uint64, epoch int) (worst float64) {
	const cells = 64
	all, n := list(o, seed, epoch), o.Len()
	for _, lag := range []int{1, 2, 3, 4, 16, 255, 256, 1024, 4096, 65_536} {
		if lag > n/2 {
			break
		}
		counts := make([]int, cells)
		for pos, sample := range all[lag:] {
			counts[(sample-all[pos]+n)%n*cells/n]++
		}
		if z := chance(counts, cells-1); math.Abs(z) > math.Abs(worst) {
			worst = z
		}
	}
	return worst
}

func TestKeyedNeighbours(t *testing.T) {
	for _, n := range []int{1_000, 4_096, 4_097, 10_007, 65_536, 65_537, 262_145, 1_048_577} {
		for seed := range uint64(1 + 65_536/n) {
			if z := neighbours(Keyed(n), seed, 0); math.Abs(z) > bound {
				t.Errorf("n %d, seed %d: differences of neighbours are %.1f deviations from chance", n, seed, z)
			}
		}
		if z := neighbours(weak{keyed(n), 1}, 0, 0); math.Abs(z) < bound {
			t.Errorf("n %d: the test does not see a single pair of rounds", n)
		}
	}
}

// every is the chance of each permutation of a few elements over seeds or
// epochs.
func every(o Order, trials int, draw func(i int) (seed uint64, epoch int)) float64 {
	count := map[[5]int]int{}
	for i := range trials {
		seed, epoch := draw(i)
		count[[5]int(append(list(o, seed, epoch), make([]int, 5-o.Len())...))]++
	}
	all := 1
	for k := range o.Len() {
		all *= k + 1
	}
	counts := make([]int, all) // permutations that never came stay 0
	i := 0
	for _, c := range count {
		counts[i] = c
		i++
	}
	return chance(counts, all-1)
}

func TestKeyedMakesEveryOrderOfAFew(t *testing.T) {
	epochs := func(i int) (uint64, int) { return 5, i }
	seeds := func(i int) (uint64, int) { return uint64(i), 5 }
	for n, trials := range map[int]int{2: 20_000, 3: 30_000, 4: 50_000, 5: 60_000} {
		for name, draw := range map[string]func(int) (uint64, int){"epochs": epochs, "seeds": seeds} {
			if z := every(Keyed(n), trials, draw); math.Abs(z) > bound {
				t.Errorf("%d elements over %d %s: %.1f deviations from chance", n, trials, name, z)
			}
		}
	}
	if z := every(weak{4, 3}, 50_000, epochs); z < bound {
		t.Errorf("the test does not see that 3 pairs of rounds are too few for 4 elements: %.1f", z)
	}
}

// places is the chance of each element at each position over epochs. Each
// position has an element and each element a position: of n·n counts
// (n-1)·(n-1) are free.
func places(o Order, trials int) float64 {
	n := o.Len()
	counts := make([]int, n*n)
	for epoch := range trials {
		for pos, sample := range list(o, 1, epoch) {
			counts[pos*n+sample]++
		}
	}
	return chance(counts, (n-1)*(n-1))
}

// pairsOfFirst is the chance of each pair of samples at the positions 0 and 1.
func pairsOfFirst(o Order, trials int) float64 {
	n := o.Len()
	counts := make([]int, n*(n-1))
	for epoch := range trials {
		at := o.Epoch(1, epoch)
		a, b := at(0), at(1)
		if b > a {
			b-- // a itself is no candidate
		}
		counts[a*(n-1)+b]++
	}
	return chance(counts, len(counts)-1)
}

func TestKeyedPlaces(t *testing.T) {
	for n := 2; n <= 40; n++ {
		if z := places(Keyed(n), 2_000); math.Abs(z) > bound {
			t.Errorf("n %d: elements at positions are %.1f deviations from chance", n, z)
		}
		if n > 2 {
			if z := pairsOfFirst(Keyed(n), 20*n*n); math.Abs(z) > bound {
				t.Errorf("n %d: the first two elements are %.1f deviations from chance", n, z)
			}
		}
	}
	if z := places(weak{5, 1}, 2_000); z < bound {
		t.Errorf("the test of places does not see that a pair of rounds is too few for 5 elements: %.1f", z)
	}
	if z := pairsOfFirst(weak{33, 2}, 20*33*33); z < bound {
		t.Errorf("the test of pairs does not see that 2 pairs of rounds are too few for 33 elements: %.1f", z)
	}
}

// kept is how many standard deviations too often neighbours, of which the
// second position is odd, are neighbours among the samples, too: what the
// number of rounds is chosen by.
func kept(o Order, epochs int) float64 {
	n := o.Len()
	same, want := 0, 0.0
	for epoch := range epochs {
		at := o.Epoch(1, epoch)
		for pos := 1; pos < n; pos += 2 {
			if at(pos)-at(pos-1) == 1 {
				same++
			}
			want += 1 / float64(n) // n-1 of the n(n-1) pairs of samples
		}
	}
	return (float64(same) - want) / math.Sqrt(want)
}

func TestKeyedForgetsDifferences(t *testing.T) {
	for _, n := range []int{16, 64, 256, 1024, 4096, 65_536} {
		if z := kept(Keyed(n), 1_000_000/n); math.Abs(z) > bound {
			t.Errorf("n %d: differences of neighbours are kept %.1f deviations too often", n, z)
		}
	}
	if z := kept(weak{64, 3}, 1_000_000/64); z < bound {
		t.Errorf("the test does not see that 3 pairs of rounds are too few for 64 elements: %.1f", z)
	}
}

// related is how far two orders are from having nothing in common, in standard
// deviations, over several trials: in the number of positions at which they
// have the same sample, which has mean and variance 1 (the number of fixed
// points of a random permutation); in the correlation of their samples, which
// has mean 0 and variance 1/(n-1); and in the differences of their samples,
// modulo n.
func related(trials, n int, pair func(trial int) (p, q []int)) (worst float64) {
	const cells = 32
	var same, correlation float64
	counts := make([]int, cells)
	for trial := range trials {
		p, q := pair(trial)
		mean := float64(n-1) / 2
		covariance, variance := 0.0, float64(n-1)*float64(n+1)/12
		for pos := range p {
			if p[pos] == q[pos] {
				same++
			}
			covariance += (float64(p[pos]) - mean) * (float64(q[pos]) - mean) / float64(n)
			counts[(p[pos]-q[pos]+n)%n*cells/n]++
		}
		correlation += covariance / variance
	}
	k := float64(trials)
	return max(math.Abs(same-k)/math.Sqrt(k), math.Abs(correlation)*math.Sqrt(float64(n-1)/k), chance(counts, cells-1))
}

func TestKeyedOrdersAreUnrelated(t *testing.T) {
	const n, trials = 1024, 300
	type where struct {
		n     int
		seed  uint64
		epoch int
	}
	for name, other := range map[string]func(w where) where{
		"the next epoch":                      func(w where) where { return where{w.n, w.seed, w.epoch + 1} },
		"the next seed":                       func(w where) where { return where{w.n, w.seed + 1, w.epoch} },
		"the next seed, the epoch before":     func(w where) where { return where{w.n, w.seed + 1, w.epoch - 1} },
		"a seed that differs in its high bit": func(w where) where { return where{w.n, w.seed ^ 1<<63, w.epoch} },
		"a seed 2^32 away":                    func(w where) where { return where{w.n, w.seed + 1<<32, w.epoch} },
		"seed and epoch exchanged":            func(w where) where { return where{w.n, uint64(w.epoch), int(w.seed)} },
	} {
		pair := func(o func(n int) Order) func(trial int) (p, q []int) {
			return func(trial int) (p, q []int) {
				w := where{n, uint64(trial), 1000 + trial*trial}
				v := other(w)
				return list(o(w.n), w.seed, w.epoch), list(o(v.n), v.seed, v.epoch)
			}
		}
		if d := related(trials, n, pair(Keyed)); d > bound {
			t.Errorf("%s: %.1f deviations from chance", name, d)
		}
		// PyTorch's coincidences, which the test has to see.
		if d := related(3, n, pair(Torch)); d < bound && name != "the next epoch" && name != "the next seed" {
			t.Errorf("%s: the test does not see that Torch's orders are the same: %.1f", name, d)
		}
	}
	// Orders of almost the same length.
	if d := related(trials, n, func(trial int) (p, q []int) {
		return list(Keyed(n), uint64(trial), 0), list(Keyed(n+1), uint64(trial), 0)[:n]
	}); d > bound {
		t.Errorf("one sample more: %.1f deviations from chance", d)
	}
}

func TestKeyedOutOfRange(t *testing.T) {
	for n, positions := range map[int][]int{0: {0}, 1: {-1, 1}, 10: {-1, 10, math.MaxInt, math.MinInt}} {
		for _, pos := range positions {
			func() {
				defer func() {
					if p, want := recover(), fmt.Sprintf("sampler: position %d in an order of %d samples", pos, n); p != want {
						t.Errorf("panic %v, want %q", p, want)
					}
				}()
				Keyed(n).Epoch(0, 0)(pos)
			}()
		}
	}
}

func TestRounds(t *testing.T) {
	for width := range 64 {
		p := pairs(width)
		if p > maxPairs {
			t.Errorf("%d bits take %d pairs of rounds, there is room for %d", width, p, maxPairs)
		}
		if p < 3 || width > 1 && (p-2)*width < 20 {
			t.Errorf("%d bits take %d pairs of rounds, which are too few", width, p)
		}
	}
}
