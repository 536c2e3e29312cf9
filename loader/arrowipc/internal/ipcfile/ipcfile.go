// Package ipcfile finds the values of columns in a mapped Arrow IPC file.
//
// Arrow's own reader copies what it reads and trusts the file. This one reads
// the metadata where they lie, checks every offset against the file, and turns
// a panic over malformed input, and a file that shrinks meanwhile, into an
// error.
package ipcfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/endian"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/mmap"
)

const magic = "ARROW1"

// ErrUnsupported is what an error wraps about a file that Arrow allows and
// this package does not read: a column of another type, nulls, compression.
var ErrUnsupported = errors.New("unsupported")

// File is a mapped file. Its bytes may fault, see Guard.
type File struct {
	Name string
	Data []byte // the mapping, until Close

	file   *mmap.File
	schema *arrow.Schema
	blocks []block
}

// block is where a record batch lies: its metadata, and behind them its body.
type block struct{ offset, meta, body int }

// Open maps a file and reads its footer and its schema. The caller closes it.
func Open(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("arrowipc: %w", err)
	}
	m, err := mmap.Map(f)
	f.Close() // the mapping stays
	if err != nil {
		return nil, fmt.Errorf("arrowipc: %w", err)
	}
	s := &File{Name: name, Data: m.Bytes(), file: m}
	if err := Guard(s.parse); err != nil {
		return nil, errors.Join(s.Err(err), s.Close())
	}
	return s, nil
}

// Close ends the mapping. It may be called twice.
func (s *File) Close() error { return s.file.Close() }

// Batches is the number of record batches.
func (s *File) Batches() int { return len(s.blocks) }

// Err says in which file err is.
func (s *File) Err(err error) error { return s.At(-1, err) }

// At says in which file and record batch err is.
func (s *File) At(recordBatch int, err error) error { return &Error{s.Name, recordBatch, err} }

// Error is an error in a file.
type Error struct {
	File  string
	Batch int // record batch, -1 where it is none's
	Err   error
}

// Error names file, record batch and cause.
func (e *Error) Error() string {
	if e.Batch < 0 {
		return fmt.Sprintf("arrowipc: %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("arrowipc: %s: record batch %d: %v", e.File, e.Batch, e.Err)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// Whole says that the file still ends where it ended when it was mapped:
// reading the end of one that lost pages faults, and what one lost of its
// last page reads as zeros.
func (s *File) Whole() bool { return string(s.Data[len(s.Data)-len(magic):]) == magic }

// Guard calls f, which reads a file, and turns a panic over malformed input and
// a fault, of a file that has shrunk, into an error.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("malformed: %v", p)
			if _, ok := p.(interface{ Addr() uintptr }); ok {
				err = errors.New("truncated while it was read")
			}
		}
	}()
	return f()
}

// parse reads the footer: magic, footer, its length, magic.
func (s *File) parse() error {
	const tail = 4 + len(magic)
	n := len(s.Data)
	if n < len(magic)+2+tail || string(s.Data[:len(magic)]) != magic {
		return errors.New("not an Arrow IPC file: it does not begin with ARROW1 (is it a stream, or another format?)")
	}
	if string(s.Data[n-len(magic):]) != magic {
		return errors.New("truncated: it does not end with ARROW1, as a complete Arrow IPC file does")
	}
	length := int(int32(binary.LittleEndian.Uint32(s.Data[n-tail:])))
	if length < 4 || length > n-tail-len(magic)-2 {
		return fmt.Errorf("malformed: a footer of %d bytes in a file of %d", length, n)
	}
	footer := rootOf(s.Data[n-tail-length : n-tail])
	blocks, err := footer.structs(10, 24)
	if err != nil {
		return fmt.Errorf("malformed footer: %w", err)
	}
	if s.schema, err = s.readSchema(n - tail - length); err != nil {
		return err
	}
	s.blocks = make([]block, 0, len(blocks)/24)
	for i := 0; len(blocks) > 0; i, blocks = i+1, blocks[24:] {
		offset, meta, body := int64(binary.LittleEndian.Uint64(blocks)), int64(int32(binary.LittleEndian.Uint32(blocks[8:]))), int64(binary.LittleEndian.Uint64(blocks[16:]))
		end := int64(n - tail - length)
		if offset < 8 || meta < 8 || body < 0 || offset > end || meta > end-offset || body > end-offset-meta {
			return fmt.Errorf("malformed footer: record batch %d is said to lie at byte %d with %d bytes of metadata and %d of data, in a file of %d", i, offset, meta, body, n)
		}
		s.blocks = append(s.blocks, block{int(offset), int(meta), int(body)})
	}
	return nil
}

