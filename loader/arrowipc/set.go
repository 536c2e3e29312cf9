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
	shards []shard
	parts  []part // record batches that have rows, in order
	rows   int

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
	shard      shard
	batch      int      // its number in the shard
	columns    [][]byte // values of the chosen columns, in the mapping
}

// Open maps shards and finds their rows: path is a file, a glob pattern, or a
// directory, of which it takes all files that end in .arrow. Shards are in the
// order of their names and must have the same columns. Where a directory has
// an index.json, names, sizes, rows and columns are compared with it.
//
// It reads little but the files' footers. The caller closes the Set.
func Open(path string, opts Options) (*Set, error) {
	names, idx, err := find(path)
	if err != nil {
		return nil, err
	}
	s := &Set{opts: opts}
	for _, name := range names {
		if err := s.add(name, idx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// find lists the shards at path, and the index that describes them, if any.
func find(path string) (names []string, idx *manifest.Manifest, err error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		if idx, err = manifest.Read(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		if names, err = filepath.Glob(filepath.Join(escapeGlob(path), "*.arrow")); err != nil {
			return nil, nil, fmt.Errorf("arrowipc: %w", err)
		}
		if len(names) == 0 {
			return nil, nil, fmt.Errorf("arrowipc: no shards: directory %s has no file that ends in .arrow", path)
		}
		if idx != nil {
			err = idx.Complete(names)
		}
	case err == nil:
		names = []string{path}
		idx, err = manifest.Read(filepath.Dir(path))
	case strings.ContainsAny(path, "*?["):
		if names, err = filepath.Glob(path); err != nil {
			return nil, nil, fmt.Errorf("arrowipc: pattern %s: %w", path, err)
		}
		if len(names) == 0 {
			return nil, nil, fmt.Errorf("arrowipc: no shards: no file matches %s", path)
		}
		idx, err = manifest.Read(filepath.Dir(path))
	default:
		return nil, nil, fmt.Errorf("arrowipc: no shards: %w", err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // files without an index
	}
	slices.Sort(names)
	return names, idx, err
}

// escapeGlob is the pattern that matches path alone.
func escapeGlob(path string) string {
	var b strings.Builder
	for _, r := range path {
		if strings.ContainsRune(`*?[\`, r) && !(r == '\\' && os.PathSeparator == '\\') {
			b.WriteRune('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// add opens a shard, compares it with what the index says of it, and appends
// its rows.
func (s *Set) add(name string, idx *manifest.Manifest) error {
	file, err := ipcfile.Open(name)
	if err != nil {
		return err
	}
	sh := shard{File: file}
	s.shards = append(s.shards, sh) // Close will find it
	columns, err := sh.Choose(s.opts.Columns)
	if err != nil {
		return err
	}
	if s.fields == nil {
		s.fields = fieldsOf(columns)
	}
	if err := sameFields(s.shards[0].Name, s.fields, name, fieldsOf(columns)); err != nil {
		return err
	}
	if err := compare(sh.File, idx, s.opts.Checksums); err != nil {
		return err
	}
	for k := range sh.Batches() {
		values, rows, err := sh.Record(k, columns)
		if err != nil {
			return err
		}
		if s.rows+rows < s.rows {
			return sh.At(k, errors.New("the rows of all shards are more than can be counted"))
		}
		if rows > 0 {
			s.parts = append(s.parts, part{s.rows, s.rows + rows, sh, k, values})
		}
		s.rows, sh.rows = s.rows+rows, sh.rows+rows
	}
	s.shards[len(s.shards)-1] = sh
	if entry := idx.Find(name); entry != nil && entry.Rows != sh.rows {
		return sh.Err(fmt.Errorf("it has %d rows, %d by %s", sh.rows, entry.Rows, idx.Path()))
	}
	return nil
}

// compare compares a file's size and columns with what the index says of it,
// and its bytes where sums says so. A file that the index does not list is not
// its business.
func compare(f *ipcfile.File, idx *manifest.Manifest, sums bool) error {
	entry := idx.Find(f.Name)
	switch {
	case entry == nil && sums:
		return f.Err(errors.New("there is no checksum to compare it with: " + manifest.Name + " beside it does not list it"))
	case entry == nil:
		return nil
	case entry.Bytes != int64(len(f.Data)):
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
		return checkSum(f, entry)
	}
	return nil
}

// checkSum reads all bytes of a file.
func checkSum(f *ipcfile.File, entry *manifest.Shard) error {
	var crc uint32
	if err := ipcfile.Guard(func() error { crc = crc32.Checksum(f.Data, manifest.Table); return nil }); err != nil {
		return f.Err(err)
	}
	if !entry.Equal(crc) {
		return f.Err(fmt.Errorf("it is damaged: its checksum is %s, %s by %s: copy it again from where it came", manifest.Checksum(crc), entry.CRC32C, manifest.Name))
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
	samples := b.Samples
	k := 0 // the sample that is copied
	// A mapped file that has become shorter faults where its bytes were.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			fault, ok := p.(interface {
				error
				Addr() uintptr
			})
			if !ok {
				panic(p)
			}
			err = s.cut(samples[k], fault)
		}
	}()
	var columns [8]batch.Column
	slab := columns[:0]
	for i := range s.fields {
		slab = append(slab, b.Layout.At(b.Slab, i))
	}
	var at *part
	for k < len(samples) {
		sample := samples[k]
		if at == nil || sample < at.first || sample >= at.end {
			if at != nil && !at.shard.Whole() {
				k--
				return s.cut(samples[k], nil)
			}
			if at = s.part(sample); at == nil {
				return &batch.SampleError{Sample: sample, Err: fmt.Errorf("there are the rows 0 to %d", s.rows-1)}
			}
		}
		// Neighbours in the file that are neighbours in the step are one copy.
		run := 1
		for k+run < len(samples) && samples[k+run] == sample+run && sample+run < at.end {
			run++
		}
		row := sample - at.first
		for i := range slab {
			size := s.fields[i].RowBytes()
			copy(slab[i].Data[k*size:(k+run)*size], at.columns[i][row*size:])
		}
		k += run
	}
	if at != nil && !at.shard.Whole() {
		k--
		return s.cut(samples[k], nil)
	}
	return nil
}

// part is the record batch that holds a row, nil where none does.
func (s *Set) part(row int) *part {
	i := sort.Search(len(s.parts), func(i int) bool { return s.parts[i].end > row })
	if i == len(s.parts) || row < 0 {
		return nil
	}
	return &s.parts[i]
}

// cut is the error of a row in a file that has changed under its mapping.
func (s *Set) cut(sample int, fault error) error {
	p := s.part(sample)
	err := fmt.Errorf("row %d: the file was cut short or replaced after it was opened: write shards under another name and rename them", sample-p.first)
	if fault != nil {
		err = fmt.Errorf("%w (%w)", err, fault)
	}
	return &batch.SampleError{Sample: sample, Err: p.shard.At(p.batch, err)}
}
