package manifest

import (
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
)

func sample() *Manifest {
	return &Manifest{
		Schema: []batch.Field{{Name: "image", Type: batch.Uint8, Shape: []int{28, 28}}, {Name: "label", Type: batch.Int64}},
		Shards: []Shard{{"part-00000.arrow", 10, 8_000, "00c0ffee"}, {"part-00001.arrow", 3, 2_500, "deadbeef"}},
	}
}

// The text is a format that others read: it must not change.
const text = `{
 "version": 1,
 "schema": [
  {
   "name": "image",
   "type": "uint8",
   "shape": [
    28,
    28
   ]
  },
  {
   "name": "label",
   "type": "int64"
  }
 ],
 "shards": [
  {
   "name": "part-00000.arrow",
   "rows": 10,
   "bytes": 8000,
   "crc32c": "00c0ffee"
  },
  {
   "name": "part-00001.arrow",
   "rows": 3,
   "bytes": 2500,
   "crc32c": "deadbeef"
  }
 ]
}
`

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	if err := sample().Write(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, Name)); string(got) != text {
		t.Errorf("%s, %v", got, err)
	}
	m, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := sample(); !reflect.DeepEqual(m.Schema, want.Schema) || !reflect.DeepEqual(m.Shards, want.Shards) || m.Path() != filepath.Join(dir, Name) {
		t.Errorf("%+v, want %+v", m, want)
	}
	if s := m.Find("elsewhere/part-00001.arrow"); s == nil || s.Rows != 3 || !s.Equal(0xdeadbeef) || s.Equal(0xdeadbeee) {
		t.Errorf("%+v", s)
	}
	if m.Find("part-00002.arrow") != nil || (*Manifest)(nil).Find("part-00000.arrow") != nil {
		t.Error("found what is not listed")
	}
	files := []string{filepath.Join(dir, "part-00001.arrow"), filepath.Join(dir, "more.arrow")}
	if got := m.Missing(files); len(got) != 1 || got[0] != filepath.Join(dir, "part-00000.arrow") {
		t.Errorf("%q is missing", got)
	}
	if got := (*Manifest)(nil).Missing(files); got != nil {
		t.Errorf("%q is missing of nothing", got)
	}
}

// The check value of CRC-32C, of RFC 3720's and every other table.
func TestChecksum(t *testing.T) {
	if got := Checksum(crc32.Checksum([]byte("123456789"), Table)); got != "e3069283" {
		t.Error(got)
	}
	if got := Checksum(0xff); got != "000000ff" {
		t.Error(got)
	}
}

func TestRead(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"no JSON", `{`, `[`, "malformed: "},
		{"more behind it", "]\n}\n", "]\n}\n{}", "malformed: "},
		{"another version", `"version": 1`, `"version": 2`, "version 2: this program reads version 1"},
		{"no version", `"version": 1,`, ``, "version 0: this program reads version 1"},
		{"an unknown key", `"rows": 10`, `"rows": 10, "cols": 1`, `malformed: json: unknown field "cols"`},
		{"an unknown type", `"int64"`, `"int65"`, `malformed: batch: "int65" is not a type of values`},
		{"a column without a name", `"name": "label"`, `"name": ""`, "schema: batch: a column has no name"},
		{"a column twice", `"name": "label"`, `"name": "image"`, "schema: batch: two columns are named image"},
		{"too large a row", `28,`, `9223372036854775807,`, "schema: batch: column image"},
		{"a negative shape", `28,`, `-28,`, "schema: batch: column image"},
		{"a path", `part-00001.arrow`, `../part-00001.arrow`, `"../part-00001.arrow" is not the name of a file beside it`},
		{"a path of Windows", `part-00001.arrow`, `..\\part-00001.arrow`, `"..\\part-00001.arrow" is not the name of a file beside it`},
		{"no name", `part-00001.arrow`, ``, `"" is not the name`},
		{"the directory", `part-00001.arrow`, `.`, `"." is not the name`},
		{"the one above", `part-00001.arrow`, `..`, `".." is not the name`},
		{"a shard twice", `part-00001.arrow`, `part-00000.arrow`, "part-00000.arrow is listed twice"},
		{"negative rows", `"rows": 10`, `"rows": -10`, "part-00000.arrow: -10 rows"},
		{"negative bytes", `"bytes": 8000`, `"bytes": -1`, "part-00000.arrow: 10 rows, -1 bytes"},
		{"too many rows", `"rows": 10`, `"rows": 9223372036854775808`, "malformed: "},
		{"half a row", `"rows": 10`, `"rows": 1.5`, "malformed: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			changed := strings.Replace(text, tt.old, tt.new, 1)
			if changed == text {
				t.Fatal("nothing is changed")
			}
			if err := os.WriteFile(filepath.Join(dir, Name), []byte(changed), 0o666); err != nil {
				t.Fatal(err)
			}
			_, err := Read(dir)
			if err == nil || !strings.HasPrefix(err.Error(), "manifest: "+filepath.Join(dir, Name)+": "+tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

func TestReadNone(t *testing.T) {
	if _, err := Read(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Name), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory of that name: %v", err)
	}
}

func TestTooLong(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, Name)
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, 1<<40); err != nil { // a hole, no disk
		t.Skipf("this file system has no room for a terabyte of nothing: %v", err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
		t.Error(err)
	}
}

// What parses has what Open relies on, and writes itself as what it is.
func FuzzParse(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte(`{"version":1,"schema":[],"shards":[]}`))
	f.Add([]byte(`{"version":1,"schema":[{"name":"x","type":"float16","shape":[0]}],"shards":[{"name":"a"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parse(text)
		if err != nil {
			return
		}
		for _, s := range m.Shards {
			if filepath.Base(s.Name) != s.Name || s.Rows < 0 || s.Bytes < 0 || m.Find(s.Name) == nil {
				t.Errorf("%+v", s)
			}
		}
		if _, err := batch.NewLayout(m.Schema, 1); err != nil {
			t.Error(err)
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parse(again)
		if err != nil || len(back.Shards) != len(m.Shards) || len(back.Schema) != len(m.Schema) {
			t.Errorf("%s: %v", again, err)
		}
	})
}
