package launch

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup makes a process the leader of a group, and lets the kernel kill it
// when the thread that has started it ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitEnd waits for the end of a process and does not reap it.
func awaitEnd(cmd *exec.Cmd) {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// awaitGroup does nothing: the sweep waits for them, and not for those that
// are dead but that nobody reaps.
func awaitGroup(int) {}

// executable is this process's own, also when its file has been replaced.
func executable() (string, error) { return "/proc/self/exe", nil }
