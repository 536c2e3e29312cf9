package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// The test binary is also the ranks: with ROLE set it plays a part.
func TestMain(m *testing.M) {
	if role := os.Getenv("ROLE"); role != "" {
		roles[role]()
		os.Exit(0)
	}
	// Each process built with -race waits a second at its end, unless told otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

var rank = os.Getenv("RANK")

// say tells the test something, in one write.
func say(words ...any) { os.Stdout.WriteString(fmt.Sprintln(words...)) }

var roles = map[string]func(){
	// exit ends with the status that the argument gives for the rank.
	"exit": func() {
		n, _ := strconv.Atoi(rank)
		status, _ := strconv.Atoi(os.Args[1+n])
		os.Exit(status)
	},
	// hold stays until it is killed.
	"hold": hold,
	// stubborn does not obey SIGTERM.
	"stubborn": func() {
		signal.Ignore(syscall.SIGTERM)
		hold()
	},
	"polite":            polite,
	"parent":            parent,
	"parent that holds": func() { parent(); hold() },
	"trainer":           trainer,
	// panic and forget are trainers of which rank 1 panics, or forgets Close.
	"panic": func() {
		if rank == "1" {
			joined()
			panic("out of cheese")
		}
		trainer()
	},
	// fail says its last words, and takes its time to end after them.
	"fail": func() {
		if rank == "1" {
			store := joined()
			store.Fail(errors.New("disk full"))
			polite()
			os.Exit(3)
		}
		trainer()
	},
	"forget": func() {
		if rank == "1" {
			joined()
			os.Exit(0)
		}
		trainer()
	},
	// absent ends, where the first argument is its rank, with the status of the
	// second, while the others wait for it to join.
	"absent": func() {
		if os.Args[1] == rank {
			status, _ := strconv.Atoi(os.Args[2])
			os.Exit(status)
		}
		joined()
	},
	// absent politely is absent where the other one ends well when it is told to.
	"absent politely": func() {
		if rank == "1" {
			return
		}
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		go joined()
		<-told
	},
	// babble writes what is no report, and more than a pipe holds.
	"babble": func() {
		syscall.Write(reportFD(), []byte(strings.Repeat("z", 300_000)))
	},
	// well is a run that ends well.
	"well": func() {
		if err := joined().Close(); err != nil {
			panic(err)
		}
	},
	"environment": func() {
		for _, v := range os.Environ() {
			say("env", rank, v)
		}
		if stdin, err := os.Stdin.Read(make([]byte, 1)); stdin != 0 || err == nil {
			say("stdin", rank, stdin, err)
		}
	},
	// launcher launches the role of its argument.
	"launcher": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		say("launcher", "-", os.Getpid())
		err := Run(ctx, config(os.Args[1], 2, os.Args[2:]...))
		say("returned", "-", err)
	},
	"escape":            escape,
	"escape that fails": func() { escape(); os.Exit(3) },
	"escape that holds": func() { escape(); hold() },
	"count":             count,
	"late":              late,
	"signalled":         signalled,
	"bind":              bind,
	"write":             write,
	"flood":             flood,
	"deaf":              deaf,
	"long":              long,
	"linger":            linger,
	"piped launcher":    pipedLauncher,
}

func reportFD() int {
	fd, err := strconv.Atoi(os.Getenv("SHARDFEED_REPORT_FD"))
	if err != nil {
		panic(err)
	}
	return fd
}

func hold() {
	say("rank", rank, os.Getpid())
	<-time.After(time.Hour) // without cgo, the runtime ends a program in which nothing can happen any more
}

// polite ends well when it is told to.
func polite() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	say("rank", rank, os.Getpid())
	say("told", rank, <-told)
}

// parent leaves a child behind.
func parent() {
	child := exec.Command("sleep", "1000")
	child.Stdout = os.Stdout
	if err := child.Start(); err != nil {
		panic(err)
	}
	say("child", rank, child.Process.Pid)
}

// trainer joins the others and waits for what becomes of them.
func trainer() {
	store := joined()
	<-store.Failed()
	say("error", rank, store.Err())
	os.Exit(1)
}

