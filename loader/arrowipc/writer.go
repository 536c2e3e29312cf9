package arrowipc

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/atomicdir"
	"github.com/shardfeed/shardfeed/internal/manifest"
)

// WriterConfig says what a Writer writes.
type WriterConfig struct {
	Fields       []batch.Field // the columns: at least one
	RowsPerShard int           // 0: as many as make 128 MiB
	RowsPerBatch int           // rows of a record batch; 0: as many as make 1 MiB
}

// Writer writes rows into a directory of shards, part-00000.arrow and so on,
// with an index.json. The directory appears whole, at Close, or not at all.
// It serves one goroutine.
type Writer struct {
	cfg    WriterConfig
	dir    string
	temp   *atomicdir.Dir // nil once the directory has its name, or is gone
	schema *arrow.Schema
	index  manifest.Manifest

	file *shardFile // the shard under way; nil between two
	rows int        // in it, those in pending included
	// The record batch under way, by column.
	pending [][]byte
	waiting int // its rows
	err     error
}

// Create begins a directory of shards at dir, which must not exist, or be
// empty. Until Close the shards lie in a hidden directory beside it, which
// Create removes where a process that was killed has left one. The caller calls
// Close, or Abort.
func Create(dir string, cfg WriterConfig) (*Writer, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("arrowipc: %w: %s is not a directory: name another, or remove it", fs.ErrExist, dir)
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("arrowipc: %w: directory %s has files already: name another, or remove it", fs.ErrExist, dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("arrowipc: %w", err)
	}
	dir, err := filepath.Abs(dir) // the process may go elsewhere before Close
	if err != nil {
		return nil, fmt.Errorf("arrowipc: %w", err)
	}
	temp, err := atomicdir.New(dir)
	if err != nil {
		return nil, fmt.Errorf("arrowipc: no place for shards: %w", err)
	}
	cfg.Fields = slices.Clone(cfg.Fields)
	w := &Writer{cfg: cfg, dir: dir, temp: temp, index: manifest.Manifest{Schema: cfg.Fields}, pending: make([][]byte, len(cfg.Fields))}
	var fields []arrow.Field
	for _, f := range cfg.Fields {
		fields = append(fields, arrow.Field{Name: f.Name, Type: arrowType(f)})
	}
	w.schema = arrow.NewSchema(fields, nil)
	return w, nil
}

// complete checks the configuration and fills in its defaults.
func (c *WriterConfig) complete() error {
	row := 0
	for _, f := range c.Fields {
		if slices.ContainsFunc(f.Shape, func(d int) bool { return d < 1 || d > math.MaxInt32 }) {
			return fmt.Errorf("arrowipc: column %v: the sizes of lists are from 1 to 2³¹-1", f)
		}
		if len(f.Shape) > 32 { // Arrow's writer goes no deeper than 64
			return fmt.Errorf("arrowipc: column %s: a row of more than 32 dimensions", f.Name)
		}
		if !utf8.ValidString(f.Name) {
			return fmt.Errorf("arrowipc: column %q: its name is not UTF-8", f.Name)
		}
		row += f.RowBytes()
	}
	if _, err := batch.NewLayout(c.Fields, 1); err != nil {
		return fmt.Errorf("arrowipc: %w", err)
	}
	if len(c.Fields) == 0 || c.RowsPerShard < 0 || c.RowsPerBatch < 0 {
		return fmt.Errorf("arrowipc: a writer of %d columns, %d rows a shard, %d rows a record batch", len(c.Fields), c.RowsPerShard, c.RowsPerBatch)
	}
	if c.RowsPerShard == 0 {
		c.RowsPerShard = max(1, 128<<20/row)
	}
	if c.RowsPerBatch == 0 {
		c.RowsPerBatch = max(1, 1<<20/row)
	}
	return nil
}

// Write adds rows: for each column the bytes of its values, row after row, as
// in a batch's slab. It has copied them when it returns. After an error the
// writer takes no more.
func (w *Writer) Write(rows int, columns ...[]byte) error {
	if w.err != nil {
		return w.err
	}
	if w.temp == nil {
		return errors.New("arrowipc: a write after Close or Abort")
	}
	if rows < 0 || len(columns) != len(w.cfg.Fields) {
		return fmt.Errorf("arrowipc: %d rows of %d columns written: there are %d columns", rows, len(columns), len(w.cfg.Fields))
	}
	for i, f := range w.cfg.Fields {
		if row := f.RowBytes(); len(columns[i])%row != 0 || len(columns[i])/row != rows {
			return fmt.Errorf("arrowipc: column %s: %d bytes for %d rows of %d bytes", f.Name, len(columns[i]), rows, row)
		}
	}
	for done := 0; done < rows; {
		n := min(rows-done, w.cfg.RowsPerBatch-w.waiting, w.cfg.RowsPerShard-w.rows)
		for i, f := range w.cfg.Fields {
			w.pending[i] = append(w.pending[i], columns[i][done*f.RowBytes():(done+n)*f.RowBytes()]...)
		}
		done, w.waiting, w.rows = done+n, w.waiting+n, w.rows+n
		if w.waiting == w.cfg.RowsPerBatch || w.rows == w.cfg.RowsPerShard {
			w.err = w.flush()
		}
		if w.rows == w.cfg.RowsPerShard && w.err == nil {
			w.err = w.finish()
		}
		if w.err != nil {
			return w.err
		}
	}
	return nil
}

