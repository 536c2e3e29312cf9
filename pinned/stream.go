package pinned

import "sync"

// stream runs functions one after the other on a goroutine of its own.
//
// Its queue has no bound, so push never waits. A function may wait for what
// was pushed, to any stream, before it; so there is always one that can run,
// and streams that wait for each other never deadlock.
//
// Those who push write links that the goroutine reads, never the other way
// round: what a function did happens before a later push only where the
// pusher waited for it. Hence the race detector sees two streams as ordered
// by their waits alone, whatever the timing.
type stream struct {
	mu   sync.Mutex // of those who push
	last *link      // the empty link at the end; nil once the stream is to end
	done chan struct{}
}

type link struct {
	set  chan struct{} // closed once the fields below are set
	do   func()        // nil ends the stream
	next *link
}

func newStream() *stream {
	s := &stream{last: &link{set: make(chan struct{})}, done: make(chan struct{})}
	go s.run(s.last)
	return s
}

func (s *stream) run(l *link) {
	defer func() {
		if l.do != nil {
			go s.run(l.next) // the function ended the goroutine (runtime.Goexit)
		}
	}()
	for {
		<-l.set
		if l.do == nil {
			close(s.done)
			return
		}
		l.do()
		l = l.next
	}
}

// push queues do. It says false where the stream is to end.
func (s *stream) push(do func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.last
	if l == nil {
		return false
	}
	s.last = nil
	if do != nil {
		s.last = &link{set: make(chan struct{})}
	}
	l.do, l.next = do, s.last
	close(l.set)
	return true
}

// mark is closed when all that was pushed so far has run.
func (s *stream) mark() <-chan struct{} {
	passed := make(chan struct{})
	if !s.push(func() { close(passed) }) {
		return s.done
	}
	return passed
}

// end waits until all has run and the goroutine has ended.
func (s *stream) end() {
	s.push(nil)
	<-s.done
}
