package batch_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
)

func TestLayout(t *testing.T) {
	for _, tt := range []struct {
		fields  []batch.Field
		rows    int
		offsets []int
		size    int
	}{
		{nil, 3, nil, 0},
		{[]batch.Field{{"x", batch.Uint8, nil}}, 0, []int{0}, 0},
		{[]batch.Field{{"x", batch.Uint8, nil}}, 1, []int{0}, 64},
		{[]batch.Field{{"x", batch.Uint8, nil}}, 64, []int{0}, 64},
		{[]batch.Field{{"x", batch.Uint8, nil}}, 65, []int{0}, 128},
		{[]batch.Field{{"image", batch.Uint8, []int{28, 28}}, {"label", batch.Int64, nil}}, 3, []int{0, 2368}, 2432},
		{[]batch.Field{{"a", batch.Float16, []int{3}}, {"b", batch.Float64, []int{2, 2}}, {"c", batch.Int32, nil}}, 5, []int{0, 64, 256}, 320},
		{[]batch.Field{{"none", batch.Float32, []int{4, 0}}, {"b", batch.Int8, nil}}, 2, []int{0, 0}, 64},
	} {
		l, err := batch.NewLayout(tt.fields, tt.rows)
		if err != nil {
			t.Errorf("%v: %v", tt.fields, err)
			continue
		}
		if l.Rows() != tt.rows || l.Size() != tt.size || !reflect.DeepEqual(l.Fields(), tt.fields) {
			t.Errorf("%v: %d rows, %d bytes, want %d, %d", l.Fields(), l.Rows(), l.Size(), tt.rows, tt.size)
		}
		slab := make([]byte, l.Size())
		for i, f := range tt.fields {
			c := l.At(slab, i)
			if !c.Equal(f) || c.Rows != tt.rows || len(c.Data) != tt.rows*f.RowBytes() || cap(c.Data) != len(c.Data) {
				t.Errorf("column %d of %v is %v with %d rows, %d bytes, room for %d", i, tt.fields, c.Field, c.Rows, len(c.Data), cap(c.Data))
			}
			if len(c.Data) > 0 && &c.Data[0] != &slab[tt.offsets[i]] {
				t.Errorf("column %v of %v does not lie at %d", c.Field, tt.fields, tt.offsets[i])
			}
			if named := l.Column(slab, f.Name); !reflect.DeepEqual(named, c) {
				t.Errorf("the column named %s is %v, want %v", f.Name, named, c)
			}
		}
	}
}

func TestLayoutErrors(t *testing.T) {
	for _, tt := range []struct {
		fields []batch.Field
		rows   int
		want   string
	}{
		{[]batch.Field{{"x", batch.Uint8, nil}}, -1, "batch: a layout of -1 rows"},
		{[]batch.Field{{"", batch.Uint8, nil}}, 1, "batch: a column has no name"},
		{[]batch.Field{{"x", 0, nil}}, 1, "batch: column x has no type"},
		{[]batch.Field{{"x", 99, nil}}, 1, "batch: column x has no type"},
		{[]batch.Field{{"x", batch.Uint8, []int{2, -1}}}, 1, "batch: column x: no memory holds a row of shape [2 -1]"},
		{[]batch.Field{{"x", batch.Int64, []int{math.MaxInt / 4}}}, 1, "batch: column x: no memory holds a row of shape"},
		{[]batch.Field{{"x", batch.Int8, []int{1 << 32, 1 << 32}}}, 1, "batch: column x: no memory holds a row of shape"},
		{[]batch.Field{{"x", batch.Int8, []int{1 << 32}}}, 1 << 32, "batch: column x: no memory holds 4294967296 rows of 4294967296 bytes"},
		{[]batch.Field{{"x", batch.Int8, nil}}, math.MaxInt, "batch: column x: no memory holds"},
		{[]batch.Field{{"x", batch.Int8, nil}, {"y", batch.Int8, nil}}, math.MaxInt/2 + 1, "batch: column y: no memory holds"},
		{[]batch.Field{{"x", batch.Int8, nil}, {"y", batch.Int8, nil}, {"x", batch.Int32, nil}}, 1, "batch: two columns are named x"},
	} {
		l, err := batch.NewLayout(tt.fields, tt.rows)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v, %d rows: error %v, want %q", tt.fields, tt.rows, err, tt.want)
		}
		if l.Size() != 0 || l.Rows() != 0 || l.Fields() != nil {
			t.Errorf("%v, %d rows: a layout beside the error", tt.fields, tt.rows)
		}
	}
}

