//go:build unix

package launch

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	ownTime   = time.Second     // for the ranks to end by themselves after the first failure
	graceTime = 3 * time.Second // Config.Grace, if it is 0
	goneTime  = time.Second     // for killed processes to disappear
)

// Run starts the ranks and returns when none of their processes is left. Each
// rank has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT (a port that was free, for programs that are not ours),
// SHARDFEED_ADDR and SHARDFEED_TOKEN, and OMP_NUM_THREADS=1 unless it is set.
// The listener of SHARDFEED_ADDR is open before the ranks start; rank 0
// inherits it as SHARDFEED_LISTEN_FD. SHARDFEED_REPORT_FD is a pipe on which
// ranks say which of them has failed first.
//
// When a rank fails, the others have a second to end by themselves with a
// message of their own; then their process groups get SIGTERM, and SIGKILL
// after Grace. When ctx ends they get SIGTERM at once. Run does not handle
// signals: a command passes it a context of signal.NotifyContext.
//
// The error is an *[Error] where ranks have failed or ctx has ended. It is
// another one where not all ranks could be started; then the others are
// killed. A process that leaves its rank's process group is not found.
func Run(ctx context.Context, cfg Config) error {
	switch {
	case cfg.Nproc < 1:
		return fmt.Errorf("launch: %d ranks: at least 1 is needed", cfg.Nproc)
	case len(cfg.Args) == 0:
		return errors.New("launch: no program is given")
	case ctx.Err() != nil:
		return &Error{Cause: context.Cause(ctx)}
	}
	program, err := exec.LookPath(cfg.Args[0])
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	// The ranks are killed when the thread that has started them ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k, err := newKeeper()
	if err != nil {
		return err
	}
	defer k.dismiss()
	reports, report, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	defer reports.Close()
	r := &run{cfg: cfg, keeper: k, running: map[int]int{}, ends: make(chan Failure, cfg.Nproc), reported: -1}
	r.hearing.Go(func() { r.hear(reports) })
	err = r.start(program, report)
	report.Close()
	var ends []Failure
	var cause error
	if err == nil {
		ends, cause = r.wait(ctx)
	} else {
		r.signal(syscall.SIGKILL)
	}
	r.awaiting.Wait()
	reports.SetReadDeadline(time.Now().Add(goneTime)) // a process that got away may hold the pipe
	r.hearing.Wait()
	if err != nil {
		return err
	}
	return verdict(ends, r.reported, cause)
}

// run is a Run that is going on.
type run struct {
	cfg      Config
	keeper   *keeper
	ends     chan Failure // of each rank; Exit may be 0
	awaiting sync.WaitGroup
	hearing  sync.WaitGroup

	mu       sync.Mutex
	running  map[int]int // the process groups that may be signalled, by rank
	told     bool        // to end
	reported int         // the first rank that has failed, by the ranks' own account; -1 for none
}

func (r *run) start(program string, report *os.File) error {
	listener, foreign, err := listeners()
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	defer listener.Close()
	world, token := strconv.Itoa(r.cfg.Nproc), rand.Text()
	for rank := range r.cfg.Nproc {
		own := map[string]string{
			"RANK": strconv.Itoa(rank), "WORLD_SIZE": world, "LOCAL_RANK": strconv.Itoa(rank), "LOCAL_WORLD_SIZE": world,
			"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": foreign,
			"SHARDFEED_ADDR": listener.Addr().String(), "SHARDFEED_TOKEN": token,
		}
		cmd := &exec.Cmd{Path: program, Args: r.cfg.Args, Stdout: r.cfg.Stdout, Stderr: r.cfg.Stderr, SysProcAttr: ownGroup()}
		if rank == 0 {
			file, err := listener.File()
			if err != nil {
				return fmt.Errorf("launch: %w", err)
			}
			defer file.Close()
			cmd.ExtraFiles = []*os.File{file}
			own["SHARDFEED_LISTEN_FD"] = "3" // the first after standard error
		}
		own["SHARDFEED_REPORT_FD"] = strconv.Itoa(3 + len(cmd.ExtraFiles))
		cmd.ExtraFiles = append(cmd.ExtraFiles, report)
		if r.cfg.Stdout == nil {
			cmd.Stdout = os.Stdout
		}
		if r.cfg.Stderr == nil {
			cmd.Stderr = os.Stderr
		}
		cmd.Env = environment(r.cfg.Env, own)
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("launch: rank %d: %w", rank, err)
		}
		r.mu.Lock()
		r.running[rank] = cmd.Process.Pid
		r.mu.Unlock()
		r.keeper.add(cmd.Process.Pid)
		r.awaiting.Go(func() { r.await(rank, cmd) })
	}
	return nil
}

// listeners opens the listener of rank 0's store and finds another port that
// is free.
func listeners() (ours *net.TCPListener, foreign string, err error) {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	if ours, err = net.ListenTCP("tcp", local); err != nil {
		return nil, "", err
	}
	other, err := net.ListenTCP("tcp", local)
	if err != nil {
		ours.Close()
		return nil, "", err
	}
	defer other.Close()
	return ours, strconv.Itoa(other.Addr().(*net.TCPAddr).Port), nil
}

// await waits for the end of a rank, and kills what it leaves.
func (r *run) await(rank int, cmd *exec.Cmd) {
	pid := cmd.Process.Pid
	awaitEnd(cmd) // it is not reaped: the number stays its own
	r.mu.Lock()
	delete(r.running, rank)
	syscall.Kill(-pid, syscall.SIGKILL)
	r.keeper.remove(pid)
	told := r.told
	r.mu.Unlock()
	cmd.Wait() // its error is in the state
	end := Failure{Rank: rank, PID: pid, Exit: cmd.ProcessState.ExitCode(), Told: told}
	if end.Exit < 0 {
		end.Signal = "unknown" // where someone else in this process has reaped it
		if state := cmd.ProcessState; state != nil {
			end.Signal = state.Sys().(syscall.WaitStatus).Signal().String()
		}
	}
	r.ends <- end
	for deadline := time.Now().Add(goneTime); syscall.Kill(-pid, 0) == nil && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// signal sends a signal to the groups of all ranks that are running.
func (r *run) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = true
	for _, pid := range r.running {
		syscall.Kill(-pid, s)
	}
}

// wait waits for all ranks, and tells them to end when one fails or ctx ends.
// The ends are in order; cause is that of ctx, where it ended before a rank failed.
func (r *run) wait(ctx context.Context) (ends []Failure, cause error) {
	grace := r.cfg.Grace
	if grace == 0 {
		grace = graceTime
	}
	var terminate, kill <-chan time.Time
	failed, cancelled := false, ctx.Done()
	for len(ends) < r.cfg.Nproc {
		select {
		case end := <-r.ends:
			ends = append(ends, end)
			if end.Exit != 0 && !failed && kill == nil {
				failed, terminate = true, time.After(ownTime)
			}
			continue
		case <-kill:
			r.signal(syscall.SIGKILL)
			continue
		case <-cancelled:
			cancelled = nil
			if !failed {
				cause = context.Cause(ctx)
			}
		case <-terminate:
		}
		if kill == nil {
			terminate, kill = nil, time.After(grace)
			r.signal(syscall.SIGTERM)
		}
	}
	return ends, cause
}

// hear takes note of the rank that is reported as the first to fail, unless
// the ranks have been told to end before. It returns with the first report,
// or once nobody is left who could make one.
func (r *run) hear(reports *os.File) {
	line, _ := bufio.NewReader(reports).ReadString('\n')
	rank, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && !r.told {
		r.reported = rank
	}
}
