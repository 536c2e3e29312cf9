package arrowipc_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/mmap"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// Random steps over shards and record batches of several sizes.
func TestTake(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct{ rows, perShard, perBatch int }{
		{1, 0, 0}, {100, 0, 0}, {100, 100, 1}, {100, 1, 1}, {100, 33, 7}, {100, 7, 3}, {99, 50, 50}, {100, 51, 50},
	} {
		want := newTable(tt.rows,
			batch.Field{Name: "a", Type: batch.Float64, Shape: []int{2}},
			batch.Field{Name: "b", Type: batch.Uint8},
			batch.Field{Name: "c", Type: batch.Int16, Shape: []int{3, 1, 5}})
		dir := want.write(t, tt.perShard, tt.perBatch)
		for _, columns := range [][]string{nil, {"b"}, {"c", "a"}} {
			s := open(t, dir, arrowipc.Options{Columns: columns})
			if columns != nil && !slices.EqualFunc(s.Fields(), columns, func(f batch.Field, name string) bool { return f.Name == name }) {
				t.Errorf("columns %v of %q", s.Fields(), columns)
			}
			compare(t, s, want)
			for range 30 {
				samples := make([]int, 1+random.IntN(40))
				next := random.IntN(tt.rows)
				for k := range samples {
					if random.IntN(3) == 0 { // else a run, which crosses record batches
						next = random.IntN(tt.rows)
					}
					samples[k] = next
					next = (next + 1) % tt.rows
				}
				compare(t, s, want, samples...)
			}
		}
	}
}

// Shards of record batches of very different sizes, empty ones among them.
func TestTakeUneven(t *testing.T) {
	dir := t.TempDir()
	want := newTable(0, small(0).fields...)
	for i, rows := range []int{3, 0, 50, 1, 0, 17, 2} {
		shard := small(rows)
		name := filepath.Join(shard.write(t, 0, max(1, rows/2)), "part-00000.arrow")
		if err := os.Rename(name, filepath.Join(dir, fmt.Sprintf("%d.arrow", i))); err != nil {
			t.Fatal(err)
		}
		for c := range want.columns {
			want.columns[c] = append(want.columns[c], shard.columns[c]...)
		}
		want.rows += rows
	}
	s := open(t, dir, arrowipc.Options{})
	if !slices.Equal(s.Rows(), []int{3, 0, 50, 1, 0, 17, 2}) || s.Len() != 73 {
		t.Errorf("%d rows %v", s.Len(), s.Rows())
	}
	for sample := range want.rows {
		compare(t, s, want, sample)
	}
	compare(t, s, want, rand.New(rand.NewPCG(3, 4)).Perm(want.rows)...)
}

// slabs counts the slabs that are out.
type slabs struct {
	out  atomic.Int64
	free sync.Pool
	err  error
}

func (s *slabs) Get(n int) ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	s.out.Add(1)
	if b, ok := s.free.Get().(*[]byte); ok && len(*b) == n {
		return *b, nil
	}
	return make([]byte, n), nil
}

func (s *slabs) Put(b []byte) {
	s.out.Add(-1)
	s.free.Put(&b)
}

func TestTakeRefuses(t *testing.T) {
	alloc := &slabs{}
	s := open(t, small(10).write(t, 4, 2), arrowipc.Options{Alloc: alloc})
	for _, sample := range []int{-1, 10, math.MaxInt, math.MinInt} {
		_, err := s.Take(t.Context(), batch.Step{Samples: []int{3, sample, 4}})
		var at *batch.SampleError
		if !errors.As(err, &at) || at.Sample != sample || !strings.Contains(err.Error(), "it is out of range: there are 10 rows") {
			t.Errorf("sample %d: %v", sample, err)
		}
	}
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := s.Take(ctx, batch.Step{Samples: []int{1}}); err != stop {
		t.Errorf("cancelled: %v", err)
	}
	alloc.err = errors.New("no slab is left")
	if _, err := s.Take(t.Context(), batch.Step{Samples: []int{1}}); !errors.Is(err, alloc.err) {
		t.Errorf("without a slab: %v", err)
	}
	alloc.err = nil
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Take(t.Context(), batch.Step{Samples: []int{1}}); err == nil || err.Error() != "arrowipc: the set is closed" {
		t.Errorf("after Close: %v", err)
	}
	if n := alloc.out.Load(); n != 0 {
		t.Errorf("%d slabs are out", n)
	}
}

