package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// count says what tells the attempts apart; rank 1 fails in those before the
// one that the argument names.
func count() {
	attempt := os.Getenv("TORCHELASTIC_RESTART_COUNT")
	say("count", rank, attempt, os.Getenv("TORCHELASTIC_MAX_RESTARTS"), os.Getenv("TORCHELASTIC_RUN_ID"),
		os.Getenv("SHARDFEED_TOKEN"), os.Getenv("SHARDFEED_ADDR"))
	if n, _ := strconv.Atoi(attempt); rank == "1" && strconv.Itoa(n) < os.Args[1] {
		os.Exit(3)
	}
}

// pids are replaced by N, so that texts can be compared.
func withoutPIDs(err error) string {
	return regexp.MustCompile(`pid \d+`).ReplaceAllString(fmt.Sprint(err), "pid N")
}

func TestRestart(t *testing.T) {
	for _, c := range []struct {
		restarts     int
		well         string // the first attempt in which no rank fails
		attempts     int
		want, hooked string
	}{
		{0, "0", 1, "<nil>", ""},
		{3, "0", 1, "<nil>", ""},
		{3, "2", 3, "<nil>", "1: launch: rank 1 (pid N): exit status 3\n2: launch: rank 1 (pid N): exit status 3\n"},
		{0, "9", 1, "launch: rank 1 (pid N): exit status 3", ""},
		{1, "9", 2, "launch: attempt 0: rank 1 (pid N): exit status 3\nattempt 1: rank 1 (pid N): exit status 3", "1: launch: rank 1 (pid N): exit status 3\n"},
	} {
		hooked := ""
		cfg := config("count", 2, c.well)
		cfg.MaxRestarts = c.restarts
		cfg.Restarted = func(attempt int, err error) { hooked += fmt.Sprintf("%d: %s\n", attempt, withoutPIDs(err)) }
		s := start(t, cfg)
		var said [][]string
		for range 2 * c.attempts {
			_, words := s.next("count")
			said = append(said, strings.Fields(words))
		}
		s.end()
		err := <-s.result
		if got := withoutPIDs(err); got != c.want {
			t.Errorf("%d restarts, well in attempt %s:\n got %s\nwant %s", c.restarts, c.well, got, c.want)
		}
		if hooked != c.hooked {
			t.Errorf("%d restarts, well in attempt %s: the hook was called with\n%swant\n%s", c.restarts, c.well, hooked, c.hooked)
		}
		for i, got := range said {
			if want := []string{strconv.Itoa(i / 2), strconv.Itoa(c.restarts), said[0][2]}; strings.Join(got[:3], " ") != strings.Join(want, " ") {
				t.Errorf("attempt %d: %v, want %v", i/2, got, want)
			}
			if first := said[i/2*2]; got[3] != first[3] || got[4] != first[4] {
				t.Errorf("attempt %d: the ranks disagree: %v, %v", i/2, got, first)
			}
			if i >= 2 && (got[3] == said[i-2][3] || got[4] == said[i-2][4]) {
				t.Errorf("attempt %d has the token or the port of the one before: %v", i/2, got)
			}
		}
	}
}

// The end of the context is no failure to start again after, and ends a run
// also between two attempts.
func TestRestartCancelled(t *testing.T) {
	cause := errors.New("enough")
	cfg := config("hold", 2)
	cfg.MaxRestarts = 5
	s := start(t, cfg)
	s.ranks(2)
	s.cancel(cause)
	if failed := s.failures(); !errors.Is(failed, cause) || len(failed.Earlier) != 0 {
		t.Error(failed)
	}
	cfg = config("count", 2, "9")
	cfg.MaxRestarts = 5
	ctx, cancel := context.WithCancelCause(t.Context())
	cfg.Restarted = func(int, error) { cancel(cause) }
	cfg.Stdout = cfg.Stderr
	err := Run(ctx, cfg)
	if want := "launch: attempt 0: rank 1 (pid N): exit status 3\nattempt 1: the ranks were told to end: enough"; withoutPIDs(err) != want || !errors.Is(err, cause) {
		t.Errorf("\n got %s\nwant %s", withoutPIDs(err), want)
	}
}

