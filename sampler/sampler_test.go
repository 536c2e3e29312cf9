package sampler_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/stagetest"
	"github.com/shardfeed/shardfeed/sampler"
)

var tails = []sampler.Tail{sampler.Pad, sampler.Drop, sampler.Uneven}

// deck is an order that tells samples from positions and epochs apart.
type deck int

func (n deck) Len() int       { return int(n) }
func (n deck) String() string { return fmt.Sprintf("deck/1(%d)", int(n)) }
func (n deck) Epoch(seed uint64, epoch int) func(pos int) int {
	return func(pos int) int {
		if pos < 0 || pos >= int(n) {
			panic(fmt.Sprintf("position %d of %d", pos, int(n)))
		}
		return 1000*(int(seed)+epoch) + pos
	}
}

// list is the order of an epoch, written out.
func list(o sampler.Order, seed uint64, epoch int) []int {
	at, all := o.Epoch(seed, epoch), make([]int, o.Len())
	for pos := range all {
		all[pos] = at(pos)
	}
	return all
}

// deal is the slow twin: it writes the order out, cuts it into global batches,
// pads or cuts each that does not go round, and deals it sample by sample.
// padded counts a rank's samples that the padding brought.
func deal(all []int, world, global int, tail sampler.Tail) (hands [][]int, padded []int) {
	hands, padded = make([][]int, world), make([]int, world)
	size := max(1, len(all))
	if global > 0 {
		size = global
	}
	next := 0 // of the padding: the order from its start, again and again
	for block := range slices.Chunk(all, size) {
		own := len(block)
		block = slices.Clone(block)
		for len(block)%world != 0 && len(block) != global && tail == sampler.Pad {
			block = append(block, all[next%len(all)])
			next++
		}
		for len(block)%world != 0 && len(block) != global && tail == sampler.Drop {
			block = block[:len(block)-1]
		}
		for i, sample := range block {
			hands[i%world] = append(hands[i%world], sample)
			if i >= own {
				padded[i%world]++
			}
		}
	}
	return hands, padded
}

// globals are 0 and all global batches from world to most.
func globals(world, most int) []int {
	all := []int{0}
	for g := world; g <= most; g++ {
		all = append(all, g)
	}
	return all
}

func TestDistributedIsItsTwin(t *testing.T) {
	for n := range 40 {
		for world := 1; world <= 7; world++ {
			for _, global := range globals(world, 16) {
				for _, tail := range tails {
					checkTwin(t, deck(n), world, global, tail)
				}
			}
		}
	}
}

func checkTwin(t *testing.T, order sampler.Order, world, global int, tail sampler.Tail) {
	t.Helper()
	const seed, epoch = 3, 2
	hands, padded := deal(list(order, seed, epoch), world, global, tail)
	for rank, want := range hands {
		d := sampler.Distributed{Order: order, Rank: rank, World: world, Seed: seed, Tail: tail, Global: global}
		if got := slices.Collect(d.Epoch(epoch, 0)); !slices.Equal(got, want) {
			t.Fatalf("%+v: %v, want %v", d, got, want)
		}
		if d.Len() != len(want) || d.Padded() != padded[rank] {
			t.Fatalf("%+v: Len %d, Padded %d, want %d, %d", d, d.Len(), d.Padded(), len(want), padded[rank])
		}
	}
}

func FuzzDistributed(f *testing.F) {
	f.Add(uint16(0), uint16(1), uint16(0), byte(0))
	f.Add(uint16(59999), uint16(3), uint16(128), byte(0))
	f.Add(uint16(59999), uint16(7), uint16(128), byte(1))
	f.Add(uint16(1), uint16(500), uint16(0), byte(0))
	f.Add(uint16(3000), uint16(500), uint16(777), byte(2))
	f.Fuzz(func(t *testing.T, n, world, global uint16, tail byte) {
		w, g := int(world%600)+1, int(global)
		if g > 0 {
			g = max(g, w)
		}
		checkTwin(t, deck(n), w, g, tails[tail%3])
	})
}

func TestSeek(t *testing.T) {
	for _, order := range []sampler.Order{deck(23), sampler.Sequential(23), sampler.Keyed(23), sampler.Torch(23)} {
		for world := 1; world <= 5; world++ {
			for _, global := range globals(world, 9) {
				for _, tail := range tails {
					for rank := range world {
						d := sampler.Distributed{Order: order, Rank: rank, World: world, Seed: 5, Tail: tail, Global: global}
						stagetest.Seek(t, d.Epoch, 0, 3)
					}
				}
			}
		}
	}
}

