package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

// cursor is what a program keeps beside its tensors.
type cursor struct {
	Epoch, Step int
	Order       string
}

// content is the tensors and the state of a checkpoint of a step; no two
// steps' are alike.
func content(step int) ([]trainer.Tensor, cursor) {
	return []trainer.Tensor{
		{Name: "fc1.weight", Shape: []int{2, 3}, Data: []float32{1, 2, 3, 4, 5, float32(step)}},
		{Name: "fc1.bias", Shape: []int{1}, Data: []float32{-float32(step)}},
	}, cursor{1, step, "keyed"}
}

func save(t *testing.T, dir string, step, keep int) {
	t.Helper()
	tensors, state := content(step)
	if err := Save(dir, step, tensors, state, keep); err != nil {
		t.Fatal(err)
	}
}

// whole says whether dir's checkpoint is that of step, to the last value.
func whole(dir string, step int) error {
	var state cursor
	tensors, got, err := Load(dir, &state)
	if err != nil {
		return err
	}
	want, wantState := content(step)
	if got != step || state != wantState || !reflect.DeepEqual(tensors, want) {
		return fmt.Errorf("step %d with %v and %v, want step %d", got, state, tensors, step)
	}
	return nil
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "checkpoints")
	for _, step := range []int{0, 5, 10, 10, 7} {
		save(t, dir, step, 0)
		if err := whole(dir, step); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := names(t, dir), []string{"latest", "step-0", "step-10", "step-5", "step-7"}; !slices.Equal(got, want) {
		t.Errorf("the directory holds %v, want %v", got, want)
	}
	steps, err := Steps(dir)
	if want := []int{0, 5, 7, 10}; !slices.Equal(steps, want) || err != nil {
		t.Errorf("Steps: %v, %v, want %v", steps, err, want)
	}
	if _, _, err := Load(dir, nil); err != nil {
		t.Errorf("without a state: %v", err)
	}
}

func TestNoCheckpoint(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "missing")} {
		if _, _, err := Load(dir, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v", err)
		}
		if steps, err := Steps(dir); len(steps) > 0 || err != nil {
			t.Errorf("Steps: %v, %v", steps, err)
		}
	}
}

// A process that was killed within its first Save may leave a checkpoint that
// nothing names.
func TestNoLatest(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, 9, 0)
	save(t, dir, 10, 0)
	if err := os.Remove(filepath.Join(dir, latestName)); err != nil {
		t.Fatal(err)
	}
	if err := whole(dir, 10); err != nil {
		t.Error(err)
	}
}

func TestKeep(t *testing.T) {
	for _, c := range []struct {
		keep  int
		saved []int
		want  []int
	}{
		{0, []int{1, 2, 3}, []int{1, 2, 3}},
		{1, []int{1, 2, 3}, []int{3}},
		{2, []int{8, 9, 10}, []int{9, 10}},
		{2, []int{1, 2, 2}, []int{1, 2}},
		{5, []int{1, 2, 3}, []int{1, 2, 3}},
		{2, []int{1, 3, 2}, []int{2, 3}},
		{1, []int{3, 2}, []int{2}}, // the one saved stays
		{2, []int{3, 4, 2}, []int{2, 4}},
	} {
		dir := t.TempDir()
		for _, step := range c.saved {
			save(t, dir, step, c.keep)
		}
		if got, err := Steps(dir); !slices.Equal(got, c.want) || err != nil {
			t.Errorf("saved %v, kept %d: %v, %v, want %v", c.saved, c.keep, got, err, c.want)
		}
		if err := whole(dir, c.saved[len(c.saved)-1]); err != nil {
			t.Error(err)
		}
	}
}

// The order of the operations is what makes a checkpoint outlive a loss of
// power: bytes are synced before the rename that shows them, names after it.
func TestOperations(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	var trace []string
	s := saver{fault: func(op, path string) error {
		rel, err := filepath.Rel(filepath.Dir(dir), path)
		trace = append(trace, op+" "+filepath.ToSlash(rel))
		return err
	}}
	for _, c := range []struct {
		step, keep int
		want       string
	}{
		{1, 0, `mkdir c, sync .,
			mkdir c/.tmp-step-1,
			create c/.tmp-step-1/model.safetensors, write c/.tmp-step-1/model.safetensors (3 times), sync c/.tmp-step-1/model.safetensors,
			create c/.tmp-step-1/state.json, write c/.tmp-step-1/state.json, sync c/.tmp-step-1/state.json,
			sync c/.tmp-step-1, rename c/step-1, sync c,
			create c/.tmp-latest, write c/.tmp-latest, sync c/.tmp-latest, rename c/latest, sync c`},
		{1, 0, `mkdir c/.tmp-step-1,
			create c/.tmp-step-1/model.safetensors, write c/.tmp-step-1/model.safetensors (3 times), sync c/.tmp-step-1/model.safetensors,
			create c/.tmp-step-1/state.json, write c/.tmp-step-1/state.json, sync c/.tmp-step-1/state.json,
			sync c/.tmp-step-1, rename c/.replaced-step-1, rename c/step-1, sync c,
			create c/.tmp-latest, write c/.tmp-latest, sync c/.tmp-latest, rename c/latest, sync c,
			remove c/.replaced-step-1`},
		{2, 1, `mkdir c/.tmp-step-2,
			create c/.tmp-step-2/model.safetensors, write c/.tmp-step-2/model.safetensors (3 times), sync c/.tmp-step-2/model.safetensors,
			create c/.tmp-step-2/state.json, write c/.tmp-step-2/state.json, sync c/.tmp-step-2/state.json,
			sync c/.tmp-step-2, rename c/step-2, sync c,
			create c/.tmp-latest, write c/.tmp-latest, sync c/.tmp-latest, rename c/latest, sync c,
			rename c/.tmp-step-1, remove c/.tmp-step-1`},
	} {
		trace = nil
		tensors, state := content(c.step)
		if err := s.save(dir, c.step, tensors, state, c.keep); err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, op := range trace {
			if n := len(got); i > 0 && trace[i-1] == op {
				got[n-1] = op + " (3 times)"
				continue
			}
			got = append(got, op)
		}
		if want := strings.Join(strings.Fields(c.want), " "); strings.Join(got, ", ") != want {
			t.Errorf("step %d:\ngot  %s\nwant %s", c.step, strings.Join(got, ", "), want)
		}
	}
}

