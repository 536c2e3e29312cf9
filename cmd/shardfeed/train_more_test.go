package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/trainer/optim"
)

// Resumed from any step of a run, on 1, 2, 3 and 4 ranks, it goes on with the
// global batches of the run that was not interrupted.
func TestTrainResumesFromEveryStep(t *testing.T) {
	data, whole, dir := smallData(t), t.TempDir(), t.TempDir()
	one := func(more ...string) []string { return append([]string{"--epochs", "1"}, more...) }
	train(t, data, one("--samples-log", whole, "--checkpoint", dir, "--checkpoint-every", "1", "--keep", "0")...)
	want := logged(t, whole)
	for world := 1; world <= 4; world++ {
		for at := range perEpoch + 1 {
			if raceEnabled && (at+world)%5 != 0 {
				continue // a sample
			}
			t.Run(fmt.Sprintf("step %d on %d ranks", at, world), func(t *testing.T) {
				t.Parallel()
				from, logs := t.TempDir(), t.TempDir()
				name := fmt.Sprintf("step-%d", at)
				if err := os.CopyFS(filepath.Join(from, name), os.DirFS(filepath.Join(dir, name))); err != nil {
					t.Fatal(err)
				}
				rest := train(t, data, one("--nproc", fmt.Sprint(world), "--samples-log", logs, "--checkpoint", from, "--resume")...)
				later := maps.Clone(want)
				maps.DeleteFunc(later, func(step [2]int, _ []int) bool { return step[1] < at })
				sameSteps(t, "resumed", logged(t, logs), later)
				if rest.summary.Steps != perEpoch {
					t.Errorf("the summary says %d steps", rest.summary.Steps)
				}
			})
		}
	}
}

// The ends of an epoch: padding counts nothing, drop leaves out what cannot be
// shared evenly, and with uneven every sample counts once, on any world.
func TestTrainTails(t *testing.T) {
	data := smallData(t)
	for _, tail := range []string{"pad", "drop", "uneven"} {
		var want trained
		for _, world := range []int{1, 3, 4} {
			logs := t.TempDir()
			got := train(t, data, "--tail", tail, "--nproc", fmt.Sprint(world), "--samples-log", logs, "--global-batch", "36")
			visited := map[int]int{}
			for step, samples := range logged(t, logs) {
				for _, s := range samples {
					if step[0] == 0 {
						visited[s]++
					}
				}
			}
			// 509 = 14·36 + 5, of which 4 ranks get 4 with drop, 3 ranks 3.
			n := trainRows
			if tail == "drop" {
				n -= 5 % world
			}
			for _, times := range visited {
				if times != 1 {
					t.Fatalf("%s, world %d: a sample counts %d times", tail, world, times)
				}
			}
			if len(visited) != n || got.summary.Steps != epochs*15 {
				t.Errorf("%s, world %d: %d samples in %d steps, want %d", tail, world, len(visited), got.summary.Steps, n)
			}
			if world == 1 {
				want = got
			} else if d := float64(got.summary.TrainLoss - want.summary.TrainLoss); tail != "drop" && math.Abs(d) > 1e-3*float64(want.summary.TrainLoss) {
				t.Errorf("%s, world %d: the last epoch's loss is %v, %v on one rank", tail, world, got.summary.TrainLoss, want.summary.TrainLoss)
			}
		}
	}
	// A last step of one sample, which 3 of 4 ranks have no part of.
	got := train(t, data, "--tail", "uneven", "--nproc", "4", "--global-batch", "127")
	if got.summary.Steps != epochs*5 {
		t.Errorf("%d steps", got.summary.Steps)
	}
}

// Accumulated steps make the updates of larger batches.
func TestTrainAccumulates(t *testing.T) {
	data := smallData(t)
	large := train(t, data, "--global-batch", "64")
	small := train(t, data, "--global-batch", "32", "--accumulate", "2")
	if small.summary.Steps != epochs*perEpoch/2 || large.summary.Steps != small.summary.Steps || len(small.losses) != len(large.losses) {
		t.Fatalf("%d updates, %d of twice the batch", small.summary.Steps, large.summary.Steps)
	}
	for at, loss := range large.losses {
		if got := small.losses[[2]int{at[0], 2*at[1] + 1}]; math.Abs(got-loss) > 1e-3*loss {
			t.Errorf("the loss at %v is %v, %v with twice the batch", at, got, loss)
		}
	}
	// 16 steps by 5: the last update of an epoch has one. Stopped and resumed.
	want := train(t, data, "--accumulate", "5")
	if want.summary.Steps != epochs*4 {
		t.Errorf("%d updates of 5 steps, want %d", want.summary.Steps, epochs*4)
	}
	dir := t.TempDir()
	first := train(t, data, "--accumulate", "5", "--checkpoint", dir, "--steps", "3")
	rest := train(t, data, "--accumulate", "5", "--checkpoint", dir, "--resume")
	maps.Copy(first.losses, rest.losses)
	if !maps.Equal(first.losses, want.losses) {
		t.Errorf("stopped and resumed, accumulating: %v, want %v", first.losses, want.losses)
	}
}

