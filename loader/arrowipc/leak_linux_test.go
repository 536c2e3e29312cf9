package arrowipc_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// held is the descriptors and mappings that this process has of files below dir.
func held(t *testing.T, dir string) (held []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(name, dir) {
			held = append(held, "descriptor of "+name)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, dir) {
			held = append(held, "mapping "+line)
		}
	}
	return held
}

// Nothing of a file is held after Close, after an Open that fails at any shard,
// after Verify, and after a Writer.
func TestNothingLeft(t *testing.T) {
	dir := small(30).write(t, 10, 5)
	s, err := arrowipc.Open(dir, arrowipc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := held(t, dir); len(got) != 3 {
		t.Errorf("an open set holds %q, want a mapping a shard", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := held(t, dir); len(got) > 0 {
		t.Errorf("after Close: %q", got)
	}

	if _, err := arrowipc.Verify(dir, func(p arrowipc.Problem) { t.Error(p) }); err != nil {
		t.Error(err)
	}
	for _, shard := range []string{"part-00002.arrow", "part-00001.arrow", "part-00000.arrow"} {
		if err := os.Truncate(filepath.Join(dir, shard), 500); err != nil {
			t.Fatal(err)
		}
		for _, opts := range []arrowipc.Options{{}, {Checksums: true}, {Columns: []string{"none"}}} {
			if _, err := arrowipc.Open(dir, opts); err == nil {
				t.Errorf("%s is cut, and opened", shard)
			}
		}
		if _, err := arrowipc.Verify(dir, func(arrowipc.Problem) {}); err != nil {
			t.Error(err)
		}
	}
	if got := held(t, dir); len(got) > 0 {
		t.Errorf("after failures: %q", got)
	}

	parent := t.TempDir()
	for _, end := range []func(*arrowipc.Writer) error{(*arrowipc.Writer).Abort, (*arrowipc.Writer).Close} {
		w, err := arrowipc.Create(filepath.Join(parent, "shards"), arrowipc.WriterConfig{Fields: small(0).fields, RowsPerShard: 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Write(25, small(25).columns...), end(w)); err != nil {
			t.Error(err)
		}
		if got := held(t, parent); len(got) > 0 {
			t.Errorf("after a writer: %q", got)
		}
	}
}
