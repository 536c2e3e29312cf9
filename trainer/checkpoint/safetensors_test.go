package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
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

// The numbers of other types that are float32, too, as PyTorch writes them:
// testdata/make.py.
func TestPythonsTypes(t *testing.T) {
	data, err := os.ReadFile("testdata/types.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	got, err := readBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	zero, inf := float32(math.Copysign(0, -1)), float32(math.Inf(1))
	want := map[string][]float32{
		"F64":                 {0.1, math.SmallestNonzeroFloat32, zero, inf},
		"F16":                 {0x1.998p-4, 65504, 0x1p-24, zero, -inf},
		"BF16":                {0x1.9ap-4, 0x1.c4p+127, 0x1p-133, zero, -inf},
		"I64":                 {-1 << 63, 1 << 24, 1<<62 + 1<<39},
		"I32":                 {-1 << 31, 1<<24 + 2},
		"I16":                 {-1 << 15, 1<<15 - 1},
		"I8":                  {-128, 127},
		"U64":                 {1 << 63, 7},
		"U32":                 {1<<32 - 1<<8},
		"U16":                 {1<<16 - 1},
		"U8":                  {255, 0},
		"num_batches_tracked": {500},
	}
	for _, tensor := range got {
		shape := []int{len(want[tensor.Name])}
		if tensor.Name == "num_batches_tracked" {
			shape = nil
		}
		if w := (trainer.Tensor{Name: tensor.Name, Shape: shape, Data: want[tensor.Name]}); !sameBits([]trainer.Tensor{tensor}, []trainer.Tensor{w}) {
			t.Errorf("%v, want %v", tensor, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
}

// Every float16 is what its definition says: (-1)^sign · 2^(exponent-15) ·
// (1 + fraction/1024), and below the smallest of these 2^-14 · fraction/1024.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		sign, exponent, fraction := h>>15, h>>10&31, h&1023
		want := math.Ldexp(1+float64(fraction)/1024, exponent-15)
		switch {
		case exponent == 0:
			want = math.Ldexp(float64(fraction), -24)
		case exponent == 31 && fraction == 0:
			want = math.Inf(1)
		case exponent == 31:
			want = math.NaN()
		}
		if sign == 1 {
			want = math.Copysign(want, -1)
		}
		got := half(uint16(h))
		if float64(got) != want && !(math.IsNaN(want) && math.IsNaN(float64(got))) || math.Signbit(want) != math.Signbit(float64(got)) {
			t.Fatalf("%04x is %v, want %v", h, got, want)
		}
	}
}

// A value that no float32 equals is an error: nothing is rounded.
func TestLostValues(t *testing.T) {
	for _, c := range []struct {
		name, typ string
		value     uint64
		want      string // of the error; "" where the value is a float32
	}{
		{"2^24+1", "I64", 1<<24 + 1, "type I64 and the value 16777217, which is no float32"},
		{"-(2^24+1)", "I64", ^uint64(1 << 24), "the value -16777217"},
		{"2^24+2", "I64", 1<<24 + 2, ""},
		{"the largest", "I64", math.MaxInt64, "the value 9223372036854775807"},
		{"the largest without a sign", "U64", math.MaxUint64, "the value 18446744073709551615"},
		{"beyond an int64", "U64", 1<<63 + 1<<40, ""},
		{"2^53+1, which is no float64", "I64", 1<<53 + 1, "the value 9007199254740993"},
		{"minus one", "I64", math.MaxUint64, ""},
		{"2^24+1 in 32 bits", "I32", 1<<24 + 1, "the value 16777217"},
		{"2^32-1", "U32", math.MaxUint32, "the value 4294967295"},
		{"a tenth", "F64", math.Float64bits(0.1), "type F64 and the value 0.1"},
		{"beyond all float32", "F64", math.Float64bits(1e39), "the value 1e+39"},
		{"below all float32", "F64", math.Float64bits(1e-50), "the value 1e-50"},
		{"a half", "F64", math.Float64bits(0.5), ""},
		{"not a number", "F64", math.Float64bits(math.NaN()), ""},
	} {
		size := types[c.typ].size
		// It stands behind a zero: every value counts.
		value := make([]byte, size, 2*size)
		value = append(value, binary.LittleEndian.AppendUint64(nil, c.value)[:size]...)
		header := fmt.Sprintf(`{"a":{"dtype":%q,"shape":[2],"data_offsets":[0,%d]}}`, c.typ, 2*size)
		_, err := readBytes(file(header, string(value)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `tensor "a"`)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
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
	{"another type", `type "F8_E4M3": BF16, F16, F32, F64, I16, I32, I64, I8, U16, U32, U64, U8 are read`, file(`{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}`, four)},
	{"no type", `type ""`, file(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, four)},
	{"shape above the bytes", "and shape [2] ends at byte 4: it should at 8", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, four)},
	{"shape below the bytes", "and shape [0] ends at byte 4: it should at 0", file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,4]}}`, four)},
	{"shape below zero", "no memory holds the shape [-1 -1]", file(`{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}`, four)},
	{"shape that overflows", "no memory holds", file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, "")},
	{"shape of fractions", "cannot unmarshal", file(`{"a":{"dtype":"F32","shape":[0.5],"data_offsets":[0,4]}}`, four)},
	{"hole before", "begins at byte 4: it should at 0", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, eight)},
	{"overlap", `tensor "b" begins at byte 0: it should at 4`, file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four)},
	{"backwards", "begins at byte 4", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, four)},
	{"before the start", "begins at byte -4", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, "")},
	{"cut short", "it was cut short", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, four)},
	{"huge and cut short", "it was cut short", file(`{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}`, four)},
	{"longer elements than the bytes", "of type F64 and shape [1] ends at byte 4: it should at 8", file(`{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}}`, four)},
	{"a name twice", `the name "a" stands twice`, file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four)},
	{"a name twice, once escaped", `the name "a" stands twice`, file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, eight)},
	{"a field twice", `the name "dtype" stands twice`, file(`{"a":{"dtype":"F16","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four)},
	{"metadata twice", `the name "__metadata__" stands twice`, file(`{"__metadata__":{},"__metadata__":{}}`, "")},
	{"nested without end", "exceeded max depth", file(`{"a":`+strings.Repeat("[", 1<<20), "")},
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
	tensors := content(1).Tensors
	if err := writeTensors(&buf, tensors); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	for _, name := range []string{"testdata/python.safetensors", "testdata/types.safetensors"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
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
