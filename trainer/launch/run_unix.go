//go:build unix

package launch

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/shardfeed/shardfeed/trainer/launch/internal/relay"
)

const (
	ownTime   = time.Second     // for the ranks to end by themselves after the first failure
	graceTime = 3 * time.Second // Config.Grace, if it is 0
	goneTime  = time.Second     // for killed processes to disappear
)

// Run starts the ranks and returns when none of their processes is left. Each
// rank has the variables of torchrun
// (https://docs.pytorch.org/docs/stable/elastic/run.html): RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT (without Config.MasterPort one that was free, for
// programs that are not ours) and the like, TORCHELASTIC_RESTART_COUNT among
// them; SHARDFEED_ADDR and SHARDFEED_TOKEN; and OMP_NUM_THREADS=1 unless it is
// set. The listener of SHARDFEED_ADDR is open before the ranks start; rank 0
// inherits it as SHARDFEED_LISTEN_FD, unless the port is Config.MasterPort.
// SHARDFEED_REPORT_FD is a pipe on which ranks say that they join, have joined,
// and which of them has failed first.
//
// When a rank fails, the others have a second to end by themselves with a
// message of their own; then their process groups get SIGTERM, and SIGKILL
// after Grace. They get SIGTERM at once where they wait for a rank to join that
// has ended, with whatever status. When ctx ends they get at once the signal
// that has ended it, by signal.NotifyContext, or SIGTERM; they are not started
// again then. Run does not handle signals itself.
//
// The error is an *[Error] where ranks have failed or ctx has ended. It is
// another one where not all ranks could be started; then the others are
// killed.
func Run(ctx context.Context, cfg Config) error {
	switch {
	case cfg.Nproc < 1:
		return fmt.Errorf("launch: %d ranks: at least 1 is needed", cfg.Nproc)
	case len(cfg.Args) == 0:
		return errors.New("launch: no program is given")
	case cfg.MasterPort < 0 || cfg.MasterPort > 65535:
		return fmt.Errorf("launch: port %d: give one from 1 to 65535, or 0 for one that is free", cfg.MasterPort)
	}
	program, err := exec.LookPath(cfg.Args[0])
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	cfg.Stdout, cfg.Stderr = cmp.Or(cfg.Stdout, os.Stdout), cmp.Or(cfg.Stderr, os.Stderr)
	cfg.Grace = cmp.Or(cfg.Grace, graceTime)
	// The ranks are killed when the thread that has started them ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k, err := newKeeper()
	if err != nil {
		return err
	}
	defer k.dismiss()
	id := rand.Text()
	for earlier := []*Error(nil); ; {
		r := &run{cfg: cfg, program: program, id: id, attempt: len(earlier), keeper: k, running: map[int]int{}, ends: make(chan Failure, cfg.Nproc), reported: -1, joined: map[int]bool{}, hopeless: make(chan struct{})}
		err := r.run(ctx)
		failed, ok := errors.AsType[*Error](err)
		switch {
		case err == nil:
			return nil
		case !ok && len(earlier) == 0:
			return err
		case !ok:
			return &Error{Cause: err, Earlier: earlier}
		case failed.Cause != nil || r.attempt >= cfg.MaxRestarts:
			failed.Earlier = earlier
			return failed
		}
		earlier = append(earlier, failed)
		if cfg.Restarted != nil {
			cfg.Restarted(len(earlier), failed)
		}
	}
}

// run is an attempt of a Run.
type run struct {
	cfg         Config
	program, id string
	attempt     int // from 0
	keeper      *keeper
	output      *relay.Relay // nil where the ranks inherit Stdout and Stderr
	ends        chan Failure // of each rank; Exit may be 0
	awaiting    sync.WaitGroup
	hearing     sync.WaitGroup

	mu       sync.Mutex
	running  map[int]int   // the process groups that may be signalled, by rank
	told     bool          // to end
	reported int           // the first rank that has failed, by the ranks' own account; -1 for none
	report   *os.File      // where the ranks tell
	joined   map[int]bool  // ranks that have joined the others; false: they wait for that
	early    []int         // ranks that have ended without having joined
	hopeless chan struct{} // closed once ranks wait for one of those
}

