package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// comparison is train --compare: it trains once for each entry, one after the
// other, and shows the runs side by side.
type comparison struct {
	entries []entry
	out     string // the directory of compare.png, compare.svg and compare.json
	json    bool   // JSON objects on standard output, no table
	steps   int    // of each run, for the progress bar
	// train trains as the entry says and writes what train --json prints.
	train func(ctx context.Context, e entry, stdout io.Writer) error
}

// newComparison takes --compare and --out; what it fails with is the user's
// mistake.
func newComparison(list, out string) (*comparison, error) {
	entries, err := parseEntries(list)
	if err == nil && out == "" {
		err = errors.New("--compare needs --out DIR, a directory for its pictures")
	}
	return &comparison{entries: entries, out: out}, err
}

// entry is one run of a comparison: N, or N+syncbn.
type entry struct {
	ranks  int
	syncBN bool
}

const syncBN = "+syncbn"

func (e entry) String() string {
	if e.syncBN {
		return strconv.Itoa(e.ranks) + syncBN
	}
	return strconv.Itoa(e.ranks)
}

// parseEntries reads a list such as 1,2,4,4+syncbn. The picture has a colour
// for each entry, which limits their number.
func parseEntries(list string) (entries []entry, err error) {
	for item := range strings.SplitSeq(list, ",") {
		ranks, sync := strings.CutSuffix(strings.TrimSpace(item), syncBN)
		n, err := strconv.Atoi(ranks)
		e := entry{n, sync}
		switch {
		case err != nil || n < 1:
			return nil, fmt.Errorf("--compare %s: %q is no entry: give numbers of ranks, at least 1, each with or without +syncbn, as in 1,2,4,4+syncbn", list, item)
		case slices.Contains(entries, e):
			return nil, fmt.Errorf("--compare %s: %v is there twice", list, e)
		}
		entries = append(entries, e)
	}
	if len(entries) > len(colours) {
		return nil, fmt.Errorf("--compare has %d entries: give at most %d, for which a picture has distinct colours", len(entries), len(colours))
	}
	return entries, nil
}

// trial is a run of an entry, and what compare.json has of it.
type trial struct {
	outcome
	Losses     []lossAt     `json:"losses"`
	Accuracies []accuracyAt `json:"accuracies"`

	steps int
}

// outcome is what --json prints of a trial.
type outcome struct {
	Entry   string          `json:"entry"`
	Ranks   int             `json:"ranks"`
	SyncBN  bool            `json:"syncbn"`
	SpeedUp float64         `json:"speed_up"` // the seconds of the first entry by those of this one
	Summary json.RawMessage `json:"summary"`  // as train --json has printed it

	summary summary
}

// lossAt is a step, counted from 1, whose loss is finite.
type lossAt struct {
	Step int     `json:"step"`
	Loss float64 `json:"loss"`
}

// accuracyAt is a test of the model after so many steps.
type accuracyAt struct {
	Step     int     `json:"step"`
	Accuracy float64 `json:"test_accuracy"`
}

// run trains all entries, prints each as it ends, and draws them all. It stops
// at the first that fails, and draws nothing then.
func (c *comparison) run(ctx context.Context, stdout io.Writer) error {
	if err := writable(c.out); err != nil { // found out before the training, not behind it
		return fmt.Errorf("--out: %w", err)
	}
	width := len("entry")
	for _, e := range c.entries {
		width = max(width, len(e.String()))
	}
	row := func(format string, values ...any) error {
		_, err := fmt.Fprintf(stdout, "%-*s"+format+"\n", append([]any{width}, values...)...)
		return err
	}
	if !c.json {
		if err := row("  ranks  accuracy    loss  seconds  samples/s  speed-up", "entry"); err != nil {
			return err
		}
	}
	var trials []*trial
	for _, e := range c.entries {
		t, err := c.trial(ctx, e)
		if err != nil {
			return fmt.Errorf("--compare, entry %v: %w", e, err)
		}
		trials = append(trials, t)
		t.SpeedUp = trials[0].summary.Seconds / t.summary.Seconds
		if c.json {
			err = json.NewEncoder(stdout).Encode(t.outcome)
		} else {
			s := t.summary
			err = row("  %5d  %6.2f %%  %6.4f  %7.1f  %9.0f  %8.2f", t.Entry, t.Ranks, 100*s.Accuracy, s.Loss, s.Seconds, s.Rate, t.SpeedUp)
		}
		if err != nil {
			return err
		}
	}
	return c.write(trials)
}

