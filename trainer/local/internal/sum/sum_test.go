package sum

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/viterin/vek/vek32"
)

// Every value is in exactly one rank's part, no two ranks write to one cache
// line, and the parts are alike but for a line and what the last one lacks.
func FuzzPart(f *testing.F) {
	f.Add(uint32(0), uint16(1))
	f.Add(uint32(1), uint16(2))
	f.Add(uint32(100), uint16(3))
	f.Add(uint32(1<<20+1), uint16(7))
	f.Fuzz(func(t *testing.T, n uint32, size uint16) {
		if size == 0 || size > 1024 {
			return
		}
		end, least, most := 0, math.MaxInt, 0
		for rank := range int(size) {
			lo, hi := Part(int(n), rank, int(size))
			if lo != end || hi < lo {
				t.Fatalf("Part(%d, %d, %d) is %d … %d, the one before ended at %d", n, rank, size, lo, hi, end)
			}
			if lo%line != 0 && lo != int(n) {
				t.Fatalf("Part(%d, %d, %d) begins at %d, inside a line", n, rank, size, lo)
			}
			end, least, most = hi, min(least, hi-lo), max(most, hi-lo)
		}
		if end != int(n) || most-least >= 2*line {
			t.Fatalf("%d parts of %d end at %d and have %d to %d values", size, n, end, least, most)
		}
	})
}

// The kernels are elementwise to the bit, whatever the values and the length.
func FuzzKernels(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"), float32(0.5))
	f.Add([]byte{0, 0, 0, 128, 0, 0, 0, 128, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 128, 127, 0, 0, 128, 255}, float32(1)/3)
	f.Fuzz(func(t *testing.T, b []byte, a float32) {
		n := len(b) / 8
		x, y := make([]float32, n), make([]float32, n)
		for i := range n {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[8*i:]))
			y[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[8*i+4:]))
		}
		for _, op := range []struct {
			name       string
			fast, slow func(x []float32)
		}{
			{"add", func(x []float32) { vek32.Add_Inplace(x, y) }, func(x []float32) { addPlain(x, y) }},
			{"multiply", func(x []float32) { vek32.MulNumber_Inplace(x, a) }, func(x []float32) { multiplyPlain(x, a) }},
		} {
			fast, slow := append([]float32(nil), x...), append([]float32(nil), x...)
			op.fast(fast)
			op.slow(slow)
			for i := range fast {
				if !sameBits(fast[i], slow[i]) {
					t.Fatalf("%s: value %d of %d (%v, %v, %v) is %v, want %v", op.name, i, n, x[i], y[i], a, fast[i], slow[i])
				}
			}
		}
	})
}

// sameBits takes any NaN for any other: which of two an addition keeps is the
// processor's choice by the order of its operands.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// An infinity or a NaN on one rank reaches all, and -0 sums as IEEE 754 says.
func TestSpecialValues(t *testing.T) {
	inf, nan, negative := float32(math.Inf(1)), float32(math.NaN()), float32(math.Copysign(0, -1))
	spans := [][]float32{{inf, inf, 1, negative, negative}, {1, -inf, nan, negative, 0}}
	new(Scratch).Spans(spans, 1)
	for rank, got := range spans {
		for i, want := range []float32{inf, nan, nan, negative, 0} {
			if !sameBits(got[i], want) {
				t.Errorf("rank %d: value %d is %v, want %v", rank, i, got[i], want)
			}
		}
	}
}

// The slow twin: one value at a time, in the order of the ranks.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 7, 8, 9, block - 1, block, block + 1, 3*block + 5} {
		for ranks := 1; ranks <= 5; ranks++ {
			for _, scale := range []float32{1, 1 / float32(ranks), 0.1} {
				spans, want := make([][]float32, ranks), make([]float32, n)
				for rank := range spans {
					spans[rank] = make([]float32, n)
					for i := range n {
						x := float32(math.Ldexp(r.NormFloat64(), r.IntN(40)-20))
						spans[rank][i] = x
						if rank == 0 {
							want[i] = x * scale
						} else {
							want[i] += float32(x * scale) // the conversion keeps it out of a fused multiply-add
						}
					}
				}
				new(Scratch).Spans(spans, scale)
				for rank, got := range spans {
					for i := range n {
						if !sameBits(got[i], want[i]) {
							t.Fatalf("%d ranks, scale %v: rank %d's value %d of %d is %v, want %v", ranks, scale, rank, i, n, got[i], want[i])
						}
					}
				}
			}
		}
	}
}
