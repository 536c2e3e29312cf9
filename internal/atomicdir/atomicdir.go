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

// Dir is a hidden directory beside the one that it becomes. It is locked while
// its process lives, so that what a killed process has left is told from what
// another one is writing.
type Dir struct {
	Name string // where it is; the caller makes files in it

	lock *os.File
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
	siblings, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	for _, old := range siblings {
		if !strings.HasPrefix(old.Name(), "."+base+".tmp-") {
			continue
		}
		if d, err := lockDir(filepath.Join(parent, old.Name())); err == nil {
			d.Remove() // what is in the way is swept another time
		}
	}
	for range 10 {
		name := filepath.Join(parent, fmt.Sprintf(".%s.tmp-%08x", base, rand.Uint32()))
		if err := os.Mkdir(name, 0o777); err != nil {
			return nil, err
		}
		// Another process may sweep it before it is locked.
		d, err := lockDir(name)
		if err != nil {
			continue
		}
		if _, err := os.Stat(name); err == nil {
			return d, nil
		}
		d.lock.Close()
	}
	return nil, fmt.Errorf("%s: other processes remove its temporary directories again and again", target)
}

func lockDir(name string) (*Dir, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, err
	}
	return &Dir{name, f}, nil
}

// Rename makes the directory the target, durably, if its files are on the disk.
// A directory there that is empty gives way; one that is not is an error of
// fs.ErrExist.
func (d *Dir) Rename(target string) error {
	if err := syncDir(d.Name); err != nil {
		return err
	}
	if old, err := os.Lstat(target); err == nil && old.IsDir() {
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := os.Rename(d.Name, target); err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Dir(target)), d.lock.Close())
}

// Remove removes the directory with its files.
func (d *Dir) Remove() error {
	return errors.Join(os.RemoveAll(d.Name), d.lock.Close())
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return syncFile(d)
}
