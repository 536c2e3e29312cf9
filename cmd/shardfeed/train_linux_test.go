package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is what /proc says of a process.
type process struct {
	pid, parent int
	env         map[string]string
}

func processes(t *testing.T) (all []process) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		p := process{env: map[string]string{}}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if fields[0] == "Z" {
			continue // it is dead, and its parent will hear of it
		}
		p.parent, _ = strconv.Atoi(fields[1])
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		for v := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			p.env[name] = value
		}
		all = append(all, p)
	}
	return all
}

// below is the processes that descend from one.
func below(all []process, pid int) (found []process) {
	for _, p := range all {
		if p.parent == pid {
			found = append(append(found, p), below(all, p.pid)...)
		}
	}
	return found
}

// Whatever is killed with -9, a rank or the launcher, nothing of the run is
// left within 5 seconds, the survivors say who has died, and a resumed run
// prints what an undisturbed one prints.
func TestTrainKilled(t *testing.T) {
	data := smallData(t)
	shm, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	for k, victim := range []string{"rank 0", "rank 1", "rank 2", "launcher", "launcher"} {
		dir := t.TempDir()
		args := small(data, "--epochs", "100000", "--nproc", "3", "--checkpoint", dir, "--checkpoint-every", "3")
		cmd := exec.Command("shardfeed", args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout := lines(t, cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var all []string
		for range 1 + 7*k { // the first time, after the first step
			if !stdout.Scan() {
				t.Fatalf("the run has ended: %v\n%s", cmd.Wait(), stderr.String())
			}
			all = append(all, stdout.Text())
		}
		run, port := below(processes(t), cmd.Process.Pid), ""
		target := cmd.Process.Pid
		for _, p := range run {
			if "rank "+p.env["RANK"] == victim {
				target = p.pid
			}
			port = p.env["SHARDFEED_ADDR"]
		}
		if len(run) < 3 || victim != "launcher" && target == cmd.Process.Pid {
			t.Fatalf("%s is not among the run's processes: %v", victim, run)
		}
		killed := time.Now()
		if err := syscall.Kill(target, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for stdout.Scan() { // until the last process that has it is gone
			all = append(all, stdout.Text())
		}
		waited := cmd.Wait()
		for {
			left := slices.DeleteFunc(processes(t), func(p process) bool {
				return !slices.ContainsFunc(run, func(q process) bool { return q.pid == p.pid })
			})
			if len(left) == 0 {
				break
			}
			if time.Since(killed) > 5*time.Second {
				t.Fatalf("%s killed: 5 seconds later there are still %v", victim, left)
			}
		}
		t.Logf("%s killed after %d lines: nothing left after %v", victim, len(all), time.Since(killed).Round(time.Millisecond))
		if c, err := net.Dial("tcp", port); err == nil {
			c.Close()
			t.Errorf("%s killed: port %s is still open", victim, port)
		}
		if now, err := os.ReadDir("/dev/shm"); err != nil || len(now) > len(shm) {
			t.Errorf("%s killed: shared memory is left: %v", victim, now)
		}
		if victim != "launcher" {
			exit := new(exec.ExitError)
			if !errors.As(waited, &exit) || exit.ExitCode() != 1 {
				t.Errorf("%s killed: %v, want exit status 1", victim, waited)
			}
			if said := stderr.String(); strings.Count(said, victim+" (") < 2 || !strings.Contains(said, "died") || !strings.Contains(said, "killed") {
				t.Errorf("%s killed: the others and the launcher do not name it:\n%s", victim, said)
			}
		}
		resumeAfterKill(t, data, dir, all)
	}
}

// resumeAfterKill goes on from the checkpoint in dir and compares the losses
// with those of an undisturbed run; before is what the killed run printed.
func resumeAfterKill(t *testing.T, data, dir string, before []string) {
	t.Helper()
	latest, err := os.ReadFile(filepath.Join(dir, "latest"))
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(string(latest)), "step-"))
	if err != nil {
		t.Fatal(err)
	}
	stop := fmt.Sprint(max(at, len(before)) + 20)
	rest := train(t, data, "--epochs", "100000", "--nproc", "3", "--checkpoint", dir, "--resume", "--steps", stop)
	want := train(t, data, "--epochs", "100000", "--nproc", "3", "--steps", stop)
	got := maps.Clone(rest.losses)
	for _, line := range before {
		var v struct {
			Epoch, Step *int
			Loss        float64
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("the killed run printed %q: %v", line, err)
		}
		if v.Step == nil {
			continue
		}
		step := [2]int{*v.Epoch, *v.Step}
		if again, ok := got[step]; ok && again != v.Loss {
			t.Errorf("step %v has the loss %v before the kill, %v after", step, v.Loss, again)
		}
		got[step] = v.Loss
	}
	if !maps.Equal(got, want.losses) {
		t.Errorf("killed and resumed at step %d: %d steps, other losses than the undisturbed run's %d", at, len(got), len(want.losses))
	}
}
