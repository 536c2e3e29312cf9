package idx

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is an IDX file of the type and the dimensions.
func file(typ byte, values []byte, dims ...uint32) []byte {
	b := []byte{0, 0, typ, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, d)
	}
	return append(b, values...)
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.Bytes()
}

func count(n int) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte(k)
	}
	return b
}

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// rows reads all rows through a buffer of the given number of rows.
func rows(r *Reader, buffer int) (all []byte, err error) {
	buf := make([]byte, buffer*r.RowBytes())
	for {
		n, err := r.Read(buf)
		all = append(all, buf[:n*r.RowBytes()]...)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

func TestRead(t *testing.T) {
	images := file(8, count(7*6), 7, 2, 3)
	for _, c := range []struct {
		name  string
		bytes []byte
		rows  int
		shape []int
	}{
		{"images", images, 7, []int{2, 3}},
		{"images.gz", zipped(images), 7, []int{2, 3}},
		{"in two members.gz", append(zipped(images[:20]), zipped(images[20:])...), 7, []int{2, 3}},
		{"labels", file(8, count(300), 300), 300, nil},
		{"ones", file(8, count(4), 4, 1, 1), 4, []int{1, 1}},
	} {
		for buffer := 1; buffer <= c.rows+1; buffer++ {
			r, err := Open(write(t, c.name, c.bytes))
			if err != nil {
				t.Fatal(err)
			}
			if r.Rows() != c.rows || !slices.Equal(r.Shape(), c.shape) {
				t.Errorf("%s: %d rows of shape %v, want %d of %v", c.name, r.Rows(), r.Shape(), c.rows, c.shape)
			}
			got, err := rows(r, buffer)
			if err != nil || !bytes.Equal(got, count(c.rows*r.RowBytes())) {
				t.Errorf("%s, %d rows a call: %v, error %v", c.name, buffer, got, err)
			}
			if n, err := r.Read(nil); n != 0 || err != io.EOF {
				t.Errorf("%s: %d rows after the end, error %v", c.name, n, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestBadFiles(t *testing.T) {
	good := file(8, count(6), 3, 2)
	const huge = 1<<32 - 1
	for _, c := range []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"empty", nil, "no IDX file: it should begin with 4 magic bytes: the file ends early"},
		{"magic cut", good[:3], "no IDX file: it should begin with 4 magic bytes"},
		{"text", []byte("label,image\n"), "no IDX file: it begins with the bytes 6c616265"},
		{"no such type", file(10, nil, 1), "no IDX file: it begins with the bytes 00000a01"},
		{"int32", file(12, nil, 1), "type int32 (0x0c), only uint8 (0x08) can be read"},
		{"float64", file(14, nil, 1), "type float64 (0x0e)"},
		{"no dimension", file(8, nil), "the header has no dimension"},
		{"header cut", good[:9], "the header should have 2 dimensions: the file ends early"},
		{"no rows", file(8, nil, 0, 2), "dimension 0 of 2 is 0"},
		{"empty rows", file(8, nil, 3, 0), "dimension 1 of 2 is 0"},
		{"huge rows", file(8, nil, 1, huge), "at most 67108864 bytes"},
		{"overflow", file(8, nil, huge, 1<<20, 1<<20, 1<<20, 1<<4), "dimensions of a row [1048576] × 1048576"},
		{"huge count", file(8, count(6), huge, 6), "row 1 of 4294967295: the file ends early"},
		{"row cut", good[:len(good)-1], "row 2 of 3: the file ends early"},
		{"row missing", good[:len(good)-2], "row 2 of 3: the file ends early"},
		{"a byte too many", append(slices.Clone(good), 0), "bytes follow the last of 3 rows of 2 bytes"},
		{"gzip header", []byte{0x1f, 0x8b, 9}, "unexpected EOF"},
		{"gzip cut", zipped(good)[:20], "the file ends early"},
		{"gzip checksum cut", zipped(good)[:len(zipped(good))-4], "after the last of 3 rows: the file ends early"},
		{"gzip checksum", flip(zipped(good), -5), "after the last of 3 rows: gzip: invalid checksum"},
		{"gzip tail", append(zipped(good), "more bytes than a gzip header"...), "after the last of 3 rows: gzip: invalid header"},
	} {
		path := write(t, c.name, c.bytes)
		r, err := Open(path)
		if err == nil {
			_, err = rows(r, 2)
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "idx: "+path) {
			t.Errorf("%s: the error is %v, want the path and %q", c.name, err, c.want)
		}
	}
	if _, err := Open("no/such/file"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "no/such/file") {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a directory can be opened")
	}
}

func flip(b []byte, at int) []byte {
	b[len(b)+at] ^= 0xff
	return b
}

// twin reads a whole file at once, and knows nothing but the format.
func twin(b []byte) (rowBytes int, values []byte, ok bool) {
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return 0, nil, false
		}
		if b, err = io.ReadAll(z); err != nil {
			return 0, nil, false
		}
	}
	if len(b) < 4 || b[0] != 0 || b[1] != 0 || b[2] != 8 || len(b) < 4+4*int(b[3]) {
		return 0, nil, false
	}
	values, total, rowBytes := b[4+4*int(b[3]):], 1, 1
	for k := range int(b[3]) {
		d := int(binary.BigEndian.Uint32(b[4+4*k:]))
		if total *= d; total > len(values) {
			return 0, nil, false
		}
		if k > 0 {
			rowBytes *= d
		}
	}
	return rowBytes, values, b[3] > 0 && total > 0 && total == len(values)
}

func FuzzReader(f *testing.F) {
	for _, b := range [][]byte{nil, file(8, count(6), 3, 2), file(8, count(5), 3, 2), file(8, count(7), 7), file(9, nil, 1), file(8, nil, 1<<31, 1<<31, 1<<31)} {
		f.Add(b)
		f.Add(zipped(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<12 {
			return // gzip makes much of little: the twin would fill the memory
		}
		rowBytes, want, ok := twin(b)
		r, err := newReader("fuzz", bytes.NewReader(b))
		var got []byte
		if err == nil {
			got, err = rows(r, 1+4096/r.RowBytes())
		}
		if (err == nil) != ok {
			t.Fatalf("error %v, the twin says %v", err, ok)
		}
		if ok && (r.RowBytes() != rowBytes || !bytes.Equal(got, want)) {
			t.Errorf("rows of %d bytes %v, want rows of %d bytes %v", r.RowBytes(), got, rowBytes, want)
		}
	})
}