func joined() *rendezvous.Store {
	world, err := rendezvous.Env()
	if err != nil {
		panic(err)
	}
	store, err := rendezvous.Join(context.Background(), world)
	if err != nil {
		panic(err)
	}
	// No rank goes on before all have said that they are there, or one has
	// failed: the test kills one as soon as all have said it.
	say("rank", rank, os.Getpid())
	err = store.Set(context.Background(), rank, nil)
	for other := 0; err == nil && other < world.Size; other++ {
		_, err = store.Get(context.Background(), strconv.Itoa(other))
	}
	return store
}

// config launches a role.
func config(role string, nproc int, args ...string) Config {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ROLE=") })
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	return Config{Nproc: nproc, Args: append([]string{"/proc/self/exe"}, args...), Env: append(env, "ROLE="+role), Stderr: null}
}

// output is what the processes of a test say. Its end means that no process
// is left that could say something.
type output struct {
	t     testing.TB
	read  *os.File
	lines *bufio.Scanner
	pids  []int
}

func listen(t testing.TB) (*output, *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close(); write.Close() })
	read.SetReadDeadline(time.Now().Add(20 * time.Second))
	return &output{t: t, read: read, lines: bufio.NewScanner(read)}, write
}

// next is the words of the next line that begins with what.
func (o *output) next(what string) (who, words string) {
	o.t.Helper()
	for o.lines.Scan() {
		fields := strings.SplitN(o.lines.Text(), " ", 3)
		if len(fields) < 3 {
			continue
		}
		if slices.Contains([]string{"rank", "child", "launcher"}, fields[0]) {
			pid, _ := strconv.Atoi(fields[2])
			o.pids = append(o.pids, pid)
		}
		if fields[0] == what {
			return fields[1], fields[2]
		}
	}
	o.t.Fatalf("no %q was said: %v", what, o.lines.Err())
	return "", ""
}

// pid is that of the next process that says what.
func (o *output) pid(what string) (who string, pid int) {
	o.t.Helper()
	who, words := o.next(what)
	pid, err := strconv.Atoi(words)
	if err != nil {
		o.t.Fatal(err)
	}
	return who, pid
}

// ranks are the pids of n ranks that say that they are there.
func (o *output) ranks(n int) map[string]int {
	o.t.Helper()
	all := map[string]int{}
	for range n {
		who, pid := o.pid("rank")
		all[who] = pid
	}
	return all
}

// end checks that nobody is left.
func (o *output) end() {
	o.t.Helper()
	for o.lines.Scan() {
	}
	if err := o.lines.Err(); err != nil {
		o.t.Errorf("a process is left: %v", err)
	}
	for _, pid := range o.pids {
		if !gone(pid) {
			o.t.Errorf("process %d is left", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// gone says whether a process has ended; whether it is reaped is up to init.
func gone(pid int) bool {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return true
		}
	}
	return false
}

// started is a Run that is going on.
type started struct {
	*output
	cancel context.CancelCauseFunc
	result chan error
}

func start(t testing.TB, cfg Config) *started {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	out, write := listen(t)
	s := &started{out, cancel, make(chan error, 1)}
	cfg.Stdout = write
	go func() {
		err := Run(ctx, cfg)
		write.Close()
		s.result <- err
	}()
	return s
}

// failures are those of a run that fails; nobody is left of it.
func (s *started) failures() *Error {
	s.t.Helper()
	s.end()
	err := <-s.result
	failed, ok := errors.AsType[*Error](err)
	if !ok {
		s.t.Fatalf("%v, want an *Error", err)
	}
	return failed
}

func TestExits(t *testing.T) {
	for _, c := range []struct {
		statuses string
		want     string // of the first failure
	}{
		{"0", ""},
		{"3", "rank 0 (pid N): exit status 3"},
		{"0 0 0", ""},
		{"0 3", "rank 1 (pid N): exit status 3"},
		{"255 0 0", "rank 0 (pid N): exit status 255"},
	} {
		statuses := strings.Fields(c.statuses)
		s := start(t, config("exit", len(statuses), statuses...))
		s.end()
		err := <-s.result
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.statuses, err)
			}
			continue
		}
		failed, ok := errors.AsType[*Error](err)
		if !ok || failed.Cause != nil {
			t.Errorf("%s: %v", c.statuses, err)
			continue
		}
		first := failed.Failures[0]
		if got := strings.Replace(first.String(), strconv.Itoa(first.PID), "N", 1); got != c.want {
			t.Errorf("%s: %s, want %s", c.statuses, got, c.want)
		}
		for _, f := range failed.Failures[1:] {
			if !f.Told { // it may be that slow on a busy machine
				t.Errorf("%s: %v", c.statuses, f)
			}
		}
	}
}

