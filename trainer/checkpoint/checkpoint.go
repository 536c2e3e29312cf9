// Package checkpoint saves and loads the state of a training run.
//
// A directory holds the checkpoints of one run:
//
//	step-500/model.safetensors   named tensors, as Python's safetensors reads them
//	step-500/state.json          the metric, and what the program wants besides: a cursor, its options
//	latest                       "step-500\n"
//	best                         "step-400\n", where checkpoints have metrics
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
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shardfeed/shardfeed/trainer"
)

// Checkpoint is what a run goes on from.
type Checkpoint struct {
	// Step is how many steps the run has made.
	Step int
	// Tensors are the model's and the optimizer's.
	Tensors []trainer.Tensor
	// Metric is what the best checkpoint has the most of: an accuracy, or a
	// loss with its sign changed. nil is not measured, and so are NaN and the
	// infinities of a run that has diverged.
	Metric *float64
	// State is stored as JSON; its type may be any that encoding/json takes.
	State any
}

// The names of checkpoints that Load and Peek take, beside step-500 and the like.
const (
	Latest = "latest" // the one that was saved last
	Best   = "best"   // the one with the largest metric, of several the one of the lowest step
)

// format is the version of state.json that Save writes, and the newest that
// Load reads.
const format = 1

// stateFile is state.json.
type stateFile struct {
	Format int             `json:"format"`
	Step   int             `json:"step"`
	Metric *float64        `json:"metric,omitempty"`
	State  json.RawMessage `json:"state"`
}

const (
	modelName = "model.safetensors"
	stateName = "state.json"
	temporary = ".tmp-"      // before the name of what is being written or removed
	replaced  = ".replaced-" // before the name of a checkpoint that is being replaced
)

// Load reads the checkpoint of that name in dir and decodes its state into
// state, a pointer, which is the result's State, too; nil leaves the state
// unread. Tensors come in the order in which they were saved, names without
// the prefix "module."; they are the caller's.
//
// Latest is what the file latest names, or the highest step where there is no
// such file. Best goes by the metrics; the file best is for other programs.
//
// The error is fs.ErrNotExist, by errors.Is, exactly where dir holds no such
// checkpoint or does not exist. Fields of the stored state that the type of
// state lacks are an error, so that no option is lost unnoticed.
func Load(dir, name string, state any) (Checkpoint, error) {
	c, path, err := peek(dir, name, state)
	if err == nil {
		c.Tensors, err = loadTensors(filepath.Join(path, modelName))
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	return c, nil
}

// Peek is Load without the tensors, which it does not open.
func Peek(dir, name string, state any) (Checkpoint, error) {
	c, _, err := peek(dir, name, state)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	return c, nil
}

// Steps is the steps of the checkpoints in dir, in ascending order: none where
// dir does not exist.
func Steps(dir string) ([]int, error) {
	steps, err := list(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return steps, nil
}

// list is Steps.
func list(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
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

func stepName(step int) string { return fmt.Sprintf("step-%d", step) }

// parseName is the step that stepName names so.
func parseName(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	step, err := strconv.Atoi(digits)
	return step, ok && err == nil && step >= 0 && stepName(step) == name
}

// place is the directory of the checkpoint of a step.
func place(dir string, step int) string {
	path := filepath.Join(dir, stepName(step))
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(dir, replaced+stepName(step))
	}
	return path
}

// none is the step of no checkpoint.
const none = -1

// find is the step of the checkpoint of a name.
func find(dir, name string) (step int, err error) {
	steps, err := list(dir)
	if err != nil {
		return none, err
	}
	step, numbered := parseName(name)
	switch {
	case numbered && !slices.Contains(steps, step):
		step = none
	case numbered:
	case name == Latest:
		step, err = latest(dir, steps)
	case name == Best:
		step, err = best(dir, steps)
	default:
		err = fmt.Errorf("no checkpoint is called %q: use latest, best, or a name such as step-500", name)
	}
	if err == nil && step == none {
		err = fmt.Errorf("%s holds no checkpoint %q, but the steps %d: %w", dir, name, steps, fs.ErrNotExist)
	}
	return step, err
}

// latest is the step that the file latest names, or the highest.
func latest(dir string, steps []int) (step int, err error) {
	path := filepath.Join(dir, Latest)
	text, err := read(path, 64)
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(steps) == 0:
		return none, nil
	case errors.Is(err, fs.ErrNotExist): // killed within the first Save
		return steps[len(steps)-1], nil
	case err != nil:
		return none, err
	}
	step, ok := parseName(strings.TrimSuffix(string(text), "\n"))
	if !ok {
		return none, fmt.Errorf("%s holds %q: it should name a checkpoint, as step-500 does", path, text)
	}
	if !slices.Contains(steps, step) {
		return none, fmt.Errorf("%s names %s, which is missing: write the name of another one into it (there are the steps %d) or start in an empty directory", path, stepName(step), steps)
	}
	return step, nil
}

// best is the step with the largest metric, of several the lowest.
func best(dir string, steps []int) (step int, err error) {
	step, top := none, math.Inf(-1)
	for _, s := range steps {
		file, err := readState(filepath.Join(place(dir, s), stateName), s)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a directory of that name, but no checkpoint
		}
		if err != nil {
			return none, fmt.Errorf("whether %s is the best checkpoint is not known, mend it or remove it: %w", stepName(s), err)
		}
		if file.Metric != nil && *file.Metric > top {
			step, top = s, *file.Metric
		}
	}
	return step, nil
}

