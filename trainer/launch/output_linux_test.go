package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// write writes what the argument names, and as rank 1 dies of it.
func write() {
	os.Stdout.WriteString(strings.ReplaceAll(texts()[os.Args[1]], "RANK", rank))
	os.Stderr.WriteString("error " + rank)
	if rank == "1" {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// texts are made when they are needed: every process of a test begins here.
func texts() map[string]string {
	return map[string]string{
		"nothing":  "",
		"a line":   "rank RANK\n",
		"no end":   "one\ntwo",
		"empty":    "\n\n",
		"binary":   "\x00\xff\xfe\r\x1b[0m\n\x80",
		"long":     strings.Repeat("x", 300_000) + "\ny\n", // several pipes full
		"no line":  strings.Repeat("z", 100_000),
		"too long": strings.Repeat("w", 3<<20),
	}
}

// Every line has its rank, the last one is ended, and what was written before
// a crash is there; the log files hold what was written, as it was.
func TestOutput(t *testing.T) {
	t.Parallel()
	for name, text := range texts() {
		for _, prefix := range []bool{true, false} {
			cfg := config("write", 2, name)
			cfg.Prefix, cfg.LogDir = prefix, t.TempDir()
			cfg.Stdout, cfg.Stderr = temp(t), temp(t)
			failed, ok := errors.AsType[*Error](Run(t.Context(), cfg))
			if !ok || len(failed.Failures) != 1 || failed.Failures[0].Signal != "killed" {
				t.Errorf("%s: %v", name, failed)
			}
			wantOut, wantErr := "", ""
			for rank := range 2 {
				text := strings.ReplaceAll(text, "RANK", fmt.Sprint(rank))
				begin := ""
				if prefix {
					begin = fmt.Sprintf("[%d] ", rank)
				}
				for line := range strings.Lines(text) {
					wantOut += begin + strings.TrimSuffix(line, "\n") + "\n"
				}
				wantErr += begin + fmt.Sprintf("error %d\n", rank)
				for stream, want := range map[string]string{"stdout": text, "stderr": fmt.Sprintf("error %d", rank)} {
					log, err := os.ReadFile(filepath.Join(cfg.LogDir, "attempt-0", fmt.Sprintf("rank-%d", rank), stream+".log"))
					if err != nil || string(log) != want {
						t.Errorf("%s: %s.log of rank %d has %d bytes, want %d: %v", name, stream, rank, len(log), len(want), err)
					}
				}
			}
			for stream, c := range map[string][2]string{"stdout": {content(t, cfg.Stdout), wantOut}, "stderr": {content(t, cfg.Stderr), wantErr}} {
				got, want := sortedLines(c[0]), sortedLines(c[1])
				if name == "too long" && stream == "stdout" { // it is broken into several lines
					for rank := range 2 {
						got = strings.ReplaceAll(got, fmt.Sprintf("[%d] ", rank), "")
						want = strings.ReplaceAll(want, fmt.Sprintf("[%d] ", rank), "")
					}
					if n := strings.Count(got, "\n"); n < 4 || n > 12 {
						t.Errorf("%d lines", n)
					}
					got, want = strings.ReplaceAll(got, "\n", ""), strings.ReplaceAll(want, "\n", "")
				}
				if got != want {
					t.Errorf("%s, prefix %v: %s has %d bytes, want %d: %.200q", name, prefix, stream, len(got), len(want), got)
				}
			}
		}
	}
}

func temp(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func content(t *testing.T, f *os.File) string {
	t.Helper()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sortedLines(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// flood writes numbered lines of many lengths, on standard output and standard
// error in turn, to the number that the argument gives or until it is told to end.
func flood() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	out := []*bufio.Writer{bufio.NewWriterSize(os.Stdout, 1000), bufio.NewWriterSize(os.Stderr, 3000)}
	var n int
	fmt.Sscan(os.Args[1], &n)
	for k := 0; n == 0 || k < n; k++ {
		fmt.Fprintf(out[k%2], "%d:%d:%s\n", k, k%2, strings.Repeat("#", k%300))
		select {
		case <-told:
			os.Exit(0)
		default:
		}
	}
	out[0].Flush()
	out[1].Flush()
}

// A flood of one rank does not tear another's lines, nor change their order;
// standard output and standard error may be the same.
func TestFlood(t *testing.T) {
	t.Parallel()
	const ranks, lines = 3, 5000
	cfg := config("flood", ranks, fmt.Sprint(lines))
	cfg.Prefix = true
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cfg.Stdout, cfg.Stderr = write, write
	result := make(chan error, 1)
	go func() {
		result <- Run(t.Context(), cfg)
		write.Close()
	}()
	next := [ranks][2]int{}
	for rank := range next {
		next[rank][1] = 1
	}
	for said := bufio.NewScanner(read); said.Scan(); {
		line := said.Text() + "\n"
		var rank, k, stream int
		var text string
		fmt.Sscanf(strings.Replace(line, "#\n", "#", 1), "[%d] %d:%d:%s", &rank, &k, &stream, &text)
		if line != fmt.Sprintf("[%d] %d:%d:%s\n", rank, k, stream, strings.Repeat("#", k%300)) || next[rank][stream] != k {
			t.Fatalf("%.400q, expected line %d", line, next[rank][stream])
		}
		next[rank][stream] += 2
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	for rank, n := range next {
		if n != [2]int{lines, lines + 1} {
			t.Errorf("rank %d: the next lines would be %v", rank, n)
		}
	}
}

// Each attempt has its own log files, which a second run appends to.
func TestLogDir(t *testing.T) {
	cfg := config("count", 2, "1")
	cfg.LogDir = filepath.Join(t.TempDir(), "new", "logs")
	cfg.MaxRestarts = 1
	cfg.Stdout = cfg.Stderr
	for run := 1; run <= 2; run++ {
		if err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		for attempt := range 2 {
			for rank := range 2 {
				name := filepath.Join(cfg.LogDir, fmt.Sprintf("attempt-%d", attempt), fmt.Sprintf("rank-%d", rank), "stdout.log")
				log, err := os.ReadFile(name)
				if begin := fmt.Sprintf("count %d %d 1 ", rank, attempt); err != nil || bytes.Count(log, []byte(begin)) != run || bytes.Count(log, []byte("\n")) != run {
					t.Errorf("%s: %q, %v", name, log, err)
				}
			}
		}
	}
}

// deaf leaves a process behind that nobody can find, and that holds the pipes.
func deaf() {
	child := exec.Command("sleep", "1000")
	child.Env = []string{}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		panic(err)
	}
	say("deaf", rank, child.Process.Pid)
	os.Stdout.WriteString("last words")
}

// A pipe that somebody holds is not waited for for long, and nothing that was
// written into it is lost.
func TestPipeHeld(t *testing.T) {
	t.Parallel()
	cfg := config("deaf", 1)
	cfg.Prefix, cfg.Stdout = true, temp(t)
	began := time.Now()
	if err := Run(t.Context(), cfg); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	var pid int
	text := content(t, cfg.Stdout)
	if _, err := fmt.Sscanf(text, "[0] deaf 0 %d\n[0] last words\n", &pid); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // as the package comment says
		t.Errorf("the process was found: %v", err)
	}
}

// pipedLauncher launches a flood, and ends with the status 42 where its end
// was that of its own standard output.
func pipedLauncher() {
	cfg := config("flood", 2, "0")
	cfg.Prefix = true
	err := Run(context.Background(), cfg)
	if failed, ok := errors.AsType[*Error](err); ok && errors.Is(err, syscall.EPIPE) && len(failed.Failures) == 0 {
		os.Exit(42)
	}
	panic(err)
}

// linger says something without an end of the line, which is passed on when
// the last one who holds the pipe has gone: a daemon, after the rank.
func linger() {
	sh := exec.Command("sh", "-c", "sleep 1000 &")
	sh.Stdout = os.Stdout
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := sh.Run(); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("last words")
}

// Where nobody reads the launcher's output any more, the ranks are told to end.
func TestReaderGone(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "ROLE=piped launcher")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for seen := map[string]bool{}; len(seen) < 2 && lines.Scan(); { // both ranks are at it
		seen[lines.Text()[:3]] = true
	}
	out.Close()
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 42" {
		t.Errorf("%v: %s", err, errs.String())
	}
	// The same where the ranks had ended before.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer write.Close()
	cfg := config("linger", 1)
	cfg.Prefix, cfg.Stdout = true, write
	if err := Run(t.Context(), cfg); !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
}

// Where the launcher's output is not read, but might be, the ranks can still be ended.
func TestReaderSlow(t *testing.T) {
	t.Parallel()
	cause := errors.New("enough")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	cfg := config("flood", 2, "0")
	cfg.Prefix, cfg.Stdout = true, write
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- Run(ctx, cfg) }()
	for full := false; !full; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(write.Fd()), Events: unix.POLLOUT}}, 0)
		full = n == 0 && err == nil
	}
	cancel(cause)
	select {
	case err := <-result:
		if !errors.Is(err, cause) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Run waits for its reader")
	}
}