// The ranks find each other, and a run that ends well is no error. Run leaves
// no file descriptor open and no child behind, not even one to be reaped.
func TestWell(t *testing.T) {
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	cfg := config("exit", 2, "0", "0")
	before := 0
	for range 3 {
		if err := Run(t.Context(), cfg); err != nil {
			t.Error(err)
		}
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
			t.Errorf("a child is left: %d, %v", pid, err)
		}
		if n := descriptors(); before == 0 {
			before = n // what the runtime opens once is open now
		} else if n > before {
			t.Errorf("%d descriptors after a run, %d before", n, before)
		}
	}
	for nproc := 1; nproc <= 4; nproc++ {
		s := start(t, config("well", nproc))
		if got := s.ranks(nproc); len(got) != nproc {
			t.Errorf("%d ranks: %v", nproc, got)
		}
		s.end()
		if err := <-s.result; err != nil {
			t.Errorf("%d ranks: %v", nproc, err)
		}
	}
}

// A rank dies: the others say whose death ended them, and Run says who was
// the first.
func TestDeath(t *testing.T) {
	for _, c := range []struct {
		role, victim string
		kill         bool
		want         Failure
		say          string
	}{
		{"trainer", "0", true, Failure{Rank: 0, Exit: -1, Signal: "killed"}, "rank 0 ("},
		{"trainer", "1", true, Failure{Rank: 1, Exit: -1, Signal: "killed"}, "rank 1 ("},
		{"panic", "1", false, Failure{Rank: 1, Exit: 2}, "rank 1 ("},
	} {
		t.Run(c.role+" "+c.victim, func(t *testing.T) {
			s := start(t, config(c.role, 3))
			pids := s.ranks(3)
			if c.kill {
				syscall.Kill(pids[c.victim], syscall.SIGKILL)
			}
			for range 2 {
				who, words := s.next("error")
				if who == c.victim || !strings.HasPrefix(words, c.say) || !strings.Contains(words, fmt.Sprintf("pid %d) died", pids[c.victim])) {
					t.Errorf("rank %s: %s", who, words)
				}
			}
			failed := s.failures()
			c.want.PID = pids[c.victim]
			if len(failed.Failures) != 3 || failed.Failures[0] != c.want {
				t.Errorf("%v, want %v first", failed, c.want)
			}
			for _, f := range failed.Failures[1:] {
				if f.Exit != 1 || f.Told {
					t.Errorf("%v: the others end by themselves", f)
				}
			}
		})
	}
}

// A rank that ends well but too early fails the others.
func TestForgottenClose(t *testing.T) {
	s := start(t, config("forget", 2))
	pids := s.ranks(2)
	if who, words := s.next("error"); who != "0" || !strings.Contains(words, fmt.Sprintf("pid %d) died, or ended without Close", pids["1"])) {
		t.Errorf("rank %s: %s", who, words)
	}
	failed := s.failures()
	if len(failed.Failures) != 2 || failed.Failures[0] != (Failure{Rank: 1, PID: pids["1"]}) || failed.Failures[1] != (Failure{Rank: 0, PID: pids["0"], Exit: 1}) {
		t.Error(failed)
	}
}

