package local_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// fault is what happens to some of the ranks, and when.
type fault struct {
	How     string // kill, stop, exit 0, exit 3, panic, close, late
	When    string // join: the others wait in Join; between two calls; inside an all-reduce, when all have come; end: the others close
	Victims []int
	Timeout time.Duration
}

// finding is what a rank found out. A victim reports the moment first.
type finding struct {
	At    time.Time
	Error string
	Dead  *rendezvous.RankError `json:",omitempty"`
	Late  *local.TimeoutError   `json:",omitempty"`
}

// faultMain is the program of a rank in which a fault happens.
func faultMain(name string) {
	var f fault
	err := json.Unmarshal([]byte(name), &f)
	w, wrong := rendezvous.Env()
	if err := errors.Join(err, wrong); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	victim := slices.Contains(f.Victims, w.Rank)
	if victim && f.When == "join" {
		store, err := rendezvous.Join(ctx, w)
		if err == nil {
			f.happen(nil)
			err = cmp.Or(store.Close(), store.Err())
		}
		report(err)
		return
	}
	cfg := local.Config{Timeout: time.Minute}
	if f.When == "join" {
		cfg.Timeout = f.Timeout
	}
	g, err := cfg.Join(ctx, w)
	if err == nil {
		g.SetTimeout(f.Timeout)
		err = f.calls(ctx, g, victim)
		defer g.Close()
	}
	report(err)
}

func report(err error) {
	found := finding{At: time.Now(), Error: fmt.Sprint(err)}
	errors.As(err, &found.Dead)
	errors.As(err, &found.Late)
	json.NewEncoder(os.Stdout).Encode(found)
}

func (f fault) calls(ctx context.Context, g *local.Group, victim bool) error {
	v, err := g.Alloc(1000)
	if err != nil {
		return err
	}
	if _, err := g.Exchange(ctx, nil); err != nil {
		return err
	}
	if victim && (f.When == "between" || f.When == "end") {
		f.happen(g)
	}
	if f.When == "end" {
		return g.Close()
	}
	if victim && f.When == "inside" {
		g.InReduce(func() { f.happen(g) })
	}
	wait, err := g.AllReduce(ctx, v, trainer.Sum)
	if err == nil {
		err = wait()
	}
	if _, again := g.Exchange(ctx, nil); err != nil && again != err {
		return fmt.Errorf("the next call's error is %v, not %w", again, err)
	}
	return err
}

const lateness = 300 * time.Millisecond

func (f fault) happen(g *local.Group) {
	report(nil)
	switch f.How {
	case "kill":
		unix.Kill(os.Getpid(), unix.SIGKILL)
	case "stop":
		unix.Kill(os.Getpid(), unix.SIGSTOP)
		<-time.After(200 * time.Millisecond) // it may take effect a little later
	case "late":
		<-time.After(lateness)
	case "exit 0":
		os.Exit(0)
	case "exit 3":
		os.Exit(3)
	case "panic": // in a goroutine of its own, where nothing defers Close
		go panic("on purpose")
		<-time.After(time.Hour)
	case "close":
		go func() { // it waits for the call that is pending
			g.Close()
			os.Exit(0)
		}()
		<-g.Failed()
	}
}

func (p process) finding(t *testing.T) (found finding) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), &found)
	}
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return found
}

// reported checks which rank the launcher takes for the first that has failed.
func reported(t *testing.T, ranks []process, victim int) {
	t.Helper()
	for {
		line, err := ranks[0].reports.ReadString('\n')
		if err == nil && !strings.HasPrefix(line, "failed ") {
			continue // of the join
		}
		if line != fmt.Sprintln("failed", victim) {
			t.Errorf("reported as the first to fail is %q, %v", line, err)
		}
		return
	}
}

func startFault(t *testing.T, f fault) []process {
	t.Helper()
	name, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	ranks, _ := start(t, 0, 3, "fault", string(name))
	return ranks
}

// A rank that ends early, however and whenever, is named by all others at
// once: not only when a timeout passes.
func TestEarlyEnd(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"join", "between", "inside"} {
		for _, how := range []string{"kill", "exit 0", "exit 3", "panic", "close"} {
			for victim := range 2 {
				if how == "close" && when != "between" {
					continue // with a call pending: grouptest
				}
				t.Run(fmt.Sprintf("%s/%s/%d", when, how, victim), func(t *testing.T) {
					ranks := startFault(t, fault{how, when, []int{victim}, time.Minute})
					at := ranks[victim].finding(t).At
					for rank, p := range ranks {
						if rank == victim {
							continue
						}
						found := p.finding(t)
						d := found.At.Sub(at)
						t.Logf("rank %d after %v: %s", rank, d, found.Error)
						if d > 5*time.Second {
							t.Errorf("rank %d has found it out after %v", rank, d)
						}
						switch {
						case how == "close" && strings.Contains(found.Error, fmt.Sprintf("rank %d has left (pid %d)", victim, ranks[victim].Process.Pid)):
						case found.Dead != nil && found.Dead.Rank == victim && found.Dead.PID == ranks[victim].Process.Pid:
						default:
							t.Errorf("rank %d does not name rank %d: %s", rank, victim, found.Error)
						}
						if err := p.Wait(); err != nil {
							t.Errorf("rank %d: %v", rank, err)
						}
					}
					if how != "close" {
						reported(t, ranks, victim)
					}
				})
			}
		}
	}
}