// A step of a thousand samples allocates what a step of one does.
func TestTakeAllocates(t *testing.T) {
	s := open(t, small(1000).write(t, 100, 10), arrowipc.Options{Alloc: &slabs{}})
	count := func(samples []int) float64 {
		return testing.AllocsPerRun(100, func() {
			b, err := s.Take(t.Context(), batch.Step{Samples: samples})
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		})
	}
	one, many := count([]int{5}), count(rand.New(rand.NewPCG(5, 6)).Perm(1000))
	if many > one+0.5 || one > 4 {
		t.Errorf("%v allocations for a sample, %v for a thousand", one, many)
	}
}

func TestLayout(t *testing.T) {
	s := open(t, small(3).write(t, 0, 0), arrowipc.Options{})
	l, err := s.Layout(7)
	if err != nil || l.Rows() != 7 || l.Size() != 128+64 {
		t.Errorf("%d rows, %d bytes, %v", l.Rows(), l.Size(), err)
	}
}

func TestOpenPaths(t *testing.T) {
	want := small(10)
	dir := want.write(t, 4, 0)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o666), os.WriteFile(filepath.Join(dir, "._part-00000.arrow"), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(filepath.Dir(dir), "od[d]*")
	if err := os.Rename(dir, odd); err != nil {
		t.Fatal(err)
	}
	compare(t, open(t, odd, arrowipc.Options{Checksums: true}), want, 0, 9, 4)

	// A glob takes what it matches, in order; a file may have any name.
	dir = want.write(t, 4, 0)
	compare(t, open(t, filepath.Join(dir, "part-0000[01].arrow"), arrowipc.Options{Checksums: true}), want, 7, 3, 4)
	compare(t, open(t, filepath.Join(dir, "part-00000.arrow"), arrowipc.Options{Checksums: true}), want, 3, 0)
	if err := os.Rename(filepath.Join(dir, "part-00000.arrow"), filepath.Join(dir, "first")); err != nil {
		t.Fatal(err)
	}
	compare(t, open(t, filepath.Join(dir, "first"), arrowipc.Options{}), want, 3, 0)

	// Each directory's index.json is for its own shards.
	root := t.TempDir()
	for i, rows := range []int{2, 3} {
		if err := os.Rename(small(rows).write(t, 0, 0), filepath.Join(root, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if s := open(t, filepath.Join(root, "*", "*.arrow"), arrowipc.Options{Checksums: true}); !slices.Equal(s.Rows(), []int{2, 3}) {
		t.Errorf("%v rows", s.Rows())
	}
}

func TestOpenRefuses(t *testing.T) {
	empty, good := t.TempDir(), small(3).write(t, 0, 0)
	bare := t.TempDir() // without index.json
	if err := os.Rename(filepath.Join(small(3).write(t, 0, 0), "part-00000.arrow"), filepath.Join(bare, "x.arrow")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(empty, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		opts arrowipc.Options
		want string
	}{
		{filepath.Join(empty, "none"), arrowipc.Options{}, "no shards: stat " + filepath.Join(empty, "none")},
		{empty, arrowipc.Options{}, "no shards: directory " + empty + " has no file that ends in .arrow"},
		{filepath.Join(empty, "*.arrow"), arrowipc.Options{}, "no shards: no file matches " + filepath.Join(empty, "*.arrow")},
		{filepath.Join(empty, "[*.arrow"), arrowipc.Options{}, "pattern " + filepath.Join(empty, "[*.arrow") + ": syntax error"},
		{filepath.Join(empty, "s*"), arrowipc.Options{}, filepath.Join(empty, "sub") + " is not a file"},
		{filepath.Join(good, "index.json"), arrowipc.Options{}, "index.json: not an Arrow IPC file"},
		{good, arrowipc.Options{Columns: []string{"imago"}}, `part-00000.arrow: it has no column "imago", but ["image" "label"]`},
		{good, arrowipc.Options{Columns: []string{"label", "label"}}, `column "label" is chosen twice`},
		{good, arrowipc.Options{Columns: []string{}}, "there is no column to read"},
		{bare, arrowipc.Options{Checksums: true}, "x.arrow: there is no checksum to compare it with: no index.json beside it lists it"},
	} {
		_, err := arrowipc.Open(tt.path, tt.opts)
		if err == nil || !strings.HasPrefix(err.Error(), "arrowipc: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.path, err, tt.want)
		}
	}
	if _, err := arrowipc.Open(filepath.Join(empty, "none"), arrowipc.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestShardsDiffer(t *testing.T) {
	a, b := batch.Field{Name: "a", Type: batch.Int32}, batch.Field{Name: "b", Type: batch.Uint8, Shape: []int{2}}
	for _, tt := range []struct {
		second []batch.Field
		want   string
	}{
		{[]batch.Field{a, {Name: "b", Type: batch.Uint8, Shape: []int{3}}}, "column 1 is b uint8[2] in %s, and b uint8[3] in %s"},
		{[]batch.Field{b, a}, "column 0 is a int32 in %s, and b uint8[2] in %s"},
		{[]batch.Field{a}, "column 1 is b uint8[2] in %s, and nothing in %s"},
		{[]batch.Field{a, b, {Name: "c", Type: batch.Int8}}, "column 2 is nothing in %s, and c int8 in %s"},
	} {
		dir := t.TempDir()
		for i, fields := range [][]batch.Field{{a, b}, tt.second} {
			if err := os.Rename(filepath.Join(newTable(2, fields...).write(t, 0, 0), "part-00000.arrow"), filepath.Join(dir, fmt.Sprintf("%d.arrow", i))); err != nil {
				t.Fatal(err)
			}
		}
		want := fmt.Sprintf(tt.want, filepath.Join(dir, "0.arrow"), filepath.Join(dir, "1.arrow"))
		if _, err := arrowipc.Open(dir, arrowipc.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		// What is not chosen may differ.
		if s, err := arrowipc.Open(dir, arrowipc.Options{Columns: []string{"a"}}); err != nil {
			t.Error(err)
		} else if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A set whose directory is not as its index.json says is refused by Open and
// found bad by Verify, with the same reason.
func TestManifestDisagrees(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(dir string) error
		file   string // that the problem is with
		want   string
	}{
		{"a shard is missing", func(dir string) error { return os.Remove(filepath.Join(dir, "part-00001.arrow")) },
			"part-00001.arrow", "it is missing: DIR/index.json lists it"},
		{"a shard too many", func(dir string) error {
			return copyFile(filepath.Join(dir, "part-00001.arrow"), filepath.Join(dir, "part-00003.arrow"))
		}, "part-00003.arrow", "DIR/index.json does not list it"},
		{"a shard is cut", func(dir string) error { return os.Truncate(filepath.Join(dir, "part-00001.arrow"), 100) },
			"part-00001.arrow", "truncated: it does not end with ARROW1"},
		{"another shard of its name", func(dir string) error {
			return copyFile(filepath.Join(dir, "part-00002.arrow"), filepath.Join(dir, "part-00001.arrow"))
		}, "part-00001.arrow", " by DIR/index.json: it was truncated, or written by something else"},
		{"other rows", replace(`"rows": 2`, `"rows": 3`), "part-00002.arrow", "it has 2 rows, 3 by DIR/index.json"},
		{"another schema", replace(`"int32"`, `"int64"`), "part-00000.arrow", "column 1 is label int64 in DIR/index.json, and label int32 in DIR/part-00000.arrow"},
		{"another version", replace(`"version": 1`, `"version": 9`), "index.json", "version 9: this program reads version 1"},
		{"no JSON", replace(`{`, `<`), "index.json", "malformed: invalid character"},
		{"a path", replace(`part-00000.arrow`, `../part-00000.arrow`), "index.json", "is not the name of a file beside it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := small(10).write(t, 4, 0)
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(tt.want, "DIR", dir)
			_, err := arrowipc.Open(dir, arrowipc.Options{})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), tt.file) {
				t.Errorf("Open: %v, want %s", err, want)
			}
			var problems []arrowipc.Problem
			v, err := arrowipc.Verify(dir, func(p arrowipc.Problem) { problems = append(problems, p) })
			if err != nil || v.Bad != 1 || len(problems) != 1 || problems[0].File != filepath.Join(dir, tt.file) || !strings.Contains(problems[0].Err.Error(), want) {
				// An index that says another schema has all shards against it.
				if tt.name != "another schema" || v.Bad != 3 {
					t.Errorf("Verify: %+v, %v, %v, want %s", v, err, problems, want)
				}
			}
			for _, p := range problems {
				if strings.Count(p.String(), p.File) != 1 && tt.name != "another schema" {
					t.Errorf("%v: names its file more than once", p)
				}
			}
		})
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o666)
}

// replace changes index.json.
func replace(old, new string) func(dir string) error {
	return func(dir string) error {
		name := filepath.Join(dir, "index.json")
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !strings.Contains(string(b), old) {
			return fmt.Errorf("%s is not in %s", old, b)
		}
		return os.WriteFile(name, []byte(strings.Replace(string(b), old, new, 1)), 0o666)
	}
}

// Every byte of a shard, damaged.
func TestChecksums(t *testing.T) {
	dir := small(3).write(t, 0, 0)
	name := filepath.Join(dir, "part-00000.arrow")
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	quiet := 0 // damages that nothing but the checksum shows
	for i, b := range content {
		if _, err := f.WriteAt([]byte{b ^ 1<<(i%8)}, int64(i)); err != nil {
			t.Fatal(err)
		}
		if s, err := arrowipc.Open(dir, arrowipc.Options{Checksums: true}); err == nil {
			s.Close()
			t.Errorf("byte %d is damaged, and Open finds no fault", i)
		} else if strings.Contains(err.Error(), "it is damaged: its checksum is") {
			quiet++
		}
		if v, err := arrowipc.Verify(dir, func(arrowipc.Problem) {}); err != nil || v.Bad != 1 {
			t.Errorf("byte %d is damaged: %+v, %v", i, v, err)
		}
		if _, err := f.WriteAt([]byte{b}, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if quiet < 57 { // the values, at least
		t.Errorf("%d damages are found by their checksum alone", quiet)
	}
	open(t, dir, arrowipc.Options{Checksums: true})
}

// A file that is cut short after Open: rows whose bytes are gone, and rows of
// the page in which it was cut, are errors that say so; the process lives.
func TestCutShort(t *testing.T) {
	const page = 4096
	rows := newTable(400, batch.Field{Name: "x", Type: batch.Uint8, Shape: []int{100}})
	size := 0
	for _, at := range []func(size int) int{
		func(size int) int { return 0 },
		func(size int) int { return 1 },
		func(size int) int { return page },
		func(size int) int { return page + 1000 },
		func(size int) int { return size / 2 },
		func(size int) int { return size - 5000 },
		func(size int) int { return size - 1 },
	} {
		dir := rows.write(t, 200, 20)
		name := filepath.Join(dir, "part-00001.arrow")
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size = int(info.Size())
		alloc := &slabs{}
		s := open(t, dir, arrowipc.Options{Alloc: alloc})
		if err := os.Truncate(name, int64(at(size))); err != nil {
			t.Fatal(err)
		}
		for _, samples := range [][]int{{200}, {399}, {0, 399}, {399, 0}, {250, 399, 200}, {200, 201, 202, 203}, {399, 0, 1, 2, 250}, {200, 5000}} {
			_, err := s.Take(t.Context(), batch.Step{Samples: samples})
			var failed *batch.SampleError
			if !errors.As(err, &failed) {
				t.Fatalf("cut at %d of %d, samples %v: %v", at(size), size, samples, err)
			}
			if failed.Sample == 5000 { // reported first, or not
				continue
			}
			row, part := (failed.Sample-200)%20, (failed.Sample-200)/20
			want := fmt.Sprintf("sample %d: arrowipc: %s: record batch %d: row %d: the file was cut short or replaced after it was opened", failed.Sample, name, part, row)
			if !slices.Contains(samples, failed.Sample) || failed.Sample < 200 || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("cut at %d of %d, samples %v: %v, want %s", at(size), size, samples, err, want)
			}
		}
		compare(t, s, rows, 0, 199) // the other shard is as it was
		if n := alloc.out.Load(); n != 0 {
			t.Errorf("%d slabs are out", n)
		}
	}
}

// A fault that is not of a shard is not blamed on one.
func TestForeignFault(t *testing.T) {
	dir := small(3).write(t, 0, 0)
	f, err := os.Open(filepath.Join(dir, "part-00000.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := mmap.Map(f)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := open(t, dir, arrowipc.Options{Alloc: readOnly(m.Bytes())})
	defer func() {
		if p, ok := recover().(interface{ Addr() uintptr }); !ok {
			t.Errorf("%v, want the fault", p)
		}
	}()
	_, err = s.Take(t.Context(), batch.Step{Samples: []int{1}})
	t.Errorf("a slab that cannot be written: %v", err)
}

type readOnly []byte

func (r readOnly) Get(n int) ([]byte, error) { return r[:n], nil }
func (readOnly) Put([]byte)                  {}

// Takes of many goroutines, and a Close among them: each is right, or says that
// the set is closed.
func TestTakeAndClose(t *testing.T) {
	want := small(5000)
	dir := want.write(t, 1000, 100)
	for range 10 {
		s, err := arrowipc.Open(dir, arrowipc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var takers sync.WaitGroup
		var taken atomic.Int64
		for g := range 4 {
			takers.Go(func() {
				random := rand.New(rand.NewPCG(uint64(g), 7))
				for {
					samples := random.Perm(5000)
					b, err := s.Take(t.Context(), batch.Step{Samples: samples})
					if err != nil {
						if err.Error() != "arrowipc: the set is closed" {
							t.Error(err)
						}
						return
					}
					for k, sample := range samples {
						if got := b.Column("label").Data[4*k : 4*k+4]; string(got) != string(want.row(1, sample)) {
							t.Errorf("sample %d: % x, want % x", sample, got, want.row(1, sample))
						}
					}
					b.Release()
					taken.Add(1)
				}
			})
		}
		for taken.Load() < 20 && !t.Failed() {
			s.Len() // until all are under way
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		takers.Wait()
	}
}
