//go:build unix && !linux

package launch

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// ownGroup makes a process the leader of a group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitEnd waits for the end of a process, and reaps it: the number of its
// group may become another one's before what is left of the group is killed.
func awaitEnd(cmd *exec.Cmd) { cmd.Wait() }

// awaitGroup waits for the end of a process group that has been killed.
func awaitGroup(pid int) {
	for deadline := time.Now().Add(goneTime); syscall.Kill(-pid, 0) == nil && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func executable() (string, error) { return os.Executable() }

// sweep does nothing: only Linux shows the environment of other processes.
func sweep(string) {}

// owner is "": only Linux shows whose a port is.
func owner(int) string { return "" }