// What cannot be started is not tried again; where it could before, the
// failures before are not forgotten.
func TestRestartImpossible(t *testing.T) {
	cfg := config("count", 2, "9")
	cfg.Stdout = cfg.Stderr
	cfg.MaxRestarts = 5
	cfg.LogDir = os.DevNull + "/logs"
	cfg.Restarted = func(attempt int, err error) { t.Errorf("attempt %d after %v", attempt, err) }
	if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "launch: rank 0: mkdir /dev/null") {
		t.Error(err)
	}
	cfg.LogDir = ""
	cfg.MasterPort = freePort(t)
	var taken net.Listener
	cfg.Restarted = func(int, error) {
		var err error
		if taken, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", cfg.MasterPort)); err != nil {
			t.Fatal(err)
		}
	}
	err := Run(t.Context(), cfg)
	taken.Close()
	if text := withoutPIDs(err); !strings.HasPrefix(text, "launch: attempt 0: rank 1 (pid N): exit status 3\nattempt 1: ") || !strings.Contains(text, "in use") {
		t.Error(text)
	}
}

// late is polite as rank 0, and else what the argument names.
func late() {
	if rank == "0" || os.Args[1] == "polite" {
		polite()
	} else {
		hold()
	}
}

// Once a rank has ended well the others must end within Timeout.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how, want string
		stop      bool
	}{
		{"polite", "exit status 0", false},
		{"hold", "signal: terminated", false},
		{"hold", "signal: terminated", true},
	} {
		cfg := config("late", 2, c.how)
		cfg.Timeout = 50 * time.Millisecond
		if c.stop {
			cfg.Timeout = time.Second
		}
		s := start(t, cfg)
		pids := s.ranks(2)
		if c.stop {
			syscall.Kill(pids["1"], syscall.SIGSTOP)
		}
		syscall.Kill(pids["0"], syscall.SIGTERM)
		failed := s.failures()
		want := fmt.Sprintf("launch: rank 1 (pid N): still running %v after another rank had ended well; %s (the launcher had told it to end)", cfg.Timeout, c.want)
		if got := withoutPIDs(failed); got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	}
	// Without a rank that has ended well there is no such time, and one that is
	// long enough changes nothing.
	cfg := config("hold", 2)
	cfg.Timeout = 50 * time.Millisecond
	s := start(t, cfg)
	syscall.Kill(s.ranks(2)["1"], syscall.SIGKILL)
	if failed := s.failures(); failed.Failures[0].Rank != 1 || failed.Failures[0].Late != 0 || failed.Failures[1].Late != 0 {
		t.Error(failed)
	}
	// After a failure the others have their own second, whoever has ended well.
	cfg = config("late", 3, "hold")
	cfg.Timeout = time.Second
	s = start(t, cfg)
	pids := s.ranks(3)
	syscall.Kill(pids["0"], syscall.SIGTERM)
	if !gone(pids["0"]) {
		t.Error("rank 0 is left")
	}
	syscall.Kill(pids["1"], syscall.SIGKILL)
	if failed := s.failures(); len(failed.Failures) != 2 || failed.Failures[0].Rank != 1 || failed.Failures[1].Late != 0 {
		t.Error(failed)
	}
	cfg = config("well", 3)
	cfg.Timeout = time.Minute
	s = start(t, cfg)
	s.end()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
}

// signalled says which signal has come, and whether its child still runs.
func signalled() {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1, syscall.SIGUSR2)
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		panic(err)
	}
	say("rank", rank, os.Getpid())
	for range 2 {
		s := <-got
		ended, err := syscall.Wait4(child.Process.Pid, nil, syscall.WNOHANG, nil)
		say("signal", rank, s, ended == 0, err)
	}
}

// Signals are passed on to the ranks, not to their children, and end nothing.
func TestSignals(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal)
	cfg := config("signalled", 2)
	cfg.Signals = signals
	s := start(t, cfg)
	s.ranks(2)
	for _, sent := range []os.Signal{syscall.SIGUSR2, syscall.SIGUSR1} {
		signals <- sent
		for range 2 {
			if who, words := s.next("signal"); words != sent.String()+" true <nil>" {
				t.Errorf("rank %s: %s, want %v", who, words, sent)
			}
		}
	}
	close(signals)
	s.end()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
}

