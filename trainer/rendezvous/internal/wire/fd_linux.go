package wire

import "syscall"

// CloseOnExec keeps a descriptor that was handed down from programs that are
// started later; 0 is none.
func CloseOnExec(fd int) {
	if fd > 0 {
		syscall.CloseOnExec(fd)
	}
}

// Report writes text to a descriptor that was handed down; 0 is none.
func Report(fd int, text string) {
	if fd > 0 {
		syscall.Write(fd, []byte(text))
	}
}
