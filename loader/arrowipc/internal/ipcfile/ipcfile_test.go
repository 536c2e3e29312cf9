package ipcfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/shardfeed/shardfeed/batch"
)

func open(t testing.TB, name string) *File {
	t.Helper()
	f, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The counts of nodes and buffers that all columns have are what files by
// Arrow's writers of several years and languages have: Record compares them.
func TestCounts(t *testing.T) {
	names, err := filepath.Glob("../../testdata/valid/*.arrow")
	if err != nil || len(names) < 20 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		file, err := Open(name)
		if strings.Contains(name, "bigendian") {
			if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "byte order") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		for k := range file.Batches() {
			_, _, err := file.Record(k, nil)
			if compressed := strings.Contains(name, "lz4") || strings.Contains(name, "zstd"); compressed != errors.Is(err, ErrUnsupported) || !compressed && err != nil {
				t.Error(err)
			}
		}
		file.Close()
	}
}

// Each column alone has the values that Arrow's reader finds, or is refused
// with its name and a reason: for its type, for nulls, for its name.
func TestColumns(t *testing.T) {
	read, nulls := 0, 0
	for _, name := range []string{
		"1.0.0-primitive", "1.0.0-primitive_zerolength", "1.0.0-primitive_no_batches", "1.0.0-nested", "1.0.0-union",
		"1.0.0-dictionary", "1.0.0-nested_dictionary", "1.0.0-extension", "1.0.0-map", "1.0.0-null", "1.0.0-interval",
		"1.0.0-datetime", "1.0.0-custom_metadata", "1.0.0-duplicate_fieldnames", "4.0.0-shared_dict",
		"cpp-21.0.0-primitive", "cpp-21.0.0-nested", "cpp-21.0.0-run_end_encoded", "cpp-21.0.0-large_binary",
	} {
		name = "../../testdata/valid/" + name + ".arrow"
		ours := open(t, name)
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		arrows, err := ipc.NewFileReader(f)
		if err != nil {
			t.Fatal(name, err)
		}
		if n := arrows.NumRecords(); n != ours.Batches() {
			t.Fatalf("%s: %d record batches, want %d", name, ours.Batches(), n)
		}
		for i, field := range arrows.Schema().Fields() {
			columns, err := ours.Choose([]string{field.Name})
			number := numbers[leafOf(field.Type).ID()]
			if (number != 0) == errors.Is(err, ErrUnsupported) && len(arrows.Schema().FieldIndices(field.Name)) == 1 {
				t.Errorf("%s: %v: %v", name, field, err)
			}
			if err != nil {
				if !strings.Contains(err.Error(), fmt.Sprintf("column %q", field.Name)) || !strings.Contains(err.Error(), name) {
					t.Errorf("%v: names not file and column", err)
				}
				continue
			}
			if columns[0].Field.Name != field.Name || columns[0].Field.Type != number {
				t.Errorf("%s: %v read as %v", name, field, columns[0].Field)
			}
			for k := range ours.Batches() {
				record, err := arrows.RecordAt(k)
				if err != nil {
					t.Fatal(err)
				}
				values, rows, err := ours.Record(k, columns)
				column := record.Column(i)
				switch {
				case nullsOf(column) > 0:
					nulls++
					if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "nulls") {
						t.Errorf("%s: %v with %d nulls: %v", name, field, nullsOf(column), err)
					}
				case err != nil:
					t.Error(err)
				case rows != column.Len() || !bytes.Equal(values[0], valuesOf(column)):
					t.Errorf("%s: record batch %d: %v: %d rows % x, want %d % x", name, k, field, rows, values[0], column.Len(), valuesOf(column))
				default:
					read++
				}
			}
		}
	}
	if read < 20 || nulls < 5 {
		t.Errorf("%d columns read, %d with nulls: too few to say anything", read, nulls)
	}
}

func leafOf(typ arrow.DataType) arrow.DataType {
	if list, ok := typ.(*arrow.FixedSizeListType); ok {
		return leafOf(list.Elem())
	}
	return typ
}

func nullsOf(a arrow.Array) int {
	if list, ok := a.(*array.FixedSizeList); ok {
		return list.NullN() + nullsOf(list.ListValues())
	}
	return a.NullN()
}

