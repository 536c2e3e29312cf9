// Package pinned copies batches to a device while earlier ones are used.
//
// Host memory that a device can read by itself is page-locked; a [Pool] keeps
// slabs of it. A [Feeder] copies the batches of a loader into fixed slots of
// device memory on a stream of its own. Two orderings make that right, and
// the Feeder sees to both:
//
//	copy before use     compute queued after Fence.Join waits for the copy
//	use before refill   copies started after Device.Hold wait for the compute queued so far
//
// [Host] is the Device of a machine without a GPU. Its streams are
// goroutines, so that a forgotten ordering is a data race, which
// go test -race reports.
package pinned

import "context"

// Device is what a Feeder needs of one. Copies run on a stream of their own,
// beside the stream of compute. Methods may be called from several goroutines.
type Device interface {
	// AllocHost is n bytes of page-locked host memory, at a multiple of 64,
	// owned by the caller until FreeHost.
	AllocHost(n int) ([]byte, error)
	// FreeHost takes a slice that AllocHost gave, whole.
	FreeHost([]byte) error
	// Alloc is n bytes of device memory, at a multiple of 64, owned by the
	// caller until Free.
	Alloc(n int) (Mem, error)
	// Free takes a Mem that Alloc gave, whole, after all copies and compute
	// on it have ended.
	Free(Mem) error
	// Copy starts a copy of src to the start of dst on the copy stream. src
	// must stay as it is until the Fence has passed.
	Copy(dst Mem, src []byte) (Fence, error)
	// Hold makes copies started later wait for the compute queued so far. The
	// caller does not wait.
	Hold() error
	// Close ends the streams after what is queued on them, and fails where
	// memory is still allocated. It may be called twice.
	Close() error
}

// Fence is the end of a copy.
type Fence interface {
	// Wait returns when the copy has ended, with its error, or when ctx has.
	Wait(ctx context.Context) error
	// Join makes compute queued later wait for the copy. The caller does not wait.
	Join() error
}

// Mem is a piece of device memory.
type Mem struct {
	// Addr is the address on the device; 0 for the Host device.
	Addr uintptr
	// Bytes is the memory itself where the host can reach it, as on the Host
	// device; nil otherwise. Only compute queued on the device may touch it.
	Bytes []byte
	// Len is the number of bytes.
	Len int
}

// Slice is the bytes i … j-1, in the same memory.
func (m Mem) Slice(i, j int) Mem {
	if i < 0 || j < i || j > m.Len {
		panic("pinned: Mem.Slice out of range")
	}
	s := Mem{Len: j - i}
	if m.Addr != 0 {
		s.Addr = m.Addr + uintptr(i)
	}
	if m.Bytes != nil {
		s.Bytes = m.Bytes[i:j:j]
	}
	return s
}