// A rank that ends before it has joined the others is waited for in vain: the
// run ends at once, and names it, whatever its status.
func TestAbsent(t *testing.T) {
	for _, absent := range []string{"0", "1"} {
		for _, status := range []int{0, 3} {
			began := time.Now()
			var failed *Error
			if err := Run(t.Context(), config("absent", 3, absent, strconv.Itoa(status))); !errors.As(err, &failed) {
				t.Fatalf("rank %s with status %d: %v", absent, status, err)
			}
			first := failed.Failures[0]
			if strconv.Itoa(first.Rank) != absent || first.Exit != status || first.Told || len(failed.Failures) != 3 {
				t.Errorf("rank %s with status %d: %v", absent, status, failed)
			}
			if took := time.Since(began); took > 20*time.Second { // of the 60 that the others would wait
				t.Errorf("rank %s with status %d: it took %v", absent, status, took)
			}
		}
	}
}

// So it does where the other one ends well because it is told to.
func TestAbsentPolitely(t *testing.T) {
	err := Run(t.Context(), config("absent politely", 2))
	if want := "launch: rank 1 (pid N): exit status 0, but before the others were done"; withoutPIDs(err) != want {
		t.Errorf("\n got %v\nwant %s", err, want)
	}
}

// A rank that writes something else where reports are expected blocks nobody.
func TestBabble(t *testing.T) {
	s := start(t, config("babble", 2))
	s.end()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
}

// The cause is the rank with the last words, though the others end before it.
func TestLastWords(t *testing.T) {
	t.Parallel()
	s := start(t, config("fail", 3))
	for range 2 {
		if who, words := s.next("error"); who == "1" || !strings.HasPrefix(words, "rank 1 (") || !strings.HasSuffix(words, "failed: disk full") {
			t.Errorf("rank %s: %s", who, words)
		}
	}
	failed := s.failures()
	if f := failed.Failures[0]; len(failed.Failures) != 3 || f.Rank != 1 || f.Exit != 3 || !f.Told {
		t.Error(failed)
	}
}

func TestVerdict(t *testing.T) {
	ends := []Failure{{Rank: 2}, {Rank: 0, PID: 10, Exit: 1}, {Rank: 1, PID: 11, Exit: -1, Signal: "killed"}, {Rank: 3, PID: 13, Exit: 143, Told: true}}
	const others = "rank 3 (pid 13): exit status 143 (the launcher had told it to end)"
	for _, c := range []struct {
		ends     []Failure
		reported int
		cause    error
		want     string
	}{
		{ends[:1], -1, nil, "<nil>"},
		{ends[:1], 2, nil, "<nil>"},
		{ends[:2], -1, nil, "launch: rank 0 (pid 10): exit status 1"},
		{ends, -1, nil, "launch: the first to fail was rank 0 (pid 10): exit status 1; then rank 1 (pid 11): signal: killed; then " + others},
		{ends, 1, nil, "launch: the first to fail was rank 1 (pid 11): signal: killed; then rank 0 (pid 10): exit status 1; then " + others},
		{ends, 7, nil, "launch: the first to fail was rank 0 (pid 10): exit status 1; then rank 1 (pid 11): signal: killed; then " + others},
		{ends[:2], 2, nil, "launch: the first to fail was rank 2 (pid 0): exit status 0, but before the others were done; then rank 0 (pid 10): exit status 1"},
		{ends[:1], -1, context.Canceled, "launch: the ranks were told to end: context canceled"},
		{ends[:2], 2, context.Canceled, "launch: the ranks were told to end: context canceled; then rank 0 (pid 10): exit status 1"},
	} {
		if got := fmt.Sprint(verdict(c.ends, c.reported, c.cause)); got != c.want {
			t.Errorf("reported %d:\n got %s\nwant %s", c.reported, got, c.want)
		}
	}
}

// Ranks that do not notice that another has failed are told to end.
func TestTold(t *testing.T) {
	t.Parallel()
	s := start(t, config("hold", 2))
	pids := s.ranks(2)
	syscall.Kill(pids["1"], syscall.SIGKILL)
	failed := s.failures()
	if len(failed.Failures) != 2 || failed.Failures[0].Rank != 1 || failed.Failures[0].Told ||
		failed.Failures[1] != (Failure{Rank: 0, PID: pids["0"], Exit: -1, Signal: "terminated", Told: true}) {
		t.Error(failed)
	}
	if text := failed.Error(); !strings.HasPrefix(text, "launch: the first to fail was rank 1 (pid ") || !strings.Contains(text, "; then rank 0 (pid ") {
		t.Error(text)
	}
}

