//go:build !race

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The order of 10^9 samples is computed, not stored. What the kernel says at
// the end of a process would count the memory of the process that has started
// it, too.
func TestSampleMemory(t *testing.T) {
	cmd := exec.Command("shardfeed", "sample", "--n", "1000000000", "--world", "8", "--rank", "3", "--skip", "100000000")
	stdout := lines(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if !stdout.Scan() {
		t.Fatal("it prints nothing")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(text, &kib); err != nil || kib > 50<<10 {
		t.Errorf("%d KiB of memory (%v), want at most 50 MiB", kib, err)
	}
}
