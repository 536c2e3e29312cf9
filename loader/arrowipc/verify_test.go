package arrowipc_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

func TestVerify(t *testing.T) {
	dir := small(25).write(t, 10, 3)
	none := func(p arrowipc.Problem) { t.Error(p) }
	for _, path := range []string{dir, filepath.Join(dir, "*.arrow")} {
		if v, err := arrowipc.Verify(path, none); err != nil || v != (arrowipc.Verified{Files: 3, Rows: 25}) {
			t.Errorf("%s: %+v, %v", path, v, err)
		}
	}
	if v, err := arrowipc.Verify(filepath.Join(dir, "part-00002.arrow"), none); err != nil || v != (arrowipc.Verified{Files: 1, Rows: 5}) {
		t.Errorf("one file: %+v, %v", v, err)
	}
	if err := os.Remove(filepath.Join(dir, "index.json")); err != nil {
		t.Fatal(err)
	}
	if v, err := arrowipc.Verify(dir, none); err != nil || v != (arrowipc.Verified{Files: 3, Rows: 25}) {
		t.Errorf("without index.json: %+v, %v", v, err)
	}
	for _, path := range []string{t.TempDir(), filepath.Join(dir, "none"), filepath.Join(dir, "none*")} {
		if v, err := arrowipc.Verify(path, none); err == nil || v != (arrowipc.Verified{}) || !strings.Contains(err.Error(), "no shards") {
			t.Errorf("%s: %+v, %v", path, v, err)
		}
	}
}

// Every bad file is told of, once, and the good ones are not.
func TestVerifyBad(t *testing.T) {
	dir := small(60).write(t, 10, 3)
	shard := func(k string) string { return filepath.Join(dir, "part-0000"+k+".arrow") }
	damage := func(name string, at int64) error {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			return err
		}
		b[0] ^= 0x10
		_, err = f.WriteAt(b, at)
		return err
	}
	// The length in the second record batch's metadata, in the third shard.
	content, err := os.ReadFile(shard("2"))
	if err != nil {
		t.Fatal(err)
	}
	second := bytes.Index(content[8:], []byte{0xff, 0xff, 0xff, 0xff}) + 8                // the schema, the first record batch
	second = bytes.Index(content[second+4:], []byte{0xff, 0xff, 0xff, 0xff}) + second + 4 // and the second
	second = bytes.Index(content[second+4:], []byte{0xff, 0xff, 0xff, 0xff}) + second + 4
	if err := errors.Join(
		os.Remove(shard("0")),
		damage(shard("1"), 1000),
		damage(shard("2"), int64(second)+7),
		os.WriteFile(shard("4"), []byte("nothing"), 0o666),
	); err != nil {
		t.Fatal(err)
	}
	var got []string
	v, err := arrowipc.Verify(dir, func(p arrowipc.Problem) { got = append(got, p.String()) })
	want := []string{
		shard("0") + ": it is missing: ",
		shard("1") + ": it is damaged: its checksum is ",
		shard("2") + ": record batch 1: malformed: a message of ",
		shard("4") + ": not an Arrow IPC file: ",
	}
	if err != nil || v.Bad != len(want) || v.Files != 5 || len(got) != len(want) {
		t.Fatalf("%+v, %v\n%s", v, err, strings.Join(got, "\n"))
	}
	for k := range want {
		if !strings.HasPrefix(got[k], want[k]) {
			t.Errorf("%s, want %s", got[k], want[k])
		}
	}
}