func TestStubborn(t *testing.T) {
	t.Parallel()
	cfg := config("stubborn", 2)
	cfg.Grace = 50 * time.Millisecond
	s := start(t, cfg)
	pids := s.ranks(2)
	syscall.Kill(pids["0"], syscall.SIGKILL)
	failed := s.failures()
	if len(failed.Failures) != 2 || failed.Failures[1] != (Failure{Rank: 1, PID: pids["1"], Exit: -1, Signal: "killed", Told: true}) {
		t.Error(failed)
	}
}

func TestCancel(t *testing.T) {
	cause := errors.New("enough")
	for _, c := range []struct {
		role string
		want string
	}{{"polite", ""}, {"hold", "terminated"}, {"stubborn", "killed"}} {
		t.Run(c.role, func(t *testing.T) {
			cfg := config(c.role, 2)
			if c.want == "killed" {
				cfg.Grace = -1
			}
			s := start(t, cfg)
			s.ranks(2)
			s.cancel(cause)
			failed := s.failures()
			if !errors.Is(failed, cause) || !strings.HasPrefix(failed.Error(), "launch: the ranks were told to end: enough") {
				t.Error(failed)
			}
			if c.want == "" {
				if len(failed.Failures) != 0 {
					t.Error(failed)
				}
				return
			}
			for _, f := range failed.Failures {
				if f.Signal != c.want || !f.Told {
					t.Errorf("%v, want the signal %s", f, c.want)
				}
			}
			if len(failed.Failures) != 2 {
				t.Error(failed)
			}
		})
	}
}

// A cancelled context starts nothing, a rank that is stopped is ended, too.
func TestCancelled(t *testing.T) {
	t.Parallel()
	cause := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := Run(ctx, config("hold", 1)); !errors.Is(err, cause) {
		t.Error(err)
	}
	s := start(t, config("hold", 2))
	syscall.Kill(s.ranks(2)["1"], syscall.SIGSTOP)
	s.cancel(cause)
	if failed := s.failures(); len(failed.Failures) != 2 || failed.Failures[0].Signal != "terminated" || failed.Failures[1].Signal != "terminated" {
		t.Error(failed)
	}
}

// What a rank leaves behind ends with it, whether it ends well or not.
func TestGrandchildren(t *testing.T) {
	s := start(t, config("parent", 2))
	s.pid("child")
	s.pid("child")
	s.end()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
	s = start(t, config("parent that holds", 2))
	s.pid("child")
	s.pid("child")
	s.cancel(errors.New("enough"))
	s.failures()
}

// launcher is a process that launches a role.
func launcher(t testing.TB, role string, args ...string) (*output, *exec.Cmd) {
	t.Helper()
	out, write := listen(t)
	cmd := exec.Command("/proc/self/exe", append([]string{role}, args...)...)
	cmd.Env = append(os.Environ(), "ROLE=launcher")
	cmd.Stdout = write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	write.Close()
	return out, cmd
}

// Nothing outlives a launcher that is killed: no rank, whatever it ignores, no
// child of a rank, no port, and not the keeper.
func TestLauncherKilled(t *testing.T) {
	for _, role := range []string{"trainer", "stubborn", "parent that holds"} {
		t.Run(role, func(t *testing.T) {
			out, cmd := launcher(t, role)
			out.ranks(2)
			keepers := children(t, cmd.Process.Pid, "shardfeed-keeper")
			if len(keepers) != 1 {
				t.Errorf("keepers: %v", keepers)
			}
			out.pids = append(out.pids, keepers...)
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its whole group
			out.end()
		})
	}
}

// killKeeper kills the launcher's keeper.
func killKeeper(t *testing.T, launcher int) {
	t.Helper()
	for _, keeper := range children(t, launcher, "shardfeed-keeper") {
		syscall.Kill(keeper, syscall.SIGKILL)
		if !gone(keeper) {
			t.Errorf("the keeper %d is left", keeper)
		}
	}
}

