// Package atomicdir makes directories that appear whole or not at all.
package atomicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

var errBusy = errors.New("another process holds it")

// Dir is a hidden directory beside the one that it becomes. It is locked while
// its process lives, so that what a killed process has left is told from what
// another one is writing.
type Dir struct {
	Name string // where it is; the caller makes files in it

	lock *os.File // nil where nothing is locked
}

// New makes one for target, and the directories above it, after it has removed
// those that nobody writes any more. The caller calls Rename or Remove.
func New(target string) (*Dir, error) {
	parent, base := filepath.Split(target)
	if parent == "" {
		parent = "."
	}
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return nil, err
	}
	if err := sweep(parent, "."+base+".tmp-"); err != nil {
		return nil, err
	}
	for range 10 {
		d := &Dir{Name: filepath.Join(parent, fmt.Sprintf(".%s.tmp-%08x", base, rand.Uint32()))}
		err := os.Mkdir(d.Name, 0o777)
		if err != nil {
			return nil, err
		}
		// Until it is locked another process may sweep it.
		d.lock, err = lock(d.Name)
		if err == nil {
			_, err = os.Stat(d.Name)
		}
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, errBusy) && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, d.Remove())
		}
		d.unlock()
	}
	return nil, fmt.Errorf("%s: other processes remove its temporary directories again and again", target)
}

// sweep removes the directories with a prefix that no process holds.
func sweep(parent, prefix string) error {
	siblings, err := os.ReadDir(parent)
	if err != nil || !canLock {
		return err
	}
	for _, old := range siblings {
		if !strings.HasPrefix(old.Name(), prefix) || !old.IsDir() {
			continue
		}
		d := &Dir{Name: filepath.Join(parent, old.Name())}
		if d.lock, err = lock(d.Name); err == nil {
			d.Remove() // what is in the way is swept another time
		}
	}
	return nil
}

// Rename makes the directory the target, durably, if its files are on the disk.
// A directory there that is empty gives way; one that is not is an error of
// fs.ErrExist, and so is a file. After an error of Rename the caller calls
// Remove.
func (d *Dir) Rename(target string) error {
	if err := SyncDir(d.Name); err != nil {
		return err
	}
	if old, err := os.Lstat(target); err == nil && old.IsDir() {
		os.Remove(target) // if it is empty: os.Rename does not do that
	}
	if _, err := os.Lstat(target); err == nil {
		return fmt.Errorf("%s is there already: %w", target, fs.ErrExist)
	}
	if err := os.Rename(d.Name, target); err != nil {
		return err
	}
	return errors.Join(SyncDir(filepath.Dir(target)), d.unlock())
}

// Remove removes the directory with its files.
func (d *Dir) Remove() error { return errors.Join(os.RemoveAll(d.Name), d.unlock()) }

func (d *Dir) unlock() error {
	if d.lock == nil {
		return nil
	}
	err := d.lock.Close()
	d.lock = nil
	return err
}
