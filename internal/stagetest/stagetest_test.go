package stagetest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shardfeed/shardfeed/internal/stagetest"
)

const items = 4

// toy is a small correct stage, one goroutine ahead of the loop, with an
// optional fault.
type toy struct {
	fault string
	fail  func(item int) error
	held  atomic.Int64
}

func (s *toy) make(item int) (v *int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := s.fail(item); err != nil {
		return nil, err
	}
	s.held.Add(1)
	return &item, nil
}

func (s *toy) Epoch(ctx context.Context, epoch, skip int) iter.Seq2[*int, error] {
	return func(yield func(*int, error) bool) {
		type result struct {
			v   *int
			err error
		}
		if s.fault == "swallows a panic" {
			defer func() { _ = recover() }()
		}
		if s.fault == "ignores cancel" {
			ctx = context.WithoutCancel(ctx)
		}
		if s.fault == "panics" {
			panic("oops")
		}
		ahead, cancel := context.WithCancel(ctx)
		results := make(chan result)
		var producer sync.WaitGroup
		producer.Go(func() {
			defer close(results)
			for item := skip; item < items; item++ {
				v, err := s.make(item)
				select {
				case results <- result{v, err}:
				case <-ahead.Done():
					if v != nil && s.fault != "leaks an item" {
						s.held.Add(-1)
					}
					return
				}
				if err != nil && s.fault != "goes on after an error" {
					return
				}
			}
		})
		defer func() {
			if s.fault != "leaks a goroutine" {
				cancel()
				producer.Wait()
			}
		}()
		n := skip
		for r := range results {
			if r.v != nil {
				s.held.Add(-1)
			}
			if err := ctx.Err(); err != nil {
				yield(nil, err)
				return
			}
			if r.err != nil && s.fault == "drops the error" {
				return
			}
			if r.err != nil && s.fault == "gives a value with the error" {
				r.v = new(int)
			}
			if !yield(r.v, r.err) {
				return
			}
			if n++; n == 2 && s.fault == "stops early" {
				return
			}
		}
		if err := ctx.Err(); err != nil && n < items {
			yield(nil, err)
		}
	}
}

func endings(t *testing.T, fault string) {
	stagetest.Endings(t, items, func(t *testing.T, fail func(int) error) stagetest.Stage[*int] {
		s := &toy{fault: fault, fail: fail}
		return stagetest.Stage[*int]{
			Epoch: s.Epoch,
			Close: func() error {
				if fault == "fails to close" {
					return errors.New("busy")
				}
				return nil
			},
			Left: func() string {
				if n := s.held.Load(); n != 0 {
					return fmt.Sprint(n, " items")
				}
				return ""
			},
		}
	})
}

func counting(fault string) func(epoch, skip int) iter.Seq[int] {
	return func(epoch, skip int) iter.Seq[int] {
		return func(yield func(int) bool) {
			if fault == "skips too much at the end" && skip == items {
				skip--
			}
			if fault == "counts from skip" && skip > 0 {
				skip, epoch = 0, epoch+10*skip
			}
			for k := skip; k < items && yield(100*epoch+k); k++ {
			}
		}
	}
}

func TestGoodStage(t *testing.T) {
	endings(t, "")
	stagetest.Seek(t, counting(""), 0, 1, 7)
}

// Each fault fails a test of its own process, with words that tell it: a
// goroutine that stays in a bubble of synctest ends the process.
func TestBadStages(t *testing.T) {
	for fault, want := range map[string]string{
		"leaks a goroutine":            "blocked goroutines remain",
		"leaks an item":                "left behind: 1 items",
		"goes on after an error":       "comes after the error injected",
		"ignores cancel":               "4 items although the context was cancelled at 0",
		"swallows a panic":             "the loop panics: runtime error: range function recovered a loop body panic",
		"panics":                       "the loop panics: oops",
		"drops the error":              "0 items and the error <nil>, want 0 and injected",
		"gives a value with the error": "comes with the error injected",
		"stops early":                  "2 items and the error <nil>, want 4 and none",
		"fails to close":               "Close: busy",
		"skips too much at the end":    "Epoch(0, 4) = [3], want []",
		"counts from skip":             "Epoch(0, 1) = [1000 1001 1002 1003], want [1 2 3]",
	} {
		t.Run(fault, func(t *testing.T) {
			test := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFault$")
			test.Env = append(os.Environ(), "STAGETEST_FAULT="+fault)
			out, err := test.CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("error %v, want one, and %q in\n%s", err, want, out)
			}
		})
	}
}

// TestFault is the process of TestBadStages; by itself it has nothing to do.
func TestFault(t *testing.T) {
	if fault := os.Getenv("STAGETEST_FAULT"); fault != "" {
		stagetest.Seek(t, counting(fault), 0)
		endings(t, fault)
	}
}
