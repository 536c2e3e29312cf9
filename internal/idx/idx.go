// Package idx reads IDX files, the format of the MNIST data set, and turns
// them into Arrow IPC shards.
//
// An IDX file is two zero bytes, a byte for the type of the values, a byte for
// the number of dimensions, each dimension as a big-endian uint32, and the
// values, row by row; the first dimension counts the rows. The source of the
// format is the page of the MNIST data set by LeCun, Cortes and Burges. Files
// often come gzipped.
package idx

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// maxRow bounds a row, so that a wrong header cannot ask for more memory than
// any image needs.
const maxRow = 64 << 20

// types are the types of values by their byte in the header.
var types = map[byte]string{0x08: "uint8", 0x09: "int8", 0x0b: "int16", 0x0c: "int32", 0x0d: "float32", 0x0e: "float64"}

// Reader reads the rows of an IDX file of uint8 from the first to the last. It
// belongs to one goroutine.
type Reader struct {
	name     string
	values   io.Reader
	close    func() error
	rows     int
	shape    []int
	rowBytes int
	read     int // rows
}

// Open opens an IDX file, gzipped or not, and reads its header. The caller
// closes the Reader. A header that no file of uint8 rows has, of at most
// 64 MiB each, is an error; what follows the header is checked while it is
// read.
func Open(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("idx: %w", err)
	}
	r, err := newReader(path, f)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.close = f.Close
	return r, nil
}

func newReader(name string, file io.Reader) (*Reader, error) {
	r := &Reader{name: name}
	buffered := bufio.NewReaderSize(file, 64<<10)
	r.values = buffered
	if magic, _ := buffered.Peek(2); string(magic) == "\x1f\x8b" {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, r.wrong("%w", err)
		}
		r.values = unzipped
	}
	return r, r.header()
}

// header reads the header and says what is wrong with it.
func (r *Reader) header() error {
	var magic [4]byte
	if _, err := io.ReadFull(r.values, magic[:]); err != nil {
		return r.wrong("no IDX file: it should begin with 4 magic bytes: %w", short(err))
	}
	typ, known := types[magic[2]]
	switch {
	case magic[0] != 0 || magic[1] != 0 || !known:
		return r.wrong("no IDX file: it begins with the bytes %x, expected 000008 and the number of dimensions", magic)
	case typ != "uint8":
		return r.wrong("the values are of type %s (%#02x), only uint8 (0x08) can be read", typ, magic[2])
	case magic[3] == 0:
		return r.wrong("the header has no dimension, expected the number of rows at least")
	}
	dims := make([]byte, 4*int(magic[3]))
	if _, err := io.ReadFull(r.values, dims); err != nil {
		return r.wrong("the header should have %d dimensions: %w", magic[3], short(err))
	}
	r.rowBytes = 1
	for k := range int(magic[3]) {
		d := uint64(binary.BigEndian.Uint32(dims[4*k:]))
		switch {
		case d == 0:
			return r.wrong("dimension %d of %d is 0: the file has no values", k, magic[3])
		case k == 0 && d > math.MaxInt:
			return r.wrong("%d rows are more than this machine can count", d)
		case k == 0:
			r.rows = int(d)
			continue
		case d > maxRow/uint64(r.rowBytes):
			return r.wrong("dimensions of a row %v × %d: a row may have at most %d bytes", r.shape, d, maxRow)
		}
		r.shape = append(r.shape, int(d))
		r.rowBytes *= int(d)
	}
	return nil
}

// Rows is the number of rows that the header promises.
func (r *Reader) Rows() int { return r.rows }

// Shape is the dimensions of a row, none where a row is one value. The caller
// must not change it.
func (r *Reader) Shape() []int { return r.shape }

// RowBytes is the number of bytes of a row: the product of Shape.
func (r *Reader) RowBytes() int { return r.rowBytes }

// Read fills buf with the next rows and returns their number: as many as fit,
// fewer at the end of the file only, and io.EOF after the last. The call that
// reads the last row checks that nothing follows it. buf is the caller's.
// Read panics where buf has no room for a row.
func (r *Reader) Read(buf []byte) (rows int, err error) {
	want := min(len(buf)/r.rowBytes, r.rows-r.read)
	switch {
	case r.read == r.rows:
		return 0, io.EOF
	case want == 0:
		panic(fmt.Sprintf("idx: a buffer of %d bytes for rows of %d", len(buf), r.rowBytes))
	}
	n, err := io.ReadFull(r.values, buf[:want*r.rowBytes])
	rows = n / r.rowBytes
	r.read += rows
	if err != nil {
		return rows, r.wrong("row %d of %d: %w", r.read, r.rows, short(err))
	}
	if r.read < r.rows {
		return rows, nil
	}
	switch _, err := io.ReadFull(r.values, make([]byte, 1)); err {
	case io.EOF: // and the checksum of a gzipped file is right
		return rows, nil
	case nil:
		return rows, r.wrong("bytes follow the last of %d rows of %d bytes", r.rows, r.rowBytes)
	default:
		return rows, r.wrong("after the last of %d rows: %w", r.rows, short(err))
	}
}

// Close closes the file.
func (r *Reader) Close() error { return r.close() }

func (r *Reader) wrong(format string, args ...any) error {
	return fmt.Errorf("idx: %s: "+format, append([]any{r.name}, args...)...)
}

// short says in words that a file ends early.
func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file ends early: it was cut short")
	}
	return err
}
