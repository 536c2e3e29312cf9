package rendezvous

import "syscall"

func closeOnExec(fd int) {
	if fd > 0 {
		syscall.CloseOnExec(fd)
	}
}

func report(fd int, text string) { syscall.Write(fd, []byte(text)) }
