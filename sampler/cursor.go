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

// Resume says whether d with the global batch global visits what the run of c
// would have visited after it: nil, or an error that names each field in which
// they differ, or Validate's.
func (d Distributed) Resume(c Cursor, global int) error {
	if err := d.Validate(); err != nil {
		return err
	}
	if c.Epoch < 0 || c.Step < 0 {
		return fmt.Errorf("sampler: the cursor is at epoch %d, step %d: both count from 0", c.Epoch, c.Step)
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
	compare("global batch", c.Global, global)
	if differ != nil {
		return errors.New("sampler: the cursor is of another run: " + strings.Join(differ, "; "))
	}
	return nil
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
