//go:build linux

package local_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardfeed/shardfeed/internal/grouptest"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/local"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// The test binary is the program of the ranks, too: these variables say what
// a rank is to do.
const (
	roleVar = "LOCAL_TEST_ROLE"
	nameVar = "LOCAL_TEST_NAME"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role == "fault" {
		faultMain(os.Getenv(nameVar))
		return
	} else if role != "" {
		rankMain(roles[role], os.Getenv(nameVar))
		return
	}
	flag.Parse()
	flag.Set("test.parallel", "8") // most of them wait for processes
	os.Exit(m.Run())
}

var roles = map[string]func(ctx context.Context, g *local.Group, name string) error{
	"case":    runCase,
	"limited": runCase,
	"bench":   followBenchmark,
	"busy":    busy,
	"waiting": waiting,
}

// rankMain is the program of a rank. The last line that it prints is its
// error as JSON, null for none.
func rankMain(role func(context.Context, *local.Group, string) error, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	words, err := "", rank(ctx, role, name)
	if err != nil {
		words = err.Error()
	}
	json.NewEncoder(os.Stdout).Encode(words)
}

func rank(ctx context.Context, role func(context.Context, *local.Group, string) error, name string) error {
	if os.Getenv(roleVar) == "limited" {
		if err := limitMemory(); err != nil {
			return err
		}
	}
	w, err := rendezvous.Env()
	if err != nil {
		return err
	}
	g, err := local.Join(ctx, w)
	if err != nil {
		return err
	}
	if f := openFile(); f != "" {
		err = fmt.Errorf("open after Join: %s", f)
	} else {
		err = role(ctx, g, name)
	}
	if err != nil {
		g.Fail(err)
	}
	if closing := g.Close(); err == nil {
		err = closing
	}
	if left := leftovers(); left != "" {
		return errors.Join(err, fmt.Errorf("left behind after Close: %s", left))
	}
	return err
}

// limitMemory leaves this process too little address space for arenas of
// their full size.
func limitMemory() error {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		return err
	}
	limit := uint64(pages*os.Getpagesize()) + 8<<30
	return unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit})
}

// leftovers says what this process still has of a group.
func leftovers() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || strings.Contains(string(maps), "memfd:shardfeed") {
		return fmt.Sprintf("a mapping, %v", err)
	}
	if f := openFile(); f != "" {
		return f
	}
	for began := time.Now(); ; runtime.Gosched() { // one may be about to return
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !strings.Contains(string(stacks), "local.(*") {
			return ""
		}
		if time.Since(began) > 5*time.Second {
			return fmt.Sprintf("a goroutine:\n%s", stacks)
		}
	}
}

// openFile is the file of shared memory, if this process has it open.
func openFile() string {
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, f := range files {
		if to, _ := os.Readlink(f); strings.Contains(to, "memfd:shardfeed") {
			return "the file " + f
		}
	}
	return ""
}

func runCase(ctx context.Context, g *local.Group, name string) error {
	for _, c := range grouptest.Cases[trainer.Host]() {
		if c.Name == name {
			return c.Rank(ctx, g)
		}
	}
	return fmt.Errorf("there is no case %q", name)
}

func followBenchmark(ctx context.Context, g *local.Group, name string) error {
	for _, w := range works {
		if w.name == name {
			return follow(ctx, g, w)
		}
	}
	return fmt.Errorf("there is no benchmark %q", name)
}

// process is a rank that a test has started.
type process struct {
	*exec.Cmd
	out     *bufio.Reader
	reports *bufio.Reader // of all ranks, to the launcher: who has failed first
}

// start starts the ranks from … size-1 of a world. Where the test itself is to
// be rank 0, the world that start returns has the store's listener.
func start(t testing.TB, from, size int, role, name string) ([]process, rendezvous.World) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	w := rendezvous.World{Size: size, LocalSize: size, Addr: l.Addr().String(), Token: "only for this test"}
	defer file.Close()
	if from > 0 {
		if w.ListenFD, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	reports, report, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer report.Close()
	t.Cleanup(func() { reports.Close() })
	reports.SetReadDeadline(time.Now().Add(time.Minute)) // a rank that is stopped holds the pipe
	var ranks []process
	for rank := from; rank < size; rank++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), roleVar+"="+role, nameVar+"="+name,
			"RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(size), "LOCAL_RANK="+strconv.Itoa(rank), "LOCAL_WORLD_SIZE="+strconv.Itoa(size),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "SHARDFEED_ADDR="+w.Addr, "SHARDFEED_TOKEN="+w.Token,
			"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else a program built with -race takes a second to end
		cmd.Env = append(cmd.Env, "SHARDFEED_REPORT_FD=3")
		cmd.ExtraFiles = []*os.File{report}
		if rank == 0 {
			cmd.Env = append(cmd.Env, "SHARDFEED_LISTEN_FD=4")
			cmd.ExtraFiles = append(cmd.ExtraFiles, file)
		}
		if !strings.Contains(name, "panic") {
			cmd.Stderr = os.Stderr
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		ranks = append(ranks, process{cmd, bufio.NewReader(out), bufio.NewReader(reports)})
	}
	return ranks, w
}

