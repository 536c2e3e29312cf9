package batch

import "testing"

// The Go heap aligns what has a power of two or a multiple of Align as its
// size, so other sizes are what shows whether Get does.
func TestHeap(t *testing.T) {
	for n := range 2000 {
		slab, err := heap{}.Get(n)
		if err != nil || len(slab) != n || cap(slab) != n {
			t.Fatalf("%d bytes with room for %d, error %v, want %d", len(slab), cap(slab), err, n)
		}
		if address(slab)%Align != 0 {
			t.Fatalf("%d bytes lie at %#x, no multiple of %d", n, address(slab), Align)
		}
	}
}
