package main

import (
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progressBar shows on a terminal how much of something is done, and nothing
// where standard error is none.
type progressBar struct {
	format string // of the numbers done and in all

	began time.Time
	bars  *mpb.Progress
	bar   *mpb.Bar // nil before the first set, after close, and without a terminal
}

func (b *progressBar) set(done, total int) {
	if b.began.IsZero() {
		b.began = time.Now()
	}
	if b.bar == nil {
		if !term.IsTerminal(int(os.Stderr.Fd())) {
			return
		}
		b.bars = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(60))
		b.bar = b.bars.AddBar(int64(total),
			mpb.PrependDecorators(decor.CountersNoUnit(b.format)),
			mpb.AppendDecorators(decor.NewAverageETA(decor.ET_STYLE_GO, b.began, nil)))
	}
	b.bar.SetCurrent(int64(done))
}

// close takes the bar away, so that lines can be printed; set brings it back.
func (b *progressBar) close() {
	if b.bar != nil {
		b.bar.Abort(true)
		b.bars.Wait()
		b.bar = nil
	}
}
