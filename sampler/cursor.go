package sampler

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// Cursor is a place in training, for a checkpoint: Step global batches of
// Epoch are done. It names no rank and no world, so that any number of ranks
// can go on from it. As JSON the seed is a number of up to 64 bits, which Go
// keeps exactly; JavaScript and others that read numbers as float64 do not.
type Cursor struct {
	Order  string `json:"order"` // Order.String
	Seed   uint64 `json:"seed"`
	Tail   Tail   `json:"tail"`
	Global int    `json:"global"` // the global batch
	Epoch  int    `json:"epoch"`
	Step   int    `json:"step"`
}

// Cursor is the place after step global batches of global samples in the
// epoch. It panics with Validate's error.
func (d Distributed) Cursor(global, epoch, step int) Cursor {
	d.check()
	return Cursor{d.Order.String(), d.Seed, d.Tail, global, epoch, step}
}

// Resume is where d with the global batch global goes on after c, so that the
// rest of the epoch's order is visited and nothing twice. With the run's own
// global batch that is c, or the start of the next epoch where c is at the end
// of one. With another it is the same position in the order, where that is a
// multiple of it; else the error says which positions are, and which global
// batches fit this one. Another order, seed or tail is an error that names each.
//
// The epoch ends as d's epochs do: Drop leaves out what d leaves out, which
// depends on World and the global batch, unless it has been visited before c.
func (d Distributed) Resume(c Cursor, global int) (Cursor, error) {
	if err := d.Validate(); err != nil {
		return Cursor{}, err
	}
	if err := d.deals(global); err != nil {
		return Cursor{}, err
	}
	if c.Epoch < 0 || c.Step < 0 || c.Global < 1 {
		return Cursor{}, fmt.Errorf("sampler: the cursor is at epoch %d, step %d of a global batch of %d: the first two count from 0, the last from 1", c.Epoch, c.Step, c.Global)
	}
	var differ []string
	compare := func(field string, then, now any) {
		if then != now {
			differ = append(differ, fmt.Sprintf("%s %v, now %v", field, then, now))
		}
	}
	compare("order", c.Order, d.Order.String())
	compare("seed", c.Seed, d.Seed)
	compare("tail", c.Tail, d.Tail)
	if differ != nil {
		return Cursor{}, errors.New("sampler: the cursor is of another run: " + strings.Join(differ, "; "))
	}
	end := min(d.total(), d.Order.Len()) // of the samples that count
	if c.Step >= steps(end, c.Global) {
		return d.Cursor(global, c.Epoch+1, 0), nil
	}
	if position := c.Step * c.Global; position%global == 0 {
		return d.Cursor(global, c.Epoch, position/global), nil
	}
	return Cursor{}, d.misfit(c, global, end)
}

// steps is how many global batches n positions make.
func steps(n, global int) int {
	if n%global > 0 {
		return n/global + 1
	}
	return n / global
}

// deals says whether step s of a global batch visits the positions from
// s·global on. See Global.
func (d Distributed) deals(global int) error {
	switch w := d.world(); {
	case global < 1:
		return fmt.Errorf("sampler: a global batch of %d: it has at least one sample", global)
	case global != d.Global && (global%w > 0 || d.Global%w > 0):
		return fmt.Errorf("sampler: a global batch of %d on %d ranks with Global %d: set Global to the global batch", global, w, d.Global)
	}
	return nil
}

// misfit says that the cursor's position, before the epoch's end, is no
// multiple of the global batch, and what is.
func (d Distributed) misfit(c Cursor, global, end int) error {
	position := c.Step * c.Global
	// Both batches end together after each of so many steps of the old one.
	every := global / gcd(c.Global, global)
	before := c.Step / every * every
	after := "the end of the epoch"
	if every < steps(end, c.Global)-before {
		after = fmt.Sprintf("step %d (position %d)", before+every, (before+every)*c.Global)
	}
	var fitting string
	if below, above := d.divisors(position, global); below > 0 && above > 0 {
		fitting = fmt.Sprintf(", or here with a global batch of %d or %d", below, above)
	} else if below+above > 0 {
		fitting = fmt.Sprintf(", or here with a global batch of %d", below+above)
	}
	return fmt.Errorf("sampler: the cursor is at position %d of epoch %d (step %d of the global batch %d), no multiple of the global batch %d: go on from a checkpoint at step %d (position %d) or %s%s",
		position, c.Epoch, c.Step, c.Global, global, before, before*c.Global, after, fitting)
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// divisors is the global batches next to global, from below and above, that
// divide position and suit the ranks; 0 is none. It may miss some of a position
// beyond 2^40.
func (d Distributed) divisors(position, global int) (below, above int) {
	for i := 1; i <= position/i && i <= 1<<20; i++ {
		if position%i > 0 {
			continue
		}
		for _, g := range [...]int{i, position / i} {
			switch {
			case g < d.world() || d.Global == 0 && g%d.world() > 0:
			case g < global:
				below = max(below, g)
			case above == 0 || g < above:
				above = g
			}
		}
	}
	return below, above
}

// Fingerprint is a hash of what all ranks have in common in the epoch: the
// order and its samples, the seed, the tail and Global. Ranks that compare
// fingerprints know that they deal from one deck; a test that pins one knows
// that the order has not changed. Of an order longer than 65,536, so many
// samples evenly spread over it are hashed. Fingerprint panics with Validate's
// error.
func (d Distributed) Fingerprint(epoch int) uint64 {
	d.check()
	h := sha256.New()
	fmt.Fprintf(h, "%v %d %v %d %d\n", d.Order, d.Seed, d.Tail, d.Global, epoch)
	n, at := d.Order.Len(), d.Order.Epoch(d.Seed, epoch)
	k := min(n, 1<<16)
	var sample [8]byte
	for i := range k {
		hi, lo := bits.Mul64(uint64(i), uint64(n)) // i*n/k is i where all are hashed
		pos, _ := bits.Div64(hi, lo, uint64(k))
		binary.BigEndian.PutUint64(sample[:], uint64(at(int(pos))))
		h.Write(sample[:])
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}