// readSchema reads the schema message that the file begins with, by Arrow's
// own reader, which gets nothing else to read.
func (s *File) readSchema(end int) (*arrow.Schema, error) {
	meta, prefix, err := metadata(s.Data[8:end])
	if err != nil {
		return nil, fmt.Errorf("malformed schema: %w", err)
	}
	if m := rootOf(meta); m.byte(6) != headerSchema || m.int64(10) != 0 {
		return nil, errors.New("malformed: it does not begin with a schema")
	}
	head := s.Data[8 : 8+prefix+len(meta)]
	r, err := ipc.NewReader(bytes.NewReader(head), ipc.WithAllocator(noMemory{}), ipc.WithEnsureNativeEndian(false))
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	defer r.Release()
	if e := r.Schema().Endianness(); e != endian.NativeEndian {
		return nil, fmt.Errorf("%w: the file is %v, this machine is not", ErrUnsupported, e)
	}
	return r.Schema(), nil
}

// noMemory is for a reader that has nothing to read into memory: what it asks
// for comes from a malformed file.
type noMemory struct{}

func (noMemory) Allocate(n int) []byte {
	if n != 0 {
		panic(fmt.Sprintf("a schema that asks for %d bytes of data", n))
	}
	return nil
}
func (m noMemory) Reallocate(n int, _ []byte) []byte { return m.Allocate(n) }
func (noMemory) Free([]byte)                         {}

var _ memory.Allocator = noMemory{}

// Column is a column that is read, and where a record batch describes it.
type Column struct {
	Field batch.Field

	node, buffer int   // the column's first, among all columns' nodes and buffers
	lists        []int // sizes of the fixed-size lists around the values
}

