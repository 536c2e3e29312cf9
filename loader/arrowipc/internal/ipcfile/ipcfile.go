// Package ipcfile finds the values of columns in a mapped Arrow IPC file.
//
// Arrow's own reader copies what it reads and trusts the file: a schema that
// contains itself ends the process. This one reads the metadata where they lie,
// checks every offset and count against the file, and turns a panic over
// malformed input, and a file that shrinks meanwhile, into an error.
package ipcfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"sync/atomic"

	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/mmap"
)

const magic = "ARROW1"

// ErrUnsupported is what an error wraps about a file that Arrow allows and
// this package does not read: a column of another type, nulls, compression.
var ErrUnsupported = errors.New("unsupported")

var errShrunk = errors.New("truncated while it was read")

// File is a mapped file. Its bytes may fault, see Guard.
type File struct {
	Name string
	Data []byte // the mapping, until Close

	file   *mmap.File
	fields []field
	all    extent // of all columns; unknown where uncounted is set
	blocks []block
	// uncounted is why it is not known where the columns behind one lie.
	uncounted error
}

// block is where a record batch lies: its metadata, and behind them its body.
type block struct{ offset, meta, body int }

// Open maps a file and reads its footer and its schema. The caller closes it.
func Open(name string) (*File, error) {
	// Opening what is no file, such as a pipe, may wait for ever.
	if info, err := os.Stat(name); err != nil {
		return nil, fmt.Errorf("arrowipc: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("arrowipc: %s is not a file", name)
	}
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
				err = errShrunk
			}
		}
	}()
	return f()
}

// touched keeps the compiler from leaving out reads.
var touched atomic.Uint32

// Touch reads a byte of every page: it fails where the disk does, or the file
// has become shorter.
func (s *File) Touch() error {
	err := Guard(func() error {
		var sum byte
		for i := 0; i < len(s.Data); i += 4096 {
			sum += s.Data[i]
		}
		touched.Store(uint32(sum))
		if !s.Whole() {
			return errShrunk
		}
		return nil
	})
	if err != nil {
		return s.Err(err)
	}
	return nil
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
	end := n - tail - length
	footer := rootOf(s.Data[end : n-tail])
	version, schema := footer.int16(4), footer.table(6)
	if !footer.has(6) {
		return errors.New("malformed footer: it has no schema")
	}
	if err := s.readSchema(schema, version); err != nil {
		return err
	}
	return s.readBlocks(footer, int64(end))
}

// readBlocks finds the record batches, all of which end before the footer.
func (s *File) readBlocks(footer table, end int64) error {
	blocks := footer.vector(10, 24) // of offset, length of metadata, 4 bytes of nothing, length of body
	s.blocks = make([]block, 0, len(blocks)/24)
	for i := 0; len(blocks) > 0; i, blocks = i+1, blocks[24:] {
		offset, meta, body := int64(binary.LittleEndian.Uint64(blocks)), int64(int32(binary.LittleEndian.Uint32(blocks[8:]))), int64(binary.LittleEndian.Uint64(blocks[16:]))
		if offset < 8 || meta < 8 || body < 0 || offset > end || meta > end-offset || body > end-offset-meta {
			return fmt.Errorf("malformed footer: record batch %d is said to lie at byte %d with %d bytes of metadata and %d of data, in a file of %d", i, offset, meta, body, len(s.Data))
		}
		s.blocks = append(s.blocks, block{int(offset), int(meta), int(body)})
	}
	return nil
}

// field is a column of the file.
type field struct {
	name   string
	column Column // where err is nil
	err    error  // why it cannot be read
}

// Column is a column that is read, and where a record batch describes it.
type Column struct {
	Field batch.Field

	first extent // of the columns before it
	lists []int  // sizes of the fixed-size lists around the values
}

