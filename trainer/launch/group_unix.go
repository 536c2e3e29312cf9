//go:build unix && !linux

package launch

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a process the leader of a group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitEnd waits for the end of a process, and reaps it: the number of its
// group may become another one's before what is left of the group is killed.
func awaitEnd(cmd *exec.Cmd) { cmd.Wait() }

func executable() (string, error) { return os.Executable() }