// Where the keeper is killed as well, the kernel still kills the ranks.
func TestLauncherKilledWithoutKeeper(t *testing.T) {
	out, cmd := launcher(t, "stubborn")
	out.ranks(2)
	killKeeper(t, cmd.Process.Pid)
	cmd.Process.Kill()
	out.end()
}

// The keeper is no rank's parent: where it is killed, the run goes on.
func TestKeeperKilled(t *testing.T) {
	out, cmd := launcher(t, "polite")
	out.ranks(2)
	killKeeper(t, cmd.Process.Pid)
	cmd.Process.Signal(os.Interrupt)
	if _, words := out.next("returned"); words != "launch: the ranks were told to end: interrupt signal received" {
		t.Error(words)
	}
	out.end()
}

// No signal but SIGKILL ends the keeper.
func TestKeeperStays(t *testing.T) {
	out, cmd := launcher(t, "parent that holds")
	out.ranks(2)
	keepers := children(t, cmd.Process.Pid, "shardfeed-keeper")
	for _, keeper := range keepers {
		ignores(t, keeper, syscall.SIGTERM) // it has begun
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		for _, keeper := range keepers {
			syscall.Kill(keeper, s)
		}
	}
	cmd.Process.Kill()
	out.pids = append(out.pids, keepers...)
	out.end()
}

// ignores waits until a process ignores a signal.
func ignores(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, mask, _ := strings.Cut(string(status), "SigIgn:\t")
		mask, _, _ = strings.Cut(mask, "\n")
		if bits, err := strconv.ParseUint(mask, 16, 64); err == nil && bits&(1<<(s-1)) != 0 {
			return
		}
	}
	t.Fatalf("process %d does not ignore %v", pid, s)
}

// children are the processes of a parent with this name.
func children(t *testing.T, parent int, name string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		line, _ := os.ReadFile(dir + "/cmdline")
		stat, _ := os.ReadFile(dir + "/stat")
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); strings.HasPrefix(string(line), name+"\x00") && len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// Two runs at once, in one process, do not disturb each other.
func TestTwoRuns(t *testing.T) {
	a, b := start(t, config("trainer", 2)), start(t, config("trainer", 2))
	pids, others := a.ranks(2), b.ranks(2)
	syscall.Kill(pids["1"], syscall.SIGKILL)
	if failed := a.failures(); failed.Failures[0].PID != pids["1"] {
		t.Error(failed)
	}
	select {
	case <-b.result:
		t.Error("the other run has ended, too")
	default:
	}
	syscall.Kill(others["0"], syscall.SIGKILL)
	if failed := b.failures(); failed.Failures[0].PID != others["0"] {
		t.Error(failed)
	}
}

func TestEnvironment(t *testing.T) {
	cfg := config("environment", 2)
	cfg.Env = append(cfg.Env, "RANK=7", "WORLD_SIZE=8", "SHARDFEED_TOKEN=outer", "SHARDFEED_LISTEN_FD=9", "MASTER_PORT=1",
		"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=outer", "GROUP_RANK=3", "OMP_NUM_THREADS=", "KEPT=yes", "PWD=/")
	s := start(t, cfg)
	env := map[string]map[string]string{"0": {}, "1": {}}
	for s.lines.Scan() {
		fields := strings.SplitN(s.lines.Text(), " ", 3)
		if fields[0] != "env" {
			t.Error(s.lines.Text())
			continue
		}
		name, value, _ := strings.Cut(fields[2], "=")
		if _, ok := env[fields[1]][name]; ok && name != "OMP_NUM_THREADS" {
			t.Errorf("%s twice", name)
		}
		env[fields[1]][name] = value
	}
	if err := <-s.result; err != nil {
		t.Fatal(err)
	}
	for rank, vars := range env {
		for name, want := range map[string]string{
			"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
			"OMP_NUM_THREADS": "1", "KEPT": "yes", "TORCHELASTIC_USE_AGENT_STORE": "", keeperVariable: "",
			"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": "2",
			"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": env["0"]["TORCHELASTIC_RUN_ID"],
			"SHARDFEED_LISTEN_FD": map[string]string{"0": "3"}[rank], "SHARDFEED_REPORT_FD": map[string]string{"0": "4", "1": "3"}[rank],
			"SHARDFEED_TOKEN": env["0"]["SHARDFEED_TOKEN"], "SHARDFEED_ADDR": env["0"]["SHARDFEED_ADDR"], "MASTER_PORT": env["0"]["MASTER_PORT"],
		} {
			if vars[name] != want {
				t.Errorf("rank %s: %s=%s, want %s", rank, name, vars[name], want)
			}
		}
	}
	for _, name := range []string{"SHARDFEED_TOKEN", "TORCHELASTIC_RUN_ID"} {
		if value := env["0"][name]; len(value) < 26 {
			t.Errorf("%s is %q", name, value)
		}
	}
	_, port, err := net.SplitHostPort(env["0"]["SHARDFEED_ADDR"])
	if err != nil || port == env["0"]["MASTER_PORT"] || env["0"]["MASTER_PORT"] == "1" {
		t.Errorf("ports %s and %s", port, env["0"]["MASTER_PORT"])
	}
}