// Shards that are good each for itself but differ.
func TestVerifyDiffer(t *testing.T) {
	dir := t.TempDir()
	for name, typ := range map[string]batch.Type{"a.arrow": batch.Int8, "b.arrow": batch.Int16, "c.arrow": batch.Int8} {
		from := newTable(2, batch.Field{Name: "x", Type: typ}).write(t, 0, 0)
		if err := os.Rename(filepath.Join(from, "part-00000.arrow"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	v, err := arrowipc.Verify(dir, func(p arrowipc.Problem) { got = append(got, p.String()) })
	if err != nil || v != (arrowipc.Verified{Files: 3, Bad: 1, Rows: 6}) || !strings.Contains(strings.Join(got, "\n"), "b.arrow: ") {
		t.Errorf("%+v, %v, %q", v, err, got)
	}
}

// Files of other writers that Set does not read whole are unsupported.
func TestVerifyUnsupported(t *testing.T) {
	names, err := filepath.Glob("testdata/valid/*.arrow")
	if err != nil || len(names) < 20 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		v, err := arrowipc.Verify(name, func(p arrowipc.Problem) {
			if !errors.Is(p.Err, arrowipc.ErrUnsupported) || !strings.Contains(p.String(), "unsupported") || p.File != name {
				t.Error(p)
			}
		})
		if err != nil || v.Bad != 1 {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

// try does everything with a file that might be one. It returns the number of
// rows that could be taken, -1 where it cannot be opened.
func try(tb testing.TB, name string) (rows int) {
	if _, err := arrowipc.Verify(name, func(p arrowipc.Problem) {
		if p.Err == nil || p.File != name {
			tb.Errorf("%+v", p)
		}
	}); err != nil {
		tb.Errorf("Verify: %v", err)
	}
	s, err := arrowipc.Open(name, arrowipc.Options{})
	if err != nil {
		if !strings.HasPrefix(err.Error(), "arrowipc: ") || strings.Count(err.Error(), name) != 1 {
			tb.Errorf("%v: does not name its file once", err)
		}
		return -1
	}
	defer s.Close()
	step := batch.Step{}
	for k := range min(s.Len(), 100) {
		step.Samples = append(step.Samples, k)
	}
	if s.Len() > 100 {
		step.Samples = append(step.Samples, s.Len()-1)
	}
	b, err := s.Take(tb.Context(), step)
	if err != nil {
		tb.Errorf("Take: %v", err)
		return 0
	}
	b.Release()
	return s.Len()
}

// Arrow's own corpus of malformed files: an error, a quick one, and no memory.
// Many are refused for their first bytes alone, so each is tried with those of
// a file, too.
func TestMalformed(t *testing.T) {
	names, err := filepath.Glob("testdata/malformed/*")
	if err != nil || len(names) < 60 {
		t.Fatal(len(names), err)
	}
	name := filepath.Join(t.TempDir(), "shard.arrow")
	size := 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, original := range names {
		content, err := os.ReadFile(original)
		if err != nil {
			t.Fatal(err)
		}
		size += len(content)
		for _, head := range []string{"", "ARROW1\x00\x00"} {
			copy(content, head)
			if err := os.WriteFile(name, content, 0o666); err != nil {
				t.Fatal(err)
			}
			try(t, name)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 20*uint64(size) {
		t.Errorf("%d bytes allocated for %d bytes of files", grown, size)
	}
}

// Every truncation of a shard is an error.
func TestTruncated(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(small(5).write(t, 0, 2), "part-00000.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "shard.arrow")
	if err := os.WriteFile(name, content, 0o666); err != nil {
		t.Fatal(err)
	}
	if rows := try(t, name); rows != 5 {
		t.Fatalf("%d rows", rows)
	}
	for n := len(content) - 1; n >= 0; n-- {
		if err := os.Truncate(name, int64(n)); err != nil {
			t.Fatal(err)
		}
		if rows := try(t, name); rows != -1 {
			t.Errorf("the first %d of %d bytes are a shard of %d rows", n, len(content), rows)
		}
	}
}

// Any bytes: an error or rows, no panic.
func FuzzOpen(f *testing.F) {
	for _, pattern := range []string{"testdata/valid/*", "testdata/malformed/*-file-*"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			f.Fatal(pattern, err)
		}
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			if len(content) < 8<<10 {
				f.Add(content)
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(small(5).write(f, 0, 2), "part-00000.arrow"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	// One file for all tries: making and removing one takes longer than a try.
	file, err := os.Create(filepath.Join(f.TempDir(), "shard.arrow"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { file.Close() })
	f.Fuzz(func(t *testing.T, content []byte) {
		_, err := file.WriteAt(content, 0)
		if err := errors.Join(err, file.Truncate(int64(len(content)))); err != nil {
			t.Fatal(err)
		}
		try(t, file.Name())
	})
}