// On another global batch a run goes on at the same sample, where the place is
// between two of the new batches; elsewhere the message names places that are.
func TestTrainResumesOnAnotherGlobalBatch(t *testing.T) {
	data, dir, logs := smallData(t), t.TempDir(), t.TempDir()
	train(t, data, "--samples-log", logs, "--checkpoint", dir, "--steps", "6") // 192 samples
	_, stderr, status := shardfeed(t, nil, small(data, "--checkpoint", dir, "--resume", "--global-batch", "40")...)
	if status != 1 || !strings.Contains(stderr, "192") || !strings.Contains(stderr, "40") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	rest := t.TempDir()
	got := train(t, data, "--samples-log", rest, "--checkpoint", dir, "--resume", "--global-batch", "48", "--epochs", "1")
	if got.summary.Steps != 6+7 { // 317 samples are left
		t.Errorf("%d updates, want %d", got.summary.Steps, 6+7)
	}
	var visited []int
	for _, dir := range []string{logs, rest} {
		for _, samples := range logged(t, dir) {
			visited = append(visited, samples...)
		}
	}
	slices.Sort(visited)
	if len(visited) != trainRows || len(slices.Compact(visited)) != trainRows {
		t.Errorf("%d samples, want each of %d once", len(visited), trainRows)
	}
}

// Every option that changes the training trains, on 2 ranks, to the same
// losses twice; stopped and resumed it goes on with the same bits.
func TestTrainOptionsTrain(t *testing.T) {
	data := largerData(t)
	for _, options := range []string{
		"--model cnn",
		"--model cnn --syncbn --dropout 0.3",
		"--optimizer adamw --lr 0.002 --weight-decay 0.01 --schedule cosine --warmup 5",
		"--nesterov --weight-decay 0.001 --schedule step --clip-norm 1",
		"--clip-value 0.01 --schedule constant --first-bucket-mb 0.01 --bucket-mb 0.05",
		"--freeze fc1.bias --dropout 0.5",
	} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			dir, more := t.TempDir(), strings.Fields(options)
			want := train(t, data, more...)
			if len(want.summary.PerClass) != 10 || want.summary.TrainLoss <= 0 || want.summary.Overlap < 0 || want.summary.Overlap > 1 {
				t.Errorf("the summary is %+v", want.summary)
			}
			if want.summary.Accuracy < 0.5 {
				t.Errorf("accuracy %v: nothing was learned", want.summary.Accuracy)
			}
			first := train(t, data, append(more, "--checkpoint", dir, "--steps", "19")...)
			rest := train(t, data, append(more, "--checkpoint", dir, "--resume")...)
			maps.Copy(first.losses, rest.losses)
			if !maps.Equal(first.losses, want.losses) {
				for at, loss := range want.losses {
					if first.losses[at] != loss {
						t.Errorf("the loss at %v is %v, want %v", at, first.losses[at], loss)
					}
				}
			}
			if rest.summary.Accuracy != want.summary.Accuracy || !slices.Equal(rest.summary.PerClass, want.summary.PerClass) {
				t.Errorf("accuracy %v, want %v", rest.summary.PerClass, want.summary.PerClass)
			}
		})
	}
}

// The statistics of SyncBatchNorm are of all ranks: any number of ranks trains
// like one.
func TestTrainSyncBatchNorm(t *testing.T) {
	data := largerData(t)
	// Before the first update the losses are the same but for rounding; later
	// ones grow apart with it.
	want := train(t, data, "--model", "cnn", "--nproc", "1", "--steps", "8")
	for world := 2; world <= 3; world++ {
		got := train(t, data, "--model", "cnn", "--syncbn", "--nproc", fmt.Sprint(world), "--steps", "8")
		for at, loss := range want.losses {
			if math.Abs(got.losses[at]-loss) > 1e-2*loss {
				t.Errorf("world %d: the loss at %v is %v, %v on one rank", world, at, got.losses[at], loss)
			}
		}
	}
}

