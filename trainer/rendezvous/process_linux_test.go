package rendezvous

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/notice"
)

const urlVariable = "RENDEZVOUS_TEST_URL"

// The test binary is a rank of its own where a test starts it as one: it joins
// when a line comes on its standard input, and closes with the next one.
func TestMain(m *testing.M) {
	url := os.Getenv(urlVariable)
	if url == "" {
		flag.Parse()
		flag.Set("test.parallel", "32") // those that run side by side wait, and need no CPU
		os.Exit(m.Run())
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	in.Scan()
	w, err := URL(url)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var s *Store
		if s, err = Join(ctx, w); err == nil {
			fmt.Println("joined")
			in.Scan()
			err = s.Close()
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// process is a rank that runs by itself.
type process struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// start starts the process of a rank, up to its Join.
func start(t *testing.T, w World) process {
	t.Helper()
	place := "tcp://" + w.Addr
	if w.File != "" {
		place = "file://" + w.File
	}
	p := process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "SHARDFEED_TOKEN="+w.Token,
		fmt.Sprintf("%s=%s?rank=%d&world_size=%d", urlVariable, place, w.Rank, w.Size))
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Process.Kill()
		p.Wait()
	})
	p.says(t, "ready")
	return p
}

func (p process) says(t *testing.T, want string) {
	t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		t.Fatalf("it said %q, want %q", p.out.Text(), want)
	}
}

func (p process) next() { fmt.Fprintln(p.in) }

// stop stops the process, and returns once it has.
func (p process) stop(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatal(status, err)
	}
}

// places are the ways to meet.
var places = map[string]func(*testing.T, int) []World{"tcp": worlds, "file": fileWorlds}

// Processes meet by a URL, and leave in order.
func TestProcesses(t *testing.T) {
	t.Parallel()
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := place(t, 3)
			var all []process
			for _, w := range world {
				p := start(t, w)
				p.next()
				all = append(all, p)
			}
			for _, p := range all {
				p.says(t, "joined")
			}
			for _, p := range all {
				p.next()
			}
			for rank, p := range all {
				if err := p.Wait(); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			if world[0].File != "" {
				gone(t, world[0])
			}
		})
	}
}

// A rank that is stopped before it has joined is missing, for all others.
func TestStoppedBeforeJoin(t *testing.T) {
	t.Parallel()
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := place(t, 3)
			start(t, world[1]).stop(t)
			for i, j := range join(brief(t), world[0], world[2]) {
				if j.err == nil || !strings.Contains(j.err.Error(), "rank 1 of 3 did not join within ") {
					t.Errorf("rank %d: %v", 2*i, j.err)
				}
			}
		})
	}
}

// A rank 0 that is stopped while it listens is what the others have waited for.
func TestStoppedRank0(t *testing.T) {
	t.Parallel()
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := place(t, 3)
			zero := start(t, world[0])
			zero.next()
			want := "it listens, but does not answer"
			if world[0].File != "" {
				written(t, world[0])
				want = "pid " + strconv.Itoa(zero.Process.Pid)
			} else {
				reach(t, world[0]).Close()
			}
			zero.stop(t)
			for i, j := range join(brief(t), world[1:]...) {
				if j.err == nil || !strings.Contains(j.err.Error(), "could not reach rank 0 ") || !strings.Contains(j.err.Error(), want) || strings.Contains(j.err.Error(), "stale") {
					t.Errorf("rank %d: %v, want %q", i+1, j.err, want)
				}
			}
		})
	}
}

// So is one that is stopped after it has let them in.
func TestStoppedRank0LetIn(t *testing.T) {
	t.Parallel()
	world := worlds(t, 3)
	zero := start(t, world[0])
	zero.next()
	s := newStore(world[1])
	first, err := s.dial(soon(t), "within 20s")
	if err != nil || first.Kind != "accepted" {
		t.Fatal(first, err)
	}
	zero.stop(t)
	go s.receive(first)
	began := time.Now()
	err = s.wait(brief(t), "within 1s")
	if want := fmt.Sprintf("rank 0 (%s, pid %d) at %s does not answer any more", hostname(), zero.Process.Pid, world[0].Addr); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	s.link.Close()
}

