// Package sum adds up the spans of all ranks in the order of the ranks, to the
// same bits whoever does it.
package sum

import "github.com/viterin/vek/vek32"

// block is how many values are summed at a time: one block of a few ranks'
// spans stays in a core's nearest cache.
const block = 2048

// line is how many values a cache line holds. No two ranks write to one.
const line = 16

// Part is which of n values a rank sums: lo … hi-1. The parts of all ranks
// are of like size, and begin at multiples of a cache line.
func Part(n, rank, size int) (lo, hi int) {
	lines := (n + line - 1) / line
	each, more := lines/size, lines%size
	lo = each*rank + min(rank, more)
	hi = lo + each
	if rank < more {
		hi++
	}
	return min(lo*line, n), min(hi*line, n)
}

// Scratch is what Spans needs beside its arguments.
type Scratch [block]float32

// Spans replaces every span by ((s0·scale + s1·scale) + s2·scale) + …, each
// product and each sum rounded to float32. The spans are of one length.
func (s *Scratch) Spans(spans [][]float32, scale float32) {
	n := len(spans[0])
	for i := 0; i < n; i += block {
		s.block(spans, i, min(i+block, n), scale)
	}
}

// block sums the values i … j-1 in the first span, and copies them to the
// others.
func (s *Scratch) block(spans [][]float32, i, j int, scale float32) {
	first := spans[0][i:j]
	if scale != 1 {
		multiply(first, scale)
	}
	for _, span := range spans[1:] {
		addend := span[i:j]
		if scale != 1 {
			addend = s[:j-i]
			copy(addend, span[i:j])
			multiply(addend, scale)
		}
		add(first, addend)
	}
	for _, span := range spans[1:] {
		copy(span[i:j], first)
	}
}

// add is x += y. Both kinds of kernel do one float32 operation an element, so
// both give the same bits.
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