// The signal that ends the launcher's context goes to the ranks.
func TestInterrupted(t *testing.T) {
	for _, sent := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		out, cmd := launcher(t, "polite")
		out.ranks(2)
		cmd.Process.Signal(sent)
		for range 2 {
			if who, words := out.next("told"); words != sent.String() {
				t.Errorf("rank %s was told %s, want %v", who, words, sent)
			}
		}
		if _, words := out.next("returned"); words != fmt.Sprintf("launch: the ranks were told to end: %v signal received", sent) {
			t.Error(words)
		}
		out.end()
	}
}

// A launcher that is stopped for a while misses nothing.
func TestLauncherStopped(t *testing.T) {
	out, cmd := launcher(t, "polite")
	pids := out.ranks(2)
	cmd.Process.Signal(syscall.SIGSTOP)
	for stopped := false; !stopped; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		stopped = strings.Contains(string(stat), ") T ")
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGTERM)
	}
	out.next("told")
	out.next("told")
	cmd.Process.Signal(syscall.SIGCONT)
	if _, words := out.next("returned"); words != "<nil>" {
		t.Error(words)
	}
	out.end()
}

// bind opens MASTER_PORT as rank 0, as a program does that is not ours.
func bind() {
	if rank != "0" {
		return
	}
	l, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")))
	if err != nil {
		panic(err)
	}
	say("port", os.Getenv("MASTER_PORT"), os.Getenv("SHARDFEED_ADDR"), os.Getenv("MASTER_ADDR"))
	l.Close()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A port that is given is the one of all programs, ours and others.
func TestPort(t *testing.T) {
	for _, host := range []string{"", "localhost"} {
		cfg := config("bind", 2)
		cfg.MasterAddr, cfg.MasterPort = host, freePort(t)
		if host == "" {
			host = "127.0.0.1"
		}
		s := start(t, cfg)
		port, words := s.next("port")
		if want := fmt.Sprintf("%s:%d %s", host, cfg.MasterPort, host); port != strconv.Itoa(cfg.MasterPort) || words != want {
			t.Errorf("%s: %s, want %s", port, words, want)
		}
		s.end()
		if err := <-s.result; err != nil {
			t.Error(err)
		}
		cfg.Args, cfg.Env = config("well", 2).Args, config("well", 2).Env
		s = start(t, cfg)
		s.ranks(2)
		s.end()
		if err := <-s.result; err != nil {
			t.Error(err)
		}
	}
	s := start(t, config("bind", 1))
	if port, words := s.next("port"); strings.Contains(words, port) {
		t.Errorf("the listener of %s is in the way of port %s", words, port)
	}
	s.end()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
}

func TestPortTaken(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Skip(err)
		}
		cfg := config("hold", 2)
		cfg.MasterPort = l.Addr().(*net.TCPAddr).Port
		comm, _ := os.ReadFile("/proc/self/comm")
		want := fmt.Sprintf("launch: port %d of 127.0.0.1 is in use by %s (pid %d): give another one, or none for one that is free", cfg.MasterPort, strings.TrimSpace(string(comm)), os.Getpid())
		if err := Run(t.Context(), cfg); fmt.Sprint(err) != want {
			t.Errorf("\n got %v\nwant %s", err, want)
		}
		l.Close()
	}
	for _, c := range []struct {
		addr string
		port int
		want string
	}{
		{"", 65536, "launch: port 65536: give one from 1 to 65535"},
		{"", -1, "launch: port -1"},
		{"192.0.2.1", 0, "launch: 192.0.2.1 is no address of this machine"}, // RFC 5737: nobody's
		{"127.0.0.1:1", 0, "launch: listen tcp"},
	} {
		cfg := config("hold", 2)
		cfg.MasterAddr, cfg.MasterPort = c.addr, c.port
		if err := Run(t.Context(), cfg); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

func TestCPUs(t *testing.T) {

	if n := CPUs(); n < 1 || n > runtime.NumCPU() {
		t.Error(n)
	}
}
