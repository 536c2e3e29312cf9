//go:build !race

package main

import (
	"os/exec"
	"syscall"
	"testing"
)

// The order of 10^9 samples is computed, not stored.
func TestSampleMemory(t *testing.T) {
	cmd := exec.Command("shardfeed", "sample", "--n", "1000000000", "--world", "8", "--rank", "3", "--skip", "100000000", "--limit", "5")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if kib := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss; kib > 50<<10 {
		t.Errorf("%d KiB of memory, want at most 50 MiB", kib)
	}
}
