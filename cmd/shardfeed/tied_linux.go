package main

import "syscall"

// tied makes a process one that a terminal's signals do not reach and that the
// kernel kills when the thread that has started it ends.
func tied() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
