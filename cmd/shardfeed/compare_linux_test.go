package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// train --compare trains as train does, with its options, once for each entry.
func TestCompare(t *testing.T) {
	data, out := smallData(t), filepath.Join(t.TempDir(), "out")
	// A variable that names it again does not make the runs compare, too.
	stdout, stderr, status := shardfeed(t, []string{"SHARDFEED_COMPARE=3"}, small(data, "--compare", "1,2", "--out", out)...)
	if status != 0 {
		t.Fatal(stderr)
	}
	if stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
	alone, stderr, status := shardfeed(t, nil, small(data, "--nproc", "1")...)
	if status != 0 {
		t.Fatal(stderr)
	}
	text, err := os.ReadFile(filepath.Join(out, "compare.json"))
	if err != nil {
		t.Fatal(err)
	}
	var trials []*trial
	if err := json.Unmarshal(text, &trials); err != nil || len(trials) != 2 {
		t.Fatalf("%d trials, %v", len(trials), err)
	}
	printed := strings.Split(strings.TrimSpace(stdout), "\n")
	for i, want := 0, parse(t, alone); i < 2; i++ {
		tr, s := trials[i], summary{}
		if err := json.Unmarshal(tr.Summary, &s); err != nil {
			t.Fatal(err)
		}
		if s.World != i+1 || tr.Ranks != i+1 || len(tr.Losses) != epochs*perEpoch || len(tr.Accuracies) != epochs {
			t.Errorf("%d ranks: summary %+v, %d losses, accuracies %v", i+1, s, len(tr.Losses), tr.Accuracies)
		}
		for n, l := range tr.Losses {
			if alone := want.losses[[2]int{n / perEpoch, n % perEpoch}]; l.Step != n+1 || math.Abs(l.Loss-alone) > 1e-3*alone {
				t.Errorf("%d ranks: loss %+v, alone %v", i+1, l, alone)
			}
		}
		var o outcome
		if err := json.Unmarshal([]byte(printed[i]), &o); err != nil || o.Ranks != i+1 {
			t.Errorf("printed %q, %v", printed[i], err)
		}
	}
}

// However a comparison is ended, nothing of it stays, neither processes nor
// pictures.
func TestCompareKilled(t *testing.T) {
	data := smallData(t)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		out := t.TempDir()
		cmd := exec.Command("shardfeed", small(data, "--compare", "2", "--out", out, "--epochs", "100000")...)
		stderr, err := cmd.StderrPipe() // which all its processes hold open
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Two ranks are children of the command's child.
		child := 0
		for began := time.Now(); len(children(child)) < 2; {
			if time.Since(began) > time.Minute {
				t.Fatal("no ranks after a minute")
			}
			if own := children(cmd.Process.Pid); len(own) == 1 {
				child = own[0]
			}
		}
		if signal == syscall.SIGKILL {
			// A child that is stopped cannot end because it notices something.
			if err := syscall.Kill(child, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		late := time.AfterFunc(30*time.Second, func() {
			t.Errorf("%v: the child still runs", signal)
			syscall.Kill(child, syscall.SIGKILL)
		})
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(stderr) // to the end of the last of them
		if err != nil {
			t.Error(err)
		}
		late.Stop()
		cmd.Wait()
		if signal == syscall.SIGTERM && (cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(said), "entry 2: terminated")) {
			t.Errorf("%v, stderr %q", cmd.ProcessState, said)
		}
		if left, _ := os.ReadDir(out); len(left) > 0 {
			t.Errorf("%v: %v is left", signal, left)
		}
	}
}

// A directory that takes no files is found out before anything is trained.
func TestCompareChecksItsDirectory(t *testing.T) {
	c := comparison{entries: []entry{{1, false}}, out: "/proc", train: func(context.Context, entry, io.Writer) error {
		t.Error("it trains")
		return nil
	}}
	if err := c.run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "--out: ") || !strings.Contains(err.Error(), "/proc") {
		t.Errorf("%v", err)
	}
}

// children are the processes that a process has started.
func children(pid int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name) // a thread may have gone
		for field := range strings.FieldsSeq(string(text)) {
			var child int
			if _, err := fmt.Sscan(field, &child); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}
