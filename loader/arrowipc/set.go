// Package arrowipc gathers rows out of memory-mapped Arrow IPC files, and
// writes such files.
//
// A [Set] is one table over the record batches of many files. It finds the
// bytes of a row where they lie in the mapping and copies them once, into a
// batch's slab. Columns are numbers, or fixed-size lists (of lists) of
// numbers, as image tensors are.
//
// The format is that of https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
package arrowipc

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/manifest"
	"github.com/shardfeed/shardfeed/loader/arrowipc/internal/ipcfile"
)

// ErrUnsupported is what an error wraps about a file that Arrow allows and a
// Set does not read: a column of another type, nulls, compression.
var ErrUnsupported = ipcfile.ErrUnsupported

var errClosed = errors.New("arrowipc: the set is closed")

// Options say how a Set reads.
type Options struct {
	// Columns are the names of the columns to read, in the order of a batch's
	// layout. nil: all, in the order of the files.
	Columns []string
	// Checksums makes Open read every byte and compare it with the checksums
	// of index.json, which must be there.
	Checksums bool
	// Alloc gives the slabs of batches. nil: the Go heap.
	Alloc batch.Allocator
}

// Set is a table over the rows of one or many shards. Its methods may be
// called from several goroutines.
type Set struct {
	opts   Options
	fields []batch.Field
	sizes  []int // bytes of a row of each
	shards []shard
	parts  []part // record batches that have rows, in order
	rows   int
	stride int // rows of the largest record batch

	mu     sync.RWMutex // held for reading while rows are copied
	closed bool

	last atomic.Pointer[batch.Layout] // that Take used: most steps are of one size
}

type shard struct {
	*ipcfile.File
	rows int
}

// part is a record batch of a set.
type part struct {
	first, end int // rows of the set
	file       *ipcfile.File
	batch      int      // its number in the file
	columns    [][]byte // values of the chosen columns, in the mapping
}

