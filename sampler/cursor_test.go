package sampler_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shardfeed/shardfeed/sampler"
)

func TestCursorJSON(t *testing.T) {
	d := sampler.Distributed{Order: sampler.Keyed(60000), Rank: 1, World: 2, Seed: math.MaxUint64, Tail: sampler.Drop}
	c := d.Cursor(128, 3, 77)
	text, err := json.Marshal(c)
	if want := `{"order":"keyed/1(60000)","seed":18446744073709551615,"tail":"drop","global":128,"epoch":3,"step":77}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	var back sampler.Cursor
	if err := json.Unmarshal(text, &back); err != nil || back != c {
		t.Errorf("back comes %+v, %v, want %+v", back, err, c)
	}
	for _, bad := range []string{`{"tail":"cut"}`, `{"tail":0}`, `{"seed":-1}`, `{"seed":18446744073709551616}`, `{"seed":1.5}`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s is read as %+v", bad, back)
		}
	}
	if _, err := json.Marshal(sampler.Cursor{Tail: 7}); err == nil || !strings.Contains(err.Error(), "Tail(7) is none of Pad, Drop and Uneven") {
		t.Errorf("an invalid tail is written: %v", err)
	}
}

func TestTailNames(t *testing.T) {
	for name, tail := range map[string]sampler.Tail{"pad": sampler.Pad, "drop": sampler.Drop, "uneven": sampler.Uneven} {
		if got, err := sampler.ParseTail(name); err != nil || got != tail || tail.String() != name {
			t.Errorf("ParseTail(%q) = %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "Pad", "Tail(1)", "cut"} {
		if _, err := sampler.ParseTail(name); err == nil || !strings.Contains(err.Error(), "use pad, drop or uneven") {
			t.Errorf("ParseTail(%q): %v", name, err)
		}
	}
}

func TestResume(t *testing.T) {
	d := sampler.Distributed{Order: sampler.Keyed(100), Rank: 1, World: 3, Seed: 7, Global: 16}
	c := d.Cursor(16, 2, 5)
	other := d
	other.World, other.Rank = 5, 4
	if at, err := other.Resume(c, 16); err != nil || at != c {
		t.Errorf("another number of ranks: %v, %v", at, err)
	}
	for want, change := range map[string]func(c *sampler.Cursor){
		"order keyed/1(99), now keyed/1(100)": func(c *sampler.Cursor) { c.Order = "keyed/1(99)" },
		"seed 8, now 7":                       func(c *sampler.Cursor) { c.Seed = 8 },
		"tail uneven, now pad":                func(c *sampler.Cursor) { c.Tail = sampler.Uneven },
		"order torch/2(100), now keyed/1(100); seed 1, now 7; tail drop, now pad": func(c *sampler.Cursor) {
			*c = sampler.Cursor{Order: "torch/2(100)", Seed: 1, Tail: sampler.Drop, Global: 1}
		},
		"at epoch -1, step 5 of a global batch of 16": func(c *sampler.Cursor) { c.Epoch = -1 },
		"at epoch 2, step -3":                         func(c *sampler.Cursor) { c.Step = -3 },
		"step 5 of a global batch of 0":               func(c *sampler.Cursor) { c.Global = 0 },
	} {
		changed := c
		change(&changed)
		if at, err := d.Resume(changed, 16); err == nil || !strings.Contains(err.Error(), want) || at != (sampler.Cursor{}) {
			t.Errorf("%+v: %v, %v, want %q", changed, at, err, want)
		}
	}
	d.Rank = 3
	if _, err := d.Resume(c, 16); !reflect.DeepEqual(err, d.Validate()) {
		t.Errorf("an invalid Distributed: %v", err)
	}
}

// A step visits positions one after the other where Global is the global batch,
// or the ranks divide it and dealing starts again at rank 0 by itself.
func TestResumeChecksTheDealing(t *testing.T) {
	for _, tt := range []struct {
		world, dealt, global int
		want                 string // of the error; "" is none
	}{
		{3, 16, 16, ""},
		{3, 0, 12, ""},
		{3, 6, 12, ""},
		{3, 0, 16, "a global batch of 16 on 3 ranks with Global 0: set Global to the global batch"},
		{3, 16, 12, "a global batch of 12 on 3 ranks with Global 16"},
		{3, 12, 16, "a global batch of 16 on 3 ranks with Global 12"},
		{1, 0, 0, "a global batch of 0: it has at least one sample"},
		{1, 0, -1, "a global batch of -1"},
	} {
		d := sampler.Distributed{Order: sampler.Keyed(100), World: tt.world, Global: tt.dealt}
		if _, err := d.Resume(d.Cursor(48, 0, 1), tt.global); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// The sentence that a user reads.
func TestResumeOnAnotherBatchSays(t *testing.T) {
	for _, tt := range []struct {
		n, world, old, step, global int
		want                        string
	}{
		{60000, 2, 128, 100, 96, "sampler: the cursor is at position 12800 of epoch 3 (step 100 of the global batch 128), no multiple of the global batch 96: go on from a checkpoint at step 99 (position 12672) or step 102 (position 13056), or here with a global batch of 80 or 100"},
		{60000, 2, 128, 468, 96, "a checkpoint at step 468 (position 59904) or"}, // fits: there is no error
		{60000, 2, 128, 467, 96, "a checkpoint at step 465 (position 59520) or step 468 (position 59904), or here with a global batch of 64 or 128"},
		{60000, 2, 128, 467, 100, "a checkpoint at step 450 (position 57600) or the end of the epoch, or"},
		{60000, 2, 128, 3, 512, "a checkpoint at step 0 (position 0) or step 4 (position 512), or here with a global batch of 384"},
		{60000, 90, 128, 1, 96, "step 0 (position 0) or step 3 (position 384), or here with a global batch of 128"},
		{60000, 200, 128, 1, 300, "step 0 (position 0) or step 75 (position 9600)"}, // no batch fits 200 ranks
	} {
		d := sampler.Distributed{Order: sampler.Keyed(tt.n), World: tt.world, Global: tt.global}
		c := sampler.Distributed{Order: d.Order}.Cursor(tt.old, 3, tt.step)
		at, err := d.Resume(c, tt.global)
		if c.Step*tt.old%tt.global == 0 {
			if err != nil || at != d.Cursor(tt.global, 3, c.Step*tt.old/tt.global) {
				t.Errorf("%+v: %v, %v", tt, at, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt, err, tt.want)
		}
	}
}

// Where dealing never starts again, only multiples of World are proposed.
func TestResumeOnAnotherBatchWithoutGlobal(t *testing.T) {
	d := sampler.Distributed{Order: sampler.Keyed(60000), World: 8}
	_, err := d.Resume(d.Cursor(128, 3, 100), 96)
	if want := "or here with a global batch of 80 or 128"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// Positions near the largest int neither overflow nor take long.
func TestResumeFarOn(t *testing.T) {
	const most = math.MaxInt
	began := time.Now()
	d := sampler.Distributed{Order: sampler.Sequential(most), Tail: sampler.Uneven}
	for _, tt := range []struct {
		old, step, global int
		epoch, want       int    // of the cursor
		err               string // or an error
	}{
		{1, most - 1, 1, 0, most - 1, ""},
		{1, most, 1, 1, 0, ""},
		{most, 1, 1, 1, 0, ""},
		{most, most, most, 1, 0, ""},
		{2, most/2 + 1, 3, 1, 0, ""},
		{1, most - 1, most, 0, 0, "step 0 (position 0) or the end of the epoch, or here with"},
		{most / 2, 1, most, 0, 0, "step 0 (position 0) or the end of the epoch, or here with"},
		{most - 1, 1, most - 2, 0, 0, "step 0 (position 0) or the end of the epoch, or here with"},
		{3, most/3 - 1, 2, 0, 0, "or here with a global batch of 1 or 3"},
	} {
		at, err := d.Resume(d.Cursor(tt.old, 0, tt.step), tt.global)
		if tt.err == "" && (err != nil || at != d.Cursor(tt.global, tt.epoch, tt.want)) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%+v: %v, %v", tt, at, err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("that took %v", took)
	}
}

func TestFingerprint(t *testing.T) {
	d := sampler.Distributed{Order: sampler.Keyed(1000), Seed: 1, Global: 12}
	want := d.Fingerprint(0)
	for rank := range 5 {
		same := d
		same.Rank, same.World = rank, 5
		if got := same.Fingerprint(0); got != want {
			t.Errorf("rank %d of 5: %x, want %x", rank, got, want)
		}
	}
	seen := map[uint64]string{want: "the first"}
	for name, f := range map[string]func(d *sampler.Distributed) (epoch int){
		"epoch":  func(d *sampler.Distributed) int { return 1 },
		"seed":   func(d *sampler.Distributed) int { d.Seed = 2; return 0 },
		"tail":   func(d *sampler.Distributed) int { d.Tail = sampler.Drop; return 0 },
		"global": func(d *sampler.Distributed) int { d.Global = 0; return 0 },
		"length": func(d *sampler.Distributed) int { d.Order = sampler.Keyed(1001); return 0 },
		"kind":   func(d *sampler.Distributed) int { d.Order = sampler.Torch(1000); return 0 },
		"sample": func(d *sampler.Distributed) int { d.Order = cheat{d.Order, 999}; return 0 },
	} {
		changed := d
		epoch := f(&changed)
		got := changed.Fingerprint(epoch)
		if seen[got] != "" {
			t.Errorf("another %s has the fingerprint of %s", name, seen[got])
		}
		seen[got] = name
	}
}

// cheat has the name of another order, but another sample at one position.
type cheat struct {
	sampler.Order
	pos int
}

func (c cheat) Epoch(seed uint64, epoch int) func(pos int) int {
	at := c.Order.Epoch(seed, epoch)
	return func(pos int) int {
		if pos == c.pos {
			return at(pos) ^ 1
		}
		return at(pos)
	}
}

// Up to 65,536 positions count, all that there are or evenly spread ones.
func TestFingerprintPositions(t *testing.T) {
	for _, n := range []int{0, 1, 100, 65536, 65537, 100000, 1 << 40, math.MaxInt} {
		var seen []int
		sampler.Distributed{Order: spy{sampler.Sequential(n), &seen}}.Fingerprint(0)
		if len(seen) != min(n, 65536) {
			t.Errorf("of %d positions %d are hashed", n, len(seen))
		}
		for i := 1; i < len(seen); i++ {
			if gap := seen[i] - seen[i-1]; gap < n/65536 || gap > n/65536+1 || gap < 1 {
				t.Fatalf("of %d positions %d follows %d", n, seen[i], seen[i-1])
			}
		}
		if len(seen) > 0 && (seen[0] != 0 || seen[len(seen)-1] < n-1-n/65536-1) {
			t.Errorf("of %d positions those from %d to %d are hashed", n, seen[0], seen[len(seen)-1])
		}
	}
}

type spy struct {
	sampler.Order
	seen *[]int
}

func (s spy) Epoch(seed uint64, epoch int) func(pos int) int {
	at := s.Order.Epoch(seed, epoch)
	return func(pos int) int { *s.seen = append(*s.seen, pos); return at(pos) }
}