// Choose finds columns by name; nil means all.
func (s *File) Choose(names []string) ([]Column, error) {
	fields := s.schema.Fields()
	if names == nil {
		for _, f := range fields {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 {
		return nil, s.Err(errors.New("there is no column to read"))
	}
	var chosen []Column
	for i, name := range names {
		k := slices.IndexFunc(fields, func(f arrow.Field) bool { return f.Name == name })
		switch {
		case k < 0:
			var have []string
			for _, f := range fields {
				have = append(have, f.Name)
			}
			return nil, s.Err(fmt.Errorf("it has no column %q, but %q", name, have))
		case slices.ContainsFunc(fields[k+1:], func(f arrow.Field) bool { return f.Name == name }):
			return nil, s.Err(fmt.Errorf("column %q: %w: two columns have that name", name, ErrUnsupported))
		case slices.Contains(names[:i], name):
			return nil, fmt.Errorf("arrowipc: column %q is chosen twice", name)
		}
		c, err := columnOf(fields[k])
		if err != nil {
			return nil, s.Err(fmt.Errorf("column %q: %w", name, err))
		}
		for _, before := range fields[:k] {
			nodes, buffers, err := parts(before.Type)
			if err != nil {
				return nil, s.Err(fmt.Errorf("column %q, which lies before %q: %w", before.Name, name, err))
			}
			c.node, c.buffer = c.node+nodes, c.buffer+buffers
		}
		chosen = append(chosen, c)
	}
	return chosen, nil
}

// columnOf is a field as a column of a batch.
func columnOf(f arrow.Field) (Column, error) {
	c := Column{Field: batch.Field{Name: f.Name}}
	typ := f.Type
	for {
		list, ok := typ.(*arrow.FixedSizeListType)
		if !ok {
			break
		}
		if list.Len() < 1 {
			return c, fmt.Errorf("type %v is %w: its lists have no values", f.Type, ErrUnsupported)
		}
		c.lists = append(c.lists, int(list.Len()))
		typ = list.Elem()
	}
	known, ok := numbers[typ.ID()]
	if !ok {
		return c, fmt.Errorf("type %v is %w: columns are numbers (int8 … uint64, float16 … float64), or fixed-size lists (of lists) of numbers", f.Type, ErrUnsupported)
	}
	c.Field.Type, c.Field.Shape = known, c.lists
	if _, err := batch.NewLayout([]batch.Field{c.Field}, 1); err != nil {
		return c, err
	}
	return c, nil
}

var numbers = map[arrow.Type]batch.Type{
	arrow.INT8: batch.Int8, arrow.INT16: batch.Int16, arrow.INT32: batch.Int32, arrow.INT64: batch.Int64,
	arrow.UINT8: batch.Uint8, arrow.UINT16: batch.Uint16, arrow.UINT32: batch.Uint32, arrow.UINT64: batch.Uint64,
	arrow.FLOAT16: batch.Float16, arrow.FLOAT32: batch.Float32, arrow.FLOAT64: batch.Float64,
}

// parts is how many nodes and buffers a record batch has for a column of a
// type, as the format's chapters on physical layouts and on the flattening of
// columns say.
func parts(typ arrow.DataType) (nodes, buffers int, err error) {
	var children []arrow.Field
	nodes = 1
	switch t := typ.(type) {
	case arrow.ExtensionType:
		return parts(t.StorageType())
	case *arrow.DictionaryType:
		return parts(t.IndexType)
	case *arrow.NullType:
	case *arrow.StructType, *arrow.FixedSizeListType:
		buffers, children = 1, t.(arrow.NestedType).Fields()
	case *arrow.ListType, *arrow.LargeListType, *arrow.MapType:
		buffers, children = 2, t.(arrow.NestedType).Fields()
	case *arrow.SparseUnionType:
		buffers, children = 1, t.Fields()
	case *arrow.DenseUnionType:
		buffers, children = 2, t.Fields()
	case *arrow.RunEndEncodedType:
		children = t.Fields()
	case arrow.BinaryDataType:
		buffers = 3
	case arrow.FixedWidthDataType:
		buffers = 2
	default:
		return 0, 0, fmt.Errorf("type %v is %w: it is not known how much room it takes", typ, ErrUnsupported)
	}
	for _, f := range children {
		n, b, err := parts(f.Type)
		if err != nil {
			return 0, 0, err
		}
		nodes, buffers = nodes+n, buffers+b
	}
	return nodes, buffers, nil
}

// Record is the values of the columns in record batch k, in the mapping, and
// the number of its rows.
func (s *File) Record(k int, columns []Column) (values [][]byte, rows int, err error) {
	err = Guard(func() error {
		b := s.blocks[k]
		meta, _, err := metadata(s.Data[b.offset : b.offset+b.meta])
		if err != nil {
			return err
		}
		m := rootOf(meta)
		if h := m.byte(6); h != headerRecordBatch {
			return fmt.Errorf("malformed: the footer leads to a message of kind %d", h)
		}
		if n := m.int64(10); n != int64(b.body) {
			return fmt.Errorf("malformed: a body of %d bytes, %d by the footer", n, b.body)
		}
		r := m.union(8)
		if r.has(10) {
			return fmt.Errorf("%w: its buffers are compressed: write them uncompressed", ErrUnsupported)
		}
		n := r.int64(4)
		if n < 0 || n > math.MaxInt {
			return fmt.Errorf("malformed: %d rows", n)
		}
		nodes, err := r.structs(6, 16)
		if err != nil {
			return err
		}
		buffers, err := r.structs(8, 16)
		if err != nil {
			return err
		}
		rows = int(n)
		body := s.Data[b.offset+b.meta : b.offset+b.meta+b.body]
		for _, c := range columns {
			v, err := c.values(rows, nodes, buffers, body)
			if err != nil {
				return fmt.Errorf("column %q: %w", c.Field.Name, err)
			}
			values = append(values, v)
		}
		return nil
	})
	if err != nil {
		return nil, 0, s.At(k, err)
	}
	return values, rows, nil
}

// values finds a column's bytes in the body of a record batch: behind a node
// and a bitmap for the column and each level of lists, a buffer of values.
func (c Column) values(rows int, nodes, buffers, body []byte) ([]byte, error) {
	want := int64(rows)
	for level := range len(c.lists) + 1 {
		at := 16 * (c.node + level)
		if at+16 > len(nodes) {
			return nil, errors.New("malformed: the record batch does not describe it")
		}
		length, nulls := int64(binary.LittleEndian.Uint64(nodes[at:])), int64(binary.LittleEndian.Uint64(nodes[at+8:]))
		if length != want {
			return nil, fmt.Errorf("malformed: %d values where there must be %d", length, want)
		}
		if nulls != 0 {
			return nil, fmt.Errorf("%w: it has %d nulls", ErrUnsupported, nulls)
		}
		if level < len(c.lists) {
			if want > math.MaxInt64/int64(c.lists[level]) {
				return nil, fmt.Errorf("malformed: %d lists of %d values", want, c.lists[level])
			}
			want *= int64(c.lists[level])
		}
	}
	at := 16 * (c.buffer + len(c.lists) + 1)
	if at+16 > len(buffers) {
		return nil, errors.New("malformed: the record batch has no buffer for it")
	}
	offset, length := int64(binary.LittleEndian.Uint64(buffers[at:])), int64(binary.LittleEndian.Uint64(buffers[at+8:]))
	if offset < 0 || length < 0 || offset > int64(len(body)) || length > int64(len(body))-offset {
		return nil, fmt.Errorf("malformed: its values are said to lie at byte %d of %d, %d bytes long", offset, len(body), length)
	}
	if size := int64(c.Field.Type.Size()); want > length/size {
		return nil, fmt.Errorf("malformed: %d bytes for %d values of %d bytes", length, want, size)
	}
	return body[offset : offset+want*int64(c.Field.Type.Size())], nil
}

// The kinds of messages, as in Arrow's Message.fbs.
const (
	headerSchema      = 1
	headerRecordBatch = 3
)

// metadata is the flatbuffer of the message that b begins with, and the length
// of what lies before it: a marker and its length, or before Arrow 0.15 the
// length alone.
func metadata(b []byte) (meta []byte, prefix int, err error) {
	prefix = 4
	if len(b) >= 8 && binary.LittleEndian.Uint32(b) == math.MaxUint32 {
		prefix = 8
	}
	if len(b) < prefix {
		return nil, 0, errors.New("malformed: a message of no length")
	}
	n := int(int32(binary.LittleEndian.Uint32(b[prefix-4:])))
	if n < 8 || n > len(b)-prefix {
		return nil, 0, fmt.Errorf("malformed: a message of %d bytes of metadata where there are %d", n, len(b)-prefix)
	}
	return b[prefix : prefix+n], prefix, nil
}

// table is a flatbuffer table. Slots are counted in bytes of its vtable, from
// 4, as the generated code of Arrow does. Its methods panic where the table
// points outside its bytes; see Guard.
type table struct{ flatbuffers.Table }

func rootOf(b []byte) table {
	return table{flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}}
}

func (t table) has(slot flatbuffers.VOffsetT) bool { return t.Offset(slot) != 0 }

func (t table) byte(slot flatbuffers.VOffsetT) byte { return t.GetByteSlot(slot, 0) }

func (t table) int64(slot flatbuffers.VOffsetT) int64 { return t.GetInt64Slot(slot, 0) }

func (t table) union(slot flatbuffers.VOffsetT) table {
	o := t.Offset(slot)
	if o == 0 {
		panic("a message without a header")
	}
	var u flatbuffers.Table
	t.Union(&u, flatbuffers.UOffsetT(o))
	return table{u}
}

// structs is the bytes of a vector of structs of a size.
func (t table) structs(slot flatbuffers.VOffsetT, size int) ([]byte, error) {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil, nil
	}
	// The vector begins at an offset from its slot; before its first element
	// lies its length.
	start, n := int64(t.Vector(o)), int64(t.VectorLen(o))
	if n < 0 || n > (int64(len(t.Bytes))-start)/int64(size) {
		return nil, fmt.Errorf("malformed: a vector of %d elements in %d bytes of metadata", n, len(t.Bytes))
	}
	return t.Bytes[start : start+n*int64(size)], nil
}
