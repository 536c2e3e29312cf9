package pinned

import "fmt"

// QueueCopy puts f on the copy stream.
func (h *Host) QueueCopy(f func()) { h.copies.push(f) }

// SetLock replaces what page-locks memory.
func (h *Host) SetLock(lock func([]byte) error) { h.lock = lock }

// InUse says what is still allocated, "" for nothing.
func (h *Host) InUse() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.blocks) == 0 {
		return ""
	}
	return fmt.Sprintf("%d pieces of memory", len(h.blocks))
}

// SizeClass is the size of a pool's slab for n bytes.
func SizeClass(n int) int { return sizeClass(n) }
