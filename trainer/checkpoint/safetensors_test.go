package checkpoint

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

// file is a safetensors file of a header and some bytes.
func file(header, data string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+data...)
}

func readBytes(data []byte) ([]trainer.Tensor, error) {
	return readTensors(bytes.NewReader(data), int64(len(data)))
}

// sameBits compares tensors with NaN equal to itself.
func sameBits(a, b []trainer.Tensor) bool {
	bits := func(tensors []trainer.Tensor) (all []any) {
		for _, t := range tensors {
			all = append(all, t.Name, append([]int{}, t.Shape...))
			for _, v := range t.Data {
				all = append(all, math.Float32bits(v))
			}
		}
		return all
	}
	return reflect.DeepEqual(bits(a), bits(b))
}

func TestRoundTrip(t *testing.T) {
	long := make([]float32, 1<<18+3) // more than one piece
	for i := range long {
		long[i] = float32(i)
	}
	want := []trainer.Tensor{
		{Name: "z", Shape: []int{2, 2}, Data: []float32{1, -1, float32(math.Copysign(0, -1)), math.MaxFloat32}},
		{Name: `a "quoted" name, ünïcode`, Shape: []int{3}, Data: []float32{math.Float32frombits(0x7fc12345), float32(math.Inf(1)), math.SmallestNonzeroFloat32}},
		{Name: "nothing", Shape: []int{0, 7}, Data: []float32{}},
		{Name: "scalar", Data: []float32{4}},
		{Name: "long", Shape: []int{1, len(long)}, Data: long},
	}
	for _, tensors := range [][]trainer.Tensor{want, nil} {
		var buf bytes.Buffer
		if err := writeTensors(&buf, tensors); err != nil {
			t.Fatal(err)
		}
		if n := binary.LittleEndian.Uint64(buf.Bytes()); n%8 != 0 {
			t.Errorf("the values begin at byte %d", 8+n)
		}
		got, err := readBytes(buf.Bytes())
		if err != nil || !sameBits(got, tensors) {
			t.Errorf("read %v, %v, want %v", got, err, tensors)
		}
	}
}

// The file is of Python's safetensors; testdata/make.py has written it.
func TestPythonsFile(t *testing.T) {
	data, err := os.ReadFile("testdata/python.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	got, err := readBytes(data)
	want := []trainer.Tensor{
		{Name: "fc1.bias", Shape: []int{2}, Data: []float32{float32(math.NaN()), float32(math.Copysign(0, -1))}},
		{Name: "fc1.weight", Shape: []int{2, 3}, Data: []float32{0, 0.25, 0.5, 0.75, 1, 1.25}},
		{Name: "none", Shape: []int{0, 4}, Data: []float32{}},
		{Name: "scale", Data: []float32{1.5}},
	}
	if err != nil || !sameBits(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestModulePrefix(t *testing.T) {
	got, err := readBytes(file(`{"module.a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}`, "\x00\x00\x80\x3f"))
	want := []trainer.Tensor{{Name: "a", Data: []float32{1}}, {Name: "b", Shape: []int{0}}}
	if err != nil || !sameBits(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

const four, eight = "abcd", "abcdefgh"

var malformed = []struct {
	name, want string
	data       []byte
}{
	{"empty", "0 bytes", nil},
	{"shorter than the length", "7 bytes", []byte("1234567")},
	{"header longer than the file", "said to have 3 bytes", append(binary.LittleEndian.AppendUint64(nil, 3), "{}"...)},
	{"header of more than a file can have", "said to have 18446744073709551615 bytes", binary.LittleEndian.AppendUint64(nil, math.MaxUint64)},
	{"no header", "no JSON object", file("", "")},
	{"header of another type", "no JSON object", file("[]", "")},
	{"header that says nothing", "no JSON object", file("null", "")},
	{"header cut short", "malformed", file(`{"a":`, "")},
	{"two headers", "malformed", file(`{}{}`, "")},
	{"bytes of no tensor", "end at byte 0, but the file has 4", file(`{}`, four)},
	{"tensor of another type", `tensor "a" is malformed`, file(`{"a":1}`, "")},
	{"tensor with more fields", `unknown field "strides"`, file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]}}`, four)},
	{"tensor without a shape", "there should be a list", file(`{"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}`, four)},
	{"tensor without offsets", "offsets []", file(`{"a":{"dtype":"F32","shape":[1]}}`, "")},
	{"tensor with three offsets", "offsets [0 4 8]", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}`, four)},
	{"half precision", `type "BF16": only F32`, file(`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}`, four)},
	{"shape above the bytes", "of shape [2] ends at byte 4: it should at 8", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, four)},
	{"shape below the bytes", "of shape [0] ends at byte 4: it should at 0", file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,4]}}`, four)},
	{"shape below zero", "no memory holds the shape [-1 -1]", file(`{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}`, four)},
	{"shape that overflows", "no memory holds", file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, "")},
	{"shape of fractions", "cannot unmarshal", file(`{"a":{"dtype":"F32","shape":[0.5],"data_offsets":[0,4]}}`, four)},
	{"hole before", "begins at byte 4: it should at 0", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, eight)},
	{"overlap", `tensor "b" begins at byte 0: it should at 4`, file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four)},
	{"backwards", "begins at byte 4", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, four)},
	{"before the start", "begins at byte -4", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, "")},
	{"cut short", "it was cut short", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, four)},
	{"huge and cut short", "it was cut short", file(`{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}`, four)},
	{"rest", "end at byte 4, but the file has 8", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, eight)},
	{"one name with and without module.", `two tensors are named "a"`, file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"module.a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, eight)},
}

func TestMalformed(t *testing.T) {
	for _, c := range malformed {
		if _, err := readBytes(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Whatever is read without an error is written and read again with the same
// bits. Nothing panics, and no more is allocated than the file is large.
func FuzzSafetensors(f *testing.F) {
	for _, c := range malformed {
		f.Add(c.data)
	}
	var buf bytes.Buffer
	tensors, _ := content(1)
	if err := writeTensors(&buf, tensors); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	if data, err := os.ReadFile("testdata/python.safetensors"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tensors, err := readBytes(data)
		if err != nil {
			return
		}
		var buf bytes.Buffer
		if err := writeTensors(&buf, tensors); err != nil {
			t.Fatalf("%v is read but not written: %v", tensors, err)
		}
		if again, err := readBytes(buf.Bytes()); err != nil || !sameBits(tensors, again) {
			t.Fatalf("%v is read again as %v, %v", tensors, again, err)
		}
	})
}