func TestNothingStarted(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Args: []string{"true"}}, "launch: 0 ranks: at least 1 is needed"},
		{Config{Nproc: -1, Args: []string{"true"}}, "launch: -1 ranks"},
		{Config{Nproc: 2}, "launch: no program is given"},
		{Config{Nproc: 2, Args: []string{"no-such-program"}}, `launch: exec: "no-such-program": executable file not found`},
		{Config{Nproc: 2, Args: []string{missing}}, missing},
		{Config{Nproc: 2, Args: []string{"/"}}, "/"},
	} {
		if err := Run(t.Context(), c.cfg); err == nil || !strings.HasPrefix(err.Error(), "launch: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.cfg.Args, err, c.want)
		}
	}
	// Found, but nothing that can be started.
	if err := os.WriteFile(missing, []byte("\x7fELF is not enough"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), Config{Nproc: 2, Args: []string{missing}}); err == nil || !strings.Contains(err.Error(), "rank 0") || !strings.Contains(err.Error(), missing) {
		t.Error(err)
	}
}

// What the keeper has to kill, after what it was told.
func TestRemains(t *testing.T) {
	const a, b = tokenVariable + "=A", tokenVariable + "=B"
	for _, c := range []struct {
		text, mark string
		groups     []int
	}{
		{"", "", nil},
		{a + "\n12\n13\n-12\n", a, []int{13}},
		{"12\n13", "", []int{12, 13}},
		{"0\n1\n-1\nx\n\n99999999999999999999\nPATH=/bin\n", "", nil},
		{a + "\n12\n-12\n" + b + "\n12\n", b, []int{12}},
	} {
		mark, groups := remains(strings.NewReader(c.text))
		if got := slices.Sorted(maps.Keys(groups)); mark != c.mark || !slices.Equal(got, c.groups) {
			t.Errorf("%q: %q, %v, want %q, %v", c.text, mark, got, c.mark, c.groups)
		}
	}
}

// From the call of Run to its return, for two ranks that find each other and leave.
func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		s := start(b, config("well", 2))
		s.end()
		if err := <-s.result; err != nil {
			b.Fatal(err)
		}
	}
}

// From the death of a rank to the return of Run; in between the other rank
// learns of it, says so and ends.
func BenchmarkDeath(b *testing.B) {
	var lasted time.Duration
	for b.Loop() {
		s := start(b, config("trainer", 2))
		pids := s.ranks(2)
		began := time.Now()
		syscall.Kill(pids["1"], syscall.SIGKILL)
		if err := <-s.result; err == nil {
			b.Fatal("no error")
		}
		lasted += time.Since(began)
	}
	b.ReportMetric(float64(lasted.Microseconds())/1000/float64(b.N), "ms/death")
}

// From the death of the launcher to the end of everything that it has started.
func BenchmarkLauncherKilled(b *testing.B) {
	var lasted time.Duration
	for b.Loop() {
		out, cmd := launcher(b, "parent that holds")
		out.ranks(2)
		began := time.Now()
		cmd.Process.Kill()
		out.end()
		lasted += time.Since(began)
	}
	b.ReportMetric(float64(lasted.Microseconds())/1000/float64(b.N), "ms/death")
}