// What each tail promises, and what Global does, whatever the dealing is.
func TestPromises(t *testing.T) {
	for n := range 50 {
		for world := 1; world <= 7; world++ {
			for _, global := range globals(world, 20) {
				for _, tail := range tails {
					checkPromises(t, n, world, global, tail)
				}
			}
		}
	}
}

func checkPromises(t *testing.T, n, world, global int, tail sampler.Tail) {
	t.Helper()
	var (
		times     = make([]int, n) // that each sample is visited, padding aside
		lens      = map[int]bool{} // of the ranks
		steps     = map[int]bool{} // of the ranks
		padded    int
		perGlobal = max(global, world) // a step's samples, all ranks together
	)
	for rank := range world {
		d := sampler.Distributed{Order: sampler.Sequential(n), Rank: rank, World: world, Tail: tail, Global: global}
		all := slices.Collect(d.Epoch(0, 0))
		lens[len(all)] = true
		padded += d.Padded()
		plan := batch.Sampler{Order: d.Epoch, Padded: d.Padded(), Size: sampler.PerRank(perGlobal, world, rank)}
		count := 0
		for step := range plan.Epoch(0, 0) {
			count++
			for _, sample := range step.Samples[:step.Rows()] {
				times[sample]++
				if sample/perGlobal != step.Index {
					t.Fatalf("n %d world %d global %d %v: sample %d comes in step %d", n, world, global, tail, sample, step.Index)
				}
			}
		}
		steps[count] = true
		if plain := d; global%world == 0 {
			plain.Global = 0
			if !slices.Equal(slices.Collect(plain.Epoch(0, 0)), all) {
				t.Fatalf("%+v: Global matters although World divides it", d)
			}
		}
	}
	missing := 0
	for _, k := range times {
		switch {
		case k > 1:
			t.Fatalf("n %d world %d global %d %v: a sample counts twice: %v", n, world, global, tail, times)
		case k == 0:
			missing++
		}
	}
	switch tail {
	case sampler.Pad:
		if missing > 0 || padded >= world || len(steps) > 1 {
			t.Fatalf("n %d world %d global %d pad: %d missing, %d padded, numbers of steps %v", n, world, global, missing, padded, steps)
		}
	case sampler.Drop:
		if missing >= world || padded > 0 || len(steps) > 1 {
			t.Fatalf("n %d world %d global %d drop: %d missing, %d padded, numbers of steps %v", n, world, global, missing, padded, steps)
		}
	case sampler.Uneven:
		if missing > 0 || padded > 0 {
			t.Fatalf("n %d world %d global %d uneven: %d missing, %d padded", n, world, global, missing, padded)
		}
	}
	if tail != sampler.Uneven && global%world == 0 && len(lens) > 1 {
		t.Fatalf("n %d world %d global %d %v: ranks visit %v samples", n, world, global, tail, lens)
	}
}

// A run goes on with another number of ranks at any step: all samples of the
// epoch are visited once.
func TestResumeOnAnotherWorld(t *testing.T) {
	const n, global = 103, 12
	visit := func(world, from, to int) (samples []int) {
		for rank := range world {
			d := sampler.Distributed{Order: sampler.Keyed(n), Rank: rank, World: world, Seed: 9, Global: global}
			plan := batch.Sampler{Order: d.Epoch, Padded: d.Padded(), Size: sampler.PerRank(global, world, rank)}
			for step := range plan.Epoch(4, from) {
				if step.Index < to {
					samples = append(samples, step.Samples[:step.Rows()]...)
				}
			}
		}
		return samples
	}
	for before := 1; before <= 7; before++ {
		for after := 1; after <= 7; after++ {
			for step := range (n+global-1)/global + 1 {
				all := append(visit(before, 0, step), visit(after, step, math.MaxInt)...)
				if slices.Sort(all); !slices.Equal(all, slices.Collect(upTo(n))) {
					t.Fatalf("%d ranks to step %d, then %d ranks: %v", before, step, after, all)
				}
			}
		}
	}
}

