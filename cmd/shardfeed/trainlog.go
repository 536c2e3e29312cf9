package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/sampler"
)

// reporter tells what a run does: as JSON lines on out for scripts, or in
// words on errs, with a progress bar where that is a terminal. Only rank 0 has
// one that speaks.
type reporter struct {
	quiet     bool
	json      *json.Encoder // nil: in words
	out, errs io.Writer
	bars      *mpb.Progress
	bar       *mpb.Bar
}

func newReporter(rank int, asJSON bool, done, steps int) *reporter {
	r := &reporter{quiet: rank != 0, out: os.Stdout, errs: os.Stderr}
	switch {
	case r.quiet:
	case asJSON:
		r.json = json.NewEncoder(os.Stdout)
	case term.IsTerminal(int(os.Stderr.Fd())):
		r.bars = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(60))
		r.bar = r.bars.AddBar(int64(steps),
			mpb.PrependDecorators(decor.CountersNoUnit("step %d/%d")),
			mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
		r.bar.SetCurrent(int64(done))
		r.errs = r.bars // lines go above the bar
	}
	return r
}

func (r *reporter) step(epoch, step int, loss float64) error {
	switch {
	case r.bar != nil:
		r.bar.Increment()
	case r.json != nil:
		return r.json.Encode(struct {
			Epoch int     `json:"epoch"`
			Step  int     `json:"step"`
			Loss  float64 `json:"loss"`
		}{epoch, step, loss})
	}
	return nil
}

func (r *reporter) epoch(epoch int, loss float64, e evaluation) error {
	if r.json != nil {
		return r.json.Encode(struct {
			Epoch    int     `json:"epoch"`
			Accuracy float64 `json:"test_accuracy"`
		}{epoch, e.accuracy()})
	}
	return r.say("epoch %d: loss %.4f, test accuracy %.2f %% of %d", epoch, loss, 100*e.accuracy(), e.samples)
}

func (r *reporter) say(format string, args ...any) error {
	if r.quiet || r.json != nil {
		return nil
	}
	_, err := fmt.Fprintf(r.errs, format+"\n", args...)
	return err
}

func (r *reporter) summary(s summary) error {
	r.close()
	switch {
	case r.quiet:
		return nil
	case r.json != nil:
		return r.json.Encode(s)
	}
	_, err := fmt.Fprintf(r.out, "%d steps (%d epochs) on %d ranks in %.1f s: test accuracy %.2f %% of %d samples; %.0f samples/s, %.1f %% of the time waiting for data; matrix products by %s\n",
		s.Steps, s.Epochs, s.World, s.Seconds, 100*s.Accuracy, s.Samples, s.Rate, 100*s.Wait, s.BLAS)
	return err
}

// close takes the bar off the terminal. It may be called twice.
func (r *reporter) close() {
	if r.bar != nil {
		r.bar.Abort(true)
		r.bars.Wait()
		r.bar, r.errs = nil, os.Stderr
	}
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
		if err := os.WriteFile(name+".new", kept, 0o666); err != nil {
			return fmt.Errorf("--samples-log: %w", err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			return fmt.Errorf("--samples-log: %w", err)
		}
	}
	return nil
}

// before is the lines of a log before the cursor. A line without its end, left
// by a killed run, goes, too.
func before(text []byte, at sampler.Cursor) (kept []byte, err error) {
	for n, lines := 1, bufio.NewReader(bytes.NewReader(text)); ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return kept, nil
		}
		if err != nil {
			return nil, err
		}
		var epoch, step int
		if _, err := fmt.Sscan(string(line), &epoch, &step); err != nil {
			return nil, fmt.Errorf("line %d is not \"epoch step sample …\": name a directory of its own", n)
		}
		if epoch < at.Epoch || epoch == at.Epoch && step < at.Step {
			kept = append(kept, line...)
		}
	}
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