// Open maps shards and finds their rows: path is a file, a glob pattern, or a
// directory, of which it takes the files that end in .arrow and do not begin
// with a dot. Shards are in the order of their names and must have the same
// columns. What an index.json beside a shard says of its size, rows and columns
// must be so; where path is a directory, it must list all shards and no others.
//
// Open reads little but the files' footers. The caller closes the Set.
func Open(path string, opts Options) (*Set, error) {
	names, known, err := find(path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(known.missing(names)...); err != nil {
		return nil, err
	}
	s := &Set{opts: opts}
	for _, name := range names {
		if err := s.add(name, known); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// find lists the shards at path.
func find(path string) (names []string, known manifests, err error) {
	known.read = map[string]*manifest.Manifest{}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, known, fmt.Errorf("arrowipc: %w", err)
		}
		for _, e := range entries {
			if name := e.Name(); strings.HasSuffix(name, ".arrow") && name[0] != '.' {
				names = append(names, filepath.Join(path, name))
			}
		}
		if len(names) == 0 {
			return nil, known, fmt.Errorf("arrowipc: no shards: directory %s has no file that ends in .arrow", path)
		}
		known.whole = true
	case err == nil:
		names = []string{path}
	case strings.ContainsAny(path, "*?["):
		if names, err = filepath.Glob(path); err != nil {
			return nil, known, fmt.Errorf("arrowipc: pattern %s: %w", path, err)
		}
		if len(names) == 0 {
			return nil, known, fmt.Errorf("arrowipc: no shards: no file matches %s", path)
		}
	default:
		return nil, known, fmt.Errorf("arrowipc: no shards: %w", err)
	}
	slices.Sort(names)
	return names, known, nil
}

// manifests are the index.json files beside shards.
type manifests struct {
	whole bool // the shards are all of a directory
	read  map[string]*manifest.Manifest
}

// beside is the manifest in a file's directory, nil where there is none. One
// that cannot be read is an error once and then counts as none.
func (m manifests) beside(file string) (*manifest.Manifest, error) {
	dir := filepath.Dir(file)
	if idx, ok := m.read[dir]; ok {
		return idx, nil
	}
	idx, err := manifest.Read(dir)
	m.read[dir] = idx
	if path, ok := errors.AsType[*fs.PathError](err); ok && !errors.Is(err, fs.ErrNotExist) {
		return nil, &ipcfile.Error{File: path.Path, Batch: -1, Err: path.Err}
	}
	return idx, nil
}

// missing is an error for each file that a directory ought to have, and for a
// manifest that cannot be read.
func (m manifests) missing(names []string) (errs []error) {
	if !m.whole {
		return nil
	}
	idx, err := m.beside(names[0])
	if err != nil {
		return []error{err}
	}
	for _, file := range idx.Missing(names) {
		errs = append(errs, &ipcfile.Error{File: file, Batch: -1, Err: fmt.Errorf("it is missing: %s lists it", idx.Path())})
	}
	return errs
}

// add opens a shard, compares it with what its manifest says of it, and appends
// its rows.
func (s *Set) add(name string, known manifests) error {
	file, err := ipcfile.Open(name)
	if err != nil {
		return err
	}
	s.shards = append(s.shards, shard{File: file}) // Close will find it
	sh := &s.shards[len(s.shards)-1]
	columns, err := file.Choose(s.opts.Columns)
	if err != nil {
		return err
	}
	fields := fieldsOf(columns)
	if s.fields == nil {
		s.fields = fields
		for _, f := range fields {
			s.sizes = append(s.sizes, f.RowBytes())
		}
	}
	if err := sameFields(s.shards[0].Name, s.fields, name, fields); err != nil {
		return err
	}
	idx, err := known.beside(name)
	if err != nil {
		return err
	}
	entry := idx.Find(name)
	switch {
	case entry != nil:
		err = compare(file, idx, entry, s.opts.Checksums)
	case s.opts.Checksums:
		err = file.Err(errors.New("there is no checksum to compare it with: no " + manifest.Name + " beside it lists it"))
	case idx != nil && known.whole:
		err = file.Err(fmt.Errorf("%s does not list it: remove one of the two", idx.Path()))
	}
	if err != nil {
		return err
	}
	if sh.rows, err = s.addRows(file, columns); err != nil {
		return err
	}
	if entry != nil && entry.Rows != sh.rows {
		return file.Err(fmt.Errorf("it has %d rows, %d by %s", sh.rows, entry.Rows, idx.Path()))
	}
	return nil
}

// addRows appends the record batches of a file, and returns how many rows they
// have.
func (s *Set) addRows(file *ipcfile.File, columns []ipcfile.Column) (added int, err error) {
	for k := range file.Batches() {
		values, rows, err := file.Record(k, columns)
		if err != nil {
			return added, err
		}
		if s.rows+rows < s.rows {
			return added, file.At(k, errors.New("the rows of all shards are more than can be counted"))
		}
		if rows > 0 {
			s.parts = append(s.parts, part{s.rows, s.rows + rows, file, k, values})
		}
		added, s.rows, s.stride = added+rows, s.rows+rows, max(s.stride, rows)
	}
	return added, nil
}

// compare compares a file's size and columns with what a manifest says of it,
// and its bytes where sums says so.
func compare(f *ipcfile.File, idx *manifest.Manifest, entry *manifest.Shard, sums bool) error {
	if entry.Bytes != int64(len(f.Data)) {
		return f.Err(fmt.Errorf("it has %d bytes, %d by %s: it was truncated, or written by something else", len(f.Data), entry.Bytes, idx.Path()))
	}
	columns, err := f.Choose(nil)
	if err != nil {
		return err
	}
	if err := sameFields(idx.Path(), idx.Schema, f.Name, fieldsOf(columns)); err != nil {
		return err
	}
	if sums {
		return checkSum(f, idx, entry)
	}
	return nil
}

// checkSum reads all bytes of a file.
func checkSum(f *ipcfile.File, idx *manifest.Manifest, entry *manifest.Shard) error {
	var crc uint32
	if err := ipcfile.Guard(func() error { crc = crc32.Checksum(f.Data, manifest.Table); return nil }); err != nil {
		return f.Err(err)
	}
	if !entry.Equal(crc) {
		return f.Err(fmt.Errorf("it is damaged: its checksum is %s, %s by %s: copy it again from where it came", manifest.Checksum(crc), entry.CRC32C, idx.Path()))
	}
	return nil
}

func fieldsOf(columns []ipcfile.Column) []batch.Field {
	fields := make([]batch.Field, len(columns))
	for i, c := range columns {
		fields[i] = c.Field
	}
	return fields
}

// sameFields says how the columns of two files differ.
func sameFields(first string, want []batch.Field, name string, got []batch.Field) error {
	for i := range max(len(want), len(got)) {
		a, b := "nothing", "nothing"
		if i < len(want) {
			a = want[i].String()
		}
		if i < len(got) {
			b = got[i].String()
		}
		if a != b {
			return fmt.Errorf("arrowipc: the shards differ: column %d is %s in %s, and %s in %s: shards of a set have the same columns", i, a, first, b, name)
		}
	}
	return nil
}

// Len is the number of rows of all shards.
func (s *Set) Len() int { return s.rows }

// Rows is the number of rows of each shard, in order. The caller owns it.
func (s *Set) Rows() []int {
	rows := make([]int, len(s.shards))
	for i, sh := range s.shards {
		rows[i] = sh.rows
	}
	return rows
}

// Fields are the columns that Take reads, in order. The caller must not change
// them.
func (s *Set) Fields() []batch.Field { return s.fields }

// Layout is the layout of a batch of that many rows.
func (s *Set) Layout(rows int) (batch.Layout, error) { return batch.NewLayout(s.fields, rows) }

// Close ends the mappings, after the calls of Take under way. It may be called
// twice.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, sh := range s.shards {
		errs = append(errs, sh.Close())
	}
	return errors.Join(errs...)
}

