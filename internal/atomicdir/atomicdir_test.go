package atomicdir

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestMain makes the test binary a process that holds a directory until its
// standard input ends.
func TestMain(m *testing.M) {
	if target := os.Getenv("ATOMICDIR_HOLD"); target != "" {
		d, err := New(target)
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(d.Name)
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	// Each process built with -race waits a second at its end, unless told otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

func newDir(t *testing.T, target string) *Dir {
	t.Helper()
	d, err := New(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Name, "file"), []byte("content"), 0o666); err != nil {
		t.Fatal(err)
	}
	return d
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestRename(t *testing.T) {
	for _, target := range []string{"new", "empty", "deep/deeper/new"} {
		t.Chdir(t.TempDir())
		if err := os.Mkdir("empty", 0o777); err != nil {
			t.Fatal(err)
		}
		d := newDir(t, target)
		if _, err := os.Stat(filepath.Join(target, "file")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there too early: %v", target, err)
		}
		if err := d.Rename(target); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(filepath.Join(target, "file")); string(got) != "content" {
			t.Errorf("%s: %q, %v", target, got, err)
		}
		for _, name := range names(t, filepath.Dir(target)) {
			if strings.HasPrefix(name, ".") {
				t.Errorf("%s is left", name)
			}
		}
	}
}

// What has taken the name meanwhile stays.
func TestRenameInTheWay(t *testing.T) {
	for what, make := range map[string]func(target string) error{
		"file":      func(target string) error { return os.WriteFile(target, []byte("mine"), 0o666) },
		"directory": func(target string) error { return os.MkdirAll(filepath.Join(target, "mine"), 0o777) },
		"link":      func(target string) error { return os.Symlink(t.TempDir(), target) },
	} {
		parent := t.TempDir()
		target := filepath.Join(parent, "target")
		d := newDir(t, target)
		if err := make(target); err != nil {
			t.Fatal(err)
		}
		if err := d.Rename(target); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), target) {
			t.Errorf("a %s in the way: %v", what, err)
		}
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
		if got := names(t, parent); len(got) != 1 || got[0] != "target" {
			t.Errorf("a %s in the way: %q is left", what, got)
		}
	}
}

func TestRemove(t *testing.T) {
	parent := t.TempDir()
	d := newDir(t, filepath.Join(parent, "target"))
	for range 2 {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	}
	if got := names(t, parent); len(got) > 0 {
		t.Errorf("%q is left", got)
	}
}

func TestNewFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{filepath.Join(file, "target"), filepath.Join(file, "deep", "target")} {
		if _, err := New(target); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want an error that names the file", target, err)
		}
	}
}

// What a killed process has left goes, what a living one is writing stays, and
// so do other targets' directories.
func TestSweep(t *testing.T) {
	if !canLock {
		t.Skip("this system has no locks that tell who lives")
	}
	parent := t.TempDir()
	target := filepath.Join(parent, "target")
	for _, other := range []string{".target2.tmp-1", ".target.tmp", "target.tmp-1"} {
		if err := os.Mkdir(filepath.Join(parent, other), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, ".target.tmp-notes"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	before := names(t, parent)

	killed, lives := hold(t, target), hold(t, target)
	if got := names(t, parent); len(got) != len(before)+2 {
		t.Fatalf("%q with two processes", got)
	}
	killed.stop()
	d := newDir(t, target)
	if _, err := os.Stat(killed.name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed process has left: %v", err)
	}
	if _, err := os.Stat(lives.name); err != nil {
		t.Errorf("what a living one is writing: %v", err)
	}
	lives.stop()
	if err := d.Rename(target); err != nil {
		t.Error(err)
	}
	newDir(t, target).Remove()
	if got := names(t, parent); len(got) != len(before)+1 {
		t.Errorf("%q is left, before there were %q", got, before)
	}
}

type holder struct {
	name string // of its directory
	stop func()
}

// hold starts a process that holds a directory; stop kills it.
func hold(t *testing.T, target string) holder {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ATOMICDIR_HOLD="+target)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
		in.Close()
	})
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, filepath.Dir(target)) {
		t.Fatalf("%q, %v", line, err)
	}
	return holder{strings.TrimSpace(line), stop}
}

// Of many that write one target at a time one wins; the others are told, and
// leave nothing.
func TestMany(t *testing.T) {
	parent := t.TempDir()
	target := filepath.Join(parent, "target")
	var won atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			d, err := New(target)
			if err != nil {
				t.Error(err)
				return
			}
			if err = os.WriteFile(filepath.Join(d.Name, "file"), nil, 0o666); err == nil {
				err = d.Rename(target)
			}
			if err == nil {
				won.Add(1)
				return
			}
			if !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
			if err := d.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := names(t, parent); won.Load() != 1 || len(got) != 1 {
		t.Errorf("%d have won, %q is there", won.Load(), got)
	}
}
