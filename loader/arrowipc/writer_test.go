package arrowipc_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/manifest"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// Every type in every kind of shape: Arrow's reader and Take find what was
// written.
func TestRoundTrip(t *testing.T) {
	for typ := batch.Int8; typ <= batch.Float64; typ++ {
		for _, shape := range [][]int{nil, {1}, {3}, {2, 3}, {4, 1, 2}} {
			t.Run(fmt.Sprint(typ, shape), func(t *testing.T) {
				want := newTable(23, batch.Field{Name: "x", Type: typ, Shape: shape}, batch.Field{Name: "y", Type: batch.Uint8})
				dir := want.write(t, 10, 4)
				got, batches := readArrow(t, dir, want.fields)
				if !bytes.Equal(got.columns[0], want.columns[0]) || !bytes.Equal(got.columns[1], want.columns[1]) {
					t.Error("Arrow reads something else")
				}
				if !slices.Equal(batches, []int{4, 4, 2, 4, 4, 2, 3}) {
					t.Errorf("record batches of %v rows", batches)
				}
				s := open(t, dir, arrowipc.Options{Checksums: true})
				if s.Len() != 23 || !slices.Equal(s.Rows(), []int{10, 10, 3}) || !slices.EqualFunc(s.Fields(), want.fields, batch.Field.Equal) {
					t.Errorf("%d rows %v of %v", s.Len(), s.Rows(), s.Fields())
				}
				all := make([]int, 23)
				for k := range all {
					all[k] = k
				}
				compare(t, s, want, all...)
			})
		}
	}
}

// However rows come to Write, the files are the same.
func TestWriteInPieces(t *testing.T) {
	want := small(100)
	whole := want.write(t, 33, 7)
	for _, piece := range []int{1, 2, 7, 8, 33, 50} {
		dir := filepath.Join(t.TempDir(), "shards")
		w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: want.fields, RowsPerShard: 33, RowsPerBatch: 7})
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < 100; at += piece {
			n := min(piece, 100-at)
			scratch := [][]byte{bytes.Clone(want.columns[0][15*at : 15*(at+n)]), bytes.Clone(want.columns[1][4*at : 4*(at+n)])}
			if err := w.Write(n, scratch...); err != nil {
				t.Fatal(err)
			}
			clear(scratch[0]) // the bytes are the caller's again
			clear(scratch[1])
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"part-00000.arrow", "part-00003.arrow", manifest.Name} {
			a, errA := os.ReadFile(filepath.Join(whole, name))
			b, errB := os.ReadFile(filepath.Join(dir, name))
			if errA != nil || errB != nil || !bytes.Equal(a, b) {
				t.Errorf("%d rows at a time: %s differs (%v, %v)", piece, name, errA, errB)
			}
		}
	}
}

func TestManifestOfWriter(t *testing.T) {
	want := small(25)
	dir := want.write(t, 10, 0)
	m, err := manifest.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(m.Schema, want.fields, batch.Field.Equal) || len(m.Shards) != 3 {
		t.Errorf("%+v", m)
	}
	for i, s := range m.Shards {
		content, err := os.ReadFile(filepath.Join(dir, s.Name))
		if err != nil || s.Name != fmt.Sprintf("part-%05d.arrow", i) || s.Bytes != int64(len(content)) || s.Rows != min(10, 25-10*i) ||
			s.CRC32C != fmt.Sprintf("%08x", crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))) {
			t.Errorf("%+v for %d bytes, %v", s, len(content), err)
		}
	}
}

