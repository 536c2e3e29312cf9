package batch

import (
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Align is the alignment of every column in a slab, in bytes: a cache line,
// and what Arrow and SIMD loads like.
const Align = 64

// Type is the type of a column's values.
type Type uint8

// The types of values. Bytes in a slab are in the machine's order.
const (
	Int8 Type = iota + 1
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float16
	Float32
	Float64
)

var types = [...]struct {
	name string
	size int
}{
	Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Uint8: {"uint8", 1}, Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8},
}

// Size is the number of bytes of a value, 0 for what is not a Type.
func (t Type) Size() int {
	if int(t) >= len(types) {
		return 0
	}
	return types[t].size
}

// String is the type's name as Go, Arrow and numpy have it: uint8, float32.
func (t Type) String() string {
	if t.Size() == 0 {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return types[t].name
}

// MarshalText writes the type's name.
func (t Type) MarshalText() ([]byte, error) {
	if t.Size() == 0 {
		return nil, fmt.Errorf("batch: %v is not a type", t)
	}
	return []byte(types[t].name), nil
}

// UnmarshalText reads a type's name.
func (t *Type) UnmarshalText(text []byte) error {
	for k := range types {
		if k > 0 && types[k].name == string(text) {
			*t = Type(k)
			return nil
		}
	}
	return fmt.Errorf("batch: %q is not a type of values", text)
}

// Field describes a column: its name, the type of its values and the shape of
// one row. No shape means one value a row.
type Field struct {
	Name  string `json:"name"`
	Type  Type   `json:"type"`
	Shape []int  `json:"shape,omitempty"`
}

// Values is the number of values of a row: the product of the shape.
func (f Field) Values() int {
	n := 1
	for _, d := range f.Shape {
		n *= d
	}
	return n
}

// RowBytes is the number of bytes of a row.
func (f Field) RowBytes() int { return f.Values() * f.Type.Size() }

// Equal says whether both describe the same column.
func (f Field) Equal(g Field) bool {
	return f.Name == g.Name && f.Type == g.Type && slices.Equal(f.Shape, g.Shape)
}

// String is the field as errors show it: image uint8[28 28].
func (f Field) String() string {
	if len(f.Shape) == 0 {
		return fmt.Sprintf("%s %v", f.Name, f.Type)
	}
	return fmt.Sprintf("%s %v%v", f.Name, f.Type, f.Shape)
}

func (f Field) validate() error {
	if f.Name == "" {
		return fmt.Errorf("batch: a column has no name")
	}
	size := f.Type.Size()
	if size == 0 {
		return fmt.Errorf("batch: column %s has no type", f.Name)
	}
	for _, d := range f.Shape {
		if d < 0 || d > 0 && size > math.MaxInt/d {
			return fmt.Errorf("batch: column %s: no memory holds a row of shape %v", f.Name, f.Shape)
		}
		size *= d
	}
	return nil
}

// Layout says where each column of a number of rows lies in a slab. A device
// copy of the slab has the same layout. The zero Layout has no column.
type Layout struct {
	fields  []Field
	offsets []int
	rows    int
	size    int
}

// NewLayout places the columns one after the other, each at a multiple of
// Align. It fails where a field is no column, a name comes twice, or the
// whole is larger than an int.
func NewLayout(fields []Field, rows int) (Layout, error) {
	l := Layout{fields: fields, offsets: make([]int, len(fields)), rows: rows}
	if rows < 0 {
		return Layout{}, fmt.Errorf("batch: a layout of %d rows", rows)
	}
	for i, f := range fields {
		if err := f.validate(); err != nil {
			return Layout{}, err
		}
		if slices.ContainsFunc(fields[:i], func(g Field) bool { return g.Name == f.Name }) {
			return Layout{}, fmt.Errorf("batch: two columns are named %s", f.Name)
		}
		l.offsets[i] = l.size
		if row := f.RowBytes(); row > 0 && rows > (math.MaxInt-l.size-Align)/row {
			return Layout{}, fmt.Errorf("batch: column %s: no memory holds %d rows of %d bytes", f.Name, rows, row)
		}
		l.size = (l.size + rows*f.RowBytes() + Align - 1) / Align * Align
	}
	return l, nil
}

// Fields are the columns in their order. The caller must not change them.
func (l Layout) Fields() []Field { return l.fields }

// Rows is the number of rows, padding included.
func (l Layout) Rows() int { return l.rows }

// Size is the number of bytes of a slab.
func (l Layout) Size() int { return l.size }

// At is column i of a slab. It aliases the slab.
func (l Layout) At(slab []byte, i int) Column {
	end := l.offsets[i] + l.rows*l.fields[i].RowBytes()
	return Column{Field: l.fields[i], Rows: l.rows, Data: slab[l.offsets[i]:end:end]}
}

// Column is the named column of a slab. It aliases the slab. It panics where
// there is no such column: whoever opened the data has named the columns.
func (l Layout) Column(slab []byte, name string) Column {
	for i, f := range l.fields {
		if f.Name == name {
			return l.At(slab, i)
		}
	}
	panic(fmt.Sprintf("batch: no column is named %q: there are %v", name, l.fields))
}

// Column is a column of a batch: Rows rows, one after the other in Data.
type Column struct {
	Field
	Rows int
	Data []byte // Rows*RowBytes() bytes of the slab; they live as long as it does
}

// Element is a type that View can show a column as. Float16 has none in Go:
// view it as uint16.
type Element interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// View is the values of a column, row by row, without a copy: it lives as
// long as the column's slab. It panics where the column's values are of
// another type or the data is not aligned for it.
func View[T Element](c Column) []T {
	var zero T
	want := TypeOf[T]()
	if c.Type != want && !(c.Type == Float16 && want == Uint16) {
		panic(fmt.Sprintf("batch: column %v viewed as %v", c.Field, want))
	}
	if len(c.Data) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(c.Data))
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		panic(fmt.Sprintf("batch: column %v lies at an address that is no multiple of %d", c.Field, unsafe.Alignof(zero)))
	}
	return unsafe.Slice((*T)(p), len(c.Data)/int(unsafe.Sizeof(zero)))
}

// TypeOf is the Type of T.
func TypeOf[T Element]() Type {
	var zero T
	switch any(zero).(type) {
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float32:
		return Float32
	}
	return Float64
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