// A rank 0 that was stopped for longer than the others needed goes on as if
// nothing had been: they have not hung up.
func TestContinuedRank0(t *testing.T) {
	t.Parallel()
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := place(t, 2)
			zero := start(t, world[0])
			zero.next()
			if world[0].File != "" {
				written(t, world[0])
			} else {
				reach(t, world[0]).Close()
			}
			zero.stop(t)
			other := make(chan []joined)
			go func() { other <- join(soon(t), world[1]) }()
			select {
			case j := <-other:
				t.Fatalf("rank 1: %v", j[0].err)
			case <-time.After(time.Second):
			}
			if err := zero.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			zero.says(t, "joined")
			s := alone(t, <-other)
			zero.next()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := zero.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func alone(t *testing.T, all []joined) *Store {
	t.Helper()
	if all[0].err != nil {
		t.Fatal(all[0].err)
	}
	return all[0].Store
}

// A process that is stopped is no dead machine: its kernel answers for it. The
// test waits three times as long as a machine may be silent here.
func TestStoppedIsNotDead(t *testing.T) {
	t.Parallel()
	world := worlds(t, 2)
	zero := start(t, world[0])
	zero.next()
	s := alone(t, join(soon(t), world[1]))
	zero.says(t, "joined")
	c := s.link.Conn.(*net.TCPConn)
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}); err != nil {
		t.Fatal(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1000); err != nil {
			t.Error(err)
		}
	})
	zero.stop(t)
	if err := s.Set(soon(t), "key", []byte("value")); err != nil {
		t.Error(err)
	}
	select {
	case <-s.Failed():
		t.Error(s.Err())
	case <-time.After(3 * time.Second):
	}
	if err := zero.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(soon(t), "key"); err != nil || string(got) != "value" {
		t.Errorf("%q, %v", got, err)
	}
	zero.next()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A rank that is stopped in its Close, or before it, holds nobody for long:
// rank 0 for 5 s, and the others, who need not wait, not at all.
func TestStoppedInClose(t *testing.T) {
	t.Parallel()
	for _, stopped := range []int{0, 1} {
		t.Run(fmt.Sprint(stopped), func(t *testing.T) {
			t.Parallel()
			world := worlds(t, 3)
			p := start(t, world[stopped])
			p.next()
			world = append(world[:stopped], world[stopped+1:]...)
			all := join(soon(t), world...)
			p.says(t, "joined")
			p.stop(t)
			for _, s := range []*Store{all[1].Store, all[0].Store} { // rank 0, where it is here, last
				began := time.Now()
				err := s.Close()
				if s.world.Rank == 0 {
					if err == nil || !strings.Contains(err.Error(), "rank 1 had not within 5s") {
						t.Errorf("rank 0: %v", err)
					}
				} else if err != nil {
					t.Errorf("rank %d: %v", s.world.Rank, err)
				}
				if d := time.Since(began); d > 15*time.Second {
					t.Errorf("rank %d left after %v", s.world.Rank, d)
				}
			}
		})
	}
}

// What a rank 0 that was killed has left says who it was, and is no obstacle
// for the next one.
func TestKilledRank0(t *testing.T) {
	t.Parallel()
	world := fileWorlds(t, 2)
	zero := start(t, world[0])
	zero.next()
	n := written(t, world[0])
	zero.Process.Kill()
	zero.Wait()
	if left, err := notice.Read(world[0].File); err != nil || left != n {
		t.Fatal(left, err)
	}
	_, err := Join(brief(t), world[1])
	for _, want := range []string{"the file is stale", fmt.Sprintf("(%s, pid %d, %s)", hostname(), zero.Process.Pid, n.Time.Format(time.RFC3339)), "refused", "by the file " + world[1].File + " within ", "start rank 0, which writes the file anew"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "LOCAL_RANK") {
		t.Errorf("it was this machine: %v", err)
	}
	closeAll(t, met(t, join(soon(t), world...)))
	gone(t, world[0])
}
