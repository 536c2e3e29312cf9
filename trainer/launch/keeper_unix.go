//go:build unix

package launch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// keeper is a process that outlives the launcher by a moment and kills the
// process groups that are left then. It learns of the launcher's end from a
// pipe of which the launcher holds the other end. On the pipe come the groups,
// a decimal number a line; with a minus sign for one that has ended.
type keeper struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// newKeeper starts a keeper in a session of its own, out of reach of a
// terminal. It holds nothing of the launcher's but the pipe's end.
func newKeeper() (*keeper, error) {
	self, err := executable()
	if err != nil {
		return nil, fmt.Errorf("launch: the keeper: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("launch: the keeper: %w", err)
	}
	defer read.Close()
	cmd := &exec.Cmd{
		Path: self, Args: []string{"shardfeed-keeper"}, Env: append(os.Environ(), keeperVariable+"=1"), Dir: "/",
		Stdin: read, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("launch: the keeper: %w", err)
	}
	return &keeper{cmd, write}, nil
}

// A keeper that was killed cannot be told anything; the launcher goes on.

func (k *keeper) add(group int)    { fmt.Fprintln(k.pipe, group) }
func (k *keeper) remove(group int) { fmt.Fprintln(k.pipe, -group) }

// dismiss ends the keeper, once all groups have ended.
func (k *keeper) dismiss() {
	k.pipe.Close()
	k.cmd.Process.Kill()
	k.cmd.Wait()
}

func init() {
	if os.Getenv(keeperVariable) != "" {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
		for group := range groups(os.Stdin) {
			syscall.Kill(-group, syscall.SIGKILL)
		}
		os.Exit(0)
	}
}

// groups reads to the end, and is the groups that are left then.
func groups(r io.Reader) map[int]bool {
	left := map[int]bool{}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		group, err := strconv.Atoi(lines.Text())
		switch {
		case err != nil:
		case group > 1: // 0 and 1 would be the keeper's own group, and everything
			left[group] = true
		default:
			delete(left, -group)
		}
	}
	return left
}