// A rank that fails takes its memory with it: who comes to it then learns why
// it is gone.
func TestMemoryGone(t *testing.T) {
	_, w := start(t, 1, 1, "", "")
	w.Size, w.LocalSize = 2, 2
	joined := make(chan error)
	go func() {
		one := w
		one.Rank, one.LocalRank, one.ListenFD = 1, 1, 0
		_, err := local.Join(t.Context(), one)
		joined <- err
	}()
	store, err := rendezvous.Join(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Set(t.Context(), "local/memory", fmt.Appendf(nil, `{"PID": %d, "FD": 1000000}`, os.Getpid())); err != nil {
		t.Fatal(err)
	}
	<-time.After(50 * time.Millisecond) // the news come behind
	store.Fail(errors.New("no space left"))
	var dead *rendezvous.RankError
	if err := <-joined; !errors.As(err, &dead) || dead.Rank != 0 || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the error is %v", err)
	}
}

// Ranks that are stopped are named by all others when the timeout has passed,
// also where rank 0 is among them, which serves the rendezvous. When they go
// on they learn it, and end.
func TestStopped(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	tests := []fault{
		{Victims: []int{0}, When: "join"},
		{Victims: []int{1}, When: "join"},
		{Victims: []int{0}, When: "between"},
		{Victims: []int{1}, When: "between"},
		{Victims: []int{0}, When: "inside"},
		{Victims: []int{1}, When: "inside"},
		{Victims: []int{0, 2}, When: "between"},
		{Victims: []int{1, 2}, When: "inside"},
	}
	var runs [][]process // all wait side by side
	for i := range tests {
		tests[i].How, tests[i].Timeout = "stop", timeout
		runs = append(runs, startFault(t, tests[i]))
	}
	for i, f := range tests {
		t.Run(fmt.Sprintf("%s/%v", f.When, f.Victims), func(t *testing.T) {
			var at time.Time
			for _, victim := range f.Victims {
				if stopped := runs[i][victim].finding(t).At; stopped.After(at) {
					at = stopped
				}
			}
			for rank, p := range runs[i] {
				if slices.Contains(f.Victims, rank) {
					continue
				}
				found := p.finding(t)
				d := found.At.Sub(at)
				t.Logf("rank %d after %v: %s", rank, d, found.Error)
				if f.When == "join" && strings.Contains(found.Error, "rank 0") {
					continue // it may have been stopped before it told this rank that all have joined
				}
				if found.Late == nil || !slices.Equal(found.Late.Ranks, f.Victims) || found.Late.After != timeout {
					t.Errorf("rank %d does not name exactly %v: %s", rank, f.Victims, found.Error)
				}
				if d > timeout+5*time.Second {
					t.Errorf("rank %d has found it out after %v", rank, d)
				}
				if err := p.Wait(); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
				if d := time.Since(found.At); d > 10*time.Second {
					t.Errorf("rank %d took %v to end", rank, d)
				}
			}
			reported(t, runs[i], f.Victims[0])
			for _, victim := range f.Victims {
				runs[i][victim].Process.Signal(unix.SIGCONT)
			}
			for _, victim := range f.Victims {
				found := runs[i][victim].finding(t)
				t.Logf("rank %d, which goes on: %s", victim, found.Error)
				if f.When != "join" && (found.Late == nil || !slices.Contains(found.Late.Ranks, victim) || !strings.Contains(found.Error, "given up waiting for this rank")) {
					t.Errorf("rank %d goes on and gets %s", victim, found.Error)
				}
				if err := runs[i][victim].Wait(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Who is late, but within the timeout, is in time.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"between", "inside", "end"} {
		t.Run(when, func(t *testing.T) {
			ranks := startFault(t, fault{"late", when, []int{1}, time.Minute})
			at := ranks[1].finding(t).At
			for rank, p := range ranks {
				found := p.finding(t)
				if found.Error != fmt.Sprint(nil) {
					t.Errorf("rank %d: %s", rank, found.Error)
				}
				if waits := when != "end" || rank == 0; waits && found.At.Sub(at) < lateness {
					t.Errorf("rank %d has not waited", rank)
				}
			}
		})
	}
}

// Rank 0's Close does not wait for ever for a rank that has no call left, and
// names it.
func TestCloseWithoutOthers(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	ranks := startFault(t, fault{"stop", "end", []int{1}, timeout})
	at := ranks[1].finding(t).At
	if found := ranks[2].finding(t); found.Error != fmt.Sprint(nil) {
		t.Errorf("rank 2: %s", found.Error)
	}
	found := ranks[0].finding(t)
	t.Logf("rank 0 after %v: %s", found.At.Sub(at), found.Error)
	if found.Late == nil || !slices.Equal(found.Late.Ranks, []int{1}) || !strings.Contains(found.Error, "close of rank 0") {
		t.Errorf("rank 0: %s", found.Error)
	}
	if d := found.At.Sub(at); d > timeout+5*time.Second {
		t.Errorf("Close took %v", d)
	}
	ranks[1].Process.Signal(unix.SIGCONT)
	if found := ranks[1].finding(t); found.Dead == nil || found.Dead.Rank != 0 || !strings.Contains(found.Error, "rank 1 has not come") {
		t.Errorf("rank 1: %s", found.Error)
	}
}

// When a whole run is stopped and continued nobody has waited meanwhile.
func TestSuspended(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	ranks := startFault(t, fault{"late", "between", []int{1}, timeout})
	ranks[1].finding(t)
	for _, p := range ranks {
		p.Process.Signal(unix.SIGSTOP)
	}
	<-time.After(timeout + 500*time.Millisecond)
	for _, rank := range []int{0, 2, 1} {
		ranks[rank].Process.Signal(unix.SIGCONT)
	}
	for rank, p := range ranks {
		if found := p.finding(t); found.Error != fmt.Sprint(nil) {
			t.Errorf("rank %d: %s", rank, found.Error)
		}
	}
}