func (r *run) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return &Error{Cause: context.Cause(ctx)}
	}
	going, fail := context.WithCancelCause(ctx) // until the output fails
	defer fail(nil)
	reports, report, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	defer reports.Close()
	r.report = report
	r.hearing.Go(func() { r.hear(reports) })
	token := rand.Text()
	r.keeper.begin(tokenVariable + "=" + token)
	err = r.open(fail)
	if err == nil {
		err = r.start(token)
	}
	var ends []Failure
	var cause error
	if err == nil {
		ends, cause = r.wait(going)
	} else {
		r.signal(syscall.SIGKILL)
		fail(err)
	}
	r.awaiting.Wait()
	report.Close()
	sweep(tokenVariable + "=" + token)
	reports.SetReadDeadline(time.Now().Add(goneTime)) // a process that got away may hold the pipe
	passed := r.output == nil || r.output.End(going.Done())
	r.hearing.Wait()
	if err == nil {
		err = verdict(ends, r.reported, cause)
	}
	if err == nil && going.Err() != nil && (ctx.Err() == nil || !passed) { // the ranks had ended well, but their output is not complete
		err = &Error{Cause: context.Cause(going)}
	}
	return err
}

// open opens the relay of the ranks' output, if they need one; it calls failed
// when that cannot write any more.
func (r *run) open(failed func(error)) (err error) {
	if !r.cfg.Prefix && r.cfg.LogDir == "" {
		return nil
	}
	if r.output, err = relay.New(r.cfg.Stdout, r.cfg.Stderr, failed); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	r.output.Prefix = r.cfg.Prefix
	if r.cfg.LogDir != "" {
		r.output.Dir = filepath.Join(r.cfg.LogDir, "attempt-"+strconv.Itoa(r.attempt))
	}
	return nil
}

func (r *run) start(token string) error {
	addr, err := r.cfg.address()
	if err != nil {
		return err
	}
	defer addr.listener.Close()
	world := strconv.Itoa(r.cfg.Nproc)
	presets := map[string]string{"OMP_NUM_THREADS": "1"} // as torchrun: else every rank takes all cores
	if r.output != nil {
		presets["PYTHONUNBUFFERED"] = "1" // as torchrun's python -u: else a crash loses what it has printed into a pipe
	}
	for rank := range r.cfg.Nproc {
		number := strconv.Itoa(rank)
		own := map[string]string{
			"RANK": number, "LOCAL_RANK": number, "ROLE_RANK": number, "GROUP_RANK": "0", "ROLE_NAME": "default",
			"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "GROUP_WORLD_SIZE": "1",
			"TORCHELASTIC_RESTART_COUNT": strconv.Itoa(r.attempt), "TORCHELASTIC_MAX_RESTARTS": strconv.Itoa(r.cfg.MaxRestarts),
			"TORCHELASTIC_RUN_ID": r.id, "MASTER_ADDR": addr.host, "MASTER_PORT": addr.foreign,
			"SHARDFEED_ADDR": addr.ours, tokenVariable: token,
		}
		cmd := &exec.Cmd{Path: r.program, Args: r.cfg.Args, Stdout: r.cfg.Stdout, Stderr: r.cfg.Stderr, SysProcAttr: ownGroup()}
		if r.output != nil {
			ends, err := r.output.Open(rank)
			defer ends[0].Close()
			defer ends[1].Close()
			if err != nil {
				return fmt.Errorf("launch: rank %d: %w", rank, err)
			}
			cmd.Stdout, cmd.Stderr = ends[0], ends[1]
		}
		if rank == 0 && addr.listener != nil {
			file, err := addr.listener.File()
			if err != nil {
				return fmt.Errorf("launch: %w", err)
			}
			defer file.Close()
			cmd.ExtraFiles = []*os.File{file}
			own["SHARDFEED_LISTEN_FD"] = "3" // the first after standard error
		}
		own["SHARDFEED_REPORT_FD"] = strconv.Itoa(3 + len(cmd.ExtraFiles))
		cmd.ExtraFiles = append(cmd.ExtraFiles, r.report)
		cmd.Env = environment(r.cfg.Env, own, presets)
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
	cmd.Wait()                            // its error is in the state
	fmt.Fprintln(r.report, "ended", rank) // after what the rank itself has told
	end := Failure{Rank: rank, PID: pid, Exit: cmd.ProcessState.ExitCode(), Told: told}
	if end.Exit < 0 {
		end.Signal = "unknown" // where someone else in this process has reaped it
		if state := cmd.ProcessState; state != nil {
			end.Signal = state.Sys().(syscall.WaitStatus).Signal().String()
		}
	}
	r.ends <- end
	awaitGroup(pid)
}

// signal sends a signal to the groups of all ranks that are running. One that
// is stopped goes on, to notice.
func (r *run) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = true
	for _, pid := range r.running {
		syscall.Kill(-pid, s)
		syscall.Kill(-pid, syscall.SIGCONT)
	}
}