// readSchema reads the columns. Offsets in a flatbuffer may lead anywhere, back
// to a table above it, too, so what is read is bounded by what a footer of its
// size has room for.
func (s *File) readSchema(schema table, version int16) error {
	if big := schema.int16(4) != 0; big != (binary.NativeEndian.Uint16([]byte{0, 1}) == 1) {
		return fmt.Errorf("%w: the byte order of its numbers is not this machine's", ErrUnsupported)
	}
	n, fieldAt := schema.tables(6)
	count := counter{left: len(schema.Bytes) / 4, version: version}
	names := len(schema.Bytes)
	for i := range n {
		f := fieldAt(i)
		name := f.bytes(nameOf)
		if names -= len(name); names < 0 {
			return errors.New("malformed schema: names that lie in one another")
		}
		c := field{name: string(name)}
		c.column, c.err = columnOf(c.name, f)
		if c.err == nil {
			c.err = s.uncounted
		}
		c.column.first = count.extent
		s.fields = append(s.fields, c)
		if err := count.add(f, 0); errors.Is(err, ErrUnsupported) && s.uncounted == nil {
			s.uncounted = fmt.Errorf("it lies behind column %q, %w", c.name, err)
		} else if err != nil && s.uncounted == nil {
			return fmt.Errorf("malformed schema: column %q: %w", c.name, err)
		}
	}
	s.all = count.extent
	return nil
}

// Choose finds columns by name; nil means all.
func (s *File) Choose(names []string) ([]Column, error) {
	byName, twice := map[string]field{}, map[string]bool{}
	var have []string
	for _, f := range s.fields {
		_, twice[f.name] = byName[f.name]
		byName[f.name] = f
		have = append(have, f.name)
	}
	if names == nil {
		names = have
	}
	if len(names) == 0 {
		return nil, s.Err(errors.New("there is no column to read"))
	}
	var chosen []Column
	taken := map[string]bool{}
	for _, name := range names {
		f, ok := byName[name]
		switch {
		case !ok && len(have) > 20:
			return nil, s.Err(fmt.Errorf("it has no column %q, but %q and %d more", name, have[:20], len(have)-20))
		case !ok:
			return nil, s.Err(fmt.Errorf("it has no column %q, but %q", name, have))
		case twice[name]:
			return nil, s.Err(fmt.Errorf("column %q: %w: two columns have that name", name, ErrUnsupported))
		case taken[name]:
			return nil, fmt.Errorf("arrowipc: column %q is chosen twice", name)
		case f.err != nil:
			return nil, s.Err(fmt.Errorf("column %q: %w", name, f.err))
		}
		taken[name] = true
		chosen = append(chosen, f.column)
	}
	return chosen, nil
}

// columnOf is a field as a column of a batch, but for its place.
func columnOf(name string, f table) (c Column, err error) {
	for f.byte(kindOf) == fixedSizeList && !f.has(dictionary) {
		size := f.table(typeOf).int32(4)
		n, child := f.tables(children)
		switch {
		case n != 1 || size < 0:
			return c, fmt.Errorf("malformed: lists of %d values, of %d types", size, n)
		case size == 0:
			return c, fmt.Errorf("its type is %w: lists without values", ErrUnsupported)
		case len(c.lists) == maxDepth:
			return c, fmt.Errorf("its type is %w: lists in lists, %d deep", ErrUnsupported, maxDepth)
		}
		c.lists = append(c.lists, int(size))
		f = child(0)
	}
	typ, of := numberOf(f)
	if typ == 0 {
		if c.lists != nil {
			of = fmt.Sprintf("fixed_size_list%v of %s", c.lists, of)
		}
		return c, fmt.Errorf("type %s is %w: columns are numbers (int8 … uint64, float16 … float64), or fixed-size lists (of lists) of numbers", of, ErrUnsupported)
	}
	c.Field = batch.Field{Name: name, Type: typ, Shape: c.lists}
	_, err = batch.NewLayout([]batch.Field{c.Field}, 1)
	return c, err
}

