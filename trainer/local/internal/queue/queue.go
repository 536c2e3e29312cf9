// Package queue makes the calls of one rank one after the other, in the order
// in which they were started.
package queue

import (
	"errors"
	"math"
	"slices"
	"sync"
)

// ErrClosed is Start's error after Close.
var ErrClosed = errors.New("the group is closed")

// Queue is calls that were started. A goroutine that waits for one makes it,
// and those before it; a goroutine in the background does where none waits.
// The first error is that of all later calls.
type Queue[C any] struct {
	perform    func(c C, number uint64) error
	background func()        // run, made once
	failed     chan struct{} // closed once err is set

	mu      sync.Mutex
	changed sync.Cond // any of the fields below
	calls   []C       // started and not begun
	started uint64
	ended   uint64 // that went well
	running bool   // a goroutine makes calls
	called  bool   // one is about to
	closed  bool
	err     error
	known   bool // err, to a caller
}

// New is a queue of calls that perform makes: it gets each call with its
// number, from 1.
func New[C any](perform func(c C, number uint64) error) *Queue[C] {
	q := &Queue[C]{perform: perform, failed: make(chan struct{})}
	q.changed.L = &q.mu
	q.background = q.run
	return q
}

// Start puts a call into the queue, and returns its number for Wait.
func (q *Queue[C]) Start(c C) (n uint64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return 0, ErrClosed
	case q.err != nil:
		return 0, q.why()
	}
	q.started++
	q.calls = append(q.calls, c)
	return q.started, nil
}

// Go has the calls made in the background, as far as nobody waits for them.
func (q *Queue[C]) Go() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.call()
}

func (q *Queue[C]) call() {
	if !q.running && !q.called {
		q.called = true
		go q.background()
	}
}

// Wait waits for the n-th call. Where nobody makes calls yet, which is so
// where Wait follows Start at once, this goroutine does, and saves two changes
// of goroutine. When it returns an error nobody is at work on a call any more.
func (q *Queue[C]) Wait(n uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended < n && !q.running {
		q.work(n)
	}
	for q.ended < n && (q.err == nil || q.running) {
		q.changed.Wait()
	}
	if q.ended < n {
		return q.why()
	}
	return nil
}

func (q *Queue[C]) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.called = false
	if !q.running {
		q.work(math.MaxUint64)
	}
}

// work makes calls until the n-th has ended; what is queued behind that goes
// on in the background. The caller holds mu, and nobody else works.
func (q *Queue[C]) work(n uint64) {
	q.running = true
	for len(q.calls) > 0 && q.err == nil && q.ended < n {
		c, number := q.calls[0], q.ended+1
		q.calls = slices.Delete(q.calls, 0, 1)
		q.mu.Unlock()
		err := q.perform(c, number)
		q.mu.Lock()
		if err == nil {
			q.ended++
			q.changed.Broadcast()
		} else {
			q.fail(err)
		}
	}
	q.running = false
	if q.err != nil {
		q.calls = nil
	} else if len(q.calls) > 0 {
		q.call()
	}
	q.changed.Broadcast()
}

// Fail gives the calls under way and all later ones an error, if it is the
// first, and says whether it was.
func (q *Queue[C]) Fail(err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fail(err)
}

func (q *Queue[C]) fail(err error) bool {
	if q.err != nil || err == nil {
		return false
	}
	q.err = err
	close(q.failed)
	q.changed.Broadcast()
	return true
}

// Failed is closed once there is an error.
func (q *Queue[C]) Failed() <-chan struct{} { return q.failed }

// Err is the error, nil before.
func (q *Queue[C]) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.why()
}

// News is Err where no caller has got that yet.
func (q *Queue[C]) News() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known {
		return nil
	}
	return q.why()
}

// why is err for a caller.
func (q *Queue[C]) why() error {
	q.known = q.known || q.err != nil
	return q.err
}

// Close lets no further call begin, and says how many are pending that have
// not failed. Only the first call of Close is first.
func (q *Queue[C]) Close() (pending int, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first = !q.closed
	q.closed = true
	if q.err == nil {
		pending = int(q.started - q.ended)
	}
	return pending, first
}

// Closed says whether Close was called.
func (q *Queue[C]) Closed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// Rest waits until nobody makes calls: all have ended or failed.
func (q *Queue[C]) Rest() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.changed.Wait()
	}
}