// valuesOf is the bytes of an array of numbers, or of lists of them.
func valuesOf(a arrow.Array) []byte {
	if list, ok := a.(*array.FixedSizeList); ok {
		return valuesOf(list.ListValues())
	}
	size := a.DataType().(arrow.FixedWidthDataType).Bytes()
	if a.Len() == 0 {
		return []byte{}
	}
	return a.Data().Buffers()[1].Bytes()[a.Data().Offset()*size:][:a.Len()*size]
}

var numbers = map[arrow.Type]batch.Type{
	arrow.INT8: batch.Int8, arrow.INT16: batch.Int16, arrow.INT32: batch.Int32, arrow.INT64: batch.Int64,
	arrow.UINT8: batch.Uint8, arrow.UINT16: batch.Uint16, arrow.UINT32: batch.Uint32, arrow.UINT64: batch.Uint64,
	arrow.FLOAT16: batch.Float16, arrow.FLOAT32: batch.Float32, arrow.FLOAT64: batch.Float64,
}

// A column is found behind one of any type, as Arrow's writer lays it out.
func TestBehind(t *testing.T) {
	i32, str := arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String
	fields := []arrow.Field{{Name: "a", Type: i32, Nullable: true}, {Name: "b", Type: str, Nullable: true}}
	for _, typ := range []arrow.DataType{
		arrow.Null, arrow.FixedWidthTypes.Boolean, str, arrow.BinaryTypes.LargeBinary, &arrow.FixedSizeBinaryType{ByteWidth: 5},
		&arrow.Decimal128Type{Precision: 5, Scale: 1}, &arrow.Decimal256Type{Precision: 5, Scale: 1},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Timestamp_s, arrow.FixedWidthTypes.Duration_s,
		arrow.FixedWidthTypes.MonthInterval, arrow.FixedWidthTypes.MonthDayNanoInterval,
		arrow.ListOf(str), arrow.LargeListOf(i32), arrow.FixedSizeListOf(3, str), arrow.MapOf(str, i32), arrow.ListOf(arrow.ListOf(i32)),
		arrow.StructOf(fields...), arrow.StructOf(), arrow.StructOf(arrow.Field{Name: "s", Type: arrow.StructOf(fields...), Nullable: true}),
		arrow.SparseUnionOf(fields, []arrow.UnionTypeCode{0, 1}), arrow.DenseUnionOf(fields, []arrow.UnionTypeCode{0, 1}),
		&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: str},
		arrow.RunEndEncodedOf(i32, str),
	} {
		t.Run(typ.String(), func(t *testing.T) {
			schema := arrow.NewSchema([]arrow.Field{{Name: "before", Type: typ, Nullable: true}, {Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil)
			var file bytes.Buffer
			w, err := ipc.NewFileWriter(&seeker{Buffer: &file}, ipc.WithSchema(schema))
			if err != nil {
				t.Fatal(err)
			}
			for k := range 2 {
				b := array.NewRecordBuilder(memory.NewGoAllocator(), schema)
				for i := range 3 {
					b.Field(0).AppendEmptyValue()
					b.Field(1).(*array.Int64Builder).Append(int64(10*k + i))
				}
				if err := w.Write(b.NewRecord()); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			f := open(t, write(t, file.Bytes()))
			columns, err := f.Choose([]string{"x"})
			if err != nil {
				t.Fatal(err)
			}
			for k := range 2 {
				values, rows, err := f.Record(k, columns)
				if err != nil || rows != 3 || !bytes.Equal(values[0], int64s(int64(10*k), int64(10*k+1), int64(10*k+2))) {
					t.Errorf("record batch %d: %d rows %v, %v", k, rows, values, err)
				}
			}
			if _, err := f.Choose([]string{"before"}); !errors.Is(err, ErrUnsupported) {
				t.Errorf("a column of type %v: %v", typ, err)
			}
		})
	}
}

// seeker is a buffer that says where it ends.
type seeker struct{ *bytes.Buffer }

func (s *seeker) Seek(int64, int) (int64, error) { return int64(s.Len()), nil }

func int64s(values ...int64) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// sample is a file with one column x of int64 with the rows 7 and 8.
func sample() forged {
	return forged{
		version: 4,
		fields:  []fieldOf{intOf("x", 64, true)},
		rows:    2, nodes: [][2]int64{{2, 0}}, buffers: [][2]int64{{0, 0}, {8, 16}},
		body: int64s(1, 7, 8, 9),
	}
}

// What only old or new writers write.
func TestForged(t *testing.T) {
	unionV4 := sample()
	unionV4.version = 3 // its unions have a bitmap: validity, types, offsets
	unionV4.fields = []fieldOf{{name: "u", kind: union, typ: func(b *flatbuffers.Builder) { b.PrependInt16Slot(0, 1, 0) }, children: []fieldOf{intOf("i", 8, true)}}, intOf("x", 64, true)}
	unionV4.nodes = [][2]int64{{2, 0}, {2, 0}, {2, 0}}
	unionV4.buffers = [][2]int64{{0, 0}, {0, 2}, {0, 8}, {0, 0}, {0, 2}, {0, 0}, {8, 16}}

	unionV5 := unionV4
	unionV5.version, unionV5.buffers = 4, unionV4.buffers[1:]

	views := sample() // two columns of views with 2 and 1 buffers
	views.fields = []fieldOf{{name: "v", kind: utf8View}, {name: "w", kind: binaryView}, intOf("x", 64, true)}
	views.nodes = [][2]int64{{2, 0}, {2, 0}, {2, 0}}
	views.buffers = [][2]int64{{0, 0}, {0, 32}, {0, 1}, {0, 1}, {0, 0}, {0, 32}, {0, 1}, {0, 0}, {8, 16}}
	views.variadic = []int64{2, 1}

	dictionary := sample() // of structs, whose fields are in the dictionary
	dictionary.fields = []fieldOf{{name: "d", kind: 13, dict: true, children: []fieldOf{intOf("a", 8, true), intOf("b", 8, true)}}, intOf("x", 64, true)}
	dictionary.nodes = [][2]int64{{2, 1}, {2, 0}}
	dictionary.buffers = [][2]int64{{0, 1}, {0, 2}, {0, 0}, {8, 16}}

	newer := sample() // a type that is not known yet, behind x
	newer.fields = append(newer.fields, fieldOf{name: "new", kind: 99})
	newer.nodes = append(newer.nodes, [2]int64{2, 0})

	short := sample()
	short.short = true

	for name, f := range map[string]forged{
		"plain": sample(), "union in metadata V4": unionV4, "union in V5": unionV5, "views": views,
		"dictionary of structs": dictionary, "behind it a newer type": newer, "messages without a marker": short,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, write(t, f.bytes()))
			columns, err := f.Choose([]string{"x"})
			if err != nil {
				t.Fatal(err)
			}
			values, rows, err := f.Record(0, columns)
			if err != nil || rows != 2 || !bytes.Equal(values[0], int64s(7, 8)) {
				t.Errorf("%d rows %v, %v", rows, values, err)
			}
		})
	}
}

