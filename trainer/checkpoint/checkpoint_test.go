package checkpoint

import (
	"bytes"
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

// content is a checkpoint of a step, without a metric; no two steps' are alike.
func content(step int) Checkpoint {
	return Checkpoint{Step: step, Tensors: []trainer.Tensor{
		{Name: "fc1.weight", Shape: []int{2, 3}, Data: []float32{1, 2, 3, 4, 5, float32(step)}},
		{Name: "fc1.bias", Shape: []int{1}, Data: []float32{-float32(step)}},
	}, State: cursor{1, step, "keyed"}}
}

// measured is a checkpoint of a step with a metric.
func measured(step int, metric float64) Checkpoint {
	c := content(step)
	c.Metric = &metric
	return c
}

func save(t *testing.T, dir string, c Checkpoint, keep int) {
	t.Helper()
	if err := Save(dir, c, keep); err != nil {
		t.Fatal(err)
	}
}

// load is Load, its State a cursor.
func load(dir, name string) (Checkpoint, error) {
	var state cursor
	c, err := Load(dir, name, &state)
	if err == nil && c.State != any(&state) {
		err = fmt.Errorf("the state is %v, not the caller's", c.State)
	}
	c.State = state
	return c, err
}

// whole says whether dir's checkpoint of that name is want, to the last value.
func whole(dir, name string, want Checkpoint) error {
	got, err := load(dir, name)
	if err == nil && !reflect.DeepEqual(got, want) {
		err = fmt.Errorf("%s is %+v, want %+v", name, got, want)
	}
	return err
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
		save(t, dir, content(step), 0)
		if err := whole(dir, Latest, content(step)); err != nil {
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
	for _, step := range steps {
		if err := whole(dir, fmt.Sprintf("step-%d", step), content(step)); err != nil {
			t.Error(err)
		}
	}
	if c, err := Load(dir, Latest, nil); err != nil || c.State != nil {
		t.Errorf("without a state: %v, %v", c.State, err)
	}
}

// Peek is for those who want to know soon whether a run can go on: it does
// without the tensors.
func TestPeek(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, measured(3, 0.5), 0)
	if err := os.Remove(filepath.Join(dir, "step-3", modelName)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Latest, Best, "step-3"} {
		var state cursor
		c, err := Peek(dir, name, &state)
		if err != nil || c.Step != 3 || *c.Metric != 0.5 || c.Tensors != nil || state != content(3).State {
			t.Errorf("%s: %+v, %v, %v", name, c, state, err)
		}
		if _, err := Load(dir, name, &state); err == nil {
			t.Errorf("%s is loaded without a model", name)
		}
	}
}

func TestNoCheckpoint(t *testing.T) {
	empty, some := t.TempDir(), t.TempDir()
	save(t, some, content(3), 0)
	for _, c := range [][2]string{{empty, Latest}, {empty, Best}, {empty, "step-3"}, {filepath.Join(empty, "missing"), Latest}, {some, Best}, {some, "step-4"}} {
		for _, load := range []func(dir, name string, state any) (Checkpoint, error){Load, Peek} {
			if _, err := load(c[0], c[1], nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), fmt.Sprintf("%s holds no checkpoint %q", c[0], c[1])) {
				t.Errorf("%v: %v", c, err)
			}
		}
	}
	for _, name := range []string{"", "newest", "step-", "step-03", "step-3/", "../step-3"} {
		if _, err := Load(some, name, nil); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "use latest, best, or a name such as step-500") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if steps, err := Steps(filepath.Join(empty, "missing")); len(steps) > 0 || err != nil {
		t.Errorf("Steps: %v, %v", steps, err)
	}
}

// A process that was killed within its first Save may leave a checkpoint that
// nothing names.
func TestNoLatest(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, content(9), 0)
	save(t, dir, content(10), 0)
	if err := os.Remove(filepath.Join(dir, Latest)); err != nil {
		t.Fatal(err)
	}
	if err := whole(dir, Latest, content(10)); err != nil {
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
			save(t, dir, content(step), c.keep)
		}
		if got, err := Steps(dir); !slices.Equal(got, c.want) || err != nil {
			t.Errorf("saved %v, kept %d: %v, %v, want %v", c.saved, c.keep, got, err, c.want)
		}
		if err := whole(dir, Latest, content(c.saved[len(c.saved)-1])); err != nil {
			t.Error(err)
		}
	}
}

