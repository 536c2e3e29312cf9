package main

import (
	"bufio"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
)

// The signals that users send to the command reach the ranks.
func TestLaunchSignals(t *testing.T) {
	cmd := exec.Command("shardfeed", "launch", "--", "sh", "-c", `trap 'echo one' USR1; trap 'echo two; exit' USR2; echo ready; while :; do sleep 0.01; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, step := range []struct {
		answer string
		next   syscall.Signal
	}{{"ready", syscall.SIGUSR1}, {"one", syscall.SIGUSR2}, {"two", 0}} {
		said := map[string]bool{}
		for len(said) < 2 && lines.Scan() {
			said[lines.Text()] = true
		}
		for rank := range 2 {
			if want := fmt.Sprintf("[%d] %s", rank, step.answer); !said[want] {
				t.Errorf("%v, want %q", said, want)
			}
		}
		if step.next != 0 {
			cmd.Process.Signal(step.next)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