// A layout that is no error has columns that lie in the slab, aligned and
// apart from each other.
func FuzzLayout(f *testing.F) {
	f.Add(3, uint8(batch.Uint8), 28, 28, uint8(batch.Int64), 1, 1)
	f.Add(math.MaxInt, uint8(batch.Int8), 1, 1, uint8(batch.Int8), 1, 1)
	f.Add(1<<31, uint8(batch.Float64), 1<<16, 1<<16, uint8(0), -1, 0)
	f.Fuzz(func(t *testing.T, rows int, type0 uint8, a, b int, type1 uint8, c, d int) {
		fields := []batch.Field{{"x", batch.Type(type0), []int{a, b}}, {"y", batch.Type(type1), []int{c, d}}}
		l, err := batch.NewLayout(fields, rows)
		if err != nil || l.Size() > 1<<20 {
			return
		}
		slab := make([]byte, l.Size())
		for i := range fields {
			for k := range l.At(slab, i).Data {
				l.At(slab, i).Data[k]++
			}
		}
		used := rows * (fields[0].RowBytes() + fields[1].RowBytes())
		if n := len(slab) - used; n < 0 || n >= 2*batch.Align || len(slab)%batch.Align != 0 {
			t.Errorf("%d bytes for columns of %d", len(slab), used)
		}
		if i := slices.IndexFunc(slab, func(b byte) bool { return b > 1 }); i >= 0 {
			t.Errorf("byte %d belongs to two columns", i)
		}
	})
}

