package sampler

import (
	"fmt"
	"math/bits"
)

// Keyed visits the n samples in an order that is computed, not stored: a new
// epoch and any position in it cost the same whatever n is. It panics where n
// is negative.
//
// The order is a Feistel network with two radices (Black and Rogaway, Ciphers
// with Arbitrary Finite Domains, 2002). A number is l·2^k + r, with r below
// 2^k and l below a radix, both near the square root of n. A round adds to r
// a hash of l, modulo 2^k, or to l a hash of r, modulo the radix. Each can be
// undone, so all together are a permutation. A result that is not below n goes
// through it again, until it is. The keys of the rounds are made of n, the
// seed and the epoch by SHA-256: orders whose seeds or epochs are near have
// nothing in common.
func Keyed(n int) Order { return keyed(length(n)) }

type keyed int

func (n keyed) Len() int       { return int(n) }
func (n keyed) String() string { return fmt.Sprintf("keyed/1(%d)", int(n)) }

func (n keyed) Epoch(seed uint64, epoch int) func(pos int) int { return n.feistel(seed, epoch).at }

// feistel makes the order of an epoch.
func (n keyed) feistel(seed uint64, epoch int) *feistel {
	f := &feistel{n: uint64(n)}
	width := bits.Len64(max(f.n, 1) - 1)
	f.low = uint(width) / 2
	f.radix = (f.n + 1<<f.low - 1) >> f.low
	f.pairs = pairs(width)
	random := stream("keyed/1", f.n, seed, uint64(epoch))
	for i := range f.pairs {
		f.keys[i] = [2]uint64{random.Uint64(), random.Uint64()}
	}
	return f
}

// feistel is the order of one epoch.
type feistel struct {
	n, radix uint64
	low      uint // bits of r
	pairs    int
	keys     [maxPairs][2]uint64 // of a pair of rounds: for r, for l
}

const maxPairs = 12

// pairs is how many pairs of rounds mix numbers of width bits, which are two
// halves.
//
// Two positions that differ in r alone keep that difference for as long as
// their l come out the same, by chance, in every round. Over an epoch of n
// samples this adds about n^(2-pairs) to chi-square for the differences of
// such positions. A million epochs, 2^20, shall not add 1: there must be
// 2 + 20/width pairs.
func pairs(width int) int {
	half := max(1, width/2)
	return 2 + (10+half-1)/half
}

func (f *feistel) at(pos int) int {
	if uint64(pos) >= f.n {
		panic(fmt.Sprintf("sampler: position %d in an order of %d samples", pos, f.n))
	}
	low, mask := f.low&63, uint64(1)<<(f.low&63)-1 // &63 spares the check for wider shifts
	high := -low & 63
	for x := uint64(pos); ; {
		l, r := x>>low, x&mask
		for _, key := range f.keys[:f.pairs] {
			r = (r + hash(l^key[0])>>high) & mask
			add, _ := bits.Mul64(hash(r^key[1]), f.radix)
			if l += add; l >= f.radix {
				l -= f.radix
			}
		}
		if x = l<<low | r; x < f.n {
			return int(x)
		}
	}
}

// hash mixes x into the high bits of the result. The first factor is 2^64
// divided by the golden ratio, the other is that of degski's mixer.
func hash(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 32
	return x * 0xd6e8feb86659fd93
}
