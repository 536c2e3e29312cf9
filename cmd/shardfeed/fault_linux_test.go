package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The faults of a rank, the places at which it has them, and how long the
// others wait for a rank. A slow one takes less.
var (
	faults = []string{"kill", "stop", "exit 0", "exit 3", "panic", "slow"}
	places = []string{"rendezvous", "first step", "mid-epoch", "evaluation", "checkpoint"}
)

const (
	faultRanks   = 3
	faultTimeout = 3 * time.Second
	faultSlow    = time.Second
)

// faultVariable tells a rank of its fault: "stop at evaluation on rank 1 noted
// in FILE". It marks all processes of a run, too.
const faultVariable = "SHARDFEED_TEST_FAULT"

func init() { prepareFault = haveFault }

func haveFault() {
	what, rest, _ := strings.Cut(os.Getenv(faultVariable), " at ")
	where, rest, _ := strings.Cut(rest, " on rank ")
	victim, file, _ := strings.Cut(rest, " noted in ")
	if victim == "" || os.Getenv("RANK") != victim {
		return
	}
	// What it leaves behind: a process in a session of its own.
	if err := (&exec.Cmd{Path: "/proc/self/exe", Args: []string{"lasting"}, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}).Start(); err != nil {
		panic(err)
	}
	var once sync.Once
	reach = func(place string) {
		if place != where {
			return
		}
		once.Do(func() {
			if err := os.WriteFile(file, []byte(strconv.FormatInt(time.Now().UnixNano(), 10)), 0o666); err != nil {
				panic(err)
			}
			switch what {
			case "kill":
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			case "stop":
				syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			case "exit 0":
				os.Exit(0)
			case "exit 3":
				os.Exit(3)
			case "panic":
				panic("a fault")
			case "slow":
				<-time.After(faultSlow)
			}
		})
	}
}

// A rank that has any fault at any place ends the run: every rank and the
// launcher say which one it was, soon or after the timeout, and nothing is
// left. A rank that is slow, but less than the timeout, does no harm.
func TestFaults(t *testing.T) {
	data := smallData(t)
	var detected durations
	for n, what := range faults {
		for k, where := range places {
			for victim := range 2 {
				if raceEnabled && (n+k+victim)%4 != 0 {
					continue // a sample
				}
				t.Run(fmt.Sprintf("%s at %s on rank %d", what, where, victim), func(t *testing.T) {
					t.Parallel()
					fault(t, data, what, where, victim, &detected)
				})
			}
		}
	}
	t.Cleanup(func() { detected.log(t) })
}

// durations is, by fault, how long it took until the other ranks had said which
// rank it was.
type durations struct {
	mu sync.Mutex
	by map[string][]time.Duration
}

func (d *durations) add(what string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil {
		d.by = map[string][]time.Duration{}
	}
	d.by[what] = append(d.by[what], took)
}

func (d *durations) log(t *testing.T) {
	for what, all := range d.by {
		slices.Sort(all)
		t.Logf("%s: named after %v (median), %v (at most), of %d", what, all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), len(all))
	}
}

// speaker matches the error of a rank.
var speaker = regexp.MustCompile(`shardfeed: rank (\d+): (.*)`)

