package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// The small run of these tests: trainRows is a prime, so that no number of
// ranks and no batch divides it, and an epoch has 16 steps, the last short.
const (
	trainRows, testRows = 509, 101
	globalBatch         = 32
	perEpoch            = 16
	epochs              = 2
)

// smallData is a directory of shards of 8×8 images in 10 classes that a model
// can learn: noise around a pattern for each class.
func smallData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeImages(t, filepath.Join(dir, "train"), trainRows, batch.Int32)
	writeImages(t, filepath.Join(dir, "test"), testRows, batch.Int64)
	return dir
}

func writeImages(t *testing.T, dir string, rows int, label batch.Type) {
	t.Helper()
	writeShaped(t, dir, rows, label, 8, 8)
}

func writeShaped(t *testing.T, dir string, rows int, label batch.Type, shape ...int) {
	t.Helper()
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{
		Fields:       []batch.Field{{Name: "label", Type: label}, {Name: "image", Type: batch.Uint8, Shape: shape}},
		RowsPerShard: 200, RowsPerBatch: 70,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	values := 1
	for _, n := range shape {
		values *= n
	}
	r := rand.New(rand.NewPCG(1, uint64(rows)))
	for range rows {
		class := r.IntN(10)
		pattern := rand.New(rand.NewPCG(7, uint64(class)))
		image := make([]byte, values)
		for i := range image {
			image[i] = byte(pattern.IntN(160) + r.IntN(96))
		}
		number := make([]byte, label.Size())
		number[0] = byte(class)
		if err := w.Write(1, number, image); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// small is the arguments of a small run.
func small(data string, more ...string) []string {
	return append([]string{"train", "--json", "--data", data, "--epochs", fmt.Sprint(epochs),
		"--global-batch", fmt.Sprint(globalBatch), "--seed", "11", "--lr", "0.05"}, more...)
}

// shardfeed runs the command; status is its exit status.
func shardfeed(t *testing.T, env []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.Command("shardfeed", args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// trained is what a run printed.
type trained struct {
	losses   map[[2]int]float64 // by epoch and step
	accuracy map[int]float64    // by epoch
	summary  summary
}

func parse(t *testing.T, stdout string) trained {
	t.Helper()
	r := trained{map[[2]int]float64{}, map[int]float64{}, summary{}}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for k, line := range lines {
		var v struct {
			Epoch, Step *int
			Loss        float64
			Accuracy    *float64 `json:"test_accuracy"`
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("line %d is no JSON object: %v: %s", k, err, line)
		}
		switch {
		case v.Step != nil:
			r.losses[[2]int{*v.Epoch, *v.Step}] = v.Loss
		case v.Epoch != nil:
			r.accuracy[*v.Epoch] = *v.Accuracy
		case k == len(lines)-1:
			d := json.NewDecoder(strings.NewReader(line))
			d.DisallowUnknownFields()
			if err := d.Decode(&r.summary); err != nil {
				t.Fatalf("summary: %v: %s", err, line)
			}
		default:
			t.Fatalf("line %d is neither a step nor an epoch: %s", k, line)
		}
	}
	return r
}

// train runs a small run that must succeed.
func train(t *testing.T, data string, more ...string) trained {
	t.Helper()
	stdout, stderr, status := shardfeed(t, nil, small(data, more...)...)
	if status != 0 {
		t.Fatalf("train %v: exit status %d: %s", more, status, stderr)
	}
	return parse(t, stdout)
}

// logged is the samples of each global step, sorted, by a directory of
// --samples-log.
func logged(t *testing.T, dir string) map[[2]int][]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "rank-*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no lists of samples in %s (%v)", dir, err)
	}
	steps := map[[2]int][]int{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[[2]int]bool{}
		for line := range strings.Lines(string(text)) {
			var epoch, step int
			r := strings.NewReader(line)
			if _, err := fmt.Fscan(r, &epoch, &step); err != nil {
				t.Fatalf("%s: %q: %v", name, line, err)
			}
			at := [2]int{epoch, step}
			if seen[at] {
				t.Errorf("%s has step %v twice", name, at)
			}
			seen[at] = true
			for {
				var sample int
				if _, err := fmt.Fscan(r, &sample); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%s: %q: %v", name, line, err)
				}
				steps[at] = append(steps[at], sample)
			}
		}
	}
	for _, samples := range steps {
		slices.Sort(samples)
	}
	return steps
}

func sameSteps(t *testing.T, what string, got, want map[[2]int][]int) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d steps, want %d", what, len(got), len(want))
	}
	for at, samples := range want {
		if !slices.Equal(got[at], samples) {
			t.Errorf("%s: epoch and step %v: samples %v, want %v", what, at, got[at], samples)
		}
	}
}

