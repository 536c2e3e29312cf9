//go:build unix

package relay

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func pipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close(); write.Close() })
	return read, write
}

func none(t *testing.T) func(error) {
	return func(err error) { t.Errorf("the relay has failed: %v", err) }
}

// A reader that takes its time gets everything, though the ranks have ended
// long before.
func TestSlowReader(t *testing.T) {
	read, write := pipe(t)
	r, err := New(write, write, none(t))
	if err != nil {
		t.Fatal(err)
	}
	r.Prefix = true
	ends, err := r.Open(7)
	if err != nil {
		t.Fatal(err)
	}
	// More than the pipe behind the relay holds, and less than both pipes do at
	// the least: pages of a pipe are not full where writes do not fit into them.
	const lines = 1200
	for k := range lines {
		fmt.Fprintf(ends[0], "%060d\n", k)
	}
	ends[0].Close()
	ends[1].Close()
	ended := make(chan struct{})
	go func() { r.End(nil); write.Close(); close(ended) }()
	select {
	case <-ended:
		t.Fatal("it ended before anyone has read")
	case <-time.After(holdTime + 200*time.Millisecond):
	}
	text, err := io.ReadAll(read)
	if n := strings.Count(string(text), "\n"); err != nil || n != lines || !strings.HasSuffix(string(text), fmt.Sprintf("[7] %060d\n", lines-1)) {
		t.Errorf("%d lines, want %d: %v", n, lines, err)
	}
	<-ended
}

// A reader that does not read is not waited for any more once there is a hurry,
// also where that comes later.
func TestHurry(t *testing.T) {
	_, write := pipe(t)
	r, err := New(write, write, func(error) {}) // which it does in the end, when the pipe is closed
	if err != nil {
		t.Fatal(err)
	}
	ends, err := r.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	ends[0].WriteString(strings.Repeat("x", pipeBytes-1) + "\n")
	ends[0].WriteString("y\n")
	ends[0].Close()
	ends[1].Close()
	hurry, ended := make(chan struct{}), make(chan bool)
	go func() { ended <- r.End(hurry) }()
	select {
	case <-ended:
		t.Fatal("it ended before anyone has read")
	case <-time.After(holdTime + 200*time.Millisecond):
	}
	close(hurry)
	select {
	case all := <-ended:
		if all {
			t.Error("nobody has read, and all is passed on")
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for its reader")
	}
}

// Where standard output cannot be written, the pipes are still emptied and the
// copies complete.
func TestNoReader(t *testing.T) {
	read, write := pipe(t)
	read.Close()
	failed := make(chan error, 10_000)
	r, err := New(write, write, func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	r.Dir = t.TempDir()
	ends, err := r.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat(strings.Repeat("x", 99)+"\n", 5000)
	if _, err := ends[0].WriteString(text); err != nil {
		t.Error(err)
	}
	ends[0].Close()
	ends[1].Close()
	r.End(nil)
	if len(failed) == 0 {
		t.Error("no failure was told")
	}
	if log, err := os.ReadFile(filepath.Join(r.Dir, "rank-0", "stdout.log")); err != nil || string(log) != text {
		t.Errorf("%d bytes in the copy, want %d: %v", len(log), len(text), err)
	}
}

// A copy that cannot be written is a failure, too.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rank-0"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(dir, "rank-0", "stderr.log")); err != nil {
		t.Fatal(err)
	}
	_, write := pipe(t)
	failed := make(chan error, 10)
	r, err := New(write, write, func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	r.Dir = dir
	ends, err := r.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	ends[1].WriteString("lost\n")
	ends[0].Close()
	ends[1].Close()
	r.End(nil)
	select {
	case err := <-failed:
		if !strings.Contains(err.Error(), "stderr.log") {
			t.Error(err)
		}
	default:
		t.Error("no failure was told")
	}
}

// Files that are not open, and a folder that cannot be made.
func TestNothing(t *testing.T) {
	_, write := pipe(t)
	closed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := New(write, closed, none(t)); err == nil || !strings.HasPrefix(err.Error(), "stderr: ") {
		t.Error(err)
	}
	r, err := New(write, write, none(t))
	if err != nil {
		t.Fatal(err)
	}
	r.Dir = os.DevNull
	if _, err := r.Open(0); err == nil {
		t.Error("a folder below /dev/null")
	}
	r.End(nil)
}
