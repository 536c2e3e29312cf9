// Package checkpoint saves and loads the state of a training run.
//
// A directory holds the checkpoints of one run:
//
//	step-500/model.safetensors   named tensors, as Python's safetensors reads them
//	step-500/state.json          what the program wants besides: a cursor, its options
//	latest                       "step-500\n"
//
// A checkpoint appears whole or not at all: it is written under a hidden name,
// brought to the disk, and renamed. Whenever a process is killed or the power
// fails, Load finds the last checkpoint whose Save has returned, or the one
// after.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shardfeed/shardfeed/internal/atomicdir"
	"github.com/shardfeed/shardfeed/trainer"
)

// format is the version of state.json that Save writes, and the newest that
// Load reads.
const format = 1

// stateFile is state.json.
type stateFile struct {
	Format int             `json:"format"`
	Step   int             `json:"step"`
	State  json.RawMessage `json:"state"`
}

const (
	modelName  = "model.safetensors"
	stateName  = "state.json"
	latestName = "latest"
	temporary  = ".tmp-"      // before the name of what is being written or removed
	replaced   = ".replaced-" // before the name of a checkpoint that is being replaced
)

// Save writes a checkpoint of the given step into dir, which it makes where
// needed, and lets latest name it. state is stored as JSON; its type may be
// any that encoding/json takes. A checkpoint of the same step is replaced.
// Then all but the keep checkpoints of the highest steps are removed; the one
// saved stays in any case, and with keep 0 all do.
//
// One process at a time may save into dir: what another one was writing when
// it was killed is removed. When Save fails nothing half-written is left, and
// Load finds the checkpoint that it found before, or this one.
func Save(dir string, step int, tensors []trainer.Tensor, state any, keep int) error {
	return saver{}.save(dir, step, tensors, state, keep)
}

// Load reads the checkpoint that latest names, or that of the highest step
// where there is no latest, and decodes its state into state, a pointer; nil
// leaves the state unread. Tensors come in the order in which they were saved,
// names without the prefix "module."; they are the caller's.
//
// The error is fs.ErrNotExist, by errors.Is, exactly where dir holds no
// checkpoint or does not exist. Fields of the stored state that the type of
// state lacks are an error, so that no option is lost unnoticed.
func Load(dir string, state any) (tensors []trainer.Tensor, step int, err error) {
	step, name, err := newest(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: %w", err)
	}
	if err := loadState(filepath.Join(name, stateName), step, state); err != nil {
		return nil, 0, err
	}
	if tensors, err = loadTensors(filepath.Join(name, modelName)); err != nil {
		return nil, 0, err
	}
	return tensors, step, nil
}

// Steps is the steps of the checkpoints in dir, in ascending order: none where
// dir does not exist.
func Steps(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var steps []int
	for _, e := range entries {
		// A checkpoint that was being replaced when its process was killed counts.
		if step, ok := parseName(strings.TrimPrefix(e.Name(), replaced)); ok && e.IsDir() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return slices.Compact(steps), nil
}

// newest is the step of the checkpoint to load, and its directory.
func newest(dir string) (step int, path string, err error) {
	steps, err := Steps(dir)
	if err != nil {
		return 0, "", err
	}
	latest := filepath.Join(dir, latestName)
	text, err := read(latest, 64)
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(steps) == 0:
		return 0, "", fmt.Errorf("%s holds no checkpoint: %w", dir, fs.ErrNotExist)
	case errors.Is(err, fs.ErrNotExist): // killed within the first Save
		step = steps[len(steps)-1]
	case err != nil:
		return 0, "", err
	default:
		var ok bool
		if step, ok = parseName(strings.TrimSuffix(string(text), "\n")); !ok {
			return 0, "", fmt.Errorf("%s holds %q: it should name a checkpoint, as step-500 does", latest, text)
		}
		if !slices.Contains(steps, step) {
			return 0, "", fmt.Errorf("%s names %s, which is missing: write the name of another one into it (there are the steps %d) or start in an empty directory", latest, stepName(step), steps)
		}
	}
	path = filepath.Join(dir, stepName(step))
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = filepath.Join(dir, replaced+stepName(step))
	}
	return step, path, nil
}