// long says on standard error which process it is, and writes a line that the
// launcher takes, but no pipe behind it.
func long() {
	fmt.Fprintln(os.Stderr, os.Getpid())
	os.Stdout.WriteString(strings.Repeat("z", 100_000) + "\n")
}

// So can a run be whose ranks have ended, and the output that is lost then is
// an error.
func TestReaderAsleep(t *testing.T) {
	t.Parallel()
	cause := errors.New("enough")
	asleep, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer asleep.Close()
	defer out.Close()
	read, errs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer errs.Close()
	cfg := config("long", 1)
	cfg.LogDir, cfg.Stdout, cfg.Stderr = t.TempDir(), out, errs
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- Run(ctx, cfg) }()
	var pid int
	if _, err := fmt.Fscan(read, &pid); err != nil || !gone(pid) {
		t.Fatalf("rank 0, pid %d, is left: %v", pid, err)
	}
	<-time.After(100 * time.Millisecond) // for Run to notice
	cancel(cause)
	select {
	case err := <-result:
		if !errors.Is(err, cause) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Run waits for its reader")
	}
}

// What Python prints into a pipe is not kept in the process.
func TestUnbuffered(t *testing.T) {
	for _, c := range []struct {
		prefix    bool
		set, want string
	}{{false, "", ""}, {true, "", "1"}, {true, "x", "x"}} {
		cfg := config("environment", 1)
		cfg.Env = append(slices.DeleteFunc(cfg.Env, func(v string) bool { return strings.HasPrefix(v, "PYTHONUNBUFFERED=") }), "PYTHONUNBUFFERED="+c.set)
		cfg.Prefix, cfg.Stdout = c.prefix, temp(t)
		if err := Run(t.Context(), cfg); err != nil {
			t.Error(err)
		}
		all := strings.Split(content(t, cfg.Stdout), "PYTHONUNBUFFERED=") // the last one counts
		if got, _, _ := strings.Cut(all[len(all)-1], "\n"); got != c.want {
			t.Errorf("%v: %q", c, got)
		}
	}
}