// A run goes on with another global batch, on another number of ranks, where
// the position is a multiple of it or the epoch is over: the samples before and
// after, padding aside, are the epoch's order, none missing but those of the
// new run's tail. Elsewhere it is refused, and all that the error proposes works.
func TestResumeOnAnotherBatch(t *testing.T) {
	for n := range 20 {
		for _, tail := range tails {
			for _, old := range []sampler.Distributed{{World: 1, Global: 1}, {World: 2, Global: 3}, {World: 2, Global: 4}, {World: 3, Global: 4}, {World: 1, Global: 6}, {World: 4, Global: 9}} {
				old.Order, old.Tail = deck(n), tail
				for world := 1; world <= 4; world++ {
					for global := world; global <= 12; global++ {
						d := sampler.Distributed{Order: deck(n), World: world, Tail: tail, Global: global}
						for step := range (n+old.Global-1)/old.Global + 2 {
							checkResume(t, old, d, step)
						}
					}
				}
			}
		}
	}
}

// checkResume lets d go on after a step of old.
func checkResume(t *testing.T, old, d sampler.Distributed, step int) {
	t.Helper()
	const epoch = 1
	c := old.Cursor(old.Global, epoch, step)
	at, err := d.Resume(c, d.Global)
	end := len(visit(d, epoch, 0)) // of an epoch of d
	position := min(step*old.Global, d.Order.Len())
	switch {
	case position%d.Global > 0 && position < end:
		checkProposals(t, err, d, c, end)
	case err != nil:
		t.Fatalf("%+v after %+v: %v", d, c, err)
	case position >= end:
		if at != d.Cursor(d.Global, epoch+1, 0) {
			t.Fatalf("%+v after %+v: %+v", d, c, at)
		}
	default:
		got := slices.Concat(visit(old, epoch, 0)[:position], visit(d, at.Epoch, at.Step))
		if want := list(d.Order, d.Seed, epoch)[:end]; !slices.Equal(got, want) {
			t.Fatalf("%+v after %+v: %v, want %v", d, c, got, want)
		}
	}
}

// visit is the samples that all ranks together visit in an epoch of a deck from
// a step on, padding aside.
func visit(d sampler.Distributed, epoch, from int) (samples []int) {
	var steps [][]int
	for d.Rank = range d.World {
		plan := batch.Sampler{Order: d.Epoch, Padded: d.Padded(), Size: sampler.PerRank(d.Global, d.World, d.Rank)}
		for step := range plan.Epoch(epoch, from) {
			for len(steps) <= step.Index-from {
				steps = append(steps, nil)
			}
			steps[step.Index-from] = append(steps[step.Index-from], step.Samples[:step.Rows()]...)
		}
	}
	for _, s := range steps {
		slices.Sort(s) // as they stand in a deck
		samples = append(samples, s...)
	}
	return samples
}

var proposals = regexp.MustCompile(`checkpoint at step (\d+) \(position (\d+)\) or (?:step (\d+) \(position (\d+)\)|the end of the epoch)(?:, or here with a global batch of (\d+)(?: or (\d+))?)?$`)

// checkProposals follows the advice of an error; an epoch of d ends at end.
func checkProposals(t *testing.T, err error, d sampler.Distributed, c sampler.Cursor, end int) {
	t.Helper()
	if err == nil {
		t.Fatalf("%+v after %+v: no error", d, c)
	}
	found := proposals.FindStringSubmatch(err.Error())
	if found == nil {
		t.Fatalf("%+v after %+v: %v", d, c, err)
	}
	var number [7]int
	for i, text := range found[1:] {
		number[i+1], _ = strconv.Atoi(text)
	}
	after := number[3]
	if found[3] == "" {
		after = (end + c.Global - 1) / c.Global
	}
	if number[1] >= c.Step || after <= c.Step || number[2] != number[1]*c.Global || number[4] != number[3]*c.Global {
		t.Fatalf("%v: that is for step %d", err, c.Step)
	}
	for at := c; number[1] <= after; number[1]++ {
		at.Step = number[1]
		if _, e := d.Resume(at, d.Global); (e == nil) != (at.Step == after || found[2] == strconv.Itoa(at.Step*c.Global)) {
			t.Fatalf("%v, but at step %d: %v", err, at.Step, e)
		}
	}
	// Of the global batches that fit, the next to the one that does not.
	below, above := 0, 0
	for global := d.World; global <= c.Step*c.Global; global++ {
		other := d
		other.Global = global
		switch _, err := other.Resume(c, global); {
		case err != nil || c.Step*c.Global%global > 0:
		case global < d.Global:
			below = global
		case above == 0:
			above = global
		}
	}
	if below == 0 || above == 0 {
		below, above = below+above, 0
	}
	if number[5] != below || number[6] != above {
		t.Fatalf("%v, but %d and %d would fit", err, below, above)
	}
}