// forward sends a signal to the ranks that are running, for them to handle:
// what they have started need not know it, and would die of it.
func (r *run) forward(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pid := range r.running {
		syscall.Kill(pid, s)
	}
}

// left is the ranks that are running.
func (r *run) left() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.running))
}

// wait waits for all ranks, and tells them to end when one fails, when one is
// late, or when ctx ends. The ends are in order; cause is that of ctx, where it
// ended before a rank failed.
func (r *run) wait(ctx context.Context) (ends []Failure, cause error) {
	var terminate, kill, overdue <-chan time.Time
	var late []int // ranks
	failed, cancelled, signals, hopeless := false, ctx.Done(), r.cfg.Signals, r.hopeless
	for len(ends) < r.cfg.Nproc {
		with := syscall.SIGTERM
		select {
		case end := <-r.ends:
			if slices.Contains(late, end.Rank) {
				end.Late = r.cfg.Timeout
			}
			ends = append(ends, end)
			switch {
			case failed || kill != nil:
			case end.Exit != 0:
				failed, terminate, overdue = true, time.After(ownTime), nil
			case r.cfg.Timeout > 0 && overdue == nil:
				overdue = time.After(r.cfg.Timeout)
			}
			continue
		case s, ok := <-signals:
			if !ok {
				signals = nil
			} else if s, ok := s.(syscall.Signal); ok {
				r.forward(s)
			}
			continue
		case <-kill:
			r.signal(syscall.SIGKILL)
			continue
		case <-hopeless:
			failed, hopeless = true, nil
		case <-overdue:
			if kill == nil {
				failed, late = true, r.left()
			}
		case <-cancelled:
			cancelled = nil
			if !failed {
				cause = context.Cause(ctx)
				with = sent(cause)
			}
		case <-terminate:
		}
		if kill == nil {
			terminate, kill = nil, time.After(r.cfg.Grace)
			r.signal(with)
		}
	}
	return ends, cause
}

// sent is the signal that has ended a context of signal.NotifyContext, which
// tells it by its name alone; else SIGTERM.
func sent(cause error) syscall.Signal {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if cause.Error() == s.String()+" signal received" {
			return s
		}
	}
	return syscall.SIGTERM
}

// hear takes note of what the ranks tell, see rendezvous.World.ReportFD, and of
// those that have ended, until nobody is left who could tell anything.
func (r *run) hear(reports *os.File) {
	for lines := bufio.NewScanner(reports); lines.Scan(); {
		var what string
		var rank int
		if n, _ := fmt.Sscan(lines.Text(), &what, &rank); n < 2 {
			continue
		}
		r.mu.Lock()
		switch _, known := r.joined[rank]; what {
		case "failed":
			r.blame(rank)
		case "join":
			if !known {
				r.joined[rank] = false
			}
		case "joined":
			r.joined[rank] = true
		case "ended":
			if !r.joined[rank] {
				r.early = append(r.early, rank)
			}
			delete(r.joined, rank)
		}
		r.look()
		r.mu.Unlock()
	}
	io.Copy(io.Discard, reports) // after a line that is none of ours: who writes must not be blocked
}

// blame takes note of the first rank that has failed, unless the ranks have
// been told to end before. The caller holds mu.
func (r *run) blame(rank int) {
	if !r.told && r.reported < 0 {
		r.reported = rank
	}
}

// look sees whether a rank waits for one that has ended without having joined:
// it would wait in vain. The caller holds mu.
func (r *run) look() {
	for _, joined := range r.joined {
		if !joined && len(r.early) > 0 && !r.told && r.reported < 0 {
			r.blame(r.early[0])
			close(r.hopeless)
			return
		}
	}
}
