package board

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Heard is how often the bell has rung.
func (b Board) Heard() uint32 { return b.bell.Load() }

// Ring wakes all ranks that sleep.
func (b Board) Ring() {
	b.bell.Add(1)
	if b.sleepers.Load() != 0 {
		futex(&b.bell, futexWake, MaxRanks, nil)
	}
}

// Sleep sleeps until the bell has rung more often than heard, for at most d,
// or less.
func (b Board) Sleep(heard uint32, d time.Duration) {
	timeout := unix.NsecToTimespec(int64(d))
	b.sleepers.Add(1)
	futex(&b.bell, futexWait, heard, &timeout)
	b.sleepers.Add(^uint32(0))
}

// The operations of futex(2), between processes.
const (
	futexWait = 0
	futexWake = 1
)

// futex sleeps while word is val, or wakes val sleepers. It may end for no
// reason, so it has no error that matters.
func futex(word *atomic.Uint32, op int, val uint32, timeout *unix.Timespec) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), uintptr(op), uintptr(val), uintptr(unsafe.Pointer(timeout)), 0, 0)
}