// numberOf is a field's type, and its name; 0 where it is none of numbers.
func numberOf(f table) (batch.Type, string) {
	kind := f.byte(kindOf)
	switch {
	case f.has(dictionary):
		return 0, "dictionary"
	case kind == integer:
		bits, signed := f.table(typeOf).int32(4), f.table(typeOf).byte(6) != 0
		name := fmt.Sprintf("int%d", bits)
		if !signed {
			name = "u" + name
		}
		var typ batch.Type
		if typ.UnmarshalText([]byte(name)) != nil {
			return 0, name
		}
		return typ, name
	case kind == floating:
		if p := f.table(typeOf).int16(4); p >= 0 && p <= 2 {
			typ := batch.Float16 + batch.Type(p)
			return typ, typ.String()
		}
	case int(kind) < len(kinds) && kind > 0:
		return 0, kinds[kind].name
	}
	return 0, fmt.Sprintf("number %d", kind)
}

// The slots of a Field of Schema.fbs.
const (
	nameOf     = 4
	kindOf     = 8
	typeOf     = 10
	dictionary = 12
	children   = 14
)

// The types of which more must be known than how many buffers they have, as
// Schema.fbs of Arrow counts them.
const (
	integer       = 2
	floating      = 3
	union         = 14
	fixedSizeList = 16
	binaryView    = 23
	utf8View      = 24
)

// kinds are all types with the number of buffers of one, those of its children
// left out: https://arrow.apache.org/docs/format/Columnar.html#buffer-listing-for-each-layout.
var kinds = [...]struct {
	name    string
	buffers int
}{
	1: {"null", 0}, integer: {"int", 2}, floating: {"float", 2}, 4: {"binary", 3}, 5: {"utf8", 3}, 6: {"bool", 2},
	7: {"decimal", 2}, 8: {"date", 2}, 9: {"time", 2}, 10: {"timestamp", 2}, 11: {"interval", 2}, 12: {"list", 2},
	13: {"struct", 1}, union: {"union", 1}, 15: {"fixed_size_binary", 2}, fixedSizeList: {"fixed_size_list", 1},
	17: {"map", 2}, 18: {"duration", 2}, 19: {"large_binary", 3}, 20: {"large_utf8", 3}, 21: {"large_list", 2},
	22: {"run_end_encoded", 0}, binaryView: {"binary_view", 2}, utf8View: {"utf8_view", 2}, 25: {"list_view", 3},
	26: {"large_list_view", 3},
}

// extent is how much of a record batch describes columns: nodes and buffers,
// and for each of views as many buffers more as the record batch says.
type extent struct{ nodes, buffers, views int }

const maxDepth = 64 // of types in types; Arrow's writers stop there, too

// counter adds up what a record batch has for columns.
type counter struct {
	extent
	left    int // fields that may come yet
	version int16
}

