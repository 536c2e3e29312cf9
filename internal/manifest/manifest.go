// Package manifest is index.json, which says what shards a directory has.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
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

	name string
}

// Shard is a file.
type Shard struct {
	Name   string `json:"name"`
	Rows   int    `json:"rows"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"` // of all bytes, 8 hexadecimal digits
}

// Read reads dir's index.json. It wraps fs.ErrNotExist where there is none.
func Read(dir string) (*Manifest, error) {
	name := filepath.Join(dir, Name)
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	idx, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("manifest: %s: %w", name, err)
	}
	idx.name = name
	return idx, nil
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
	seen := map[string]bool{}
	for _, s := range idx.Shards {
		switch {
		case s.Name == "" || s.Name == "." || s.Name == ".." || strings.ContainsAny(s.Name, `/\`):
			return nil, fmt.Errorf("%q is not the name of a file beside it", s.Name)
		case seen[s.Name]:
			return nil, fmt.Errorf("%s is listed twice", s.Name)
		case s.Rows < 0 || s.Bytes < 0:
			return nil, fmt.Errorf("%s: %d rows, %d bytes", s.Name, s.Rows, s.Bytes)
		}
		seen[s.Name] = true
	}
	return idx, nil
}

// Complete compares the files of a directory, by path, with the manifest.
func (m *Manifest) Complete(files []string) error {
	var errs []error
	have := map[string]bool{}
	for _, file := range files {
		have[filepath.Base(file)] = true
		if m.Find(file) == nil {
			errs = append(errs, fmt.Errorf("manifest: %s is not listed in %s: remove one of the two", file, m.name))
		}
	}
	for _, s := range m.Shards {
		if !have[s.Name] {
			errs = append(errs, fmt.Errorf("manifest: %s is missing: %s lists it", filepath.Join(filepath.Dir(m.name), s.Name), m.name))
		}
	}
	return errors.Join(errs...)
}

// Find is what the manifest says of a file, nil where it does not list it.
func (m *Manifest) Find(file string) *Shard {
	if m == nil {
		return nil
	}
	i := slices.IndexFunc(m.Shards, func(s Shard) bool { return s.Name == filepath.Base(file) })
	if i < 0 {
		return nil
	}
	return &m.Shards[i]
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