// The best checkpoint stays beside the keep newest, and is counted among them
// where it is one.
func TestKeepBest(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	type saved struct {
		step   int
		metric float64 // 0: not measured
	}
	for _, c := range []struct {
		keep  int
		saved []saved
		best  int
		want  []int
	}{
		{1, []saved{{1, 0.5}, {2, 0.9}, {3, 0.7}, {4, 0.8}}, 2, []int{2, 4}},
		{2, []saved{{1, 0.5}, {2, 0.9}, {3, 0.7}, {4, 0.8}}, 2, []int{2, 3, 4}},
		{2, []saved{{1, 0.5}, {2, 0.6}, {3, 0.7}}, 3, []int{2, 3}},
		{0, []saved{{1, 0.5}, {2, 0.9}, {3, 0.7}}, 2, []int{1, 2, 3}},
		{1, []saved{{1, -3}, {2, -2}, {3, -4}}, 2, []int{2, 3}},        // losses, their signs changed
		{1, []saved{{1, 0.5}, {2, 0.5}, {3, 0.5}}, 1, []int{1, 3}},     // the first of equals
		{1, []saved{{1, 0.5}, {2, 0}, {3, 0}}, 1, []int{1, 3}},         // not measured at each step
		{1, []saved{{1, 0}, {2, nan}, {3, inf}}, none, []int{3}},       // nothing is known
		{1, []saved{{1, nan}, {2, 0.1}, {3, inf}}, 2, []int{2, 3}},     // NaN is never best
		{1, []saved{{1, -inf}, {2, -1e300}, {3, inf}}, 2, []int{2, 3}}, // nor are infinities
		{1, []saved{{2, 0.9}, {3, 0.7}, {2, 0.1}}, 3, []int{2, 3}},     // the best was replaced by a worse one
		{2, []saved{{1, 0.8}, {2, 0.9}, {2, 0.1}}, 1, []int{1, 2}},
		{1, []saved{{1, 0.8}, {1, 0}}, none, []int{1}},
	} {
		dir := t.TempDir()
		var last, top Checkpoint
		for _, s := range c.saved {
			last = measured(s.step, s.metric)
			if s.metric == 0 {
				last = content(s.step)
			}
			save(t, dir, last, c.keep)
			if s.step == c.best {
				top = last
			}
		}
		if got, err := Steps(dir); !slices.Equal(got, c.want) || err != nil {
			t.Errorf("%v, kept %d: %v, %v, want %v", c.saved, c.keep, got, err, c.want)
		}
		if m := last.Metric; m != nil && (math.IsNaN(*m) || math.IsInf(*m, 0)) {
			last.Metric = nil
		}
		if err := whole(dir, Latest, last); err != nil {
			t.Errorf("%v: %v", c.saved, err)
		}
		text, err := os.ReadFile(filepath.Join(dir, Best))
		if c.best == none {
			if _, lerr := Load(dir, Best, nil); !errors.Is(err, fs.ErrNotExist) || !errors.Is(lerr, fs.ErrNotExist) {
				t.Errorf("%v: best holds %q, %v, and is loaded with %v", c.saved, text, err, lerr)
			}
			continue
		}
		if string(text) != stepName(c.best)+"\n" || err != nil {
			t.Errorf("%v: best holds %q, %v, want step-%d", c.saved, text, err, c.best)
		}
		if err := whole(dir, Best, top); err != nil {
			t.Errorf("%v: %v", c.saved, err)
		}
	}
}

// What users do to the directory between two Saves: the best of what is left
// counts.
func TestBestOfWhatIsLeft(t *testing.T) {
	file := func(name, text string) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666) }
	}
	remove := func(name string) func(dir string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
	}
	for name, c := range map[string]struct {
		change func(dir string) error
		before int // the best one then
		after  int // and after a Save of step 4, which is not measured
	}{
		"nothing":                   {func(string) error { return nil }, 2, 2},
		"the best removed":          {remove("step-2"), 3, 3},
		"the file best removed":     {remove(Best), 2, 2},
		"the file best overwritten": {file(Best, "step-1"), 2, 2},
		"all that had a metric removed": {func(dir string) error {
			return errors.Join(remove("step-1")(dir), remove("step-2")(dir), remove("step-3")(dir), remove(Latest)(dir))
		}, none, none},
		"a directory without a state": {func(dir string) error { return os.Mkdir(filepath.Join(dir, "step-7"), 0o777) }, 2, 2},
	} {
		dir := t.TempDir()
		for i, metric := range []float64{0.5, 0.9, 0.7} {
			save(t, dir, measured(i+1, metric), 0)
		}
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		check := func(want int) {
			t.Helper()
			b, err := Peek(dir, Best, nil)
			if want == none && !errors.Is(err, fs.ErrNotExist) || want != none && (err != nil || b.Step != want) {
				t.Errorf("%s: the best is of step %d, %v, want %d", name, b.Step, err, want)
			}
		}
		check(c.before)
		save(t, dir, content(4), 1)
		check(c.after)
		text, err := os.ReadFile(filepath.Join(dir, Best))
		if c.after == none && !errors.Is(err, fs.ErrNotExist) || c.after != none && string(text) != stepName(c.after)+"\n" {
			t.Errorf("%s: best holds %q, %v", name, text, err)
		}
	}
}

