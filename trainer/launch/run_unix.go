//go:build unix

package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
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
// inherits it as SHARDFEED_LISTEN_FD.
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
	r := &run{cfg: cfg, keeper: k, running: map[int]int{}, ends: make(chan Failure, cfg.Nproc)}
	defer r.awaiting.Wait()
	if err := r.start(program); err != nil {
		r.signal(syscall.SIGKILL)
		return err
	}
	return r.wait(ctx)
}

// run is a Run that is going on.
type run struct {
	cfg      Config
	keeper   *keeper
	ends     chan Failure // of each rank; Exit may be 0
	awaiting sync.WaitGroup

	mu      sync.Mutex
	running map[int]int // the process groups that may be signalled, by rank
	told    bool        // to end
}

func (r *run) start(program string) error {
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

// wait waits for all ranks, and ends them when one fails or ctx ends.
func (r *run) wait(ctx context.Context) error {
	grace := r.cfg.Grace
	if grace == 0 {
		grace = graceTime
	}
	var failed Error
	var terminate, kill <-chan time.Time
	cancelled := ctx.Done()
	for left := r.cfg.Nproc; left > 0; {
		select {
		case end := <-r.ends:
			left--
			if end.Exit == 0 {
				continue
			}
			failed.Failures = append(failed.Failures, end)
			if len(failed.Failures) == 1 && failed.Cause == nil {
				terminate = time.After(ownTime)
			}
			continue
		case <-cancelled:
			cancelled = nil
			if len(failed.Failures) == 0 {
				failed.Cause = context.Cause(ctx)
			}
		case <-terminate:
		case <-kill:
			r.signal(syscall.SIGKILL)
			continue
		}
		if kill == nil {
			terminate, kill = nil, time.After(grace)
			r.signal(syscall.SIGTERM)
		}
	}
	if failed.Cause == nil && len(failed.Failures) == 0 {
		return nil
	}
	return &failed
}