var errInjected = errors.New("injected")

// Each operation of a Save fails in turn. Either it alone does, as on a full
// disk, or all from then on do, as of a process that was killed. What is
// loaded then is the checkpoint before or the one saved, whole, and the next
// Save leaves nothing behind.
func TestEveryFault(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		name   string
		before func(t *testing.T, dir string)
		old    int // the step that was there before
		step   int
		keep   int
	}{
		{"first", func(t *testing.T, dir string) {}, none, 0, 2},
		{"next", func(t *testing.T, dir string) { save(t, dir, 1, 0) }, 1, 2, 1},
		{"another of the same step", func(t *testing.T, dir string) { saveAs(t, dir, 3, 1) }, 1, 3, 1},
		{"after a kill between the renames", func(t *testing.T, dir string) {
			save(t, dir, 1, 0)
			save(t, dir, 2, 0)
			if err := os.WriteFile(filepath.Join(dir, latestName), []byte("step-1\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}, 1, 2, 0},
		{"after a kill while replacing", func(t *testing.T, dir string) {
			saveAs(t, dir, 3, 1)
			if err := os.Rename(filepath.Join(dir, "step-3"), filepath.Join(dir, replaced+"step-3")); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, temporary+"step-3", "half"), 0o777); err != nil {
				t.Fatal(err)
			}
		}, 1, 3, 0},
	} {
		for _, killed := range []bool{false, true} {
			for k := 0; ; k++ {
				dir := filepath.Join(t.TempDir(), "c")
				c.before(t, dir)
				ops := 0
				s := saver{fault: func(op, path string) error {
					ops++
					if ops-1 == k || killed && ops-1 > k {
						if op == "write" { // what reached the disk of a write that failed
							os.WriteFile(path, []byte("half"), 0o666)
						}
						return errInjected
					}
					return nil
				}}
				name := fmt.Sprintf("%s, operation %d, killed %v", c.name, k, killed)
				tensors, state := content(c.step)
				err := s.save(dir, c.step, tensors, state, c.keep)
				if ops <= k {
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					break
				}
				if !errors.Is(err, errInjected) {
					t.Fatalf("%s: %v", name, err)
				}
				checkOldOrNew(t, name, dir, c.old, c.step)
				if !killed && !strings.Contains(err.Error(), "is saved") {
					checkTidy(t, name, dir)
				}
				if err := Save(dir, c.step, tensors, state, c.keep); err != nil {
					t.Fatalf("%s: the next Save: %v", name, err)
				}
				if err := whole(dir, c.step); err != nil {
					t.Fatalf("%s: the next Save: %v", name, err)
				}
				checkTidy(t, name, dir)
			}
		}
	}
}

// saveAs saves the content of another step as that of step, so that one sees
// which of two checkpoints of a step is loaded.
func saveAs(t *testing.T, dir string, step, of int) {
	t.Helper()
	tensors, state := content(of)
	if err := Save(dir, step, tensors, state, 0); err != nil {
		t.Fatal(err)
	}
}

func checkOldOrNew(t *testing.T, name, dir string, old, step int) {
	t.Helper()
	var state cursor
	tensors, _, err := Load(dir, &state)
	if errors.Is(err, fs.ErrNotExist) && old < 0 {
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, of := range []int{old, step} {
		want, wantState := content(of)
		if reflect.DeepEqual(tensors, want) && state == wantState {
			return
		}
	}
	t.Fatalf("%s: loaded %v and %v", name, tensors, state)
}

func checkTidy(t *testing.T, name, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return
	}
	for _, entry := range names(t, dir) {
		if strings.HasPrefix(entry, ".") {
			t.Errorf("%s: %s is left", name, entry)
		}
	}
}

func TestSaveErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	one := []trainer.Tensor{{Name: "a", Shape: []int{1}, Data: []float32{1}}}
	dir := t.TempDir()
	for _, c := range []struct {
		name, want string
		dir        string
		step, keep int
		tensors    []trainer.Tensor
		state      any
	}{
		{"negative step", "step -1", dir, -1, 0, one, nil},
		{"negative keep", "keep -1", dir, 0, -1, one, nil},
		{"a state that is no JSON", "the state of step 4", dir, 4, 0, one, math.NaN()},
		{"another number of values", `tensor "a" has the shape [2] of 2 values, but 1 values`, dir, 4, 0, []trainer.Tensor{{Name: "a", Shape: []int{2}, Data: []float32{1}}}, nil},
		{"impossible shape", `no memory holds the shape [-1]`, dir, 4, 0, []trainer.Tensor{{Name: "a", Shape: []int{-1}}}, nil},
		{"overflowing shape", `no memory holds the shape`, dir, 4, 0, []trainer.Tensor{{Name: "a", Shape: []int{math.MaxInt, math.MaxInt}}}, nil},
		{"a name twice", `two tensors are named "a"`, dir, 4, 0, slices.Concat(one, one), nil},
		{"no name", `a tensor is named ""`, dir, 4, 0, []trainer.Tensor{{Data: []float32{1}}}, nil},
		{"not UTF-8", `a tensor is named "\xff"`, dir, 4, 0, []trainer.Tensor{{Name: "\xff", Data: []float32{1}}}, nil},
		{"the metadata's name", `two tensors are named "__metadata__"`, dir, 4, 0, []trainer.Tensor{{Name: metadata, Data: []float32{1}}}, nil},
		{"a file for a directory", file, file, 4, 0, one, nil},
		{"below a file", file, filepath.Join(file, "below"), 4, 0, one, nil},
	} {
		err := Save(c.dir, c.step, c.tensors, c.state, c.keep)
		if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if left := names(t, dir); len(left) > 0 {
			t.Fatalf("%s: %v is left", c.name, left)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	write := func(name, text string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const state, model = "step-2/state.json", "step-2/model.safetensors"
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		file   string // that the error names
		want   string
	}{
		{"latest is empty", write("latest", ""), "latest", `holds ""`},
		{"latest names no checkpoint", write("latest", "../step-2"), "latest", `holds "../step-2"`},
		{"latest names a step in another way", write("latest", "step-02\n"), "latest", `holds "step-02\n"`},
		{"latest is long", write("latest", strings.Repeat("x", 100)), "latest", "longer than the 64 bytes"},
		{"latest names what is missing", write("latest", "step-3\n"), "latest", "names step-3, which is missing: write the name of another one into it (there are the steps [1 2])"},
		{"no state", remove(state), state, "no such file"},
		{"no model", remove(model), model, "no such file"},
		{"state cut short", write(state, `{"format": 1, "st`), state, "unexpected end"},
		{"newer state", write(state, `{"format": 2, "step": 2, "more": 1}`), state, "format 2, this program reads 1 to 1"},
		{"state of something else", write(state, `{}`), state, "format 0"},
		{"state of another step", write(state, `{"format": 1, "step": 3, "state": {}}`), state, "of step 3"},
		{"state of another program", write(state, `{"format": 1, "step": 2, "state": {"Epoch": 1, "Shape": 2}}`), state, `unknown field "Shape"`},
		{"state of another type", write(state, `{"format": 1, "step": 2, "state": {"Epoch": "one"}}`), state, "cannot unmarshal"},
		{"model is empty", write(model, ""), model, "0 bytes"},
		{"model is another file", write(model, "hello world, this is no model"), model, "header"},
	} {
		dir := t.TempDir()
		save(t, dir, 1, 0)
		save(t, dir, 2, 0)
		c.damage(t, dir)
		_, _, err := Load(dir, &cursor{})
		if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: ") || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), filepath.Join(dir, filepath.FromSlash(c.file))) {
			t.Errorf("%s: %v, want %s and %q", c.name, err, c.file, c.want)
		}
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a damaged checkpoint passes for none", c.name)
		}
	}
}

func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, 2, 0)
	text, err := os.ReadFile(filepath.Join(dir, "step-2", "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"format": 1.0, "step": 2.0, "state": map[string]any{"Epoch": 1.0, "Step": 2.0, "Order": "keyed"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("state.json is %v, want %v", got, want)
	}
	if text, err = os.ReadFile(filepath.Join(dir, "latest")); string(text) != "step-2\n" || err != nil {
		t.Errorf("latest is %q, %v", text, err)
	}
}

// Save moves the model's bytes into the page cache and waits for the disk.
func BenchmarkSave(b *testing.B) {
	dir, data := b.TempDir(), make([]float32, 1<<20)
	tensors := []trainer.Tensor{{Name: "a", Shape: []int{len(data)}, Data: data}}
	b.SetBytes(int64(4 * len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Save(dir, 0, tensors, nil, 1); err != nil {
			b.Fatal(err)
		}
	}
}