// flush writes the record batch under way.
func (w *Writer) flush() error {
	if w.file == nil {
		var err error
		if w.file, err = createShard(filepath.Join(w.temp.Name, fmt.Sprintf("part-%05d.arrow", len(w.index.Shards))), w.schema); err != nil {
			return err
		}
	}
	if w.waiting == 0 {
		return nil
	}
	columns := make([]arrow.Array, len(w.cfg.Fields))
	for i := range columns {
		columns[i] = arrayOf(w.schema.Field(i).Type, w.waiting, w.pending[i])
		defer columns[i].Release()
		w.pending[i] = w.pending[i][:0] // the array has the bytes until the record is written
	}
	record := array.NewRecord(w.schema, columns, int64(w.waiting))
	defer record.Release()
	w.waiting = 0
	if err := w.file.Write(record); err != nil {
		return fmt.Errorf("arrowipc: %s: %w", w.file.f.Name(), err)
	}
	return nil
}

// finish ends the shard under way.
func (w *Writer) finish() error {
	entry, err := w.file.close()
	if err != nil {
		return fmt.Errorf("arrowipc: %w", err)
	}
	entry.Rows = w.rows
	w.index.Shards = append(w.index.Shards, entry)
	w.file, w.rows = nil, 0
	return nil
}

// Close writes what is left and the index, waits until all of it is on the
// disk, and gives the directory its name. Where another process has made that
// directory meanwhile, the error is one of fs.ErrExist. After an error nothing
// is left.
func (w *Writer) Close() error {
	if w.temp == nil {
		return w.err
	}
	defer w.Abort()
	if w.err != nil {
		return w.err
	}
	// A table without rows is a shard without record batches.
	if w.rows > 0 || len(w.index.Shards) == 0 {
		if w.err = w.flush(); w.err == nil {
			w.err = w.finish()
		}
		if w.err != nil {
			return w.err
		}
	}
	err := w.index.Write(w.temp.Name)
	if err == nil {
		err = w.temp.Rename(w.dir)
	}
	if err != nil {
		w.err = fmt.Errorf("arrowipc: %w", err)
		return w.err
	}
	w.temp = nil
	return nil
}

// Abort removes what was written. After Close it does nothing.
func (w *Writer) Abort() error {
	if w.temp == nil {
		return nil
	}
	if w.file != nil {
		w.file.f.Close()
		w.file = nil
	}
	if w.err == nil {
		w.err = errors.New("arrowipc: the writer was aborted")
	}
	err := w.temp.Remove()
	w.temp = nil
	if err != nil {
		return fmt.Errorf("arrowipc: %w", err)
	}
	return nil
}

// shardFile is a file that is being written, with its size and checksum.
type shardFile struct {
	*ipc.FileWriter
	f   *os.File
	buf *bufio.Writer
	n   int64
	crc uint32
}

func createShard(name string, schema *arrow.Schema) (*shardFile, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("arrowipc: %w", err)
	}
	s := &shardFile{f: f, buf: bufio.NewWriterSize(f, 1<<20)}
	if s.FileWriter, err = ipc.NewFileWriter(sink{s}, ipc.WithSchema(schema)); err != nil {
		f.Close()
		return nil, fmt.Errorf("arrowipc: %s: %w", name, err)
	}
	return s, nil
}

// sink is what Arrow writes to. It asks where it is, and seeks nowhere.
type sink struct{ *shardFile }

func (s sink) Write(p []byte) (int, error) {
	n, err := s.buf.Write(p)
	s.n += int64(n)
	s.crc = crc32.Update(s.crc, manifest.Table, p[:n])
	return n, err
}

func (s sink) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekCurrent {
		return 0, errors.ErrUnsupported
	}
	return s.n, nil
}

func (s *shardFile) close() (manifest.Shard, error) {
	err := errors.Join(s.FileWriter.Close(), s.buf.Flush(), s.f.Sync())
	return manifest.Shard{Name: filepath.Base(s.f.Name()), Bytes: s.n, CRC32C: manifest.Checksum(s.crc)}, errors.Join(err, s.f.Close())
}

// arrowType is the type of a column: lists of lists around numbers.
func arrowType(f batch.Field) arrow.DataType {
	typ := numbers[f.Type]
	for _, d := range slices.Backward(f.Shape) {
		typ = arrow.FixedSizeListOf(int32(d), typ)
	}
	return typ
}

var numbers = map[batch.Type]arrow.DataType{
	batch.Int8: arrow.PrimitiveTypes.Int8, batch.Int16: arrow.PrimitiveTypes.Int16,
	batch.Int32: arrow.PrimitiveTypes.Int32, batch.Int64: arrow.PrimitiveTypes.Int64,
	batch.Uint8: arrow.PrimitiveTypes.Uint8, batch.Uint16: arrow.PrimitiveTypes.Uint16,
	batch.Uint32: arrow.PrimitiveTypes.Uint32, batch.Uint64: arrow.PrimitiveTypes.Uint64,
	batch.Float16: arrow.FixedWidthTypes.Float16,
	batch.Float32: arrow.PrimitiveTypes.Float32, batch.Float64: arrow.PrimitiveTypes.Float64,
}

// arrayOf is rows values of a type around bytes, which it does not copy.
func arrayOf(typ arrow.DataType, rows int, values []byte) arrow.Array {
	data := dataOf(typ, rows, values)
	defer data.Release()
	return array.MakeFromData(data)
}

func dataOf(typ arrow.DataType, n int, values []byte) arrow.ArrayData {
	if list, ok := typ.(*arrow.FixedSizeListType); ok {
		child := dataOf(list.Elem(), n*int(list.Len()), values)
		defer child.Release()
		return array.NewData(typ, n, []*memory.Buffer{nil}, []arrow.ArrayData{child}, 0, 0)
	}
	return array.NewData(typ, n, []*memory.Buffer{nil, memory.NewBufferBytes(values)}, nil, 0, 0)
}