// peek is Peek; path is the checkpoint's directory.
func peek(dir, name string, state any) (c Checkpoint, path string, err error) {
	step, err := find(dir, name)
	if err != nil {
		return Checkpoint{}, "", err
	}
	path = place(dir, step)
	file, err := readState(filepath.Join(path, stateName), step)
	if err != nil {
		return Checkpoint{}, "", opaque(err)
	}
	if state != nil {
		if err := strict(file.State, state); err != nil {
			return Checkpoint{}, "", fmt.Errorf("the state in %s is not this program's: %w", filepath.Join(path, stateName), err)
		}
	}
	return Checkpoint{Step: step, Metric: file.Metric, State: state}, path, nil
}

// opaque is err, but not fs.ErrNotExist: the checkpoint exists, a file of it
// is missing.
func opaque(err error) error { return fmt.Errorf("%v", err) }

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

// readState reads the state.json of a step, its State undecoded.
func readState(path string, step int) (file stateFile, err error) {
	text, err := read(path, 1<<28)
	if err != nil {
		return stateFile{}, err
	}
	var version struct{ Format int }
	if err := json.Unmarshal(text, &version); err != nil {
		return stateFile{}, fmt.Errorf("%s: %w", path, err)
	}
	if version.Format < 1 || version.Format > format {
		return stateFile{}, fmt.Errorf("%s has the format %d, this program reads 1 to %d: use the version of shardfeed that wrote it", path, version.Format, format)
	}
	if err := errors.Join(unique(text), strict(text, &file)); err != nil {
		return stateFile{}, fmt.Errorf("%s: %w", path, err)
	}
	if file.Step != step {
		return stateFile{}, fmt.Errorf("%s is of step %d, its directory of step %d", path, file.Step, step)
	}
	return file, nil
}

// strict decodes one JSON value that v has all fields of.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// unique fails where an object in the text, which is valid JSON, has a name
// twice: encoding/json takes the last one, other programs the first.
func unique(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return uniqueIn(d)
}

func uniqueIn(d *json.Decoder) error {
	opened, err := d.Token()
	if _, ok := opened.(json.Delim); err != nil || !ok {
		return err
	}
	names := map[any]bool{}
	for d.More() {
		if opened == json.Delim('{') {
			name, err := d.Token()
			if err != nil {
				return err
			}
			if names[name] {
				return fmt.Errorf("the name %q stands twice in one object", name)
			}
			names[name] = true
		}
		if err := uniqueIn(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

func loadTensors(path string) ([]trainer.Tensor, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, opaque(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	tensors, err := readTensors(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return tensors, nil
}