// What a file may not say, and what it may but is not read.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name        string
		change      func(f *forged)
		unsupported bool
		want        string
	}{
		{"big-endian", func(f *forged) { f.big = true }, true, "unsupported: the byte order"},
		{"compressed", func(f *forged) { f.compressed = true }, true, "record batch 0: unsupported: its buffers are compressed"},
		{"nulls", func(f *forged) { f.nodes[0][1] = 1 }, true, `record batch 0: column "x": unsupported: it has 1 nulls`},
		{"negative nulls", func(f *forged) { f.nodes[0][1] = -1 }, false, `column "x": malformed: 2 values, -1 of them nulls`},
		{"24 bits", func(f *forged) { f.fields[0] = intOf("x", 24, false) }, true, `column "x": type uint24 is unsupported: columns are numbers`},
		{"float of no precision", func(f *forged) {
			f.fields[0] = fieldOf{name: "x", kind: floating, typ: func(b *flatbuffers.Builder) { b.PrependInt16Slot(0, 3, 0) }}
		}, true, `column "x": type number 3 is unsupported`},
		{"lists of strings", func(f *forged) { f.fields[0] = listsOf(2, listsOf(3, fieldOf{name: "x", kind: 5})) }, true, `column "x": type fixed_size_list[2 3] of utf8 is unsupported`},
		{"lists of nothing", func(f *forged) { f.fields[0] = listsOf(0, intOf("x", 8, true)) }, true, `column "x": its type is unsupported: lists without values`},
		{"lists of less", func(f *forged) { f.fields[0] = listsOf(-1, intOf("x", 8, true)) }, false, `column "x": malformed: lists of -1 values`},
		{"lists without a type", func(f *forged) { f.fields[0].kind = fixedSizeList }, false, `column "x": malformed: lists of 64 values, of 0 types`},
		{"too large a row", func(f *forged) {
			x := intOf("x", 64, true)
			for range 4 {
				x = listsOf(math.MaxInt32, x)
			}
			f.fields[0] = x
		}, false, "no memory holds a row"},
		{"a newer type", func(f *forged) { f.fields[0] = fieldOf{name: "x", kind: 99} }, true, `column "x": type number 99 is unsupported`},
		{"behind a newer type", func(f *forged) { f.fields = []fieldOf{{name: "new", kind: 99}, intOf("x", 64, true)} }, true, `column "x": it lies behind column "new", whose type, number 99, is unsupported`},
		{"no type", func(f *forged) { f.fields[0].kind = 0 }, true, `column "x": type number 0 is unsupported`},
		{"two of a name", func(f *forged) { f.fields = append(f.fields, f.fields[0]) }, true, `column "x": unsupported: two columns have that name`},
		{"no such column", func(f *forged) { f.fields[0].name = "y" }, false, `it has no column "x", but ["y"]`},
		{"types too deep", func(f *forged) {
			x := intOf("x", 64, true)
			for range 70 {
				x = listsOf(1, x)
			}
			f.fields[0] = x
		}, false, "malformed schema: column \"x\": types within types without end"},
		{"fewer values", func(f *forged) { f.nodes[0][0] = 1 }, false, `malformed: 1 values, 0 of them nulls, where there must be 2`},
		{"more rows than bytes", func(f *forged) { f.rows, f.nodes[0][0] = 3, 3 }, false, "malformed: 16 bytes for 3 values of 8 bytes"},
		{"as many rows as there are numbers", func(f *forged) { f.rows, f.nodes[0][0] = math.MaxInt64, math.MaxInt64 }, false, "malformed: 16 bytes for 9223372036854775807 values"},
		{"more lists than there are numbers", func(f *forged) {
			f.fields[0] = listsOf(4, intOf("x", 64, true))
			f.rows, f.nodes = 1<<62, [][2]int64{{1 << 62, 0}, {0, 0}}
			f.buffers = append([][2]int64{{0, 0}}, f.buffers...)
		}, false, "malformed: 4611686018427387904 lists of 4 values"},
		{"a negative number of rows", func(f *forged) { f.rows = -1 }, false, "malformed: -1 rows"},
		{"values before the body", func(f *forged) { f.buffers[1][0] = -8 }, false, "malformed: its values are said to lie at byte -8"},
		{"values behind the body", func(f *forged) { f.buffers[1][0] = 24 }, false, "malformed: its values are said to lie at byte 24 of 32"},
		{"values of a negative length", func(f *forged) { f.buffers[1][1] = -1 }, false, "bytes long"},
		{"values to the end of all numbers", func(f *forged) { f.buffers[1] = [2]int64{8, math.MaxInt64} }, false, "bytes long"},
		{"no node", func(f *forged) { f.nodes = nil }, false, "malformed: 0 nodes and 2 buffers where the columns have 1 and 2"},
		{"a buffer more", func(f *forged) { f.buffers = append(f.buffers, [2]int64{0, 0}) }, false, "malformed: 1 nodes and 3 buffers where the columns have 1 and 2"},
		{"no node, behind it a newer type", func(f *forged) { f.nodes, f.fields = nil, append(f.fields, fieldOf{name: "new", kind: 99}) }, false, "the record batch does not describe it"},
		{"no buffer, behind it a newer type", func(f *forged) { f.buffers, f.fields = nil, append(f.fields, fieldOf{name: "new", kind: 99}) }, false, "the record batch has no buffer for it"},
		{"views without their numbers", func(f *forged) { f.fields = []fieldOf{{name: "v", kind: utf8View}, f.fields[0]} }, false, "it says of 0 views how many buffers they have, there are 1"},
		{"a view of many buffers", func(f *forged) {
			f.fields, f.variadic = []fieldOf{{name: "v", kind: utf8View}, f.fields[0]}, []int64{-1}
		}, false, "a view of 18446744073709551615 buffers"},
		{"another body", func(f *forged) { f.bodyLength = 40 }, false, "malformed: a body of 40 bytes, 32 by the footer"},
		{"a dictionary for a record batch", func(f *forged) { f.kind = 4 }, false, "malformed: the footer leads to a message of kind 4"},
		{"a batch before the file", func(f *forged) {
			f.block = func(_ int64, m int32, b int64) (int64, int32, int64) { return -8, m, b }
		}, false, "malformed footer: record batch 0 is said to lie at byte -8"},
		{"a batch behind the file", func(f *forged) {
			f.block = func(_ int64, m int32, b int64) (int64, int32, int64) { return math.MaxInt64, m, b }
		}, false, "malformed footer: record batch 0"},
		{"metadata of a negative length", func(f *forged) {
			f.block = func(o int64, _ int32, b int64) (int64, int32, int64) { return o, -8, b }
		}, false, "malformed footer: record batch 0"},
		{"metadata too short", func(f *forged) {
			f.block = func(o int64, _ int32, b int64) (int64, int32, int64) { return o, 16, b }
		}, false, "of metadata where there are 8"},
		{"a body beyond the footer", func(f *forged) {
			f.block = func(o int64, m int32, b int64) (int64, int32, int64) { return o, m, b + 1 }
		}, false, "malformed footer: record batch 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			forged := sample()
			tt.change(&forged)
			name := write(t, forged.bytes())
			err := func() error {
				f, err := Open(name)
				if err != nil {
					return err
				}
				defer f.Close()
				columns, err := f.Choose([]string{"x"})
				if err != nil {
					return err
				}
				_, _, err = f.Record(0, columns)
				return err
			}()
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrUnsupported) != tt.unsupported {
				t.Errorf("%v, want one with %q, unsupported %v", err, tt.want, tt.unsupported)
			}
			if err != nil && strings.Count(err.Error(), name) != 1 {
				t.Errorf("%v: names not its file once", err)
			}
		})
	}
}