// Any number of ranks visits the same samples in each global step, each sample
// once an epoch, and makes nearly the same steps.
func TestTrainOnAnyWorld(t *testing.T) {
	data := smallData(t)
	var want trained
	var wantSteps map[[2]int][]int
	for _, order := range []string{"keyed", "torch"} {
		for world := 1; world <= 4; world++ {
			logs := t.TempDir()
			got := train(t, data, "--order", order, "--nproc", fmt.Sprint(world), "--samples-log", logs)
			steps := logged(t, logs)
			s := got.summary
			if s.World != world || s.Epochs != epochs || s.Steps != epochs*perEpoch || s.Samples != testRows ||
				s.Rate <= 0 || s.Wait < 0 || s.Wait > 1 || s.Seconds <= 0 || s.FirstStep <= 0 || s.BLAS == "" {
				t.Errorf("world %d: the summary is %+v", world, s)
			}
			if len(got.losses) != epochs*perEpoch || len(got.accuracy) != epochs || got.accuracy[epochs-1] != s.Accuracy {
				t.Errorf("world %d: %d steps, %d epochs, the accuracies %v and at last %v", world, len(got.losses), len(got.accuracy), got.accuracy, s.Accuracy)
			}
			if world == 1 {
				want, wantSteps = got, steps
				if s.Accuracy < 0.9 {
					t.Errorf("accuracy %v: nothing was learned", s.Accuracy)
				}
				for epoch := range epochs {
					var visited []int
					for step := range perEpoch {
						visited = append(visited, steps[[2]int{epoch, step}]...)
					}
					slices.Sort(visited)
					if len(visited) != trainRows || visited[0] != 0 || len(slices.Compact(visited)) != trainRows {
						t.Errorf("%s: epoch %d does not visit every sample once", order, epoch)
					}
				}
				continue
			}
			sameSteps(t, fmt.Sprintf("%s, world %d", order, world), steps, wantSteps)
			for at, loss := range want.losses {
				if d := got.losses[at] - loss; d > 1e-3*loss || -d > 1e-3*loss {
					t.Errorf("world %d: the loss at %v is %v, %v on one rank", world, at, got.losses[at], loss)
				}
			}
		}
	}
}

func TestTrainGivesTheSameLossesTwice(t *testing.T) {
	data := smallData(t)
	a, b := train(t, data), train(t, data)
	if !maps.Equal(a.losses, b.losses) || !maps.Equal(a.accuracy, b.accuracy) {
		t.Error("two runs differ")
	}
}