// result is the error with which a rank ended.
func (p process) result(t *testing.T) error {
	t.Helper()
	line, err := p.out.ReadString('\n')
	var words string
	if err == nil {
		err = json.Unmarshal([]byte(line), &words)
	}
	if err := errors.Join(err, p.Wait()); err != nil {
		return fmt.Errorf("the rank ended without a result: %w", err)
	}
	if words == "" {
		return nil
	}
	return errors.New(words)
}

func runProcesses(role string) grouptest.Run[trainer.Host] {
	return func(t *testing.T, size int, c grouptest.Case[trainer.Host]) []error {
		ranks, _ := start(t, 0, size, role, c.Name)
		errs := make([]error, size)
		for rank, p := range ranks {
			errs[rank] = p.result(t)
		}
		return errs
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	grouptest.Test(t, []int{1, 2, 3}, runProcesses("case"))
}

// Where the system refuses the arenas' address space, smaller ones do.
func TestLimitedAddressSpace(t *testing.T) {
	for _, c := range grouptest.Cases[trainer.Host]() {
		if c.Name == "all-reduce" {
			for rank, err := range runProcesses("limited")(t, 2, c) {
				if err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		}
	}
}

// busy goes from one all-reduce to the next until one fails.
func busy(ctx context.Context, g *local.Group, _ string) error {
	v, err := g.Alloc(1 << 20)
	if err != nil {
		return err
	}
	if _, err := g.Exchange(ctx, nil); err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		wait, err := g.AllReduce(ctx, v, trainer.Sum)
		if err == nil {
			err = wait()
		}
		if err != nil {
			return dead(g, err)
		}
	}
}

// waiting lets all ranks but the victim wait in an all-reduce.
func waiting(ctx context.Context, g *local.Group, victim string) error {
	v, err := g.Alloc(100)
	if err != nil {
		return err
	}
	if _, err := g.Exchange(ctx, nil); err != nil {
		return err
	}
	if strconv.Itoa(g.Rank()) == victim {
		fmt.Println("ready")
		<-time.After(time.Hour) // an empty select would be a deadlock to the runtime, without cgo
	}
	wait, err := g.AllReduce(ctx, v, trainer.Sum)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return dead(g, wait())
}

// dead checks that err says which rank has died, for all calls alike.
func dead(g *local.Group, err error) error {
	var rank *rendezvous.RankError
	if !errors.As(err, &rank) || rank.Rank == g.Rank() || rank.PID == 0 {
		return fmt.Errorf("the error names no rank: %w", err)
	}
	if _, again := g.Exchange(context.Background(), nil); again != err {
		return fmt.Errorf("the next call's error is %v, not %w", again, err)
	}
	return fmt.Errorf("found: %w", err)
}

// A rank that is killed at any moment ends the calls of all others with an
// error that names it, and no process and no memory is left.
func TestKill(t *testing.T) {
	t.Parallel()
	const size = 3
	for _, role := range []string{"busy", "waiting"} {
		for victim := range size {
			t.Run(fmt.Sprintf("%s/%d", role, victim), func(t *testing.T) {
				ranks, _ := start(t, 0, size, role, strconv.Itoa(victim))
				for _, p := range ranks {
					if line, err := p.out.ReadString('\n'); line != "ready\n" {
						t.Fatalf("%q, %v", line, err)
					}
				}
				began := time.Now()
				ranks[victim].Process.Kill()
				for rank, p := range ranks {
					if rank == victim {
						continue
					}
					err := p.result(t)
					t.Logf("rank %d after %v: %v", rank, time.Since(began), err)
					for _, words := range []string{"found", fmt.Sprintf("rank %d ", victim), fmt.Sprintf("pid %d", ranks[victim].Process.Pid)} {
						if err == nil || !strings.Contains(err.Error(), words) {
							t.Errorf("rank %d does not say %q: %v", rank, words, err)
						}
					}
				}
			})
		}
	}
}

func init() {
	onProcesses = func(b *testing.B, w work) {
		_, world := start(b, 1, 2, "bench", w.name)
		g, err := local.Join(b.Context(), world)
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(lead(b.Context(), b, g, w), g.Close()); err != nil {
			b.Error(err)
		}
	}
}
