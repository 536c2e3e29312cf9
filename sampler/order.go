package sampler

import (
	"fmt"
	"math"

	"github.com/shardfeed/shardfeed/internal/torchrand"
)

// Order is the order of the samples of an epoch, before it is dealt to ranks.
// It need not be a permutation: a weighted draw is an Order, too.
type Order interface {
	// Len is the number of positions in an epoch.
	Len() int
	// Epoch makes the epoch's order: at(pos) is the number of the sample at
	// pos, which is at least 0 and below Len. The order depends on nothing but
	// the arguments. at is safe for concurrent use.
	Epoch(seed uint64, epoch int) (at func(pos int) int)
	// String is the order's name/version(parameters). Orders with equal
	// strings are equal; whoever changes an order changes its version.
	String() string
}

// ByName is the order of n samples called sequential, keyed or torch.
func ByName(name string, n int) (Order, error) {
	if n < 0 {
		return nil, fmt.Errorf("sampler: an order of %d samples: give 0 or more", n)
	}
	switch name {
	case "sequential":
		return Sequential(n), nil
	case "keyed":
		return Keyed(n), nil
	case "torch":
		return Torch(n), nil
	}
	return nil, fmt.Errorf("sampler: no order is called %q: use keyed, torch or sequential", name)
}

// Sequential visits the samples 0 … n-1 in this order, in every epoch. It
// panics where n is negative.
func Sequential(n int) Order { return sequential(length(n)) }

type sequential int

func (n sequential) Len() int                            { return int(n) }
func (n sequential) String() string                      { return fmt.Sprintf("sequential/1(%d)", int(n)) }
func (n sequential) Epoch(uint64, int) func(pos int) int { return func(pos int) int { return pos } }

// Torch visits the n samples in the order of PyTorch 2's DistributedSampler:
// torch.randperm(n) on a CPU generator with the seed seed+epoch modulo 2^64,
// bit for bit. Of that sum PyTorch uses the low 32 bits alone, so that epoch 1
// of seed 0 is epoch 0 of seed 1 and of seed 2^32+1; Keyed has no such
// coincidences.
//
// Each call of Epoch makes the whole permutation, of 4 bytes a sample (8 from
// 2^31 samples on), which lives as long as at. Torch panics where n is negative.
func Torch(n int) Order { return torch(length(n)) }

type torch int

func (n torch) Len() int       { return int(n) }
func (n torch) String() string { return fmt.Sprintf("torch/2(%d)", int(n)) }

func (n torch) Epoch(seed uint64, epoch int) func(pos int) int {
	g := torchrand.New(seed + uint64(epoch))
	if n-1 <= math.MaxInt32 {
		p := torchrand.Perm[int32](g, int(n))
		return func(pos int) int { return int(p[pos]) }
	}
	p := torchrand.Perm[int64](g, int(n))
	return func(pos int) int { return int(p[pos]) }
}

// length is n, checked.
func length(n int) int {
	if n < 0 {
		panic(fmt.Sprintf("sampler: an order of %d samples", n))
	}
	return n
}