func upTo(n int) iter.Seq[int] {
	return sampler.Distributed{Order: sampler.Sequential(n)}.Epoch(0, 0)
}

// What PyTorch 2.6.0's DistributedSampler yields: testdata/torch.json, trimmed
// by internal/torchrand/testdata/trim.py.
func TestTorchDistributedSampler(t *testing.T) {
	text, err := os.ReadFile("testdata/torch.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Records []struct {
			N, World, Rank, Epoch int
			Seed                  uint64
			Shuffle               bool
			Drop                  bool `json:"drop_last"`
			Total                 int  `json:"total_size"`
			Indices               []int
			Sum                   string `json:"sha256"`
		} `json:"distributed_sampler"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	for _, g := range golden.Records {
		d := sampler.Distributed{Order: sampler.Sequential(g.N), Rank: g.Rank, World: g.World, Seed: g.Seed}
		if g.Shuffle {
			d.Order = sampler.Torch(g.N)
		}
		if g.Drop {
			d.Tail = sampler.Drop
		}
		got := slices.Collect(d.Epoch(g.Epoch, 0))
		if d.Len()*g.World != g.Total {
			t.Errorf("%+v: Len %d on each of %d ranks, want %d in all", d, d.Len(), g.World, g.Total)
		}
		if g.Sum == "" && !slices.Equal(got, g.Indices) || g.Sum != "" && sum(got) != g.Sum {
			t.Errorf("%+v, epoch %d: %v…, want %v", d, g.Epoch, got[:min(8, len(got))], g.Indices)
		}
	}
	if len(golden.Records) < 2300 {
		t.Errorf("only %d golden records", len(golden.Records))
	}
}

// sum is the SHA-256 of the numbers as little-endian int64.
func sum(numbers []int) string {
	var text []byte
	for _, v := range numbers {
		text = binary.LittleEndian.AppendUint64(text, uint64(v))
	}
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}

func TestNoSamples(t *testing.T) {
	for _, order := range []sampler.Order{sampler.Sequential(0), sampler.Keyed(0), sampler.Torch(0)} {
		for world := range 4 {
			for _, global := range []int{0, 5} {
				for _, tail := range tails {
					d := sampler.Distributed{Order: order, World: world, Rank: max(0, world-1), Tail: tail, Global: global}
					if got := slices.Collect(d.Epoch(0, 0)); len(got) != 0 || d.Len() != 0 || d.Padded() != 0 {
						t.Errorf("%+v: %v, Len %d, Padded %d", d, got, d.Len(), d.Padded())
					}
					d.Fingerprint(0)
				}
			}
		}
	}
}

// Seeking far into a long epoch costs as much as the samples taken.
func TestSeekIsArithmetic(t *testing.T) {
	calls := 0
	d := sampler.Distributed{Order: counted{sampler.Keyed(1e9), &calls}, Rank: 3, World: 8}
	k := 1e8
	for sample := range d.Epoch(0, int(k)) {
		if want := sampler.Keyed(1e9).Epoch(0, 0)(3 + 8*int(k)); sample != want {
			t.Errorf("sample %d, want %d", sample, want)
		}
		if k++; k == 1e8+5 {
			break
		}
	}
	if calls != 5 {
		t.Errorf("%d positions computed for 5 samples", calls)
	}
}

type counted struct {
	sampler.Order
	calls *int
}

func (c counted) Epoch(seed uint64, epoch int) func(pos int) int {
	at := c.Order.Epoch(seed, epoch)
	return func(pos int) int { *c.calls++; return at(pos) }
}

// Lengths near the largest int.
func TestHugeLengths(t *testing.T) {
	const most = math.MaxInt
	for _, tt := range []struct {
		d           sampler.Distributed
		len, padded int
		last        int // sample
	}{
		{sampler.Distributed{Order: sampler.Sequential(most), Tail: sampler.Pad}, most, 0, most - 1},
		{sampler.Distributed{Order: sampler.Sequential(most), World: 2, Rank: 0, Tail: sampler.Uneven}, most/2 + 1, 0, most - 1},
		{sampler.Distributed{Order: sampler.Sequential(most), World: 2, Rank: 1, Tail: sampler.Uneven}, most / 2, 0, most - 2},
		{sampler.Distributed{Order: sampler.Sequential(most), World: 2, Rank: 1, Tail: sampler.Drop}, most / 2, 0, most - 2},
		{sampler.Distributed{Order: sampler.Sequential(most - 1), World: most, Rank: most - 1}, 1, 1, 0},
		{sampler.Distributed{Order: sampler.Sequential(most), World: most, Rank: most - 1}, 1, 0, most - 1},
		{sampler.Distributed{Order: sampler.Sequential(most), World: 2, Rank: 1, Global: most}, most / 2, 0, most - 2},
		{sampler.Distributed{Order: sampler.Sequential(most - 5), World: 4, Rank: 3, Global: most - 1}, most / 4, 1, 1},
		{sampler.Distributed{Order: sampler.Sequential(5), World: most, Rank: 11}, 1, 1, 1},
	} {
		if err := tt.d.Validate(); err != nil {
			t.Error(err)
			continue
		}
		if tt.d.Len() != tt.len || tt.d.Padded() != tt.padded {
			t.Errorf("%+v: Len %d, Padded %d, want %d, %d", tt.d, tt.d.Len(), tt.d.Padded(), tt.len, tt.padded)
		}
		if got := slices.Collect(tt.d.Epoch(0, tt.len-1)); !slices.Equal(got, []int{tt.last}) {
			t.Errorf("%+v: the last sample is %v, want %d", tt.d, got, tt.last)
		}
		if got := slices.Collect(tt.d.Epoch(0, most)); len(got) > 0 {
			t.Errorf("%+v: after all samples come %v", tt.d, got)
		}
	}
}

func TestValidate(t *testing.T) {
	ten := sampler.Sequential(10)
	for want, d := range map[string]sampler.Distributed{
		"":                                       {Order: ten, World: 3, Rank: 2, Global: 3},
		"sampler: Order is nil: use an order":    {},
		"World is -1: it is the number of ranks": {Order: ten, World: -1},
		"Rank is 3: in a World of 3, ranks are from 0 to 2": {Order: ten, World: 3, Rank: 3},
		"Rank is -1: in a World of 1":                       {Order: ten, Rank: -1},
		"Rank is 1: in a World of 1":                        {Order: ten, Rank: 1},
		"Tail is 3: use Pad, Drop or Uneven":                {Order: ten, Tail: 3},
		"Tail is -1: use Pad":                               {Order: ten, Tail: -1},
		"Global is -2: it is the size of the global batch":  {Order: ten, Global: -2},
		"global batch below the World of 4":                 {Order: ten, World: 4, Global: 3},
		"Order deck/1(-1) has the length -1":                {Order: deck(-1)},
		"is too long to be padded: use Drop or Uneven":      {Order: sampler.Sequential(math.MaxInt), World: 2},
		"Rank is 9: in a World of 2, ranks are from 0 to 1; Global is -1: it is the size of the global batch, or 0; Order is nil": {World: 2, Rank: 9, Global: -1},
	} {
		err := d.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
		for name, f := range map[string]func(){
			"Len":         func() { d.Len() },
			"Padded":      func() { d.Padded() },
			"Epoch":       func() { d.Epoch(0, 0) },
			"Cursor":      func() { d.Cursor(10, 0, 0) },
			"Fingerprint": func() { d.Fingerprint(0) },
		} {
			if p := panics(f); fmt.Sprint(p) != fmt.Sprint(err) {
				t.Errorf("%+v: %s panics with %v, want %v", d, name, p, err)
			}
		}
	}
	if p := panics(func() { sampler.Distributed{Order: ten}.Epoch(0, -1) }); p != "sampler: skip is -1" {
		t.Errorf("a skip of -1 panics with %v", p)
	}
}

// panics is what f panics with, or nil.
func panics(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

func TestPerRank(t *testing.T) {
	for global := range 50 {
		for world := range 12 {
			total := 0
			for rank := range max(1, world) {
				share := sampler.PerRank(global, world, rank)
				if floor := global / max(1, world); share != floor && share != floor+1 {
					t.Errorf("PerRank(%d, %d, %d) = %d", global, world, rank, share)
				}
				total += share
			}
			if total != global {
				t.Errorf("the shares of %d on %d ranks add up to %d", global, world, total)
			}
		}
	}
	if got := sampler.PerRank(math.MaxInt, math.MaxInt, 0); got != 1 {
		t.Errorf("PerRank(MaxInt, MaxInt, 0) = %d", got)
	}
}
