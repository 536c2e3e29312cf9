// Package launch starts a program as several ranks on this machine, and ends
// them together.
//
// [Run] gives each rank the variables of torchrun, so that programs written
// for it work, and those with which package rendezvous finds the others at
// once. When one rank fails the others are ended and, if the caller wants it,
// all are started again.
//
// Nothing stays behind. Each rank is the leader of a process group, and what
// is left of the group is killed once the leader has ended. On Linux so are
// the processes that have left the group, for a session of their own or as
// daemons: they are found by the run's SHARDFEED_TOKEN in their environment.
// One that has left the group and has another environment, or runs as another
// user, is not found. When the launcher itself dies, even by SIGKILL, a keeper
// does all this: a second process of the launcher's own executable that waits
// for nothing else.
//
// A program that imports this package is therefore started a second time by
// Run, with the variable SHARDFEED_KEEPER set; then it never reaches main.
package launch

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Config says what to start.
type Config struct {
	// Nproc is the number of ranks, at least 1. [CPUs] is one for each
	// processor.
	Nproc int
	// Args are the program and its arguments. The program is looked up in
	// PATH where its name has no slash.
	Args []string
	// Env is what the ranks inherit as NAME=VALUE; nil is this process's. The
	// variables of an outer launch are taken out.
	Env []string

	// MasterAddr is the address of this machine at which the ranks find rank
	// 0; "" is 127.0.0.1.
	MasterAddr string
	// MasterPort is the port to it, which rank 0 opens; Run fails where it is
	// in use. 0 is one that is free, another one for each attempt.
	MasterPort int

	// MaxRestarts is how often all ranks are started again after one has failed.
	MaxRestarts int
	// Restarted is called before the ranks are started again, with the number
	// of the attempt that begins, from 1, and the *Error of the one before; nil
	// is not called.
	Restarted func(attempt int, err error)

	// Stdout and Stderr are inherited by the ranks; nil is this process's.
	// Standard input is empty.
	//
	// With Prefix or LogDir the ranks write into pipes instead, and Run passes
	// on whole lines: no rank's line is torn by another's, the last one is
	// ended, and one above 1 MiB is broken. Where Stdout or Stderr fails, as a
	// pipe does that nobody reads any more, the ranks are ended.
	Stdout, Stderr *os.File
	// Prefix begins each line with the rank: "[3] ".
	Prefix bool
	// LogDir is a directory for what the ranks write, as they write it:
	// attempt-0/rank-3/stdout.log and stderr.log in it, appended to where they
	// are there already. "" is none.
	LogDir string

	// Timeout is the time for the other ranks to end once one has ended well;
	// those that have not are failures, and ended. 0 is no limit.
	Timeout time.Duration
	// Grace is the time from SIGTERM to SIGKILL; 0 is 3 s, less than 0 none.
	Grace time.Duration
	// Signals are passed on to the ranks, and not to what they have started;
	// nil is none. They do not end the run: the end of Run's context does.
	Signals <-chan os.Signal
}

// CPUs is the number of processors that this process may use, by its affinity
// and its cgroup's quota, as the Go runtime counts them for GOMAXPROCS.
func CPUs() int { return runtime.GOMAXPROCS(0) }

// Error says how a run has failed.
type Error struct {
	// Failures are the ranks that have failed. Where Cause is nil the first
	// is the one that failed first, as the ranks have learned from each other
	// through package rendezvous, or else as they ended; the others follow in
	// the order in which they ended.
	Failures []Failure
	// Cause is why the ranks were told to end: how the context of Run ended, or
	// an output failed; nil where a rank failed before.
	Cause error
	// Earlier are the failures of the attempts before, from the first on.
	Earlier []*Error
}

// Failure is the end of a rank.
type Failure struct {
	Rank, PID int
	Exit      int    // the exit status; -1 where a signal has ended the rank; 0 where it left too early for the others
	Signal    string // the signal that has ended it, such as "killed"; else ""
	Told      bool   // the launcher had told it to end

	// Late is Config.Timeout where the rank was still running that long after
	// another had ended well.
	Late time.Duration
}

// String is, for instance, "rank 1 (pid 4711): exit status 3".
func (f Failure) String() string {
	how := fmt.Sprintf("exit status %d", f.Exit)
	switch {
	case f.Signal != "":
		how = "signal: " + f.Signal
	case f.Exit == 0 && f.Late == 0:
		how += ", but before the others were done"
	}
	if f.Told {
		how += " (the launcher had told it to end)"
	}
	if f.Late > 0 {
		how = fmt.Sprintf("still running %v after another rank had ended well; %s", f.Late, how)
	}
	return fmt.Sprintf("rank %d (pid %d): %s", f.Rank, f.PID, how)
}

// Error names all failures, the cause first; after a restart those of each
// attempt in a line of their own.
func (e *Error) Error() string {
	if len(e.Earlier) == 0 {
		return "launch: " + e.attempt()
	}
	var text strings.Builder
	text.WriteString("launch: ")
	for n, earlier := range e.Earlier {
		fmt.Fprintf(&text, "attempt %d: %s\n", n, earlier.attempt())
	}
	fmt.Fprintf(&text, "attempt %d: %s", len(e.Earlier), e.attempt())
	return text.String()
}

func (e *Error) attempt() string {
	var text strings.Builder
	switch {
	case e.Cause != nil:
		fmt.Fprintf(&text, "the ranks were told to end: %v", e.Cause)
	case len(e.Failures) > 1:
		text.WriteString("the first to fail was ")
	}
	for i, f := range e.Failures {
		if i > 0 || e.Cause != nil {
			text.WriteString("; then ")
		}
		text.WriteString(f.String())
	}
	return text.String()
}

// Unwrap is the Cause.
func (e *Error) Unwrap() error { return e.Cause }

// verdict is the result of a run whose ranks have ended in this order.
func verdict(ends []Failure, reported int, cause error) error {
	failures := slices.DeleteFunc(slices.Clone(ends), func(f Failure) bool { return f.Exit == 0 && f.Late == 0 })
	told := slices.ContainsFunc(ends, func(f Failure) bool { return f.Told }) // because of one that left too early, if none has failed
	if cause == nil && len(failures) == 0 && !told {
		return nil
	}
	first := func(f Failure) bool { return f.Rank == reported }
	if i := slices.IndexFunc(ends, first); i >= 0 && cause == nil {
		failures = append([]Failure{ends[i]}, slices.DeleteFunc(failures, first)...)
	}
	return &Error{Failures: failures, Cause: cause}
}

// environment is a rank's: inherited variables without those of an outer
// launch, its own, and the presets where they are not set.
func environment(inherited []string, own, presets map[string]string) []string {
	if inherited == nil {
		inherited = os.Environ()
	}
	env := []string{}
	presets = maps.Clone(presets)
	for _, variable := range inherited {
		name, value, _ := strings.Cut(variable, "=")
		if _, ok := own[name]; ok || outer[name] || strings.HasPrefix(name, "TORCHELASTIC_") {
			continue
		}
		if value != "" {
			delete(presets, name)
		}
		env = append(env, variable)
	}
	for _, variables := range []map[string]string{own, presets} {
		for name, value := range variables {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// outer are variables of a launch that are not set for every rank, beside
// those of torchrun whose names begin with TORCHELASTIC_.
var outer = map[string]bool{"SHARDFEED_LISTEN_FD": true, "SHARDFEED_REPORT_FD": true, keeperVariable: true}

const (
	keeperVariable = "SHARDFEED_KEEPER"
	tokenVariable  = "SHARDFEED_TOKEN"
)
