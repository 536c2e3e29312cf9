package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shardfeed/shardfeed/internal/atomicdir"
	"github.com/shardfeed/shardfeed/trainer"
)

// Save writes a checkpoint into dir, which it makes where needed, and lets the
// files latest and best name the right ones. A checkpoint of the same step is
// replaced. Then all but keep checkpoints are removed: the one saved and the
// others of the highest steps stay. The best one stays in any case, and with
// keep 0 all do.
//
// One process at a time may save into dir: what another one was writing when
// it was killed is removed. When Save fails nothing half-written is left, and
// Load finds the checkpoint that it found before, or this one.
func Save(dir string, c Checkpoint, keep int) error {
	return saver{}.save(dir, c, keep)
}

// saver is the operations on files that a Save consists of. Tests let one of
// them fail.
type saver struct {
	around func(op, path string, f func() error) error // called for each operation f; nil: f is
}

func (s saver) do(op, path string, f func() error) error {
	if s.around != nil {
		return s.around(op, path, f)
	}
	return f()
}

func (s saver) save(dir string, c Checkpoint, keep int) error {
	if c.Step < 0 || keep < 0 {
		return fmt.Errorf("checkpoint: step %d, keep %d: neither is below 0", c.Step, keep)
	}
	state, err := stateText(c)
	if err != nil {
		return fmt.Errorf("checkpoint: the state of step %d: %w", c.Step, err)
	}
	if err := s.publish(dir, c.Step, c.Tensors, state); err != nil {
		return fmt.Errorf("checkpoint: step %d is not saved: %w", c.Step, err)
	}
	best, err := s.markBest(dir)
	if err == nil {
		err = s.prune(dir, keep, c.Step, best)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: step %d is saved, but earlier ones are left over: %w", c.Step, err)
	}
	return nil
}

// stateText is the content of state.json.
func stateText(c Checkpoint) ([]byte, error) {
	own, err := json.Marshal(c.State)
	if err != nil {
		return nil, err
	}
	file := stateFile{format, c.Step, c.Metric, own}
	if m := c.Metric; m != nil && (math.IsNaN(*m) || math.IsInf(*m, 0)) {
		file.Metric = nil
	}
	text, err := json.MarshalIndent(file, "", "  ")
	return append(text, '\n'), err
}

// publish makes the checkpoint appear. Its operations come in such an order
// that a process may be killed between any two: what Load finds is whole.
func (s saver) publish(dir string, step int, tensors []trainer.Tensor, state []byte) (err error) {
	if err := s.mkdirAll(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.clean(dir))
		}
	}()
	if err := s.clean(dir); err != nil {
		return err
	}
	name := stepName(step)
	path, next := filepath.Join(dir, name), filepath.Join(dir, temporary+name)
	if err := s.fill(next, tensors, state); err != nil {
		return err
	}
	if _, err := os.Stat(path); err == nil {
		if err := s.rename(path, filepath.Join(dir, replaced+name)); err != nil {
			return err
		}
	}
	if err := s.rename(next, path); err != nil {
		return err
	}
	if err := s.syncDir(dir); err != nil {
		return err
	}
	return s.point(dir, Latest, step)
}

// fill writes a checkpoint into a new directory.
func (s saver) fill(dir string, tensors []trainer.Tensor, state []byte) error {
	if err := s.do("mkdir", dir, func() error { return os.Mkdir(dir, 0o777) }); err != nil {
		return err
	}
	if err := s.write(filepath.Join(dir, modelName), func(w io.Writer) error { return writeTensors(w, tensors) }); err != nil {
		return err
	}
	if err := s.write(filepath.Join(dir, stateName), func(w io.Writer) error { _, err := w.Write(state); return err }); err != nil {
		return err
	}
	return s.syncDir(dir)
}

// point lets a file, latest or best, name a checkpoint.
func (s saver) point(dir, file string, step int) error {
	next := filepath.Join(dir, temporary+file)
	if err := s.write(next, func(w io.Writer) error { _, err := fmt.Fprintln(w, stepName(step)); return err }); err != nil {
		return err
	}
	if err := s.rename(next, filepath.Join(dir, file)); err != nil {
		return err
	}
	return s.syncDir(dir)
}

// markBest lets the file best name the best checkpoint of those in dir, and
// removes it where none has a metric. It comes before what it named is pruned.
func (s saver) markBest(dir string) (step int, err error) {
	steps, err := list(dir)
	if err != nil {
		return none, err
	}
	if step, err = best(dir, steps); err != nil {
		return none, err
	}
	path := filepath.Join(dir, Best)
	text, err := os.ReadFile(path)
	switch {
	case step == none && errors.Is(err, fs.ErrNotExist):
		return none, nil
	case step == none:
		return none, s.do("remove", path, func() error { return os.Remove(path) })
	case err == nil && string(text) == stepName(step)+"\n":
		return step, nil
	}
	return step, s.point(dir, Best, step)
}

// mkdirAll makes dir and the directories above it, and brings their names to
// the disk.
func (s saver) mkdirAll(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(dir)
	if err := s.mkdirAll(above); err != nil {
		return err
	}
	if err := s.do("mkdir", dir, func() error { return os.Mkdir(dir, 0o777) }); err != nil {
		return err
	}
	return s.syncDir(above)
}

// clean removes what a Save that did not end left: temporaries, and the
// checkpoint that it replaced, which goes back to its place if that is empty.
func (s saver) clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if name, ok := strings.CutPrefix(e.Name(), replaced); ok {
			home := filepath.Join(dir, name)
			if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
				if err := s.rename(path, home); err != nil {
					return err
				}
				continue
			}
		} else if !strings.HasPrefix(e.Name(), temporary) {
			continue
		}
		if err := s.do("remove", path, func() error { return os.RemoveAll(path) }); err != nil {
			return err
		}
	}
	return nil
}

// prune removes what was replaced, and all checkpoints but the saved one, the
// others of the highest steps, keep in all, and the best one. Each vanishes at
// once: it is renamed before it is removed.
func (s saver) prune(dir string, keep, saved, best int) error {
	steps, err := list(dir)
	if err != nil {
		return err
	}
	steps = slices.DeleteFunc(steps, func(step int) bool { return step == saved })
	if keep > 0 {
		for _, step := range steps[:max(0, len(steps)-(keep-1))] {
			if step == best {
				continue
			}
			if err := s.rename(filepath.Join(dir, stepName(step)), filepath.Join(dir, temporary+stepName(step))); err != nil {
				return err
			}
		}
	}
	return s.clean(dir)
}

// write makes a file and brings its bytes to the disk.
func (s saver) write(path string, content func(w io.Writer) error) error {
	var f *os.File
	err := s.do("create", path, func() (err error) { f, err = os.Create(path); return err })
	if err != nil {
		return err
	}
	err = content(writer{s, f})
	if err == nil {
		err = s.do("sync", path, f.Sync)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// writer is an open file, each Write an operation of its own.
type writer struct {
	saver
	f *os.File
}

func (w writer) Write(p []byte) (n int, err error) {
	err = w.do("write", w.f.Name(), func() (err error) { n, err = w.f.Write(p); return err })
	return n, err
}

func (s saver) rename(from, to string) error {
	return s.do("rename", to, func() error { return os.Rename(from, to) })
}

func (s saver) syncDir(dir string) error {
	return s.do("sync", dir, func() error { return atomicdir.SyncDir(dir) })
}