// trial trains as an entry says.
func (c *comparison) trial(ctx context.Context, e entry) (*trial, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		in.CloseWithError(c.train(ctx, e, in)) // nil is the reader's io.EOF
	}()
	bar := progressBar{format: e.String() + ": step %d / %d"}
	defer bar.close()
	t := &trial{outcome: outcome{Entry: e.String(), Ranks: e.ranks, SyncBN: e.syncBN}}
	err := t.read(out, func(steps int) { bar.set(steps, c.steps) })
	if err != nil {
		cancel()
		out.CloseWithError(err)
	}
	<-ended
	return t, err
}

// read takes in what train --json prints, up to its end: null is a loss that is
// not finite. Objects of other kinds are left out. step is called after each
// step.
func (t *trial) read(stdout io.Reader, step func(steps int)) error {
	lines := bufio.NewReader(stdout)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		switch {
		case err == io.EOF && t.Summary == nil:
			return errors.New("train has ended without a summary")
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		var l struct {
			Epoch    *int     `json:"epoch"`
			Step     *int     `json:"step"`
			Loss     *float64 `json:"loss"`
			Accuracy *float64 `json:"test_accuracy"`
			World    *int     `json:"world"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("line %d from train is not of train --json: %w: %.100q", n, err, line)
		}
		switch {
		case l.Step != nil:
			t.steps++
			if l.Loss != nil {
				t.Losses = append(t.Losses, lossAt{t.steps, *l.Loss})
			}
			step(t.steps)
		case l.Epoch != nil && l.Accuracy != nil:
			t.add(*l.Accuracy)
		case l.World != nil:
			t.Summary, t.summary.Loss = line, number(math.NaN())
			if err := json.Unmarshal(line, &t.summary); err != nil {
				return fmt.Errorf("line %d from train: %w: %.100q", n, err, line)
			}
			t.add(t.summary.Accuracy)
		}
	}
}

// add notes a test; the summary repeats that of the last epoch.
func (t *trial) add(accuracy float64) {
	test := accuracyAt{t.steps, accuracy}
	if !slices.Contains(t.Accuracies, test) {
		t.Accuracies = append(t.Accuracies, test)
	}
}

// write draws the trials, and keeps what was drawn.
func (c *comparison) write(trials []*trial) error {
	data, err := json.Marshal(trials)
	if err != nil {
		return err
	}
	png, svg, err := drawTrials(trials)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"compare.json": append(data, '\n'), "compare.png": png, "compare.svg": svg} {
		if err := replace(filepath.Join(c.out, name), content); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	return nil
}

// writable makes a directory where there is none, and a file in it for a moment.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".compare-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// replace gives a file new content, whole or not at all.
func replace(name string, content []byte) error {
	err := os.WriteFile(name+".new", content, 0o666)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		os.Remove(name + ".new")
	}
	return err
}

// trainAlone trains by the command train in a process of its own, with the
// arguments given and those of the entry. The process ends with this one, at
// the latest when it prints its next step.
func trainAlone(args []string) func(context.Context, entry, io.Writer) error {
	return func(ctx context.Context, e entry, stdout io.Writer) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		args := slices.Concat([]string{"train"}, args, []string{
			"--compare=", "--out=", "--json", fmt.Sprintf("--nproc=%d", e.ranks), fmt.Sprintf("--syncbn=%t", e.syncBN),
		})
		cmd := exec.CommandContext(ctx, self, args...)
		cmd.Stdout, cmd.Stderr = stdout, os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 10 * time.Second // more than ranks are given to end
		cmd.SysProcAttr = tied()
		runtime.LockOSThread() // the thread that starts a tied process must live as long as we do
		defer runtime.UnlockOSThread()
		err = cmd.Run()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
}
