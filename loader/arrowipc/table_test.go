package arrowipc_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// table is what a test writes: random bytes for each column.
type table struct {
	fields  []batch.Field
	rows    int
	columns [][]byte
}

func newTable(rows int, fields ...batch.Field) table {
	t := table{fields: fields, rows: rows}
	random := rand.NewChaCha8([32]byte{byte(rows)})
	for _, f := range fields {
		column := make([]byte, rows*f.RowBytes())
		random.Read(column)
		t.columns = append(t.columns, column)
	}
	return t
}

// small is a table of an image and a label.
func small(rows int) table {
	return newTable(rows, batch.Field{Name: "image", Type: batch.Uint8, Shape: []int{3, 5}}, batch.Field{Name: "label", Type: batch.Int32})
}

// row is the bytes of a row of a column.
func (t table) row(column, row int) []byte {
	n := t.fields[column].RowBytes()
	return t.columns[column][row*n : (row+1)*n]
}

// write makes shards of the table, and returns their directory.
func (t table) write(tb testing.TB, rowsPerShard, rowsPerBatch int) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "shards")
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: t.fields, RowsPerShard: rowsPerShard, RowsPerBatch: rowsPerBatch})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Abort()
	if err := w.Write(t.rows, t.columns...); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return dir
}

func open(tb testing.TB, path string, opts arrowipc.Options) *arrowipc.Set {
	tb.Helper()
	s, err := arrowipc.Open(path, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// compare takes a step and compares each row with the table's.
func compare(tb testing.TB, s *arrowipc.Set, want table, samples ...int) {
	tb.Helper()
	step := batch.Step{Epoch: 3, Index: 4, Samples: samples}
	b, err := s.Take(tb.Context(), step)
	if err != nil {
		tb.Fatalf("%v: %v", samples, err)
	}
	defer b.Release()
	if b.Epoch != 3 || b.Index != 4 || !slices.Equal(b.Samples, samples) || b.Layout.Rows() != len(samples) {
		tb.Errorf("%+v of %d rows for %+v", b.Step, b.Layout.Rows(), step)
	}
	for _, field := range s.Fields() {
		c := slices.IndexFunc(want.fields, func(f batch.Field) bool { return f.Equal(field) })
		got := b.Column(field.Name).Data
		for k, sample := range samples {
			n := field.RowBytes()
			if !bytes.Equal(got[k*n:(k+1)*n], want.row(c, sample)) {
				tb.Fatalf("column %v, sample %d of %v: % x, want % x", field, sample, samples, got[k*n:(k+1)*n], want.row(c, sample))
			}
		}
	}
}

// readArrow reads shards with Arrow's own reader.
func readArrow(tb testing.TB, dir string, fields []batch.Field) (t table, batches []int) {
	tb.Helper()
	t = newTable(0, fields...)
	names, err := filepath.Glob(filepath.Join(dir, "*.arrow"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		r, err := ipc.NewFileReader(f)
		if err != nil {
			tb.Fatal(err)
		}
		defer r.Close()
		for k := range r.NumRecords() {
			record, err := r.RecordAt(k)
			if err != nil {
				tb.Fatal(err)
			}
			for i, f := range fields {
				if got, want := record.Schema().Field(i), typeString(f); got.Name != f.Name || got.Type.String() != want {
					tb.Fatalf("column %d is %v, want %s %s", i, got, f.Name, want)
				}
				t.columns[i] = append(t.columns[i], values(record.Column(i))...)
			}
			t.rows += int(record.NumRows())
			batches = append(batches, int(record.NumRows()))
			record.Release()
		}
	}
	return t, batches
}

// typeString is a field's type as Arrow writes it.
func typeString(f batch.Field) string {
	s := f.Type.String()
	for _, d := range slices.Backward(f.Shape) {
		s = fmt.Sprintf("fixed_size_list<item: %s, nullable>[%d]", s, d)
	}
	return s
}

func values(a arrow.Array) []byte {
	if list, ok := a.(*array.FixedSizeList); ok {
		return values(list.ListValues())
	}
	n := a.Len() * a.DataType().(arrow.FixedWidthDataType).Bytes()
	return a.Data().Buffers()[1].Bytes()[:n]
}
