package queue

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// start starts a call.
func start[C any](t *testing.T, q *Queue[C], c C) uint64 {
	t.Helper()
	n, err := q.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Calls are made in order, one at a time, each once, whoever waits for which.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var made []int
		at := 0
		q := New(func(c int, number uint64) error {
			at++
			if uint64(c) != number || at != 1 {
				t.Errorf("call %d has the number %d, and %d calls are made at a time", c, number, at)
			}
			<-time.After(time.Second)
			mu.Lock()
			defer mu.Unlock()
			made = append(made, c)
			at--
			return nil
		})
		const calls = 20
		waits := rand.New(rand.NewPCG(1, 2)).Perm(calls)
		var waiting sync.WaitGroup
		for c := 1; c <= calls; c++ {
			start(t, q, c)
			if c%3 == 0 {
				q.Go()
			}
			if c%7 == 0 {
				<-time.After(1500 * time.Millisecond)
			}
		}
		for _, c := range waits {
			waiting.Go(func() {
				if err := q.Wait(uint64(c + 1)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(made, c+1) {
					t.Errorf("call %d was not made", c+1)
				}
			})
		}
		waiting.Wait()
		if len(made) != calls || !slices.IsSorted(made) {
			t.Errorf("made %v", made)
		}
		if pending, _ := q.Close(); pending != 0 {
			t.Errorf("%d calls are pending", pending)
		}
	})
}

// Whoever waits for a call at once makes it, without another goroutine; what
// is queued behind it goes on in the background.
func TestWhoMakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		q := New(func(c int, _ uint64) error {
			<-time.After(time.Second)
			made.Add(1)
			return nil
		})
		q.Wait(start(t, q, 0)) // nobody else would
		first := start(t, q, 1)
		start(t, q, 2)
		q.Wait(first)
		if n := made.Load(); n != 2 {
			t.Errorf("a goroutine that waits for call 2 has made %d", n)
		}
		<-time.After(time.Second + 1)
		if n := made.Load(); n != 3 {
			t.Errorf("the call behind it was not made: %d", n)
		}
		start(t, q, 3)
		q.Go()
		q.Go()
		<-time.After(time.Second + 1)
		if n := made.Load(); n != 4 {
			t.Errorf("nobody has made the call in the background: %d", n)
		}
	})
}

// After an error nothing is made, and all get it; but not while a call is
// being made, whose memory is in use.
func TestError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		on := make(chan struct{})
		q := New(func(c int, _ uint64) error {
			<-on
			if c == 2 {
				t.Error("a call is made after the error")
			}
			return nil
		})
		errs := make(chan error, 3)
		for c := range cap(errs) {
			n := start(t, q, c)
			go func() { errs <- q.Wait(n) }()
		}
		synctest.Wait()
		if q.News() != nil || q.Err() != nil {
			t.Error("an error before there was one")
		}
		if q.Fail(nil) || !q.Fail(boom) || q.Fail(errors.New("another")) {
			t.Error("not the first error counts")
		}
		<-q.Failed()
		synctest.Wait()
		if len(errs) != 0 {
			t.Error("a call has returned while one is made")
		}
		if err := q.News(); err != boom {
			t.Errorf("the news are %v", err)
		}
		if err := q.News(); err != nil {
			t.Errorf("the news are %v again", err)
		}
		if pending, first := q.Close(); pending != 0 || !first {
			t.Errorf("%d calls are pending that have failed, first %v", pending, first)
		}
		close(on)
		q.Rest()
		synctest.Wait()
		well := 0
		for range cap(errs) {
			switch err := <-errs; err {
			case nil:
				well++
			case boom:
			default:
				t.Error(err)
			}
		}
		if well != 1 { // the call that was being made
			t.Errorf("%d calls went well", well)
		}
		if _, err := q.Start(9); err != ErrClosed {
			t.Errorf("a call after Close: %v", err)
		}
	})
}

// The error of a call is that of all behind it.
func TestCallFails(t *testing.T) {
	boom := errors.New("boom")
	q := New(func(c int, _ uint64) error {
		if c == 1 {
			return boom
		}
		return nil
	})
	for c, want := range []error{nil, boom} {
		if err := q.Wait(start(t, q, c)); err != want {
			t.Errorf("call %d: %v", c, err)
		}
	}
	if _, err := q.Start(2); err != boom {
		t.Errorf("the next call: %v", err)
	}
	if err := q.Wait(1); err != nil {
		t.Errorf("the call that went well: %v", err)
	}
	if q.News() != nil {
		t.Error("the error is news after callers got it")
	}
}

// Rest and a second Close.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(func(int, uint64) error {
			<-time.After(time.Second)
			return nil
		})
		start(t, q, 0)
		start(t, q, 1)
		q.Go()
		synctest.Wait()
		if q.Closed() {
			t.Error("closed before Close")
		}
		if pending, first := q.Close(); pending != 2 || !first || !q.Closed() {
			t.Errorf("%d are pending, first %v", pending, first)
		}
		if _, first := q.Close(); first {
			t.Error("the second Close is the first")
		}
		began := time.Now()
		q.Rest()
		if d := time.Since(began); d != 2*time.Second {
			t.Errorf("rested after %v", d)
		}
	})
}
