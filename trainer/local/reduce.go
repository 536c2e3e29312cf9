package local

import (
	"github.com/viterin/vek/vek32"

	"github.com/shardfeed/shardfeed/trainer"
)

// block is how many values are summed at a time: one block of a few ranks'
// spans stays in a core's nearest cache.
const block = 2048

// line is how many values a cache line holds. No two ranks write to one.
const line = 16

// sum is what a rank needs to add up spans.
type sum struct {
	spans  []trainer.Host
	scaled [block]float32
}

// part is which of n values a rank sums: lo … hi-1.
func part(n uint64, rank, size int) (lo, hi uint64) {
	lines := (n + line - 1) / line
	each, more := lines/uint64(size), lines%uint64(size)
	lo = each*uint64(rank) + min(more, uint64(rank))
	hi = lo + each
	if uint64(rank) < more {
		hi++
	}
	return min(lo*line, n), min(hi*line, n)
}

// reduce writes this rank's part of the result into every rank's span.
func (g *Group) reduce(c call) {
	lo, hi := part(c.length, g.rank, g.size)
	if lo == hi {
		return
	}
	s := &g.sum
	s.spans = s.spans[:0]
	for rank := range g.size {
		s.spans = append(s.spans, g.medium.span(rank, c.offset+4*lo, hi-lo))
	}
	scale := float32(1)
	if c.what == reduceAverage {
		scale /= float32(g.size)
	}
	for at := 0; at < int(hi-lo); at += block {
		s.block(at, min(at+block, int(hi-lo)), scale)
	}
	clear(s.spans)
}

// block sums the values i … j-1 of all spans in the order of the ranks, in
// the first rank's span, and copies them to the others.
func (s *sum) block(i, j int, scale float32) {
	first := s.spans[0][i:j]
	if scale != 1 {
		multiply(first, scale)
	}
	for _, span := range s.spans[1:] {
		addend := span[i:j]
		if scale != 1 {
			addend = s.scaled[:j-i]
			copy(addend, span[i:j])
			multiply(addend, scale)
		}
		add(first, addend)
	}
	for _, span := range s.spans[1:] {
		copy(span[i:j], first)
	}
}

// add is x += y. Both kinds of kernel do one float32 operation an element, so
// all give the same bits.
func add(x, y []float32) {
	if watched {
		addPlain(x, y)
	} else {
		vek32.Add_Inplace(x, y)
	}
}

// multiply is x *= a.
func multiply(x []float32, a float32) {
	if watched {
		multiplyPlain(x, a)
	} else {
		vek32.MulNumber_Inplace(x, a)
	}
}

func addPlain(x, y []float32) {
	for i := range x {
		x[i] += y[i]
	}
}

func multiplyPlain(x []float32, a float32) {
	for i := range x {
		x[i] *= a
	}
}