// Take reads the rows of a step, in its order, into a batch with a slab from
// Options.Alloc. It is a loader.Fetch. The caller releases the batch.
//
// A sample that cannot be read is a *batch.SampleError: one that is out of
// range, and one in a file that was cut short after Open.
func (s *Set) Take(ctx context.Context, step batch.Step) (*batch.Batch, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	layout := s.last.Load()
	if layout == nil || layout.Rows() != len(step.Samples) {
		l, err := s.Layout(len(step.Samples))
		if err != nil {
			return nil, err
		}
		layout = &l
		s.last.Store(layout)
	}
	b, err := batch.New(step, *layout, s.opts.Alloc)
	if err != nil {
		return nil, err
	}
	if err := s.gather(b); err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// gather copies the rows of b's samples into its slab.
func (s *Set) gather(b *batch.Batch) (err error) {
	var at *part   // the record batch that is read
	var sample int // the last one read of it
	// A mapped file that has become shorter faults where its bytes were.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			fault, ok := p.(interface{ Addr() uintptr })
			if !ok || at == nil || !holds(at.file.Data, fault.Addr()) {
				panic(p)
			}
			err = at.cut(sample)
		}
	}()
	var columns [8][]byte
	slab := columns[:0]
	for i := range s.fields {
		slab = append(slab, b.Layout.At(b.Slab, i).Data)
	}
	for k := 0; k < len(b.Samples); {
		next := b.Samples[k]
		if at == nil || next < at.first || next >= at.end {
			p := s.part(next)
			if p == nil {
				return &batch.SampleError{Sample: next, Err: fmt.Errorf("it is out of range: there are %d rows", s.rows)}
			}
			if at != nil && at.file != p.file && !at.file.Whole() {
				return at.cut(sample)
			}
			at = p
		}
		sample = next
		// Neighbours in the file that are neighbours in the step are one copy.
		run := 1
		for k+run < len(b.Samples) && b.Samples[k+run] == sample+run && sample+run < at.end {
			run++
		}
		row := sample - at.first
		for i, size := range s.sizes {
			copy(slab[i][k*size:(k+run)*size], at.columns[i][row*size:])
		}
		k += run
	}
	if at != nil && !at.file.Whole() {
		return at.cut(sample)
	}
	return nil
}

// holds says whether an address is one of b's.
func holds(b []byte, addr uintptr) bool {
	return addr-uintptr(unsafe.Pointer(unsafe.SliceData(b))) < uintptr(len(b))
}

// part is the record batch that holds a row, nil where none does. Most sets
// have record batches of one size, so it is sought first where it then is.
func (s *Set) part(row int) *part {
	if row < 0 || row >= s.rows {
		return nil
	}
	if i := row / s.stride; i < len(s.parts) && s.parts[i].first <= row && row < s.parts[i].end {
		return &s.parts[i]
	}
	i := sort.Search(len(s.parts), func(i int) bool { return s.parts[i].end > row })
	return &s.parts[i]
}

// cut is the error of a row in a file that has changed under its mapping.
func (p *part) cut(sample int) error {
	err := fmt.Errorf("row %d: the file was cut short or replaced after it was opened: write shards under another name and rename them", sample-p.first)
	return &batch.SampleError{Sample: sample, Err: p.file.At(p.batch, err)}
}
