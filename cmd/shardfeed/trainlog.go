package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer/nn"
)

// reporter tells what a run does: as JSON lines on standard output for scripts,
// or in words on standard error. Only rank 0 has one that speaks.
type reporter struct {
	quiet       bool
	json        *json.Encoder // nil: in words
	bar         progressBar
	done, steps int
}

func newReporter(rank int, asJSON bool, done, steps int) *reporter {
	r := &reporter{quiet: rank != 0, done: done, steps: steps, bar: progressBar{format: "step %d / %d"}}
	if asJSON {
		r.json = json.NewEncoder(os.Stdout)
	}
	return r
}

func (r *reporter) step(epoch, step int, loss float64) error {
	r.done++
	switch {
	case r.quiet:
		return nil
	case r.json == nil:
		r.bar.set(r.done, r.steps)
		return nil
	}
	return r.json.Encode(struct {
		Epoch int    `json:"epoch"`
		Step  int    `json:"step"`
		Loss  number `json:"loss"`
	}{epoch, step, number(loss)})
}

// number is null in JSON where it is not finite.
type number float64

// MarshalJSON is as encoding/json has it.
func (n number) MarshalJSON() ([]byte, error) {
	if x := float64(n); math.IsNaN(x) || math.IsInf(x, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

func (r *reporter) epoch(epoch int, loss float64, score nn.Score) error {
	all := score.All()
	switch {
	case r.quiet:
		return nil
	case r.json == nil:
		r.bar.close()
		_, err := fmt.Fprintf(os.Stderr, "epoch %d: loss %.4f, test accuracy %.2f %% of %d\n", epoch, loss, 100*all.Accuracy(), all.Rows)
		return err
	}
	return r.json.Encode(struct {
		Epoch    int     `json:"epoch"`
		Accuracy float64 `json:"test_accuracy"`
	}{epoch, all.Accuracy()})
}

func (r *reporter) summary(s summary) error {
	r.bar.close()
	switch {
	case r.quiet:
		return nil
	case r.json == nil:
		worst := 0
		for class, accuracy := range s.PerClass {
			if accuracy < s.PerClass[worst] {
				worst = class
			}
		}
		ranks, hidden := "1 rank", ""
		if s.World > 1 {
			ranks, hidden = fmt.Sprintf("%d ranks", s.World), fmt.Sprintf(", %.0f %% of the all-reduces hidden by the backward pass", 100*s.Overlap)
		}
		_, err := fmt.Printf("%d steps (%d epochs) on %s in %.1f s: test accuracy %.2f %% of %d samples, loss %.4f; of class %d, the worst, %.2f %%\n"+
			"%.0f samples/s, %.1f %% of the time waiting for data%s; matrix products by %s\n",
			s.Steps, s.Epochs, ranks, s.Seconds, 100*s.Accuracy, s.Samples, s.Loss, worst, 100*s.PerClass[worst], s.Rate, 100*s.Wait, hidden, s.BLAS)
		return err
	}
	return r.json.Encode(s)
}

// samplesLog is a file with a line "epoch step sample sample …" for each step
// that its rank has trained on.
type samplesLog struct {
	file *os.File // nil: nothing is written
	line []byte
}

// cutSamplesLogs takes the lines at or after the cursor out of the logs of
// all ranks in dir, of those that no longer exist, too: the run writes them
// again. Rank 0 does it before any rank appends.
func cutSamplesLogs(dir string, at sampler.Cursor) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("--samples-log: %w", err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "rank-*.txt"))
	if err != nil {
		return fmt.Errorf("--samples-log: %w", err)
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("--samples-log: %w", err)
		}
		kept, err := before(text, at)
		if err != nil {
			return fmt.Errorf("--samples-log: %s: %w", name, err)
		}
		if len(kept) == len(text) {
			continue
		}
		if err := replace(name, kept); err != nil {
			return fmt.Errorf("--samples-log: %w", err)
		}
	}
	return nil
}

// before is the lines of a log before the cursor. A line without its end, left
// by a killed run, goes, too.
func before(text []byte, at sampler.Cursor) (kept []byte, err error) {
	n := 0
	for line := range bytes.Lines(text) {
		if n++; !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var epoch, step int
		if _, err := fmt.Sscan(string(line), &epoch, &step); err != nil {
			return nil, fmt.Errorf("line %d is not \"epoch step sample …\": name a directory of its own", n)
		}
		if epoch < at.Epoch || epoch == at.Epoch && step < at.Step {
			kept = append(kept, line...)
		}
	}
	return kept, nil
}

func openSamplesLog(dir string, rank int) (*samplesLog, error) {
	if dir == "" {
		return &samplesLog{}, nil
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("rank-%d.txt", rank)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("--samples-log: %w", err)
	}
	return &samplesLog{file: f}, nil
}

// write appends the step's line by one write, so that a kill leaves whole lines.
func (l *samplesLog) write(s batch.Step) error {
	if l.file == nil {
		return nil
	}
	l.line = strconv.AppendInt(l.line[:0], int64(s.Epoch), 10)
	l.line = append(l.line, ' ')
	l.line = strconv.AppendInt(l.line, int64(s.Index), 10)
	for _, sample := range s.Samples[:s.Rows()] {
		l.line = append(l.line, ' ')
		l.line = strconv.AppendInt(l.line, int64(sample), 10)
	}
	if _, err := l.file.Write(append(l.line, '\n')); err != nil {
		return fmt.Errorf("--samples-log: %w", err)
	}
	return nil
}

func (l *samplesLog) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