func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	whole := sample().bytes()
	for name, content := range map[string][]byte{
		"is empty":   {},
		"is text":    []byte("an Arrow file of another kind, which is rather long"),
		"is magic":   []byte("ARROW1ARROW1"),
		"is cut":     whole[:len(whole)-8],
		"has no end": append(append([]byte{}, whole...), 0),
		"no footer":  seal([]byte("ARROW1\x00\x00"), nil),
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(file); err == nil || !strings.HasPrefix(err.Error(), "arrowipc: "+file+": ") {
			t.Errorf("a file that %s: %v", name, err)
		}
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Tables may lead anywhere in their flatbuffer, back to one that leads to them,
// too. Arrow's reader follows them until the stack ends, and with it the process.
func TestCycle(t *testing.T) {
	f := sample()
	f.fields = []fieldOf{listsOf(1, intOf("x", 64, true))}
	f.footer = func(footer []byte) {
		top := rootOf(footer).table(6)
		_, at := top.tables(6)
		list := at(0)
		slot := list.Vector(flatbuffers.UOffsetT(list.Offset(children)))
		binary.LittleEndian.PutUint32(footer[slot:], uint32(list.Pos)-uint32(slot))
	}
	if _, err := Open(write(t, f.bytes())); err == nil || !strings.Contains(err.Error(), "types within types without end") && !strings.Contains(err.Error(), "lists in lists") {
		t.Errorf("%v", err)
	}
}

// What is allocated stays near the size of the file, whatever it says.
func TestAllocated(t *testing.T) {
	b := flatbuffers.NewBuilder(0)
	name := b.CreateString(strings.Repeat("n", 50_000))
	b.StartObject(7)
	b.PrependUOffsetTSlot(0, name, 0)
	b.PrependByteSlot(2, 13, 0)
	field := b.EndObject()
	all := make([]flatbuffers.UOffsetT, 10_000)
	for i := range all {
		all[i] = field // of one name: 500 MB
	}
	many := vectorOf(b, all)
	b.StartObject(7)
	b.PrependByteSlot(2, 13, 0)
	b.PrependUOffsetTSlot(5, many, 0) // many children, which are the same
	wide := b.EndObject()
	for i := range all {
		all[i] = wide
	}
	wider := vectorOf(b, all)
	for name, fields := range map[string]flatbuffers.UOffsetT{"names": many, "children": wider} {
		b.StartObject(4)
		b.PrependUOffsetTSlot(1, fields, 0)
		schema := b.EndObject()
		b.StartObject(5)
		b.PrependUOffsetTSlot(1, schema, 0)
		b.Finish(b.EndObject())
		file := write(t, seal([]byte("ARROW1\x00\x00"), b.FinishedBytes()))
		if grown := allocated(func() {
			if f, err := Open(file); err == nil {
				f.Close()
				t.Errorf("%s: no error", name)
			}
		}); grown > 10<<20 {
			t.Errorf("%s: %d bytes allocated", name, grown)
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Every bit of a small file, the other way: an error or values from within the
// file, no panic.
func TestBitFlips(t *testing.T) {
	f := sample()
	f.fields = []fieldOf{{name: "s", kind: 5}, listsOf(2, intOf("x", 32, true)), {name: "v", kind: utf8View}}
	f.nodes = [][2]int64{{2, 0}, {2, 0}, {4, 0}, {2, 0}}
	f.buffers = [][2]int64{{0, 0}, {0, 12}, {12, 4}, {0, 0}, {0, 0}, {8, 16}, {0, 0}, {0, 32}, {0, 1}}
	f.variadic = []int64{1}
	content := f.bytes()
	good := 0
	for bit := range 8 * len(content) {
		content[bit/8] ^= 1 << (bit % 8)
		if tryAll(content, "x") == nil {
			good++
		}
		content[bit/8] ^= 1 << (bit % 8)
	}
	if good == 0 || good == 8*len(content) {
		t.Errorf("%d of %d changed files are good", good, 8*len(content))
	}
}

// Every truncation of a file fails.
func TestTruncated(t *testing.T) {
	content := sample().bytes()
	if err := tryAll(content, "x"); err != nil {
		t.Fatal(err)
	}
	for n := range content {
		if tryAll(content[:n:n], "x") == nil {
			t.Errorf("the first %d of %d bytes are a file", n, len(content))
		}
	}
}

// tryAll reads bytes as a file, without one.
func tryAll(content []byte, column string) error {
	f := &File{Data: content}
	if err := Guard(f.parse); err != nil {
		return err
	}
	columns, err := f.Choose([]string{column})
	if err != nil {
		return err
	}
	for k := range f.Batches() {
		if _, _, err := f.Record(k, columns); err != nil {
			return err
		}
	}
	return nil
}

// A file that shrinks under its mapping is an error of whoever reads it.
func TestShrinks(t *testing.T) {
	content := sample()
	content.body = append(content.body, make([]byte, 1<<20)...)
	name := write(t, content.bytes())
	f := open(t, name)
	columns, err := f.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Touch(); err != nil || !f.Whole() {
		t.Error(err)
	}
	want := "arrowipc: " + name + ": truncated while it was read"
	for _, size := range []int64{int64(len(f.Data)) - 1, 1 << 19, 4096, 0} {
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		if err := f.Touch(); err == nil || err.Error() != want {
			t.Errorf("cut to %d bytes: %v", size, err)
		}
	}
	if _, _, err := f.Record(0, columns); err == nil || !strings.HasSuffix(err.Error(), "record batch 0: truncated while it was read") {
		t.Error(err)
	}
}

// Guard lets through what is neither a panic nor a fault.
func TestGuard(t *testing.T) {
	cause := errors.New("cause")
	if err := Guard(func() error { return cause }); err != cause {
		t.Error(err)
	}
	if err := Guard(func() error { panic("boom") }); err == nil || err.Error() != "malformed: boom" {
		t.Error(err)
	}
}

// Any bytes, all columns that can be read: an error, or values within them.
func FuzzRead(f *testing.F) {
	f.Add(sample().bytes())
	for _, pattern := range []string{"../../testdata/valid/*", "../../testdata/malformed/*-file-*"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			f.Fatal(pattern, err)
		}
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			copy(content, magic+"\x00\x00")
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file := &File{Data: content}
		if Guard(file.parse) != nil {
			return
		}
		var columns []Column
		for _, field := range file.fields {
			if field.err == nil {
				columns = append(columns, field.column)
			}
		}
		for k := range file.Batches() {
			values, rows, err := file.Record(k, columns)
			for i, c := range columns {
				if err == nil && len(values[i])/c.Field.RowBytes() != rows {
					t.Errorf("%d rows of %v in %d bytes", rows, c.Field, len(values[i]))
				}
			}
		}
	})
}
