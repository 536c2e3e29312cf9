package notice

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func fresh(addr string) Notice {
	n := New("node7", 4711)
	n.Addr = addr
	return n
}

func post(t *testing.T, n Notice, path string) {
	t.Helper()
	if err := n.Post(path); err != nil {
		t.Fatal(err)
	}
}

func TestPostReadRemove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run")
	first, second := fresh("127.0.0.1:1"), fresh("node7:2")
	if first.Secret == second.Secret {
		t.Fatal("two runs have one secret")
	}
	for _, n := range []Notice{first, second} {
		post(t, n, path)
		if got, err := Read(path); err != nil || got != n {
			t.Errorf("%+v, %v, want %+v", got, err, n)
		}
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// That of another run stays.
	if err := first.Remove(path); err != nil {
		t.Error(err)
	}
	if got, err := Read(path); err != nil || got != second {
		t.Errorf("%+v, %v", got, err)
	}
	if err := errors.Join(second.Remove(path), second.Remove(path)); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v: something is left", left, err)
	}
	if err := first.Post(filepath.Join(dir, "none", "run")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	// A folder in its place: nothing is left of an attempt either.
	if err := os.MkdirAll(filepath.Join(dir, "folder", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := first.Post(filepath.Join(dir, "folder")); err == nil {
		t.Error("a folder was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	good, err := json.Marshal(fresh("node7:1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		is   error
		want string
	}{
		{"", fs.ErrNotExist, "does not exist"},
		{"import torch\n", ErrForeign, `is no rendezvous file: it begins with "import torch\n"`},
		{"\x05\x00\x00\x00init/", ErrForeign, "it begins with"}, // PyTorch's FileStore
		{"{}", ErrForeign, "it begins with"},
		{string(good[:len(good)-1]), ErrForeign, "it begins with"},
		{string(good) + strings.Repeat(" ", maxSize), ErrForeign, "it has more than 4096 bytes"},
		{strings.Replace(string(good), "rendezvous 1", "rendezvous 2", 1), ErrForeign, "rendezvous 2"},
		{strings.Replace(string(good), "node7:1", "node7", 1), ErrForeign, `its address is "node7", not host:port`},
		{strings.Replace(string(good), "node7:1", ":1", 1), ErrForeign, `its address is ":1", not host:port`},
		{strings.Replace(string(good), "node7:1", "node7:0", 1), ErrForeign, `its address is "node7:0", not host:port`},
		{`{"Format":"shardfeed rendezvous 1","Addr":"a:1","Secret":"x"}`, ErrForeign, "its secret has 1 bytes"},
	} {
		path := filepath.Join(dir, "run")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := Read(path); !errors.Is(err, c.is) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) || n != (Notice{}) {
			t.Errorf("%.40q: %+v, %v, want %q", c.text, n, err, c.want)
		}
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Read(dir); !errors.Is(err, ErrForeign) {
		t.Errorf("a folder: %v", err)
	}
}

// Who reads while others write finds one notice or another, never a piece.
func TestWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	post(t, fresh("node7:1"), path)
	done := make(chan error)
	for range 2 {
		go func() {
			var err error
			for i := 0; i < 100 && err == nil; i++ {
				err = fresh("node7:2").Post(path)
			}
			done <- err
		}()
	}
	for writers := 2; writers > 0; {
		select {
		case err := <-done:
			if writers--; err != nil && runtime.GOOS != "windows" { // where what is open cannot be replaced
				t.Error(err)
			}
		default:
			if _, err := Read(path); err != nil && runtime.GOOS != "windows" {
				t.Fatal(err)
			}
		}
	}
}

func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	own, other := fresh("node7:1"), fresh("node8:1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watched := make(chan Notice, 1)
	watch := func(keep bool) {
		n, replaced := own.Watch(ctx, path, keep)
		if replaced == (n == Notice{}) {
			t.Errorf("%+v, %v", n, replaced)
		}
		watched <- n
	}
	go watch(true)
	for ctx.Err() == nil {
		if n, err := Read(path); err == nil && n == own {
			break // it was not there, and has been written
		}
	}
	post(t, other, path)
	if n := <-watched; n != other {
		t.Errorf("%+v, want %+v", n, other)
	}
	// Who does not keep it only looks.
	if err := other.Remove(path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 3*glance)
	defer cancel()
	if n, replaced := own.Watch(ctx, path, false); replaced {
		t.Errorf("%+v", n)
	}
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	good, err := json.Marshal(fresh("[::1]:65535"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("{}"))
	f.Add([]byte(`{"Format":"shardfeed rendezvous 1","Addr":"a:99999","Secret":"0123456789abcdef","PID":-1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parse(text)
		if err != nil {
			if n != (Notice{}) {
				t.Errorf("%+v beside %v", n, err)
			}
			return
		}
		again, err := json.Marshal(n)
		if err != nil {
			t.Skip(err) // a year that JSON does not write
		}
		if len(again) <= maxSize {
			if got, err := parse(again); err != nil || got.Addr != n.Addr || got.Secret != n.Secret || got.PID != n.PID {
				t.Errorf("%+v, then %+v, %v", n, got, err)
			}
		}
	})
}