func stepName(step int) string { return fmt.Sprintf("step-%d", step) }

// parseName is the step that stepName names so.
func parseName(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	step, err := strconv.Atoi(digits)
	return step, ok && err == nil && step >= 0 && stepName(step) == name
}

// read is the content of a file of at most limit bytes.
func read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s is longer than the %d bytes that such a file may have", path, limit)
	}
	return text, err
}

func loadState(path string, step int, state any) error {
	text, err := read(path, 1<<28)
	if err != nil {
		return fmt.Errorf("checkpoint: %v", err) // not as fs.ErrNotExist: the checkpoint is there
	}
	var version struct{ Format int }
	if err := json.Unmarshal(text, &version); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	if version.Format < 1 || version.Format > format {
		return fmt.Errorf("checkpoint: %s has the format %d, this program reads 1 to %d: use the version of shardfeed that wrote it", path, version.Format, format)
	}
	var file stateFile
	if err := strict(text, &file); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	if file.Step != step {
		return fmt.Errorf("checkpoint: %s is of step %d, its directory of step %d", path, file.Step, step)
	}
	if state == nil {
		return nil
	}
	if err := strict(file.State, state); err != nil {
		return fmt.Errorf("checkpoint: the state in %s is not this program's: %w", path, err)
	}
	return nil
}

// strict decodes one JSON value that v has all fields of.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func loadTensors(path string) ([]trainer.Tensor, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %v", err)
	}
	tensors, err := readTensors(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return tensors, nil
}

// saver is the operations on files that a Save consists of. Tests let one of
// them fail.
type saver struct {
	fault func(op, path string) error // called before each operation; nil: none fails
}

func (s saver) do(op, path string, f func() error) error {
	if s.fault != nil {
		if err := s.fault(op, path); err != nil {
			return err
		}
	}
	return f()
}

func (s saver) save(dir string, step int, tensors []trainer.Tensor, state any, keep int) error {
	if step < 0 || keep < 0 {
		return fmt.Errorf("checkpoint: step %d, keep %d: neither is below 0", step, keep)
	}
	own, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("checkpoint: the state of step %d: %w", step, err)
	}
	text, err := json.MarshalIndent(stateFile{format, step, own}, "", "  ")
	if err != nil {
		return fmt.Errorf("checkpoint: the state of step %d: %w", step, err)
	}
	if err := s.publish(dir, step, tensors, append(text, '\n')); err != nil {
		return fmt.Errorf("checkpoint: step %d is not saved: %w", step, err)
	}
	if err := s.prune(dir, step, keep); err != nil {
		return fmt.Errorf("checkpoint: step %d is saved, but earlier ones are left over: %w", step, err)
	}
	return nil
}

// publish makes the checkpoint appear. Its operations come in such an order
// that a process may be killed between any two: what newest finds is whole.
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
	return s.point(dir, name)
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

// point lets latest name a checkpoint.
func (s saver) point(dir, name string) error {
	next := filepath.Join(dir, temporary+latestName)
	if err := s.write(next, func(w io.Writer) error { _, err := fmt.Fprintln(w, name); return err }); err != nil {
		return err
	}
	if err := s.rename(next, filepath.Join(dir, latestName)); err != nil {
		return err
	}
	return s.syncDir(dir)
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

// prune removes what was replaced, and all checkpoints but that of step and
// the others of the highest steps, keep in all. Each vanishes at once: it is
// renamed before it is removed.
func (s saver) prune(dir string, step, keep int) error {
	steps, err := Steps(dir)
	if err != nil {
		return err
	}
	steps = slices.DeleteFunc(steps, func(other int) bool { return other == step })
	if keep > 0 {
		for _, other := range steps[:max(0, len(steps)-(keep-1))] {
			if err := s.rename(filepath.Join(dir, stepName(other)), filepath.Join(dir, temporary+stepName(other))); err != nil {
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