// The best checkpoint stays when newer ones come.
func TestTrainKeepsTheBest(t *testing.T) {
	data, dir := smallData(t), t.TempDir()
	// The learning rate is so high that accuracy does not rise steadily.
	r := train(t, data, "--epochs", "6", "--checkpoint", dir, "--keep", "1", "--lr", "0.3")
	best, accuracy := 0, 0.0
	for epoch, a := range r.accuracy {
		if a > accuracy || a == accuracy && epoch < best {
			best, accuracy = epoch, a
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "best"))
	if want := fmt.Sprintf("step-%d\n", (best+1)*perEpoch); err != nil || string(text) != want {
		t.Errorf("best is %q (%v), want %q of the accuracies %v", text, err, want, r.accuracy)
	}
	names, err := filepath.Glob(filepath.Join(dir, "step-*"))
	if wanted := len(slices.Compact([]int{best, 5})); err != nil || len(names) != wanted {
		t.Errorf("%v are kept, want %d", names, wanted)
	}
}

// What is wrong with the newer options ends with a message that names it.
func TestTrainRefusesMore(t *testing.T) {
	data, temp := smallData(t), t.TempDir()
	flat := filepath.Join(temp, "flat")
	writeFlat(t, flat)
	for _, c := range []struct {
		args   []string
		status int
		says   []string
	}{
		{small(data, "--model", "rnn"), 2, []string{"--model", "mlp, cnn"}},
		{small(data, "--optimizer", "lion"), 2, []string{"--optimizer", "sgd, adamw"}},
		{small(data, "--schedule", "linaer"), 2, []string{"--schedule", "cosine"}},
		{small(data, "--non-finite", "ignore"), 2, []string{"--non-finite", "fail, skip"}},
		{small(data, "--tail", "cut"), 2, []string{`--tail is "cut"`, "pad, drop or uneven"}},
		{small(data, "--accumulate", "0"), 2, []string{"--accumulate is 0"}},
		{small(data, "--dropout", "1"), 2, []string{"--dropout is 1"}},
		{small(data, "--weight-decay", "-1"), 2, []string{"--weight-decay is -1"}},
		{small(data, "--bucket-mb", "0"), 2, []string{"--bucket-mb is 0"}},
		{small(data, "--timeout", "-1s"), 2, []string{"--timeout is -1s"}},
		{small(data, "--timeout", "5"), 2, []string{"--timeout"}},
		{small(data, "--nesterov", "--momentum", "0"), 2, []string{"--nesterov", "--momentum"}},
		{small(data, "--nesterov", "--optimizer", "adamw"), 2, []string{"--nesterov", "sgd"}},
		{small(data, "--syncbn"), 2, []string{"--syncbn", "--model cnn"}},
		{small(data, "--freeze", "fc9"), 2, []string{"--freeze fc9", "fc1.weight"}},
		{small(data, "--freeze", "fc"), 1, []string{"no parameter of the model is trained"}},
		{small(data, "--out", temp), 2, []string{"--out", "--compare"}},
		{small(data, "--compare", "1,2"), 2, []string{"--out DIR"}},
		{small(data, "--compare", "1,x", "--out", temp), 2, []string{`"x"`, "4+syncbn"}},
		{small(data, "--compare", "2+syncbn", "--out", temp), 2, []string{"2+syncbn", "--model cnn"}},
		{small(data, "--compare", "1,99", "--out", temp), 2, []string{"99", "--global-batch"}},
		{small(data, "--compare", "1", "--out", temp, "--checkpoint", temp), 2, []string{"--compare", "--checkpoint"}},
		{small(data, "--compare", "1", "--out", temp, "--nproc", "2"), 2, []string{"--nproc", "--compare"}},
		{small(data, "--compare", "1", "--out", temp, "--log-dir", temp), 2, []string{"--log-dir", "--compare"}},
		{small(data, "--compare", "1", "--out", temp, "--model", "cnn", "--syncbn"), 2, []string{"--syncbn", "--compare", "2+syncbn"}},
		{small(data, "--init-method", "tcp://127.0.0.1:1?rank=0&world_size=1", "--max-restarts", "2"), 2, []string{"--max-restarts", "--init-method"}},
		{small(data, "--model", "cnn"), 1, []string{data, "8×8", "16×16"}},
		{small(flat, "--model", "cnn"), 1, []string{flat, "[64]", "--model mlp"}},
		{small(data, "--init-method", "http://x"), 1, []string{"http://x", "tcp://", "file://"}},
	} {
		_, stderr, status := shardfeed(t, nil, c.args...)
		if status != c.status {
			t.Errorf("%v: exit status %d, want %d: %s", c.args[8:], status, c.status, stderr)
		}
		for _, words := range c.says {
			if !strings.Contains(stderr, words) {
				t.Errorf("%v: the message does not say %q:\n%s", c.args[8:], words, stderr)
			}
		}
	}
}

// largerData is smallData of images that a CNN takes.
func largerData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeShaped(t, filepath.Join(dir, "train"), trainRows, batch.Uint8, 16, 16)
	writeShaped(t, filepath.Join(dir, "test"), testRows, batch.Uint8, 16, 16)
	return dir
}

