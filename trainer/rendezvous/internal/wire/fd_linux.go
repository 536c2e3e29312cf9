package wire

import "syscall"

// CloseOnExec keeps a descriptor that was handed down from programs that are
// started later; 0 is none.
func CloseOnExec(fd int) {
	if fd > 0 {
		syscall.CloseOnExec(fd)
	}
}

// Report writes text to a pipe that was handed down; 0 is none. Where a program
// between the launcher and this one has closed it, the number may be a file's
// by now, which is left alone.
func Report(fd int, text string) {
	var is syscall.Stat_t
	if fd > 0 && syscall.Fstat(fd, &is) == nil && is.Mode&syscall.S_IFMT == syscall.S_IFIFO {
		syscall.Write(fd, []byte(text))
	}
}