// A checkpoint that cannot be compared is neither passed over nor pruned: it
// may be the best. The new one is saved all the same.
func TestBestNotKnown(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, measured(1, 0.9), 0)
	damaged := filepath.Join(dir, "step-1", stateName)
	if err := os.WriteFile(damaged, []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	err := Save(dir, measured(2, 0.1), 1)
	if err == nil || !strings.Contains(err.Error(), "step 2 is saved, but") || !strings.Contains(err.Error(), damaged) {
		t.Error(err)
	}
	if err := whole(dir, Latest, measured(2, 0.1)); err != nil {
		t.Error(err)
	}
	if steps, err := Steps(dir); !slices.Equal(steps, []int{1, 2}) || err != nil {
		t.Errorf("left are %v, %v", steps, err)
	}
	if _, err := Load(dir, Best, nil); err == nil || !strings.Contains(err.Error(), damaged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the best of those: %v", err)
	}
}

// The order of the operations is what makes a checkpoint outlive a loss of
// power: bytes are synced before the rename that shows them, names after it.
func TestOperations(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	var trace []string
	s := saver{around: func(op, path string, f func() error) error {
		rel, err := filepath.Rel(filepath.Dir(dir), path)
		trace = append(trace, op+" "+filepath.ToSlash(rel))
		return errors.Join(err, f())
	}}
	const (
		fill = `mkdir c/.tmp-N,
			create c/.tmp-N/model.safetensors, write c/.tmp-N/model.safetensors (3 times), sync c/.tmp-N/model.safetensors,
			create c/.tmp-N/state.json, write c/.tmp-N/state.json, sync c/.tmp-N/state.json,
			sync c/.tmp-N, `
		latest = `, create c/.tmp-latest, write c/.tmp-latest, sync c/.tmp-latest, rename c/latest, sync c`
		best   = `, create c/.tmp-best, write c/.tmp-best, sync c/.tmp-best, rename c/best, sync c`
	)
	for _, c := range []struct {
		Checkpoint
		keep int
		want string
	}{
		{content(1), 0, `mkdir c, sync ., ` + fill + `rename c/N, sync c` + latest},
		{content(1), 0, fill + `rename c/.replaced-N, rename c/N, sync c` + latest + `, remove c/.replaced-N`},
		{measured(2, 0.5), 1, fill + `rename c/N, sync c` + latest + best + `, rename c/.tmp-step-1, remove c/.tmp-step-1`},
		{measured(3, 0.4), 1, fill + `rename c/N, sync c` + latest},
		{measured(4, 0.6), 1, fill + `rename c/N, sync c` + latest + best + `, rename c/.tmp-step-2, rename c/.tmp-step-3, remove c/.tmp-step-2, remove c/.tmp-step-3`},
		{content(4), 1, fill + `rename c/.replaced-N, rename c/N, sync c` + latest + `, remove c/best, remove c/.replaced-N`},
	} {
		trace = nil
		if err := s.save(dir, c.Checkpoint, c.keep); err != nil {
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
		want := strings.ReplaceAll(strings.Join(strings.Fields(c.want), " "), "N", stepName(c.Step))
		if strings.Join(got, ", ") != want {
			t.Errorf("step %d:\ngot  %s\nwant %s", c.Step, strings.Join(got, ", "), want)
		}
	}
}

var errInjected = errors.New("injected")

// unsynced spares the test the waiting for the disk.
func unsynced(op, path string, f func() error) error {
	if op == "sync" {
		return nil
	}
	return f()
}

// Each operation of a Save fails in turn. Either it alone does, as on a full
// disk, or all from then on do, as of a process that was killed. What is
// loaded then is the checkpoint before or the one saved, whole, and the best
// is that of these two moments, too. The next Save leaves nothing behind.
func TestEveryFault(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(t *testing.T, dir string)
		save   Checkpoint
		keep   int
		old    Checkpoint   // the latest may be this or the saved one
		best   []Checkpoint // the best may be any of these; the last one it is in the end
	}{
		{"first", func(t *testing.T, dir string) {}, content(0), 2, absent, []Checkpoint{absent}},
		{"next", func(t *testing.T, dir string) { save(t, dir, content(1), 0) }, content(2), 1, content(1), []Checkpoint{absent}},
		{"another of the same step", func(t *testing.T, dir string) { save(t, dir, other(3), 0) }, content(3), 1, other(3), []Checkpoint{absent}},
		{"after a kill between the renames", func(t *testing.T, dir string) {
			save(t, dir, content(1), 0)
			save(t, dir, content(2), 0)
			if err := os.WriteFile(filepath.Join(dir, Latest), []byte("step-1\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}, content(2), 0, content(1), []Checkpoint{absent}},
		{"after a kill while replacing", func(t *testing.T, dir string) {
			save(t, dir, other(3), 0)
			if err := os.Rename(filepath.Join(dir, "step-3"), filepath.Join(dir, replaced+"step-3")); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, temporary+"step-3", "half"), 0o777); err != nil {
				t.Fatal(err)
			}
		}, content(3), 0, other(3), []Checkpoint{absent}},
		{"first with a metric", func(t *testing.T, dir string) {}, measured(0, 0.1), 2, absent, []Checkpoint{absent, measured(0, 0.1)}},
		{"better", func(t *testing.T, dir string) { save(t, dir, measured(1, 0.5), 0) },
			measured(2, 0.6), 1, measured(1, 0.5), []Checkpoint{measured(1, 0.5), measured(2, 0.6)}},
		{"worse", func(t *testing.T, dir string) {
			save(t, dir, measured(1, 0.5), 0)
			save(t, dir, measured(2, 0.4), 0)
		}, measured(3, 0.3), 1, measured(2, 0.4), []Checkpoint{measured(1, 0.5)}},
		{"the best replaced by a worse one", func(t *testing.T, dir string) {
			save(t, dir, measured(1, 0.5), 0)
			save(t, dir, measured(3, 0.9), 0)
		}, measured(3, 0.1), 0, measured(3, 0.9), []Checkpoint{measured(3, 0.9), measured(1, 0.5)}},
		{"the best replaced by a better one", func(t *testing.T, dir string) {
			save(t, dir, measured(1, 0.5), 0)
			save(t, dir, measured(3, 0.8), 0)
		}, measured(3, 0.9), 0, measured(3, 0.8), []Checkpoint{measured(3, 0.8), measured(3, 0.9)}},
		{"the best removed by its user", func(t *testing.T, dir string) {
			save(t, dir, measured(1, 0.5), 0)
			save(t, dir, measured(2, 0.9), 0)
			save(t, dir, measured(3, 0.4), 0)
			if err := os.RemoveAll(filepath.Join(dir, "step-2")); err != nil {
				t.Fatal(err)
			}
		}, content(4), 1, measured(3, 0.4), []Checkpoint{measured(1, 0.5)}},
	} {
		before := t.TempDir()
		c.before(t, filepath.Join(before, "c"))
		for _, killed := range []bool{false, true} {
			for k := 0; ; k++ {
				temp := t.TempDir()
				if err := os.CopyFS(temp, os.DirFS(before)); err != nil {
					t.Fatal(err)
				}
				dir, ops := filepath.Join(temp, "c"), 0
				s := saver{around: func(op, path string, f func() error) error {
					ops++
					switch {
					case ops-1 != k && !(killed && ops-1 > k):
						return unsynced(op, path, f)
					case op == "write": // what reached the disk of a write that failed
						return errors.Join(errInjected, os.WriteFile(path, []byte("half"), 0o666))
					}
					return errInjected
				}}
				name := fmt.Sprintf("%s, operation %d, killed %v", c.name, k, killed)
				err := s.save(dir, c.save, c.keep)
				if ops <= k {
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					break
				}
				if !errors.Is(err, errInjected) {
					t.Fatalf("%s: %v", name, err)
				}
				checkOneOf(t, name, dir, Latest, c.old, c.save)
				checkOneOf(t, name, dir, Best, c.best...)
				if !killed && !strings.Contains(err.Error(), "is saved") {
					checkTidy(t, name, dir)
				}
				if err := (saver{unsynced}).save(dir, c.save, c.keep); err != nil {
					t.Fatalf("%s: the next Save: %v", name, err)
				}
				final := c.best[len(c.best)-1]
				checkOneOf(t, name+", and the next Save", dir, Latest, c.save)
				checkOneOf(t, name+", and the next Save", dir, Best, final)
				if text, _ := os.ReadFile(filepath.Join(dir, Best)); final.State != nil && string(text) != stepName(final.Step)+"\n" {
					t.Fatalf("%s, and the next Save: best holds %q", name, text)
				}
				checkTidy(t, name, dir)
			}
		}
	}
}

// other is a checkpoint of a step with another content, so that one sees which
// of two checkpoints of a step is loaded.
func other(step int) Checkpoint {
	c := content(1)
	c.Step = step
	return c
}

// absent is the checkpoint that is not there.
var absent Checkpoint

// checkOneOf says whether the checkpoint of a name is one of some, absent
// among them.
func checkOneOf(t *testing.T, when, dir, name string, some ...Checkpoint) {
	t.Helper()
	got, err := load(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		got, err = absent, nil
	}
	if err != nil || !slices.ContainsFunc(some, func(want Checkpoint) bool { return reflect.DeepEqual(got, want) }) {
		t.Fatalf("%s: %s is %+v, %v", when, name, got, err)
	}
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
		err := Save(c.dir, Checkpoint{Step: c.step, Tensors: c.tensors, State: c.state}, c.keep)
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
		{"state with a name twice", write(state, `{"format": 1, "step": 3, "step": 2, "state": {}}`), state, `the name "step" stands twice`},
		{"state with a name twice within", write(state, `{"format": 1, "step": 2, "state": {"Epoch": 1, "Epoch": 2}}`), state, `the name "Epoch" stands twice`},
		{"state with more behind it", write(state, `{"format": 1, "step": 2, "state": {}}{}`), state, "after top-level value"},
		{"state with a metric that is no number", write(state, `{"format": 1, "step": 2, "metric": "0.5", "state": {}}`), state, "metric"},
		{"state with a metric beyond all numbers", write(state, `{"format": 1, "step": 2, "metric": 1e999, "state": {}}`), state, "metric"},
		{"state of something else", write(state, `{}`), state, "format 0"},
		{"state of another step", write(state, `{"format": 1, "step": 3, "state": {}}`), state, "of step 3"},
		{"state of another program", write(state, `{"format": 1, "step": 2, "state": {"Epoch": 1, "Shape": 2}}`), state, `unknown field "Shape"`},
		{"state of another type", write(state, `{"format": 1, "step": 2, "state": {"Epoch": "one"}}`), state, "cannot unmarshal"},
		{"model is empty", write(model, ""), model, "0 bytes"},
		{"model is another file", write(model, "hello world, this is no model"), model, "header"},
	} {
		dir := t.TempDir()
		save(t, dir, content(1), 0)
		save(t, dir, content(2), 0)
		c.damage(t, dir)
		_, err := Load(dir, Latest, &cursor{})
		if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: ") || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), filepath.Join(dir, filepath.FromSlash(c.file))) {
			t.Errorf("%s: %v, want %s and %q", c.name, err, c.file, c.want)
		}
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a damaged checkpoint passes for none", c.name)
		}
	}
}

