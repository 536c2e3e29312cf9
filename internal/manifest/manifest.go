// Package manifest is index.json, which says what shards a directory has.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/shardfeed/shardfeed/batch"
)

// Name is the name of the file.
const Name = "index.json"

const (
	version = 1
	maxSize = 64 << 20 // bytes; half a million shards
)

// Manifest is what index.json says of the shards beside it.
type Manifest struct {
	Version int           `json:"version"`
	Schema  []batch.Field `json:"schema"` // all columns of each shard
	Shards  []Shard       `json:"shards"` // in order

	name   string
	byName map[string]*Shard
}

// Shard is a file.
type Shard struct {
	Name   string `json:"name"`
	Rows   int    `json:"rows"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"` // of all bytes, 8 hexadecimal digits
}

// Read reads dir's index.json. An error is an *fs.PathError; it wraps
// fs.ErrNotExist where there is none.
func Read(dir string) (*Manifest, error) {
	name := filepath.Join(dir, Name)
	m, err := read(name)
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err
		}
		return nil, &fs.PathError{Op: "manifest:", Path: name, Err: err}
	}
	m.name = name
	return m, nil
}

func read(name string) (*Manifest, error) {
	// Opening what is no file, such as a pipe, may wait for ever.
	if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	return parse(text)
}

func parse(text []byte) (*Manifest, error) {
	if len(text) > maxSize {
		return nil, fmt.Errorf("more than %d bytes", maxSize)
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("malformed: %w", err)
	}
	if v.Version != version {
		return nil, fmt.Errorf("version %d: this program reads version %d", v.Version, version)
	}
	idx := &Manifest{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(idx); err != nil {
		return nil, fmt.Errorf("malformed: %w", err)
	}
	if _, err := batch.NewLayout(idx.Schema, 1); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	idx.byName = make(map[string]*Shard, len(idx.Shards))
	for i := range idx.Shards {
		s := &idx.Shards[i]
		switch {
		case s.Name == "" || s.Name == "." || s.Name == ".." || strings.ContainsAny(s.Name, `/\`):
			return nil, fmt.Errorf("%q is not the name of a file beside it", s.Name)
		case idx.byName[s.Name] != nil:
			return nil, fmt.Errorf("%s is listed twice", s.Name)
		case s.Rows < 0 || s.Bytes < 0:
			return nil, fmt.Errorf("%s: %d rows, %d bytes", s.Name, s.Rows, s.Bytes)
		}
		idx.byName[s.Name] = s
	}
	return idx, nil
}

// Missing is the paths of the shards that are not among the files of the
// directory.
func (m *Manifest) Missing(files []string) (paths []string) {
	if m == nil {
		return nil
	}
	have := map[string]bool{}
	for _, file := range files {
		have[filepath.Base(file)] = true
	}
	for _, s := range m.Shards {
		if !have[s.Name] {
			paths = append(paths, filepath.Join(filepath.Dir(m.name), s.Name))
		}
	}
	return paths
}

// Find is what the manifest, one from Read, says of a file; nil where it does
// not list it, and where there is no manifest.
func (m *Manifest) Find(file string) *Shard {
	if m == nil {
		return nil
	}
	return m.byName[filepath.Base(file)]
}

// Path is where the manifest was read.
func (m *Manifest) Path() string { return m.name }

// Write writes the manifest into dir and waits until it is on the disk.
func (m *Manifest) Write(dir string) error {
	m.Version = version
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, Name))
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return nil
}

// Equal compares a checksum with the manifest's.
func (s *Shard) Equal(crc uint32) bool { return s.CRC32C == Checksum(crc) }

// Checksum is a checksum as the manifest has it.
func Checksum(crc uint32) string { return fmt.Sprintf("%08x", crc) }

// Table is the polynomial of the checksums, CRC-32C, which hardware computes
// and object stores know.
var Table = crc32.MakeTable(crc32.Castagnoli)
