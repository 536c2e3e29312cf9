package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shardfeed/shardfeed/trainer"
)

// A safetensors file, as github.com/huggingface/safetensors describes it, is
// the length of a header (8 bytes, little-endian), the header (JSON), and the
// tensors' bytes, one after the other without holes. Float32 is written. Other
// types are read where their values are float32, too: the counter of batches
// in PyTorch's BatchNorm is an int64.

// maxHeader is the longest header that the reference implementation reads.
const maxHeader = 100_000_000

// metadata is the header's one name that is no tensor's.
const metadata = "__metadata__"

// entry describes one tensor in the header.
type entry struct {
	Type    string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets []int  `json:"data_offsets"` // begin and end, from the header's end

	name string
}

// writeTensors writes a safetensors file. The metadata says that the tensors
// are PyTorch's, which the Python library asks for.
func writeTensors(w io.Writer, tensors []trainer.Tensor) error {
	header := map[string]any{metadata: map[string]string{"format": "pt"}}
	end := 0
	for _, t := range tensors {
		n, err := count(t.Shape)
		switch {
		case err != nil:
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		case n != len(t.Data):
			return fmt.Errorf("tensor %q has the shape %v of %d values, but %d values", t.Name, t.Shape, n, len(t.Data))
		case header[t.Name] != nil:
			return fmt.Errorf("two tensors are named %q", t.Name)
		case t.Name == "" || !utf8.ValidString(t.Name):
			return fmt.Errorf("a tensor is named %q: names are not empty, and UTF-8", t.Name)
		}
		header[t.Name] = entry{Type: "F32", Shape: append([]int{}, t.Shape...), Offsets: []int{end, end + 4*n}} // a scalar's shape is [], not null
		end += 4 * n
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ') // so that the values are aligned in the file
	}
	if _, err := w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return err
	}
	for _, t := range tensors {
		if err := writeValues(w, t.Data); err != nil {
			return err
		}
	}
	return nil
}