// writeFlat writes images whose shape does not tell rows and columns.
func writeFlat(t *testing.T, dir string) {
	t.Helper()
	for name, rows := range map[string]int{"train": 50, "test": 20} {
		writeShaped(t, filepath.Join(dir, name), rows, batch.Uint8, 64)
	}
}

// A NaN in a batch is skipped where that is asked for, and counted.
func TestTrainSkipsNonFinite(t *testing.T) {
	data := smallData(t)
	stdout, stderr, status := shardfeed(t, nil, small(data, "--lr", "1e30", "--non-finite", "skip", "--steps", "4")...)
	if status != 0 {
		t.Fatal(stderr)
	}
	if r := parse(t, stdout); r.summary.Skipped < 2 || r.summary.Steps != 4 {
		t.Errorf("%d of %d updates are skipped", r.summary.Skipped, r.summary.Steps)
	}
	// Rank 0 says so, for all.
	if !strings.Contains(stderr, "update skipped") || !strings.Contains(stderr, "is not finite at step 1") || strings.Contains(stderr, "rank=1") {
		t.Errorf("on standard error:\n%s", stderr)
	}
}

// Ranks that something else has started find each other, and what they differ
// in is named before the first step.
func TestTrainRanksByHand(t *testing.T) {
	data, logs, used := smallData(t), t.TempDir(), t.TempDir()
	train(t, data, "--checkpoint", used, "--steps", "3")
	for _, c := range []struct {
		second []string // options of rank 1 alone
		says   string   // "": the ranks train
	}{
		{nil, ""},
		{[]string{"--steps", "4"}, "rank 1 has --steps 4, rank 0 has --steps 5"},
		{[]string{"--samples-log", logs}, "rank 1 has --samples-log: true, rank 0 has --samples-log: false"},
		{[]string{"--checkpoint", used, "--resume"}, "rank 1 has a run resumed after update 3, rank 0 has a run from the beginning"},
	} {
		method := "file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "meet")) + "?world_size=2&rank="
		first := small(data, "--steps", "5", "--init-method", method+"0")
		second := append(small(data, "--steps", "5", "--init-method", method+"1"), c.second...)
		var says [2]string
		var status [2]int
		var ranks sync.WaitGroup
		for rank, args := range [][]string{first, second} {
			ranks.Go(func() { _, says[rank], status[rank] = shardfeed(t, nil, args...) })
		}
		ranks.Wait()
		for rank := range 2 {
			if c.says == "" && status[rank] != 0 || c.says != "" && (status[rank] != 1 || !strings.Contains(says[rank], c.says)) {
				t.Errorf("%v: rank %d ends with status %d, want %q: %s", c.second, rank, status[rank], c.says, says[rank])
			}
		}
	}
}

// In a run that is shorter than its warm-up the learning rate rises towards
// --lr, by any schedule.
func TestWarmupOfAShortRun(t *testing.T) {
	for _, schedule := range schedules {
		o := trainOptions{optimizer: "sgd", lr: 0.5, schedule: schedule, warmup: 10}
		for _, updates := range []int{4, 10} {
			sgd := o.newOptimizer(updates).(*optim.SGD)
			if got := sgd.LR(2); math.Abs(got-0.1) > 1e-12 {
				t.Errorf("%s, %d updates: the rate after 2 of 10 is %v, want 0.1", schedule, updates, got)
			}
		}
	}
}

// A process that trains nothing, as the run is complete, has no training loss.
func TestTrainWithoutSteps(t *testing.T) {
	data, dir := smallData(t), t.TempDir()
	train(t, data, "--checkpoint", dir, "--steps", "2")
	stdout, stderr, status := shardfeed(t, nil, small(data, "--checkpoint", dir, "--resume", "--steps", "2")...)
	if status != 0 || !strings.Contains(stdout, `"loss":null`) || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit status %d: %s%s", status, stdout, stderr)
	}
}

// The whole of --compare, at a small size.
func TestTrainCompares(t *testing.T) {
	data, out := largerData(t), filepath.Join(t.TempDir(), "new")
	stdout, stderr, status := shardfeed(t, nil, "train", "--data", data, "--epochs", "1", "--global-batch", "32", "--model", "cnn", "--compare", "1,2,2+syncbn", "--out", out)
	if status != 0 {
		t.Fatal(stderr)
	}
	if lines := strings.Split(strings.TrimSpace(stdout), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[3], "2+syncbn ") {
		t.Errorf("the table is\n%s", stdout)
	}
	for _, name := range []string{"compare.png", "compare.svg", "compare.json"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
