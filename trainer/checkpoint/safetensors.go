package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shardfeed/shardfeed/trainer"
)

// A safetensors file, as github.com/huggingface/safetensors describes it, is
// the length of a header (8 bytes, little-endian), the header (JSON), and the
// tensors' bytes, one after the other without holes.

// maxHeader is the longest header that the reference implementation reads.
const maxHeader = 100_000_000

// metadata is the header's one name that is no tensor's.
const metadata = "__metadata__"

// entry describes one tensor in the header.
type entry struct {
	Type    string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets []int  `json:"data_offsets"` // begin and end, from the header's end
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
		header[t.Name] = entry{"F32", append([]int{}, t.Shape...), []int{end, end + 4*n}} // a scalar's is [], not null
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
// order of their bytes. Nothing is allocated that the file is too short for.
func readTensors(r io.Reader, size int64) ([]trainer.Tensor, error) {
	var length [8]byte
	if size < 8 {
		return nil, fmt.Errorf("the file has %d bytes, too few for a header's length", size)
	}
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, fmt.Errorf("the header is said to have %d bytes: it has %d at most, and the file %d behind the length", n, maxHeader, size-8)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	tensors, ends, err := parseHeader(text, size-8-int64(n))
	if err != nil {
		return nil, err
	}
	for i := range tensors {
		t := &tensors[i]
		begin := 0
		if i > 0 {
			begin = ends[i-1]
		}
		t.Data = make([]float32, (ends[i]-begin)/4)
		if err := readValues(r, t.Data); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return tensors, nil
}

func readValues(r io.Reader, values []float32) error {
	buf := make([]byte, min(4*len(values), 1<<20))
	for piece := range slices.Chunk(values, 1<<18) {
		if _, err := io.ReadFull(r, buf[:4*len(piece)]); err != nil {
			return err
		}
		for i := range piece {
			piece[i] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4*i:]))
		}
	}
	return nil
}

// parseHeader is the tensors that a header describes, without their values, in
// the order of their bytes, and where the bytes of each end. It fails unless
// the tensors are float32 and fill the size bytes behind the header, one after
// the other.
func parseHeader(text []byte, size int64) (tensors []trainer.Tensor, ends []int, err error) {
	if !bytes.HasPrefix(text, []byte("{")) {
		return nil, nil, fmt.Errorf("the header is no JSON object")
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, nil, fmt.Errorf("the header is malformed: %w", err)
	}
	delete(raw, metadata)
	entries := map[string]entry{}
	for name, r := range raw {
		var e entry
		d := json.NewDecoder(bytes.NewReader(r))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return nil, nil, fmt.Errorf("the header's tensor %q is malformed: %w", name, err)
		}
		// DistributedDataParallel in PyTorch saves its parameters so.
		name = strings.TrimPrefix(name, "module.")
		if _, twice := entries[name]; twice {
			return nil, nil, fmt.Errorf("two tensors are named %q, one of them %q", name, "module."+name)
		}
		entries[name] = e
		tensors = append(tensors, trainer.Tensor{Name: name, Shape: e.Shape})
	}
	slices.SortFunc(tensors, func(a, b trainer.Tensor) int {
		if c := slices.Compare(entries[a.Name].Offsets, entries[b.Name].Offsets); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name) // tensors without values
	})
	end := 0
	for _, t := range tensors {
		e := entries[t.Name]
		n, err := count(e.Shape)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		case e.Shape == nil || len(e.Offsets) != 2:
			return nil, nil, fmt.Errorf("tensor %q has the shape %v and the offsets %v: there should be a list and two numbers", t.Name, e.Shape, e.Offsets)
		case e.Type != "F32":
			return nil, nil, fmt.Errorf("tensor %q has the type %q: only F32 is read", t.Name, e.Type)
		case e.Offsets[0] != end:
			return nil, nil, fmt.Errorf("tensor %q begins at byte %d: it should at %d, where the one before ends", t.Name, e.Offsets[0], end)
		case e.Offsets[1] != end+4*n:
			return nil, nil, fmt.Errorf("tensor %q of shape %v ends at byte %d: it should at %d", t.Name, e.Shape, e.Offsets[1], end+4*n)
		case int64(e.Offsets[1]) > size:
			return nil, nil, fmt.Errorf("tensor %q ends at byte %d, but the file has %d behind the header: it was cut short", t.Name, e.Offsets[1], size)
		}
		end = e.Offsets[1]
		ends = append(ends, end)
	}
	if int64(end) != size {
		return nil, nil, fmt.Errorf("the tensors end at byte %d, but the file has %d behind the header", end, size)
	}
	return tensors, ends, nil
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