func TestColumnPanics(t *testing.T) {
	l, err := batch.NewLayout([]batch.Field{{"image", batch.Uint8, []int{2, 2}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	panics(t, `batch: no column is named "label": there are [image uint8[2 2]]`, func() { l.Column(make([]byte, l.Size()), "label") })
}

func TestField(t *testing.T) {
	for _, tt := range []struct {
		batch.Field
		values, bytes int
		text, json    string
	}{
		{batch.Field{Name: "label", Type: batch.Int64}, 1, 8, "label int64", `{"name":"label","type":"int64"}`},
		{batch.Field{Name: "image", Type: batch.Uint8, Shape: []int{28, 28}}, 784, 784, "image uint8[28 28]", `{"name":"image","type":"uint8","shape":[28,28]}`},
		{batch.Field{Name: "w", Type: batch.Float16, Shape: []int{3, 0}}, 0, 0, "w float16[3 0]", `{"name":"w","type":"float16","shape":[3,0]}`},
	} {
		if tt.Values() != tt.values || tt.RowBytes() != tt.bytes || tt.String() != tt.text {
			t.Errorf("%v: %d values, %d bytes, want %s, %d, %d", tt.Field, tt.Values(), tt.RowBytes(), tt.text, tt.values, tt.bytes)
		}
		text, err := json.Marshal(tt.Field)
		if err != nil || string(text) != tt.json {
			t.Errorf("%v in JSON: %s, error %v", tt.Field, text, err)
		}
		var back batch.Field
		if err := json.Unmarshal(text, &back); err != nil || !back.Equal(tt.Field) {
			t.Errorf("%s read back: %v, error %v", text, back, err)
		}
	}
	f := batch.Field{Name: "x", Type: batch.Int8, Shape: []int{2}}
	for _, g := range []batch.Field{{"y", batch.Int8, []int{2}}, {"x", batch.Uint8, []int{2}}, {"x", batch.Int8, []int{3}}, {"x", batch.Int8, nil}} {
		if f.Equal(g) {
			t.Errorf("%v equals %v", f, g)
		}
	}
}

func TestType(t *testing.T) {
	names := "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
	sizes := []int{1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8}
	for i, name := range strings.Fields(names) {
		var typ batch.Type
		if err := typ.UnmarshalText([]byte(name)); err != nil {
			t.Error(err)
		}
		text, err := typ.MarshalText()
		if typ != batch.Type(i+1) || typ.Size() != sizes[i] || typ.String() != name || string(text) != name || err != nil {
			t.Errorf("%s is read as %v of %d bytes and written as %s, error %v", name, typ, typ.Size(), text, err)
		}
	}
	for _, bad := range []batch.Type{0, batch.Float64 + 1, 255} {
		if _, err := bad.MarshalText(); err == nil || bad.Size() != 0 {
			t.Errorf("%v has the size %d and is written without an error", bad, bad.Size())
		}
	}
	for _, bad := range []string{"", "int", "Int8", "bool"} {
		typ := batch.Int8
		if err := typ.UnmarshalText([]byte(bad)); err == nil || typ != batch.Int8 {
			t.Errorf("%q is read as %v, error %v", bad, typ, err)
		}
	}
}

func TestView(t *testing.T) {
	view[int8](t, batch.Int8, -1, 2)
	view[int16](t, batch.Int16, -300, 2)
	view[int32](t, batch.Int32, -1<<30, 2)
	view[int64](t, batch.Int64, -1<<60, 2)
	view[uint8](t, batch.Uint8, 255, 2)
	view[uint16](t, batch.Uint16, 65535, 2)
	view[uint16](t, batch.Float16, 0x3c00, 2)
	view[uint32](t, batch.Uint32, 1<<31, 2)
	view[uint64](t, batch.Uint64, 1<<63, 2)
	view[float32](t, batch.Float32, -1.5, 2)
	view[float64](t, batch.Float64, 1e300, 2)
}

// view writes values with encoding/binary and reads them through View.
func view[T batch.Element](t *testing.T, typ batch.Type, values ...T) {
	data := make([]byte, 64)
	n, err := binary.Encode(data, binary.NativeEndian, values)
	if err != nil {
		t.Fatal(err)
	}
	c := batch.Column{Field: batch.Field{Name: "x", Type: typ}, Rows: len(values), Data: data[:n]}
	got := batch.View[T](c)
	if !slices.Equal(got, values) || n != len(values)*typ.Size() {
		t.Errorf("%v: viewed as %v, want %v", typ, got, values)
	}
	if batch.TypeOf[T]() != typ && typ != batch.Float16 {
		t.Errorf("TypeOf is %v, want %v", batch.TypeOf[T](), typ)
	}
	got[0] = values[1] // no copy
	if n, err := binary.Encode(data[32:], binary.NativeEndian, values[1]); err != nil || !slices.Equal(data[:n], data[32:32+n]) {
		t.Errorf("%v: the view is a copy", typ)
	}
	c.Data = nil
	if got := batch.View[T](c); got != nil {
		t.Errorf("%v: no rows are viewed as %v", typ, got)
	}
	c.Data, c.Type = data[:n], 0
	panics(t, "batch: column x Type(0) viewed as "+batch.TypeOf[T]().String(), func() { batch.View[T](c) })
}

func TestViewPanics(t *testing.T) {
	data := make([]byte, 64)
	column := func(typ batch.Type, data []byte) batch.Column {
		return batch.Column{Field: batch.Field{Name: "x", Type: typ}, Data: data}
	}
	panics(t, "batch: column x uint8 viewed as float32", func() { batch.View[float32](column(batch.Uint8, data)) })
	panics(t, "batch: column x float16 viewed as int16", func() { batch.View[int16](column(batch.Float16, data)) })
	panics(t, "batch: column x uint16 viewed as uint8", func() { batch.View[uint8](column(batch.Uint16, data)) })
	odd := data[1:9] // of an array of 64 bytes, which the heap aligns
	panics(t, "batch: column x uint64 lies at an address that is no multiple of 8", func() { batch.View[uint64](column(batch.Uint64, odd)) })
	if got := batch.View[uint8](column(batch.Uint8, odd)); len(got) != 8 {
		t.Errorf("bytes at any address: %v", got)
	}
}
