package loader

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// Error says which step could not be fetched, or at which step ctx ended the
// loop. Where the plan itself failed, it is the step after the last planned.
type Error struct {
	Epoch, Step int // Step counts from 0 within the epoch
	Err         error
}

// Error names the step and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("loader: epoch %d, step %d: %v", e.Epoch, e.Step, e.Err)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// PanicError is a panic in a plan or a fetch.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // the goroutine's stack, as runtime/debug.Stack formats it

	place string
}

// Error is the value and the line that panicked; Stack has the rest.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v%s", e.Value, e.place) }

// Unwrap is the value where it is an error, such as a runtime.Error, nil otherwise.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// What stands in for an error where user code called runtime.Goexit, as
// testing.T.FailNow does.
var (
	errPlanExit  = errors.New("the plan ended its goroutine (runtime.Goexit)")
	errFetchExit = errors.New("the fetch ended its goroutine (runtime.Goexit)")
)

// newPanicError is called by the deferred function that recovered the value.
func newPanicError(value any) *PanicError {
	return &PanicError{Value: value, Stack: debug.Stack(), place: panicked()}
}

// panicked is the line that panicked: the first frame below runtime.gopanic
// that is not the runtime's own, as one of an index out of range is.
func panicked() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for below, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if below && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf(" (%s, %s:%d)", f.Function, filepath.Base(f.File), f.Line)
		}
		below = below || f.Function == "runtime.gopanic"
	}
	return ""
}
