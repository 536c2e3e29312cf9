package arrowipc

import (
	"errors"
	"fmt"

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
	names, known, err := find(path)
	if err != nil {
		return Verified{}, err
	}
	v := Verified{Files: len(names)}
	bad := func(name string, err error) {
		v.Bad++
		report(problemOf(name, err))
	}
	for _, err := range known.missing(names) {
		bad(path, err)
	}
	var first *Set // the first good shard
	for _, name := range names {
		s := &Set{}
		err := s.add(name, known)
		if err == nil {
			err = readAll(s.shards[0].File, known)
		}
		if err == nil && first != nil {
			err = sameFields(first.shards[0].Name, first.fields, name, s.fields)
		}
		v.Rows += s.rows
		if closing := s.Close(); err == nil {
			err = closing
		}
		if err != nil {
			bad(name, err)
		} else if first == nil {
			first = s
		}
	}
	return v, nil
}

// readAll reads every byte, and compares the checksum where there is one.
func readAll(f *ipcfile.File, known manifests) error {
	idx, _ := known.beside(f.Name) // its error was add's
	if entry := idx.Find(f.Name); entry != nil {
		return checkSum(f, idx, entry)
	}
	return f.Touch()
}

func problemOf(file string, err error) Problem {
	var at *ipcfile.Error
	if errors.As(err, &at) {
		return Problem{at.File, at.Batch, at.Err}
	}
	return Problem{file, -1, err}
}