func fault(t *testing.T, data, what, where string, victim int, detected *durations) {
	file, dir := t.TempDir()+"/noted", t.TempDir()
	mark := fmt.Sprintf("%s at %s on rank %d noted in %s", what, where, victim, file)
	cmd := exec.Command("shardfeed", small(data, "--nproc", fmt.Sprint(faultRanks), "--timeout", faultTimeout.String(), "--grace", "1s",
		"--checkpoint", dir, "--checkpoint-every", "5")...)
	cmd.Env = append(os.Environ(), faultVariable+"="+mark)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	named := map[int]time.Time{} // when a rank named the victim
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		// A line may begin in the middle of another rank's trace.
		if found := speaker.FindStringSubmatch(lines.Text()); found != nil && strings.Contains(found[2], fmt.Sprintf("rank %d", victim)) {
			rank, _ := strconv.Atoi(found[1])
			named[rank] = time.Now()
		}
	}
	waited, ended := cmd.Wait(), time.Now()
	nothingLeft(t, mark)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("the fault did not happen: %v\n%s", err, said.String())
	}
	ns, _ := strconv.ParseInt(string(text), 10, 64)
	began := time.Unix(0, ns)
	if what == "slow" {
		if waited != nil {
			t.Fatalf("%v\n%s", waited, said.String())
		}
		if r := parse(t, stdout.String()); len(r.losses) != epochs*perEpoch {
			t.Errorf("%d steps", len(r.losses))
		}
		return
	}
	exit := new(exec.ExitError)
	if !errors.As(waited, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the launcher ended with %v, want exit status 1\n%s", waited, said.String())
	}
	// The launcher's message is the last line, with the first failure first.
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	if first, _, _ := strings.Cut(strings.TrimPrefix(lines[len(lines)-1], "shardfeed: launch: the first to fail was "), " ("); !strings.HasSuffix(first, fmt.Sprintf("rank %d", victim)) {
		t.Errorf("the launcher does not name rank %d first:\n%s", victim, said.String())
	}
	// A rank that ends before the rendezvous is known to the launcher alone.
	if where == "rendezvous" && what != "stop" {
		detected.add(what+", by the launcher", ended.Sub(began))
		return
	}
	limit := 10 * time.Second // generous: what matters is that nothing hangs
	if what == "stop" || where == "rendezvous" {
		limit += faultTimeout
	}
	for rank := range faultRanks {
		if at, ok := named[rank]; rank == victim {
			continue
		} else if !ok {
			t.Errorf("rank %d does not name rank %d:\n%s", rank, victim, said.String())
		} else {
			if took := at.Sub(began); took > limit {
				t.Errorf("rank %d names rank %d after %v", rank, victim, took)
			} else {
				detected.add(what, took)
			}
		}
	}
}

// nothingLeft waits until no process with the mark is there.
func nothingLeft(t *testing.T, mark string) {
	t.Helper()
	for began := time.Now(); ; {
		left := slices.DeleteFunc(processes(t), func(p process) bool { return p.env[faultVariable] != mark })
		if len(left) == 0 {
			return
		}
		if time.Since(began) > 5*time.Second {
			t.Fatalf("5 seconds after the run there is still process %d", left[0].pid)
		}
	}
}

// When the launcher is killed, nothing of the run is left. When it is stopped
// for a while, the run goes on.
func TestLauncherFaults(t *testing.T) {
	data := smallData(t)
	for _, what := range []string{"kill", "stop"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			// It is slow, so that the fault comes in the middle.
			mark := fmt.Sprintf("slow at mid-epoch on rank 1 noted in %s", t.TempDir()+"/noted")
			cmd := exec.Command("shardfeed", small(data, "--nproc", fmt.Sprint(faultRanks), "--timeout", faultTimeout.String())...)
			cmd.Env = append(os.Environ(), faultVariable+"="+mark)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout := lines(t, cmd)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			steps := 0
			for steps < 3 && stdout.Scan() {
				steps++
			}
			signal := syscall.SIGKILL
			if what == "stop" {
				signal = syscall.SIGSTOP
			}
			if err := syscall.Kill(cmd.Process.Pid, signal); err != nil {
				t.Fatal(err)
			}
			if what == "stop" {
				for steps < epochs*(perEpoch+1)+1 && stdout.Scan() { // to the end, without the launcher
					steps++
				}
				if err := syscall.Kill(cmd.Process.Pid, syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			for stdout.Scan() {
				steps++
			}
			err := cmd.Wait()
			nothingLeft(t, mark)
			if what == "stop" && (err != nil || steps != epochs*(perEpoch+1)+1) {
				t.Errorf("stopped and continued: %v after %d lines\n%s", err, steps, stderr.String())
			}
		})
	}
}
