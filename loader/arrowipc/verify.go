package arrowipc

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/shardfeed/shardfeed/loader/arrowipc/internal/ipcfile"
)

// Problem is why a file is bad.
type Problem struct {
	File  string
	Batch int // the record batch, from 0; -1 where that is not known
	Err   error
}

// String is the file, the record batch where it is known, and the reason.
func (p Problem) String() string {
	if p.Batch < 0 {
		return fmt.Sprintf("%s: %v", p.File, p.Err)
	}
	return fmt.Sprintf("%s: record batch %d: %v", p.File, p.Batch, p.Err)
}

// Verified counts what Verify has read.
type Verified struct{ Files, Bad, Rows int }

// Verify reads every byte of the shards at path, which is as for Open, and
// calls report once for each bad file: one that is malformed, that differs
// from its directory's index.json, or that Set does not read in all its
// columns. It fails where it cannot begin, as there are no shards.
func Verify(path string, report func(Problem)) (Verified, error) {
	names, idx, err := find(path)
	if names == nil {
		return Verified{}, err
	}
	v := Verified{Files: len(names)}
	if err != nil { // the index is bad, or says that shards are missing
		v.Bad++
		report(Problem{File: path, Batch: -1, Err: err})
		idx = nil
	}
	var first *Set
	defer func() {
		if first != nil {
			first.Close()
		}
	}()
	for _, name := range names {
		s := &Set{}
		err := s.add(name, idx)
		if entry := idx.Find(name); err == nil && entry != nil {
			err = checkSum(s.shards[0].File, entry)
		}
		if err == nil {
			err = touch(s.shards[0].File)
		}
		if err == nil && first != nil {
			err = sameFields(first.shards[0].Name, first.fields, name, s.fields)
		}
		v.Rows += s.rows
		if err == nil && first == nil {
			first = s
			continue
		}
		if closing := s.Close(); err == nil {
			err = closing
		}
		if err != nil {
			v.Bad++
			report(problemOf(name, err))
		}
	}
	return v, nil
}

func problemOf(file string, err error) Problem {
	var at *ipcfile.Error
	if errors.As(err, &at) {
		return Problem{file, at.Batch, at.Err}
	}
	return Problem{file, -1, err}
}

// touched keeps the compiler from leaving out reads.
var touched atomic.Uint32

// touch reads a byte of every page.
func touch(f *ipcfile.File) error {
	err := ipcfile.Guard(func() error {
		var sum byte
		for i := 0; i < len(f.Data); i += 4096 {
			sum += f.Data[i]
		}
		touched.Store(uint32(sum))
		if !f.Whole() {
			return errors.New("truncated while it was read")
		}
		return nil
	})
	if err != nil {
		return f.Err(err)
	}
	return nil
}