// writeValues writes the values in pieces of 1 MiB.
func writeValues(w io.Writer, values []float32) error {
	buf := make([]byte, 0, min(4*len(values), 1<<20))
	for piece := range slices.Chunk(values, 1<<18) {
		buf = buf[:0]
		for _, v := range piece {
			buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// readTensors reads a safetensors file of size bytes. The tensors come in the
// order of their bytes. No more is allocated than a small multiple of what the
// file has.
func readTensors(r io.Reader, size int64) ([]trainer.Tensor, error) {
	var length [8]byte
	if size < 8 {
		return nil, fmt.Errorf("the file has %d bytes, too few for a header's length: it was cut short, or is no safetensors file", size)
	}
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, fmt.Errorf("the header is said to have %d bytes: it has %d at most, and the file %d behind the length: it was cut short, or is no safetensors file", n, maxHeader, size-8)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	entries, err := parseHeader(text, size-8-int64(n))
	if err != nil {
		return nil, err
	}
	var tensors []trainer.Tensor
	for _, e := range entries {
		values, err := readValues(r, e)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", e.name, err)
		}
		tensors = append(tensors, trainer.Tensor{Name: e.name, Shape: e.Shape, Data: values})
	}
	return tensors, nil
}

// readValues reads a tensor's values in pieces of 2^18.
func readValues(r io.Reader, e entry) ([]float32, error) {
	typ := types[e.Type]
	values := make([]float32, (e.Offsets[1]-e.Offsets[0])/typ.size)
	buf := make([]byte, typ.size*min(len(values), 1<<18))
	for piece := range slices.Chunk(values, 1<<18) {
		if _, err := io.ReadFull(r, buf[:typ.size*len(piece)]); err != nil {
			return nil, err
		}
		for i := range piece {
			v, lost := typ.value(buf[i*typ.size:])
			if lost != nil {
				return nil, fmt.Errorf("it has the type %s and the value %v, which is no float32: convert it where it is written", e.Type, lost)
			}
			piece[i] = v
		}
	}
	return values, nil
}

// parseHeader is the tensors that a header describes, in the order of their
// bytes. It fails unless they fill the size bytes behind the header, one after
// the other.
func parseHeader(text []byte, size int64) ([]entry, error) {
	if !bytes.HasPrefix(text, []byte("{")) {
		return nil, fmt.Errorf("the header is no JSON object")
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("the header is malformed: %w", err)
	}
	if err := unique(text); err != nil {
		return nil, fmt.Errorf("the header is malformed: %w", err)
	}
	delete(raw, metadata)
	var entries []entry
	seen := map[string]bool{}
	for name, r := range raw {
		var e entry
		if err := strict(r, &e); err != nil {
			return nil, fmt.Errorf("the header's tensor %q is malformed: %w", name, err)
		}
		// DistributedDataParallel in PyTorch saves its parameters so.
		e.name = strings.TrimPrefix(name, "module.")
		if seen[e.name] {
			return nil, fmt.Errorf("two tensors are named %q, one of them %q", e.name, "module."+e.name)
		}
		seen[e.name] = true
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int {
		if c := slices.Compare(a.Offsets, b.Offsets); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name) // tensors without values
	})
	end := 0
	for _, e := range entries {
		n, err := count(e.Shape)
		typ, known := types[e.Type]
		switch {
		case err != nil:
			return nil, fmt.Errorf("tensor %q: %w", e.name, err)
		case e.Shape == nil || len(e.Offsets) != 2:
			return nil, fmt.Errorf("tensor %q has the shape %v and the offsets %v: there should be a list and two numbers", e.name, e.Shape, e.Offsets)
		case !known:
			return nil, fmt.Errorf("tensor %q has the type %q: %s are read; convert it where it is written", e.name, e.Type, strings.Join(slices.Sorted(maps.Keys(types)), ", "))
		case e.Offsets[0] != end:
			return nil, fmt.Errorf("tensor %q begins at byte %d: it should at %d, where the one before ends", e.name, e.Offsets[0], end)
		case e.Offsets[1] != end+typ.size*n:
			return nil, fmt.Errorf("tensor %q of type %s and shape %v ends at byte %d: it should at %d", e.name, e.Type, e.Shape, e.Offsets[1], end+typ.size*n)
		case int64(e.Offsets[1]) > size:
			return nil, fmt.Errorf("tensor %q ends at byte %d, but the file has %d behind the header: it was cut short", e.name, e.Offsets[1], size)
		}
		end = e.Offsets[1]
	}
	if int64(end) != size {
		return nil, fmt.Errorf("the tensors end at byte %d, but the file has %d behind the header", end, size)
	}
	return entries, nil
}

// types are the types of elements that are read: how many bytes an element
// has, and what float32 it is. Where it is none, lost is the element.
var types = map[string]struct {
	size  int
	value func(b []byte) (v float32, lost any)
}{
	"F32": {4, func(b []byte) (float32, any) { return math.Float32frombits(binary.LittleEndian.Uint32(b)), nil }},
	"F64": {8, func(b []byte) (float32, any) { return narrow(math.Float64frombits(binary.LittleEndian.Uint64(b))) }},
	"F16": {2, func(b []byte) (float32, any) { return half(binary.LittleEndian.Uint16(b)), nil }},
	// The upper half of a float32.
	"BF16": {2, func(b []byte) (float32, any) {
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16), nil
	}},
	"I8":  {1, func(b []byte) (float32, any) { return float32(int8(b[0])), nil }},
	"U8":  {1, func(b []byte) (float32, any) { return float32(b[0]), nil }},
	"I16": {2, func(b []byte) (float32, any) { return float32(int16(binary.LittleEndian.Uint16(b))), nil }},
	"U16": {2, func(b []byte) (float32, any) { return float32(binary.LittleEndian.Uint16(b)), nil }},
	"I32": {4, func(b []byte) (float32, any) { return integer(int64(int32(binary.LittleEndian.Uint32(b)))) }},
	"U32": {4, func(b []byte) (float32, any) { return integer(int64(binary.LittleEndian.Uint32(b))) }},
	"I64": {8, func(b []byte) (float32, any) { return integer(int64(binary.LittleEndian.Uint64(b))) }},
	"U64": {8, func(b []byte) (float32, any) { return integer(binary.LittleEndian.Uint64(b)) }},
}

// half is the value of a float16, of a sign, 5 bits of exponent and 10 of
// fraction: every one is a float32, too.
func half(h uint16) float32 {
	b := uint32(h&0x7fff) << 13
	if h&0x7c00 == 0x7c00 { // an infinity or NaN
		b |= 0x7f800000
	} else {
		b = math.Float32bits(math.Float32frombits(b) * 0x1p112) // the exponents' biases are 15 and 127
	}
	return math.Float32frombits(b | uint32(h&0x8000)<<16)
}

// narrow is x as a float32. NaN is one, whatever its bits.
func narrow(x float64) (v float32, lost any) {
	if v = float32(x); float64(v) != x && !math.IsNaN(x) {
		return v, x
	}
	return v, nil
}

// integer is x as a float32, which has 24 bits from its first 1 to its last.
func integer[T int64 | uint64](x T) (v float32, lost any) {
	size := uint64(x)
	if x < 0 {
		size = -size
	}
	if bits.Len64(size)-bits.TrailingZeros64(size) > 24 {
		return 0, x
	}
	return float32(x), nil
}

// maxValues bounds the values of one tensor, so that sums of their bytes do
// not overflow.
const maxValues = math.MaxInt / 16

// count is the number of values of a shape.
func count(shape []int) (int, error) {
	n := 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > maxValues/d {
			return 0, fmt.Errorf("no memory holds the shape %v", shape)
		}
		n *= d
	}
	return n, nil
}