// A file that was cut short, wherever, is an error that names it.
func TestCutShort(t *testing.T) {
	for _, name := range []string{stateName, modelName} {
		dir := t.TempDir()
		save(t, dir, measured(1, 0.5), 0)
		path := filepath.Join(dir, "step-1", name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.TrimSuffix(text, []byte("\n"))
		for n := range text {
			if err := os.WriteFile(path, text[:n], 0o666); err != nil {
				t.Fatal(err)
			}
			if _, err := load(dir, Latest); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%d of %d bytes of %s: %v", n, len(text), name, err)
			}
		}
	}
}

func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, measured(2, 0.25), 0)
	text, err := os.ReadFile(filepath.Join(dir, "step-2", "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"format": 1.0, "step": 2.0, "metric": 0.25, "state": map[string]any{"Epoch": 1.0, "Step": 2.0, "Order": "keyed"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("state.json is %v, want %v", got, want)
	}
	for _, name := range []string{"latest", "best"} {
		if text, err = os.ReadFile(filepath.Join(dir, name)); string(text) != "step-2\n" || err != nil {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
}

// Save moves the model's bytes into the page cache and waits for the disk.
func BenchmarkSave(b *testing.B) {
	dir, data := b.TempDir(), make([]float32, 1<<20)
	tensors := []trainer.Tensor{{Name: "a", Shape: []int{len(data)}, Data: data}}
	b.SetBytes(int64(4 * len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Save(dir, Checkpoint{Tensors: tensors}, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// Load turns bytes into numbers, one after the other.
func BenchmarkLoad(b *testing.B) {
	dir, data := b.TempDir(), make([]float32, 1<<20)
	c := Checkpoint{Tensors: []trainer.Tensor{{Name: "a", Shape: []int{len(data)}, Data: data}}}
	if err := Save(dir, c, 1); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(4 * len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(dir, Latest, nil); err != nil {
			b.Fatal(err)
		}
	}
}
