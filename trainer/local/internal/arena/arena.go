// Package arena is memory of a rank that all ranks of its group can reach.
// A span of it is known to the others by its offset.
package arena

import (
	"fmt"
	"math"
	"sync"
	"unsafe"
)

// Bytes is the address space of an arena.
const Bytes = min(16<<30, math.MaxInt/64)

// Arena is one rank's memory as one of the ranks sees it.
type Arena interface {
	// Alloc is n zeroed values at a multiple of 64 bytes. Only the rank whose
	// memory it is calls it, and Offset, one call at a time.
	Alloc(n int) ([]float32, error)
	// Offset is where v begins, in bytes; ok is false for memory that Alloc
	// did not give.
	Offset(v []float32) (off uint64, ok bool)
	// Span is the n values at the offset of a span that its rank has posted.
	Span(off, n uint64) []float32
}

// Heap is an arena for goroutines: pieces of the Go heap, which is the memory
// that the race detector watches. An offset is the piece's number and the
// offset in the piece.
type Heap struct {
	mu     sync.RWMutex
	pieces [][]float32
}

const pieceShift = 36 // a piece has up to Bytes

// Alloc makes a piece.
func (h *Heap) Alloc(n int) ([]float32, error) {
	if uint64(n) > Bytes/4 {
		return nil, fmt.Errorf("more than the %d that a rank can have", uint64(Bytes)/4)
	}
	mem := make([]float32, n+15)
	skip := int(-address(mem)%64) / 4
	mem = mem[skip : skip+n : skip+n]
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pieces = append(h.pieces, mem)
	return mem, nil
}

// Offset looks through the pieces.
func (h *Heap) Offset(v []float32) (uint64, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for i, p := range h.pieces {
		if off, ok := within(v, p); ok {
			return uint64(i)<<pieceShift + off, true
		}
	}
	return 0, false
}

// Span is a part of a piece.
func (h *Heap) Span(off, n uint64) []float32 {
	if n == 0 {
		return nil
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	from := off % (1 << pieceShift) / 4
	return h.pieces[off>>pieceShift][from : from+n]
}

// Mapped is an arena for processes, in memory that they share.
type Mapped struct {
	mem  []byte
	used int // bytes that Alloc has given
	back func(i, j int) error
}

// On is the arena in mem, zeros at a multiple of 64 bytes. back makes sure
// that there is memory behind the bytes i … j-1.
func On(mem []byte, back func(i, j int) error) *Mapped { return &Mapped{mem: mem, back: back} }

// Alloc gives the memory from its beginning to its end.
func (m *Mapped) Alloc(n int) ([]float32, error) {
	if left := len(m.mem) - m.used; n > left/4 {
		return nil, fmt.Errorf("%d of the %d bytes of address space that a rank can have are left", left, len(m.mem))
	}
	if err := m.back(m.used, m.used+4*n); err != nil {
		return nil, err
	}
	v := m.Span(uint64(m.used), uint64(n))
	m.used = min((m.used+4*n+63)&^63, len(m.mem))
	return v, nil
}

// Offset is the distance from the beginning.
func (m *Mapped) Offset(v []float32) (uint64, bool) { return within(v, m.Span(0, uint64(m.used/4))) }

// Span is the memory at off.
func (m *Mapped) Span(off, n uint64) []float32 {
	mem := m.mem[off : off+4*n]
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
}

// within is the offset in bytes of v in mem, if it lies there.
func within(v, mem []float32) (off uint64, ok bool) {
	off, size := uint64(address(v)-address(mem)), 4*uint64(len(mem))
	return off, off%4 == 0 && off <= size && 4*uint64(len(v)) <= size-off
}

func address(v []float32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(v))) }
