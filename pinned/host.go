package pinned

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"
)

// Host is the Device of a machine without a GPU. Device memory is ordinary
// memory, and the streams of copies and of compute are two goroutines, from
// NewHost to Close.
//
// Only what a [Device] promises orders the two. In a program built with -race
// all memory is on the Go heap, so that the race detector sees compute
// that is not ordered against a copy.
type Host struct {
	copies, compute *stream
	lock            func([]byte) error // a field for tests

	mu       sync.Mutex
	closed   bool
	blocks   map[*byte]block // by the first byte
	unlocked error           // why memory is not page-locked
	failed   error           // the first panic of queued compute
}

// block is a piece of memory that is in use.
type block struct {
	mem  []byte
	kind int
}

const (
	onHost = iota
	onDevice
)

// NewHost is a Host. The caller closes it.
func NewHost() *Host {
	return &Host{copies: newStream(), compute: newStream(), lock: lock, blocks: map[*byte]block{}}
}

// AllocHost is n bytes of host memory. Where the system refuses to lock it,
// it is ordinary memory, and Locked says so.
func (h *Host) AllocHost(n int) ([]byte, error) { return h.alloc(n, onHost) }

// FreeHost takes a slice that AllocHost gave, whole. It works after Close, too.
func (h *Host) FreeHost(b []byte) error { return h.release("FreeHost", b, onHost) }

// Alloc is n bytes of device memory, which is not page-locked.
func (h *Host) Alloc(n int) (Mem, error) {
	b, err := h.alloc(n, onDevice)
	return Mem{Bytes: b, Len: len(b)}, err
}

// Free takes a Mem that Alloc gave, whole, after all copies and compute on it
// have ended. It works after Close, too.
func (h *Host) Free(m Mem) error { return h.release("Free", m.Bytes, onDevice) }

// Locked is nil where all memory that AllocHost gave is page-locked. Else it
// is the reason, from the first time that locking failed; it is not tried
// again.
func (h *Host) Locked() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unlocked
}

func (h *Host) alloc(n, kind int) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed
	}
	if n < 1 {
		return nil, fmt.Errorf("pinned: an allocation of %d bytes: at least 1 is needed", n)
	}
	b, err := allocate(n)
	if err != nil {
		return nil, fmt.Errorf("pinned: %w", err)
	}
	if kind == onHost && h.unlocked == nil {
		h.unlocked = h.lock(b)
	}
	h.blocks[unsafe.SliceData(b)] = block{b, kind}
	return b[:n:n], nil
}

func (h *Host) release(method string, b []byte, kind int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := unsafe.SliceData(b)
	block, ok := h.blocks[first]
	if !ok || block.kind != kind {
		return fmt.Errorf("pinned: %s of %d bytes that are not allocated: freed before, or from elsewhere", method, len(b))
	}
	if len(b) != len(block.mem) {
		return fmt.Errorf("pinned: %s of %d bytes of an allocation of %d: it is freed whole", method, len(b), len(block.mem))
	}
	delete(h.blocks, first)
	return free(block.mem)
}

// Copy starts a copy of src to the start of dst, as [Device] has it.
func (h *Host) Copy(dst Mem, src []byte) (Fence, error) {
	if len(src) > dst.Len {
		return nil, fmt.Errorf("pinned: a copy of %d bytes to device memory of %d", len(src), dst.Len)
	}
	if !h.allocated(dst) {
		return nil, fmt.Errorf("pinned: a copy of %d bytes to memory that is not allocated on the device", len(src))
	}
	f := &hostFence{h, make(chan struct{})}
	if !h.copies.push(func() { copy(dst.Bytes, src); close(f.done) }) {
		return nil, errClosed
	}
	return f, nil
}

// allocated says whether m lies in device memory.
func (h *Host) allocated(m Mem) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := address(m.Bytes)
	for _, b := range h.blocks {
		if start := address(b.mem); b.kind == onDevice && m.Len == len(m.Bytes) && at >= start && at+uintptr(m.Len) <= start+uintptr(len(b.mem)) {
			return true
		}
	}
	return false
}

// Hold makes copies started later wait for the compute queued so far.
func (h *Host) Hold() error {
	computed := h.compute.mark()
	if !h.copies.push(func() { <-computed }) {
		return errClosed
	}
	return nil
}

// Queue puts f on the compute stream: it runs after what was queued before.
// Where it panics, the first panic is kept for Sync and Close to report, and
// later compute still runs. f must not call Run, Sync or Close, which wait for
// f itself. Queue panics after Close.
func (h *Host) Queue(f func()) {
	h.queue(f, func(p any) {
		if p != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.failed == nil {
				h.failed = fmt.Errorf("pinned: queued compute panicked: %v\n%s", p, debug.Stack())
			}
		}
	})
}

// Run queues f and waits until it has run. Where f panics, Run panics with
// the same value. What holds for f in Queue holds here.
func (h *Host) Run(f func()) {
	end := make(chan any, 1)
	h.queue(f, func(p any) { end <- p })
	switch p := <-end; p {
	case nil:
	case errGoexit:
		runtime.Goexit() // as where f runs t.FailNow
	default:
		panic(p)
	}
}

// queue queues f and calls ended, on the same goroutine, with what f panicked
// with: nil where it did not.
func (h *Host) queue(f func(), ended func(panicked any)) {
	queued := h.compute.push(func() {
		returned := false
		defer func() {
			p := recover()
			if p == nil && !returned {
				p = errGoexit
			}
			ended(p)
		}()
		f()
		returned = true
	})
	if !queued {
		panic("pinned: compute queued on a Host after its Close")
	}
}

// Sync waits for all copies and compute queued so far. It fails where queued
// compute has panicked, now or before.
func (h *Host) Sync() error {
	copied, computed := h.copies.mark(), h.compute.mark()
	<-copied
	<-computed
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// Close ends the streams after what is queued on them. It fails where queued
// compute has panicked and where memory is still allocated, which then stays
// valid until it is freed. It may be called twice.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.compute.end()
	h.copies.end()

	h.mu.Lock()
	defer h.mu.Unlock()
	var blocks, bytes [2]int
	for _, b := range h.blocks {
		blocks[b.kind]++
		bytes[b.kind] += len(b.mem)
	}
	var leak error
	if len(h.blocks) > 0 {
		leak = fmt.Errorf("pinned: still allocated when the device was closed: pieces of host memory: %d (%d bytes), of device memory: %d (%d bytes)",
			blocks[onHost], bytes[onHost], blocks[onDevice], bytes[onDevice])
	}
	return errors.Join(h.failed, leak)
}

type hostFence struct {
	host *Host
	done chan struct{}
}

func (f *hostFence) Wait(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-f.done: // both have ended
		return nil
	default:
		return context.Cause(ctx)
	}
}

func (f *hostFence) Join() error {
	if !f.host.compute.push(func() { <-f.done }) {
		return errClosed
	}
	return nil
}

var (
	errClosed = errors.New("pinned: the device is closed")
	errGoexit = errors.New("it ended its goroutine (runtime.Goexit)")
)

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
