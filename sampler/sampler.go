// Package sampler says which samples one rank visits in one epoch, in what
// order.
//
// An [Order] is the order of all samples; [Distributed] deals it to the ranks.
// What a rank visits is a function of (seed, epoch, rank, position) and
// nothing else: nothing is remembered between epochs, every rank can compute
// what any other visits, and a run is resumed by arithmetic, on any number of
// ranks.
package sampler

import (
	"errors"
	"fmt"
	"iter"
	"strings"
)

// Distributed deals the positions of an order to the ranks one at a time: rank
// r of W gets the positions r, r+W, r+2W, …, as from PyTorch's
// DistributedSampler.
//
// All methods but Validate and Resume panic with Validate's error where there
// is one.
type Distributed struct {
	Order Order
	// Rank is this process's, from 0.
	Rank int
	// World is the number of ranks; 0 means 1.
	World int
	// Seed is the order's, the same on all ranks.
	Seed uint64
	// Tail evens out the ranks at the end of an epoch; 0 is Pad.
	Tail Tail
	// Global is the number of samples in a global batch. It is needed where
	// World does not divide that number: dealing then starts again at rank 0
	// with each global batch, so that step s visits the positions from
	// s·Global to below (s+1)·Global on any number of ranks, and a rank's
	// share of it is the floor or the ceiling of Global/World, see PerRank.
	// Where World does divide it, it changes nothing. 0 means that dealing
	// never starts again.
	Global int
}

// Validate names each field that is wrong, and what is right.
func (d Distributed) Validate() error {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if d.World < 0 {
		add("World is %d: it is the number of ranks, or 0 for one", d.World)
	} else if d.Rank < 0 || d.Rank >= d.world() {
		add("Rank is %d: in a World of %d, ranks are from 0 to %d", d.Rank, d.world(), d.world()-1)
	}
	if !d.Tail.valid() {
		add("Tail is %d: use Pad, Drop or Uneven", d.Tail)
	}
	if d.Global < 0 {
		add("Global is %d: it is the size of the global batch, or 0", d.Global)
	} else if d.Global > 0 && d.Global < d.World {
		add("Global is %d: a global batch below the World of %d leaves ranks without samples; enlarge it or use fewer ranks", d.Global, d.World)
	}
	switch {
	case d.Order == nil:
		add("Order is nil: use an order, such as Keyed(n)")
	case d.Order.Len() < 0:
		add("Order %v has the length %d", d.Order, d.Order.Len())
	case wrong == nil && d.total() < 0: // the sum has overflowed
		add("Order %v is too long to be padded: use Drop or Uneven", d.Order)
	}
	if wrong != nil {
		return errors.New("sampler: " + strings.Join(wrong, "; "))
	}
	return nil
}

func (d Distributed) check() {
	if err := d.Validate(); err != nil {
		panic(err)
	}
}

// Len is the number of samples that the rank visits in an epoch, padding
// included.
func (d Distributed) Len() int {
	d.check()
	return d.dealt(d.total())
}

// Padded is how many of the rank's last samples in an epoch repeat earlier
// ones of some rank: 0 or 1.
func (d Distributed) Padded() int {
	d.check()
	return d.dealt(d.total()) - d.dealt(min(d.total(), d.Order.Len()))
}

// Epoch yields the numbers of the samples that the rank visits in the epoch,
// padding included, without the first skip. It panics where skip is negative.
func (d Distributed) Epoch(epoch, skip int) iter.Seq[int] {
	d.check()
	if skip < 0 {
		panic(fmt.Sprintf("sampler: skip is %d", skip))
	}
	return func(yield func(int) bool) {
		n, left := d.Order.Len(), d.dealt(d.total())-skip
		if left <= 0 {
			return
		}
		at := d.Order.Epoch(d.Seed, epoch)
		block, world := d.block(), d.world()
		share := PerRank(block, world, d.Rank)
		first, k := skip/share*block+d.Rank, skip%share // the rank's first position in the block; how many of its share are done
		for range left {
			pos := first + k*world
			if pos >= n {
				pos %= n
			}
			if !yield(at(pos)) {
				return
			}
			if k++; k == share {
				first, k = first+block, 0
			}
		}
	}
}

// PerRank is how many samples of a global batch the rank gets: the ceiling of
// global/world for the first ranks, the floor for the others. A world of 0 is 1.
func PerRank(global, world, rank int) int {
	share, rest := global/max(1, world), global%max(1, world)
	if rank < rest {
		share++
	}
	return share
}

func (d Distributed) world() int { return max(1, d.World) }

// block is how many positions are dealt before dealing starts again at rank 0.
func (d Distributed) block() int {
	if d.Global > 0 {
		return d.Global
	}
	return d.world()
}

// total is how many positions are dealt in an epoch. Whole blocks leave a rest,
// and whole rounds of it something extra. The ranks take equal numbers of steps
// if the extra is left out, or the last round is filled up to its end or to
// that of the block. A total that is negative has overflowed.
func (d Distributed) total() int {
	n := d.Order.Len()
	rest := n % d.block()
	extra := rest % d.world() // dealt in an incomplete round
	switch {
	case extra == 0 || d.Tail == Uneven:
		return n
	case d.Tail == Drop:
		return n - extra
	}
	return n + min(d.world()-extra, d.block()-rest)
}

// dealt is how many of the first total positions the rank gets.
func (d Distributed) dealt(total int) int {
	b, w := d.block(), d.world()
	return total/b*PerRank(b, w, d.Rank) + PerRank(total%b, w, d.Rank)
}
