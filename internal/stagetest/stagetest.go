// Package stagetest proves what every feeding stage promises: Epoch(e, k) is
// Epoch(e, 0) without its first k items, and a range loop leaves nothing
// behind, however it ends.
package stagetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"testing"
	"testing/synctest"
)

// Seek checks that epoch(e, k) is epoch(e, 0) without its first k items, for
// each k up to one behind the end.
func Seek[T any](t *testing.T, epoch func(epoch, skip int) iter.Seq[T], epochs ...int) {
	t.Helper()
	for _, e := range epochs {
		var all []T
		for v := range epoch(e, 0) {
			all = append(all, v)
		}
		for skip := range len(all) + 2 {
			var got []T
			for v := range epoch(e, skip) {
				got = append(got, v)
			}
			want := all[min(skip, len(all)):]
			if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("Epoch(%d, %d) = %v, want %v", e, skip, got, want)
			}
		}
	}
}

// Stage is a fresh stage for one trial of Endings.
type Stage[T any] struct {
	// Epoch is the stage's method.
	Epoch func(ctx context.Context, epoch, skip int) iter.Seq2[T, error]
	// Close frees what belongs to the stage itself; it may be nil.
	Close func() error
	// Left says what is still held after the loop and Close: "" for nothing.
	// It is asked at once: what the loop has begun has ended with it.
	Left func() string
}

// ErrInjected is the error that a stage under test meets at its item fail.
var ErrInjected = errors.New("injected")

// Endings ends the range loop over an epoch at every item in every way: by
// break, by a panic and by runtime.Goexit in the body, by cancelling the
// context, and by an error and a panic from below. Each trial runs in a bubble
// of testing/synctest, in which a goroutine left behind fails the test, and
// asks Left when the loop has ended and Close has returned.
//
// make makes a stage over items items; fail is called by whatever feeds the
// stage before it makes item k and returns ErrInjected or panics where the
// trial wants that.
func Endings[T any](t *testing.T, items int, make func(t *testing.T, fail func(item int) error) Stage[T]) {
	for _, how := range []string{"end", "break", "panic", "goexit", "cancel", "error", "panic below"} {
		for at := range items {
			t.Run(fmt.Sprintf("%s/%d", how, at), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { ending(t, how, at, items, make) })
			})
			if how == "end" {
				break
			}
		}
	}
}

func ending[T any](t *testing.T, how string, at, items int, make func(t *testing.T, fail func(item int) error) Stage[T]) {
	stage := make(t, func(item int) error {
		switch {
		case item == at && how == "error":
			return ErrInjected
		case item == at && how == "panic below":
			panic("injected panic")
		}
		return nil
	})
	n, last := loop(t, stage, how, at)
	switch how {
	case "end":
		if n != items || last != nil {
			t.Errorf("%d items and the error %v, want %d and none", n, last, items)
		}
	case "break", "panic", "goexit":
		if n != at || last != nil {
			t.Errorf("%d items and the error %v before the %s, want %d and none", n, last, how, at)
		}
	case "cancel":
		// The last item's cancel may come after all was delivered.
		if !errors.Is(last, context.Canceled) && !(last == nil && at == items-1) {
			t.Errorf("the error is %v, want %v", last, context.Canceled)
		}
		if n != at+1 {
			t.Errorf("%d items although the context was cancelled at %d", n, at)
		}
	case "error":
		if n != at || !errors.Is(last, ErrInjected) {
			t.Errorf("%d items and the error %v, want %d and %v", n, last, at, ErrInjected)
		}
	case "panic below":
		if n != at || last == nil {
			t.Errorf("%d items and the error %v, want %d and the panic as an error", n, last, at)
		}
	}
	if stage.Close != nil {
		if err := stage.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if left := stage.Left(); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// loop ranges over the stage's epoch 0 on a goroutine of its own and says how
// many items it saw before the trial's ending, and the error at the end.
func loop[T any](t *testing.T, stage Stage[T], how string, at int) (n int, last error) {
	ctx, cancel := context.WithCancel(context.Background()) // cancelled by its trial alone: another's goroutines must end without
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil && (how != "panic" || p != errBody) {
				t.Errorf("the loop panics: %v", p)
			}
		}()
		for v, err := range stage.Epoch(ctx, 0, 0) {
			if last != nil {
				t.Errorf("item %d comes after the error %v", n, last)
			}
			if last = err; err != nil {
				if !reflect.ValueOf(&v).Elem().IsZero() {
					t.Errorf("the value %v comes with the error %v", v, err)
				}
				continue
			}
			if n == at {
				switch how {
				case "break":
					return
				case "panic":
					panic(errBody)
				case "goexit":
					runtime.Goexit()
				case "cancel":
					cancel()
				}
			}
			n++
		}
	}()
	<-done
	return n, last
}

// errBody is what a body panics with.
var errBody = errors.New("the body's panic")
