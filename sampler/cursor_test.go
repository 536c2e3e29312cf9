package sampler_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

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
	if err := other.Resume(c, 16); err != nil {
		t.Errorf("another number of ranks: %v", err)
	}
	for want, change := range map[string]func(c *sampler.Cursor){
		"order keyed/1(99), now keyed/1(100)": func(c *sampler.Cursor) { c.Order = "keyed/1(99)" },
		"seed 8, now 7":                       func(c *sampler.Cursor) { c.Seed = 8 },
		"tail uneven, now pad":                func(c *sampler.Cursor) { c.Tail = sampler.Uneven },
		"global batch 32, now 16":             func(c *sampler.Cursor) { c.Global = 32 },
		"order torch/2(100), now keyed/1(100); seed 1, now 7; tail drop, now pad; global batch 1, now 16": func(c *sampler.Cursor) {
			*c = sampler.Cursor{Order: "torch/2(100)", Seed: 1, Tail: sampler.Drop, Global: 1}
		},
		"at epoch -1, step 5": func(c *sampler.Cursor) { c.Epoch = -1 },
		"at epoch 2, step -3": func(c *sampler.Cursor) { c.Step = -3 },
	} {
		changed := c
		change(&changed)
		if err := d.Resume(changed, 16); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", changed, err, want)
		}
	}
	d.Rank = 3
	if err := d.Resume(c, 16); !reflect.DeepEqual(err, d.Validate()) {
		t.Errorf("an invalid Distributed: %v", err)
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
