package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// Store is what the ranks of a run share once they have joined: values by
// key, and the news that one of them has failed. Its methods may be called
// from several goroutines.
type Store struct {
	world  World
	link   *link   // to rank 0
	server *server // on rank 0

	started chan struct{} // closed once all have joined
	failed  chan struct{} // closed with failure
	ended   chan struct{} // closed once nothing is received any more

	mu      sync.Mutex
	zero    RankError // who rank 0 is
	failure *RankError
	closing bool
	waiting map[string]*arrival // for a key

	closeOnce sync.Once
	closeErr  error
}

// arrival is a value that some Gets wait for.
type arrival struct {
	done  chan struct{}
	value []byte
}

// RankError says which rank has failed. Every rank of a run gets the same one.
type RankError struct {
	Rank int
	Host string // where the rank ran
	PID  int
	// Words are the rank's last words; "" where it died without any.
	Words string
}

// Error is, for instance, "rank 1 (node7, pid 4711) failed: disk full". Death
// and a forgotten Close look alike: the connection ends.
func (e *RankError) Error() string {
	if e.Words == "" {
		return fmt.Sprintf("rank %d (%s, pid %d) died, or ended without Close: connection lost", e.Rank, e.Host, e.PID)
	}
	return fmt.Sprintf("rank %d (%s, pid %d) failed: %s", e.Rank, e.Host, e.PID, e.Words)
}

// receive handles messages until the connection ends.
func (s *Store) receive(m message) {
	defer close(s.ended)
	for err := error(nil); err == nil; m, err = read(s.link, maxMessage) {
		s.handle(m)
	}
	s.link.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.fail(s.zero)
	}
}

func (s *Store) handle(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Kind {
	case "accepted", "start":
		s.zero = m.rank()
		if m.Kind == "start" {
			close(s.started)
		}
	case "failed":
		s.fail(m.rank())
	case "value":
		if a := s.waiting[m.Key]; a != nil {
			a.value = m.Value
			close(a.done)
			delete(s.waiting, m.Key)
		}
	}
}

// fail takes note of a failure, if it is the first. The caller holds mu.
func (s *Store) fail(failure RankError) {
	if s.failure == nil {
		s.failure = &failure
		close(s.failed)
		if s.world.ReportFD > 0 {
			report(s.world.ReportFD, fmt.Sprintln(failure.Rank))
		}
	}
}

// World is this rank's place.
func (s *Store) World() World { return s.world }

// Failed is closed once a rank has failed: it has died, called Fail, or ended
// without Close. A machine that does not answer counts as dead after 8 s.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err is the *[RankError] of the first rank that has failed, nil before.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		return nil
	}
	return s.failure
}

// Set gives a key of at most 1 KiB of UTF-8 a value of at most 1 MiB, for all
// ranks; a later Set replaces it. It returns once the value is sent.
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("rendezvous: the value of key %q has %d bytes, the limit is %d: the store is for addresses and small facts", key, len(value), maxValue)
	}
	if err := s.usable(ctx, key); err != nil {
		return err
	}
	if err := s.link.send(message{Kind: "set", Key: key, Value: value}); err != nil {
		<-s.ended // the reason is known then
		return s.usable(ctx, key)
	}
	return nil
}

// Get is the value of a key, which the caller owns. It waits until there is
// one; it fails when ctx ends, and with the *[RankError] once a rank has failed.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.usable(ctx, key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	a := s.waiting[key]
	if a == nil {
		a = &arrival{done: make(chan struct{})}
		s.waiting[key] = a
	}
	s.mu.Unlock()
	s.link.send(message{Kind: "get", Key: key}) // where that fails, ended follows
	select {
	case <-a.done:
		return slices.Clone(a.value), nil
	case <-s.failed:
		return nil, s.Err()
	case <-s.ended:
	case <-ctx.Done():
	}
	return nil, s.usable(ctx, key)
}

// usable says why the store, or a key, cannot be used.
func (s *Store) usable(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failure != nil:
		return s.failure
	case s.closing:
		return errors.New("rendezvous: the store is closed")
	case len(key) > maxKey || !utf8.ValidString(key):
		return fmt.Errorf("rendezvous: a key of %d bytes, %.40q: give at most %d bytes of UTF-8", len(key), key, maxKey)
	case ctx.Err() != nil:
		return fmt.Errorf("rendezvous: key %q: %w", key, context.Cause(ctx))
	}
	return nil
}

// Fail tells all ranks that this one is ending, and why. It returns once they
// are told, or after a second. It does nothing where err is nil or a rank has
// failed before. Close is still to be called.
func (s *Store) Fail(err error) {
	if err == nil || s.usable(context.Background(), "") != nil {
		return
	}
	s.link.send(message{Kind: "fail", Words: lastWords(err.Error())})
	select {
	case <-s.failed:
	case <-s.ended:
	case <-time.After(wordsTime):
	}
}

// Close leaves the run in order. Rank 0 waits until the others have left, for
// at most 5 s. The error is the *[RankError] where a rank has failed, and on
// rank 0 one that names the ranks that have not left. Close may be called
// twice.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		s.link.send(message{Kind: "leave"})
		s.link.SetReadDeadline(time.Now().Add(wordsTime)) // rank 0 closes the connection
		<-s.ended
		if s.server != nil {
			s.closeErr = s.server.close()
		}
		if err := s.Err(); err != nil {
			s.closeErr = err
		}
	})
	return s.closeErr
}