// add adds a field. Its error is one of ErrUnsupported where Arrow is newer
// than this program.
func (c *counter) add(f table, depth int) error {
	if c.left--; c.left < 0 || depth > maxDepth {
		return errors.New("types within types without end")
	}
	kind := f.byte(kindOf)
	c.nodes++
	switch {
	case f.has(dictionary): // a column of indices; the values lie elsewhere
		c.buffers += 2
		return nil
	case kind == 0 || int(kind) >= len(kinds):
		return fmt.Errorf("whose type, number %d, is %w: it is not known how much room it takes", kind, ErrUnsupported)
	case kind == union:
		c.buffers += int(f.table(typeOf).int16(4)) & 1 // the offsets of a dense union
		if c.version < 4 {
			c.buffers++ // the validity of unions, until metadata version V5
		}
	case kind == binaryView || kind == utf8View:
		c.views++
	}
	c.buffers += kinds[kind].buffers
	n, child := f.tables(children)
	for i := range n {
		if err := c.add(child(i), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// Record is the values of the columns in record batch k, in the mapping, and
// the number of its rows.
func (s *File) Record(k int, columns []Column) (values [][]byte, rows int, err error) {
	err = Guard(func() error {
		r, err := s.record(s.blocks[k])
		if err != nil {
			return err
		}
		for _, c := range columns {
			v, err := c.values(r)
			if err != nil {
				return fmt.Errorf("column %q: %w", c.Field.Name, err)
			}
			values = append(values, v)
		}
		rows = int(r.rows)
		return nil
	})
	if err != nil {
		return nil, 0, s.At(k, err)
	}
	return values, rows, nil
}

// record is what a record batch says of itself.
type record struct {
	rows     int64
	nodes    []byte // a length and a number of nulls for each
	buffers  []byte // an offset in body and a length for each
	variadic []byte // for each view, how many buffers it has beside its two
	body     []byte
}

func (s *File) record(b block) (r record, err error) {
	meta, err := metadata(s.Data[b.offset : b.offset+b.meta])
	if err != nil {
		return r, err
	}
	m := rootOf(meta)
	if h := m.byte(6); h != headerRecordBatch || !m.has(8) {
		return r, fmt.Errorf("malformed: the footer leads to a message of kind %d", h)
	}
	if n := m.int64(10); n != int64(b.body) {
		return r, fmt.Errorf("malformed: a body of %d bytes, %d by the footer", n, b.body)
	}
	r.body = s.Data[b.offset+b.meta : b.offset+b.meta+b.body]
	header := m.table(8)
	if compression := header.has(10); compression {
		return r, fmt.Errorf("%w: its buffers are compressed: write them uncompressed", ErrUnsupported)
	}
	r.rows = header.int64(4)
	if r.rows < 0 || r.rows > math.MaxInt {
		return r, fmt.Errorf("malformed: %d rows", r.rows)
	}
	r.nodes, r.buffers, r.variadic = header.vector(6, 16), header.vector(8, 16), header.vector(12, 8)
	// Buffers in another number lie elsewhere than is thought.
	buffers, err := r.skip(s.all)
	if err == nil && s.uncounted == nil && (len(r.nodes)/16 != s.all.nodes || len(r.buffers)/16 != buffers) {
		err = fmt.Errorf("malformed: %d nodes and %d buffers where the columns have %d and %d", len(r.nodes)/16, len(r.buffers)/16, s.all.nodes, buffers)
	}
	return r, err
}

// skip is how many buffers columns have in this record batch.
func (r record) skip(columns extent) (buffers int, err error) {
	if columns.views > len(r.variadic)/8 {
		return 0, fmt.Errorf("malformed: it says of %d views how many buffers they have, there are %d", len(r.variadic)/8, columns.views)
	}
	buffers = columns.buffers
	for i := range columns.views {
		n := binary.LittleEndian.Uint64(r.variadic[8*i:])
		if n > uint64(len(r.buffers)) {
			return 0, fmt.Errorf("malformed: a view of %d buffers", n)
		}
		buffers += int(n)
	}
	return buffers, nil
}

// values finds a column's bytes in the body of a record batch: behind a node
// and a bitmap for the column and each level of lists, a buffer of values.
func (c Column) values(r record) ([]byte, error) {
	want := r.rows
	for level := range len(c.lists) + 1 {
		at := 16 * (c.first.nodes + level)
		if at+16 > len(r.nodes) {
			return nil, errors.New("malformed: the record batch does not describe it")
		}
		length, nulls := int64(binary.LittleEndian.Uint64(r.nodes[at:])), int64(binary.LittleEndian.Uint64(r.nodes[at+8:]))
		switch {
		case length != want || nulls < 0:
			return nil, fmt.Errorf("malformed: %d values, %d of them nulls, where there must be %d", length, nulls, want)
		case nulls > 0:
			return nil, fmt.Errorf("%w: it has %d nulls: fill them in", ErrUnsupported, nulls)
		case level == len(c.lists):
		case want > math.MaxInt64/int64(c.lists[level]):
			return nil, fmt.Errorf("malformed: %d lists of %d values", want, c.lists[level])
		default:
			want *= int64(c.lists[level])
		}
	}
	first, err := r.skip(c.first)
	if err != nil {
		return nil, err
	}
	at := 16 * (first + len(c.lists) + 1)
	if at+16 > len(r.buffers) {
		return nil, errors.New("malformed: the record batch has no buffer for it")
	}
	offset, length := int64(binary.LittleEndian.Uint64(r.buffers[at:])), int64(binary.LittleEndian.Uint64(r.buffers[at+8:]))
	if offset < 0 || length < 0 || offset > int64(len(r.body)) || length > int64(len(r.body))-offset {
		return nil, fmt.Errorf("malformed: its values are said to lie at byte %d of %d, %d bytes long", offset, len(r.body), length)
	}
	size := int64(c.Field.Type.Size())
	if want > length/size {
		return nil, fmt.Errorf("malformed: %d bytes for %d values of %d bytes", length, want, size)
	}
	return r.body[offset : offset+want*size : offset+want*size], nil
}

// headerRecordBatch is the kind of a message, as in Arrow's Message.fbs.
const headerRecordBatch = 3

// metadata is the flatbuffer of the message that b begins with, behind a marker
// and its length, or before Arrow 0.15 the length alone.
func metadata(b []byte) ([]byte, error) {
	prefix := 4
	if binary.LittleEndian.Uint32(b) == math.MaxUint32 {
		prefix = 8
	}
	n := int(int32(binary.LittleEndian.Uint32(b[prefix-4:])))
	if n < 8 || n > len(b)-prefix {
		return nil, fmt.Errorf("malformed: a message of %d bytes of metadata where there are %d", n, len(b)-prefix)
	}
	return b[prefix : prefix+n], nil
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

func (t table) int16(slot flatbuffers.VOffsetT) int16 { return t.GetInt16Slot(slot, 0) }

func (t table) int32(slot flatbuffers.VOffsetT) int32 { return t.GetInt32Slot(slot, 0) }

func (t table) int64(slot flatbuffers.VOffsetT) int64 { return t.GetInt64Slot(slot, 0) }

// bytes is a string.
func (t table) bytes(slot flatbuffers.VOffsetT) []byte {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	return t.ByteVector(o + t.Pos)
}

// table is another table, that of a union included. Where there is none it is
// an empty one.
func (t table) table(slot flatbuffers.VOffsetT) table {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return table{flatbuffers.Table{Bytes: []byte{4, 0, 0, 0, 4, 0, 0, 0}, Pos: 4}}
	}
	return table{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(o + t.Pos)}}
}

// vector is the bytes of a vector of elements of a size, none where there is no
// vector.
func (t table) vector(slot flatbuffers.VOffsetT, size int) []byte {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	start, n := int64(t.Vector(o)), int64(t.VectorLen(o))
	if n > (int64(len(t.Bytes))-start)/int64(size) {
		panic(fmt.Sprintf("a vector of %d elements in %d bytes of metadata", n, len(t.Bytes)))
	}
	return t.Bytes[start : start+n*int64(size)]
}

// tables is the number of tables in a vector, and each of them. They are not
// made into a slice: hostile vectors overlap, and each has as many as it likes.
func (t table) tables(slot flatbuffers.VOffsetT) (n int, at func(i int) table) {
	const size = flatbuffers.SizeUOffsetT
	n = len(t.vector(slot, size)) / size
	if n == 0 {
		return 0, nil
	}
	first := t.Vector(flatbuffers.UOffsetT(t.Offset(slot)))
	return n, func(i int) table {
		return table{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(first + flatbuffers.UOffsetT(i*size))}}
	}
}
