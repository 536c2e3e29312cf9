// Package launch starts a program as several ranks on this machine, and ends
// them together.
//
// [Run] gives each rank the variables of torchrun, so that programs written
// for it work, and those with which package rendezvous finds the others at
// once. When one rank fails the others are ended. Nothing stays behind: each
// rank is the leader of a process group, and what is left of the group is
// killed once the leader has ended. When the launcher itself dies, even by
// SIGKILL, the groups are killed by a keeper: a second process of the
// launcher's own executable that waits for nothing else.
//
// A program that imports this package is therefore started a second time by
// Run, with the variable SHARDFEED_KEEPER set; then it never reaches main.
package launch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Config says what to start.
type Config struct {
	// Nproc is the number of ranks, at least 1.
	Nproc int
	// Args are the program and its arguments. The program is looked up in
	// PATH where its name has no slash.
	Args []string
	// Env is what the ranks inherit as NAME=VALUE; nil is this process's. The
	// variables of an outer launch are taken out.
	Env []string
	// Stdout and Stderr are inherited by the ranks; nil is this process's.
	// Standard input is empty.
	Stdout, Stderr *os.File
	// Grace is the time from SIGTERM to SIGKILL; 0 is 3 s, less than 0 none.
	Grace time.Duration
}

// Error says how a run has failed.
type Error struct {
	// Failures are the ranks that have failed. Where Cause is nil the first
	// is the one that failed first, as the ranks have learned from each other
	// through package rendezvous, or else as they ended; the others follow in
	// the order in which they ended.
	Failures []Failure
	// Cause is why the context of Run ended; nil where a rank failed before.
	Cause error
}

// Failure is the end of a rank.
type Failure struct {
	Rank, PID int
	Exit      int    // the exit status; -1 where a signal has ended the rank; 0 where it left too early and the others failed
	Signal    string // the signal that has ended it, such as "killed"; else ""
	Told      bool   // the launcher had told it to end
}

// String is, for instance, "rank 1 (pid 4711): exit status 3".
func (f Failure) String() string {
	how := fmt.Sprintf("exit status %d", f.Exit)
	switch {
	case f.Signal != "":
		how = "signal: " + f.Signal
	case f.Exit == 0:
		how += ", but before the others were done"
	}
	if f.Told {
		how += " (the launcher had told it to end)"
	}
	return fmt.Sprintf("rank %d (pid %d): %s", f.Rank, f.PID, how)
}

// Error names all failures, the cause first.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("launch: ")
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
	failures := slices.DeleteFunc(slices.Clone(ends), func(f Failure) bool { return f.Exit == 0 })
	if cause == nil && len(failures) == 0 {
		return nil
	}
	first := func(f Failure) bool { return f.Rank == reported }
	if i := slices.IndexFunc(ends, first); i >= 0 && cause == nil {
		failures = append([]Failure{ends[i]}, slices.DeleteFunc(failures, first)...)
	}
	return &Error{failures, cause}
}

// environment is a rank's: inherited variables without those of an outer
// launch, and its own.
func environment(inherited []string, own map[string]string) []string {
	if inherited == nil {
		inherited = os.Environ()
	}
	env, threads := []string{}, false
	for _, variable := range inherited {
		name, value, _ := strings.Cut(variable, "=")
		if _, ok := own[name]; ok || outer[name] || strings.HasPrefix(name, "TORCHELASTIC_") {
			continue
		}
		threads = threads || name == "OMP_NUM_THREADS" && value != ""
		env = append(env, variable)
	}
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	if !threads {
		env = append(env, "OMP_NUM_THREADS=1") // as torchrun: else every rank takes all cores
	}
	return env
}

// outer are variables of a launch that are not set for every rank, beside
// those of torchrun whose names begin with TORCHELASTIC_.
var outer = map[string]bool{
	"SHARDFEED_LISTEN_FD": true, "SHARDFEED_REPORT_FD": true, keeperVariable: true,
	"GROUP_RANK": true, "GROUP_WORLD_SIZE": true, "ROLE_NAME": true, "ROLE_RANK": true, "ROLE_WORLD_SIZE": true,
}

const keeperVariable = "SHARDFEED_KEEPER"
