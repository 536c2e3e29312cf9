//go:build unix

package launch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// keeper is a process that outlives the launcher by a moment and kills what is
// left of the ranks then. It learns of the launcher's end from a pipe of which
// the launcher holds the other end. On the pipe come, a line each, the mark of
// an attempt and its process groups: a decimal number, with a minus sign for
// one that has ended.
type keeper struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// newKeeper starts a keeper in a session of its own, out of reach of a
// terminal. It holds nothing of the launcher's but the pipe's end, and not the
// mark of an outer launch, which would kill it before its work is done.
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
		Path: self, Args: []string{"shardfeed-keeper"}, Dir: "/", Stdin: read,
		Env:         append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, tokenVariable+"=") }), keeperVariable+"=1"),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("launch: the keeper: %w", err)
	}
	return &keeper{cmd, write}, nil
}

// A keeper that was killed cannot be told anything; the launcher goes on.

func (k *keeper) begin(mark string) { fmt.Fprintln(k.pipe, mark) }
func (k *keeper) add(group int)     { fmt.Fprintln(k.pipe, group) }
func (k *keeper) remove(group int)  { fmt.Fprintln(k.pipe, -group) }

// dismiss ends the keeper, once all groups have ended.
func (k *keeper) dismiss() {
	k.pipe.Close()
	k.cmd.Process.Kill()
	k.cmd.Wait()
}

func init() {
	if os.Getenv(keeperVariable) != "" {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
		mark, groups := remains(os.Stdin)
		for group := range groups {
			syscall.Kill(-group, syscall.SIGKILL)
		}
		sweep(mark)
		os.Exit(0)
	}
}

// remains reads to the end, and is the last mark and the groups that are left
// then.
func remains(r io.Reader) (mark string, groups map[int]bool) {
	groups = map[int]bool{}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		group, err := strconv.Atoi(lines.Text())
		switch {
		case strings.HasPrefix(lines.Text(), tokenVariable+"="):
			mark = lines.Text()
		case err != nil:
		case group > 1: // 0 and 1 would be the keeper's own group, and everything
			groups[group] = true
		default:
			delete(groups, -group)
		}
	}
	return mark, groups
}