// A run stopped after any number of steps, also twice, and resumed, prints
// what an undisturbed run prints, to the last digit.
func TestTrainResumes(t *testing.T) {
	data := smallData(t)
	want := train(t, data)
	for _, stops := range [][]int{{0}, {1}, {5}, {perEpoch - 1}, {perEpoch}, {perEpoch + 1}, {3, 7}, {perEpoch, perEpoch, 20}, {epochs * perEpoch}} {
		dir := t.TempDir()
		losses, accuracy := map[[2]int]float64{}, map[int]float64{}
		collect := func(r trained) {
			for at, loss := range r.losses {
				if was, ok := losses[at]; ok && was != loss {
					t.Errorf("stops %v: the loss at %v is %v, and was %v", stops, at, loss, was)
				}
				losses[at] = loss
			}
			maps.Copy(accuracy, r.accuracy)
		}
		for k, stop := range stops {
			more := []string{"--checkpoint", dir, "--checkpoint-every", "4", "--steps", fmt.Sprint(max(1, stop))}
			if k > 0 {
				more = append(more, "--resume")
			}
			r := train(t, data, more...)
			if r.summary.Steps != max(1, stop) || r.summary.Epochs != max(1, stop)/perEpoch {
				t.Errorf("stopped at %d: the summary says %d steps, %d epochs", stop, r.summary.Steps, r.summary.Epochs)
			}
			collect(r)
			if stop == 0 { // as if killed before the first step was saved
				if err := os.RemoveAll(filepath.Join(dir, "step-1")); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "latest"), []byte("step-0\n"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
		}
		r := train(t, data, "--checkpoint", dir, "--resume")
		collect(r)
		if !maps.Equal(losses, want.losses) || !maps.Equal(accuracy, want.accuracy) {
			t.Errorf("stops %v: the run differs from the undisturbed one: %d steps, %d epochs", stops, len(losses), len(accuracy))
		}
		if r.summary.Accuracy != want.summary.Accuracy || r.summary.Steps != epochs*perEpoch {
			t.Errorf("stops %v: accuracy %v after %d steps, want %v", stops, r.summary.Accuracy, r.summary.Steps, want.summary.Accuracy)
		}
	}
}

// --resume with an empty directory begins at step 0.
func TestTrainResumesFromNothing(t *testing.T) {
	data, dir := smallData(t), filepath.Join(t.TempDir(), "new", "dir")
	if r := train(t, data, "--checkpoint", dir, "--resume", "--steps", "2"); len(r.losses) != 2 {
		t.Errorf("%d steps", len(r.losses))
	}
}

// On other numbers of ranks a resumed run visits exactly the remaining
// samples, and lists of samples are cut where it goes on.
func TestTrainResumesOnAnotherWorld(t *testing.T) {
	data, dir, logs, whole := smallData(t), t.TempDir(), t.TempDir(), t.TempDir()
	train(t, data, "--nproc", "1", "--samples-log", whole)
	train(t, data, "--nproc", "4", "--samples-log", logs, "--checkpoint", dir, "--steps", "9")
	// What a kill may leave behind the checkpoint, and half a line.
	for _, rank := range []int{1, 3} {
		f, err := os.OpenFile(filepath.Join(logs, fmt.Sprintf("rank-%d.txt", rank)), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("0 9 1 2 3\n0 10 4 5 6\n0 1"); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	train(t, data, "--nproc", "2", "--samples-log", logs, "--checkpoint", dir, "--resume", "--steps", "21")
	train(t, data, "--nproc", "3", "--samples-log", logs, "--checkpoint", dir, "--resume")
	sameSteps(t, "4, 2 and 3 ranks", logged(t, logs), logged(t, whole))
}

// What is wrong ends with a message that names it and the cure.
func TestTrainRefuses(t *testing.T) {
	data, other, temp := smallData(t), t.TempDir(), t.TempDir()
	file := filepath.Join(temp, "file")
	if err := os.WriteFile(file, []byte("x = 1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(temp, "used")
	train(t, data, "--checkpoint", used, "--steps", "3")
	writeImages(t, filepath.Join(other, "train"), 40, batch.Int32)
	writeImages(t, filepath.Join(other, "test"), 20, batch.Uint8)
	floats := filepath.Join(temp, "floats")
	w, err := arrowipc.Create(filepath.Join(floats, "train"), arrowipc.WriterConfig{Fields: []batch.Field{{Name: "image", Type: batch.Float32}, {Name: "label", Type: batch.Uint8}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rank := []string{"RANK=0", "WORLD_SIZE=1"}
	for _, c := range []struct {
		env    []string
		args   []string
		status int
		says   []string
	}{
		{nil, small(data, "--nproc", "0"), 2, []string{`"0" for "--nproc"`, "at least 1"}},
		{nil, small(data, "--nproc", "33"), 2, []string{"--global-batch is 32", "--nproc", "33"}},
		{nil, small(data, "--seed", "-1"), 2, []string{"seed"}},
		{nil, small(data, "--lr", "NaN"), 2, []string{"--lr is NaN"}},
		{nil, small(data, "--momentum", "1"), 2, []string{"--momentum is 1"}},
		{nil, small(data, "--order", "random"), 2, []string{`--order is "random"`, "keyed, torch or sequential"}},
		{nil, small(data, "--resume"), 2, []string{"--checkpoint"}},
		{nil, small(data, "--no-such"), 2, []string{"no-such"}},
		{nil, small(data, "extra"), 2, []string{"extra"}},
		{nil, small(data, "--config", file), 2, []string{file + ":1", "x"}},
		{[]string{"SHARDFEED_EPOCHS=many"}, []string{"train", "--data", data}, 2, []string{"SHARDFEED_EPOCHS", "many"}},
		{rank, small(data, "--nproc", "1"), 2, []string{"--nproc", "RANK"}},
		{[]string{"RANK=0"}, small(data), 1, []string{"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
		{[]string{"RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}, small(data), 1, []string{"RANK", "2"}},
		{append(rank, "LOCAL_RANK=0"), small(data, "--local-rank=1"), 1, []string{"--local-rank=1", "LOCAL_RANK"}},
		{append(rank, "LOCAL_RANK=0"), small(data, "--local_rank=x"), 2, []string{"local-rank", "x"}},
		{[]string{"SHARDFEED_BLAS=mkl"}, small(data), 1, []string{"SHARDFEED_BLAS", "mkl", "openblas"}},
		{nil, small(filepath.Join(temp, "nothing")), 1, []string{filepath.Join(temp, "nothing", "train"), "no shards"}},
		{nil, small(temp), 1, []string{filepath.Join(temp, "train"), "no shards"}},
		{nil, small(floats), 1, []string{"image float32", "uint8"}},
		{nil, []string{"train", "--cache", filepath.Join(file, "below")}, 1, []string{file, "--cache"}},
		{nil, small(data, "--classes", "5"), 1, []string{"label", "outside 0 … 4", "--classes", filepath.Join(data, "train")}},
		{nil, small(data, "--checkpoint", used), 1, []string{used, "step 3", "--resume"}},
		{nil, small(data, "--checkpoint", used, "--resume", "--seed", "12"), 1, []string{used, "seed", "12", "11"}},
		{nil, small(data, "--checkpoint", used, "--resume", "--order", "torch"), 1, []string{used, "order", "torch", "keyed"}},
		{nil, small(data, "--checkpoint", used, "--resume", "--global-batch", "64"), 1, []string{used, "global batch", "64", "32"}},
		{nil, small(data, "--checkpoint", used, "--resume", "--classes", "11"), 1, []string{used, "fc2", "[10 512]", "[11 512]"}},
		{nil, small(other, "--checkpoint", used, "--resume"), 1, []string{used, "order", "(40)", "(509)"}},
		{nil, small(data, "--checkpoint", filepath.Join(file, "below")), 1, []string{file}},
		{nil, small(data, "--samples-log", filepath.Join(file, "below")), 1, []string{file, "--samples-log"}},
		{nil, small(data, "--lr", "1e30"), 1, []string{"is not finite at step", "--lr", "--clip-norm"}},
	} {
		stdout, stderr, status := shardfeed(t, c.env, c.args...)
		if status != c.status {
			t.Errorf("%v %v: exit status %d, want %d: %s", c.env, c.args[1:], status, c.status, stderr)
		}
		for _, words := range c.says {
			if !strings.Contains(stderr, words) {
				t.Errorf("%v %v: the message does not say %q:\n%s", c.env, c.args[1:], words, stderr)
			}
		}
		if status == 2 && (stdout != "" || !strings.Contains(stderr, "Usage:")) {
			t.Errorf("%v %v: no usage on stderr, or something on stdout:\n%s%s", c.env, c.args[1:], stdout, stderr)
		}
	}
}

// Options come from the command line, from variables, from a file, in this
// order; a checkpoint stores what they were.
func TestTrainOptions(t *testing.T) {
	data, dir := smallData(t), t.TempDir()
	file := filepath.Join(t.TempDir(), "train.toml")
	text := fmt.Sprintf("data = %q\nepochs = 9\nglobal-batch = 16\nseed = 5\nsteps = 1\ncheckpoint = %q\n", data, dir)
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	_, stderr, status := shardfeed(t, []string{"SHARDFEED_GLOBAL_BATCH=24", "SHARDFEED_SEED=6"}, "train", "--config", file, "--seed", "7")
	if status != 0 {
		t.Fatal(stderr)
	}
	saved, err := os.ReadFile(filepath.Join(dir, "step-1", "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"epochs": "9"`, `"global-batch": "24"`, `"seed": "7"`, `"nproc": "2"`, `"lr": "0.2"`} {
		if !strings.Contains(strings.ReplaceAll(string(saved), `":"`, `": "`), want) {
			t.Errorf("the checkpoint does not say %s: %s", want, saved)
		}
	}
}

// A rank under a launcher that is not ours.
func TestTrainAsARank(t *testing.T) {
	data := smallData(t)
	for _, relic := range []string{"--seed=11", "--local-rank=0", "--local_rank=0"} {
		stdout, stderr, status := shardfeed(t, []string{"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "SHARDFEED_NPROC=4"}, small(data, "--steps", "2", relic)...)
		if status != 0 {
			t.Fatal(stderr)
		}
		if r := parse(t, stdout); r.summary.World != 1 || len(r.losses) != 2 {
			t.Errorf("%+v", r.summary)
		}
	}
}

// lines reads a running command's standard output line by line.
func lines(t *testing.T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(out)
}