// Without numbers in the config a record batch has about 1 MiB, a shard about
// 128 MiB, however large a row is.
func TestWriterDefaults(t *testing.T) {
	row := batch.Field{Name: "x", Type: batch.Uint8, Shape: []int{300_000}}
	dir := newTable(10, row).write(t, 0, 0)
	if _, batches := readArrow(t, dir, []batch.Field{row}); !slices.Equal(batches, []int{3, 3, 3, 1}) {
		t.Errorf("record batches of %v rows", batches)
	}
	row.Shape = []int{100 << 20}
	w, err := arrowipc.Create(filepath.Join(t.TempDir(), "shards"), arrowipc.WriterConfig{Fields: []batch.Field{row}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	// Numbers without bound cost nothing before rows come.
	w, err = arrowipc.Create(filepath.Join(t.TempDir(), "shards"), arrowipc.WriterConfig{Fields: small(0).fields, RowsPerShard: 1 << 50, RowsPerBatch: 1 << 50})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(2, small(2).columns...); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoRows(t *testing.T) {
	want := small(0)
	s := open(t, want.write(t, 10, 0), arrowipc.Options{Checksums: true})
	if s.Len() != 0 || !slices.Equal(s.Rows(), []int{0}) || len(s.Fields()) != 2 {
		t.Errorf("%d rows %v of %v", s.Len(), s.Rows(), s.Fields())
	}
	compare(t, s, want)
	if _, err := s.Take(t.Context(), batch.Step{Samples: []int{0}}); err == nil || err.Error() != "sample 0: it is out of range: there are 0 rows" {
		t.Error(err)
	}
}

func TestCreateRefuses(t *testing.T) {
	x := batch.Field{Name: "x", Type: batch.Uint8}
	for want, cfg := range map[string]arrowipc.WriterConfig{
		"a writer of 0 columns":                  {},
		"column x has no type":                   {Fields: []batch.Field{{Name: "x"}}},
		"a column has no name":                   {Fields: []batch.Field{{Type: batch.Uint8}}},
		"two columns are named x":                {Fields: []batch.Field{x, x}},
		"-1 rows a shard":                        {Fields: []batch.Field{x}, RowsPerShard: -1},
		"-1 rows a record batch":                 {Fields: []batch.Field{x}, RowsPerBatch: -1},
		"the sizes of lists are from 1 to 2³¹-1": {Fields: []batch.Field{{Name: "x", Type: batch.Uint8, Shape: []int{0}}}},
		"column x uint8[2147483648]: the sizes":  {Fields: []batch.Field{{Name: "x", Type: batch.Uint8, Shape: []int{1 << 31}}}},
		"no memory holds a row":                  {Fields: []batch.Field{{Name: "x", Type: batch.Uint8, Shape: []int{1 << 30, 1 << 30, 1 << 30}}}},
		"is not UTF-8":                           {Fields: []batch.Field{{Name: "\xff", Type: batch.Uint8}}},
		"more than 32 dimensions":                {Fields: []batch.Field{{Name: "x", Type: batch.Uint8, Shape: slices.Repeat([]int{1}, 33)}}},
	} {
		parent := t.TempDir()
		_, err := arrowipc.Create(filepath.Join(parent, "shards"), cfg)
		if err == nil || !strings.HasPrefix(err.Error(), "arrowipc: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if left, _ := os.ReadDir(parent); len(left) > 0 {
			t.Errorf("%s: %v is left", want, left)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shards")
	good := small(2)
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: good.fields})
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"2 rows of 1 columns written: there are 2":         w.Write(2, good.columns[0]),
		"-1 rows of 2 columns":                             w.Write(-1, good.columns...),
		"column image: 30 bytes for 3 rows of 15 bytes":    w.Write(3, good.columns...),
		"column label: 7 bytes for 2 rows of 4 bytes":      w.Write(2, good.columns[0], good.columns[1][:7]),
		"column image: 31 bytes for 2 rows of 15 bytes":    w.Write(2, make([]byte, 31), good.columns[1]),
		"column image: 0 bytes for 1 rows of 15 bytes":     w.Write(1, nil, good.columns[1]),
		"column label: 8 bytes for 1 rows of 4 bytes":      w.Write(1, good.columns[0][:15], good.columns[1]),
		"0 rows of 3 columns written: there are 2 columns": w.Write(0, nil, nil, nil),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "arrowipc: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// None of that has done harm.
	if err := w.Write(0, nil, nil); err != nil {
		t.Error(err)
	}
	if err := w.Write(2, good.columns...); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	if err := w.Write(2, good.columns...); err == nil || !strings.Contains(err.Error(), "after Close") {
		t.Error(err)
	}
	compare(t, open(t, dir, arrowipc.Options{}), good, 0, 1)
}

// left is what lies in a directory.
func left(t *testing.T, dir string) (names []string) {
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

func TestAbort(t *testing.T) {
	for _, rows := range []int{0, 1, 5, 25} {
		parent := t.TempDir()
		want := small(rows)
		w, err := arrowipc.Create(filepath.Join(parent, "shards"), arrowipc.WriterConfig{Fields: want.fields, RowsPerShard: 10, RowsPerBatch: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(rows, want.columns...); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := w.Abort(); err != nil {
				t.Error(err)
			}
		}
		if got := left(t, parent); len(got) > 0 {
			t.Errorf("%q is left", got)
		}
		if err := w.Write(rows, want.columns...); err == nil || !strings.Contains(err.Error(), "aborted") {
			t.Error(err)
		}
		if err := w.Close(); err == nil || !strings.Contains(err.Error(), "aborted") {
			t.Errorf("Close after Abort: %v", err)
		}
	}
}

func TestCreateInTheWay(t *testing.T) {
	parent := t.TempDir()
	fields := small(0).fields
	full, file, link := filepath.Join(parent, "full"), filepath.Join(parent, "file"), filepath.Join(parent, "link")
	if err := errors.Join(os.MkdirAll(filepath.Join(full, "x"), 0o777), os.WriteFile(file, nil, 0o666), os.Symlink(t.TempDir(), link)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{full, file, link} {
		if _, err := arrowipc.Create(name, arrowipc.WriterConfig{Fields: fields}); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, below := range []string{filepath.Join(file, "shards"), filepath.Join(file, "deep", "shards")} {
		if _, err := arrowipc.Create(below, arrowipc.WriterConfig{Fields: fields}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", below, err)
		}
	}
	if got := left(t, parent); len(got) != 3 {
		t.Errorf("%q is left", got)
	}
}

// An empty directory gives way; one that has got files meanwhile does not.
func TestCloseInTheWay(t *testing.T) {
	for _, files := range []bool{false, true} {
		parent := t.TempDir()
		dir := filepath.Join(parent, "shards")
		want := small(5)
		w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: want.fields})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(5, want.columns...); err != nil {
			t.Fatal(err)
		}
		if got := left(t, parent); len(got) != 1 || got[0] == "shards" || got[0][0] != '.' {
			t.Errorf("%q is there before Close", got)
		}
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if files {
			if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		err = w.Close()
		if files != errors.Is(err, fs.ErrExist) || !files && err != nil {
			t.Errorf("files %v: %v", files, err)
		}
		if again := w.Close(); (again == nil) != (err == nil) {
			t.Errorf("the second Close: %v after %v", again, err)
		}
		if got := left(t, parent); len(got) != 1 || got[0] != "shards" {
			t.Errorf("%q is left", got)
		}
		if !files {
			compare(t, open(t, dir, arrowipc.Options{}), want, 4, 0)
		} else if got := left(t, dir); len(got) != 1 {
			t.Errorf("%q is left", got)
		}
	}
}

// A relative directory is where it was at Create.
func TestWriterChdir(t *testing.T) {
	start := t.TempDir()
	t.Chdir(start)
	want := small(3)
	w, err := arrowipc.Create("shards/", arrowipc.WriterConfig{Fields: want.fields})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := w.Write(3, want.columns...); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	compare(t, open(t, filepath.Join(start, "shards"), arrowipc.Options{}), want, 2, 1)
}

// Where writing fails, so does everything after it, and nothing is left.
func TestWriteFails(t *testing.T) {
	parent := t.TempDir()
	want := small(25)
	w, err := arrowipc.Create(filepath.Join(parent, "shards"), arrowipc.WriterConfig{Fields: want.fields, RowsPerShard: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(parent, left(t, parent)[0])); err != nil {
		t.Fatal(err)
	}
	first := w.Write(25, want.columns...)
	if !errors.Is(first, fs.ErrNotExist) || !strings.Contains(first.Error(), "part-00000.arrow") {
		t.Errorf("without its directory: %v", first)
	}
	if err := w.Write(1, small(1).columns...); err != first {
		t.Errorf("Write after that: %v", err)
	}
	if err := w.Close(); err != first {
		t.Errorf("Close after that: %v", err)
	}
	if got := left(t, parent); len(got) > 0 {
		t.Errorf("%q is left", got)
	}
}
