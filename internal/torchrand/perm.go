package torchrand

import (
	"fmt"
	"math"
)

// wide is the length from which PyTorch 2 draws 64 bits a position, so that
// the bias of a remainder stays small.
const wide = math.MaxUint32 / 20

// Perm is torch.randperm(n, generator=m) on the CPU in PyTorch 2: the same
// numbers, and the same number of draws. PyTorch 1 differs from n = 214748364
// on. The slice is the caller's.
//
// Perm panics where n is negative, or n-1 does not fit into a T.
func Perm[T int32 | int64](m *MT19937, n int) []T {
	if n < 0 || n > 0 && int(T(n-1)) != n-1 {
		panic(fmt.Sprintf("torchrand: no permutation of length %d in a %T", n, T(0)))
	}
	p := make([]T, n)
	for i := range p {
		p[i] = T(i)
	}
	if n < wide {
		swap(m, p)
	} else {
		insideOut(m, p)
	}
	return p
}

// In both shuffles the places to swap with are computed for a few hundred
// positions ahead. Then nothing waits for a division in the loop that swaps,
// and the processor fetches many places at once: 1.4 times as fast as position
// by position where p is larger than the caches.

// swap exchanges each position but the last with one that is not before it.
func swap[T int32 | int64](m *MT19937, p []T) {
	var places [words]uint32
	for len(p) > 1 {
		draws := m.take(len(p) - 1)
		for k, u := range draws {
			places[k] = uint32(k) + u%uint32(len(p)-k)
		}
		for k, z := range places[:len(draws)] {
			p[k], p[z] = p[z], p[k]
		}
		p = p[len(draws):]
	}
}

// insideOut exchanges each position with one that is not behind it.
func insideOut[T int32 | int64](m *MT19937, p []T) {
	var places [words]uint64
	for first := 0; first < len(p); first += len(places) {
		ahead := places[:min(len(places), len(p)-first)]
		for k := range ahead {
			ahead[k] = m.Uint64() % uint64(first+k+1)
		}
		for k, z := range ahead {
			p[first+k], p[z] = p[z], p[first+k]
		}
	}
}
