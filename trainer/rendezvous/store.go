package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/server"
	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// Store is what the ranks of a run share once they have joined: values by
// key, and the news that one of them has failed. Its methods may be called
// from several goroutines.
type Store struct {
	world   World
	link    *wire.Link     // to rank 0
	server  *server.Server // on rank 0
	retract func()         // removes rank 0's file; nil where there is none

	started chan struct{} // closed once all have joined
	failed  chan struct{} // closed with failure
	ended   chan struct{} // closed once nothing is received any more

	mu      sync.Mutex
	zero    RankError // who rank 0 is
	failure *RankError
	closing bool
	waiting map[string]*arrival // for a key

	answer    atomic.Int64 // how long rank 0 may take for one, as a time.Duration
	closeOnce sync.Once
	closeErr  error
}

func newStore(w World) *Store {
	s := &Store{world: w, started: make(chan struct{}), failed: make(chan struct{}), ended: make(chan struct{}), waiting: map[string]*arrival{}}
	s.answer.Store(int64(wordsTime))
	return s
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

// rankError is the rank that a message is about.
func rankError(m wire.Message) RankError {
	return RankError{Rank: m.Rank, Host: m.Host, PID: m.PID, Words: m.Words}
}

// receive handles messages until the connection ends.
func (s *Store) receive(m wire.Message) {
	defer close(s.ended)
	for err := error(nil); err == nil; m, err = wire.Read(s.link, wire.MaxMessage) {
		s.handle(m)
	}
	s.link.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.fail(s.zero, 0)
	}
}

func (s *Store) handle(m wire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Kind {
	case "accepted", "start":
		s.zero = rankError(m)
		if m.Kind == "start" {
			close(s.started)
		}
	case "failed":
		s.fail(rankError(m), m.Late)
	case "value":
		if a := s.waiting[m.Key]; a != nil {
			a.value = m.Value
			close(a.done)
			delete(s.waiting, m.Key)
		}
	}
}

// fail takes note of a failure, if it is the first, and lets the launcher know
// who is to blame: late, less 1, where that is not 0. The caller holds mu.
func (s *Store) fail(failure RankError, late int) {
	if s.failure == nil {
		s.failure = &failure
		close(s.failed)
		if late == 0 {
			late = failure.Rank + 1
		}
		s.world.report("failed", late-1)
	}
}

// report tells the launcher what a rank does.
func (w World) report(what string, rank int) { wire.Report(w.ReportFD, fmt.Sprintln(what, rank)) }

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
	if len(value) > wire.MaxValue {
		return fmt.Errorf("rendezvous: the value of key %q has %d bytes, the limit is %d: the store is for addresses and small facts", key, len(value), wire.MaxValue)
	}
	if err := s.usable(ctx, key); err != nil {
		return err
	}
	if err := s.link.Send(wire.Message{Kind: "set", Key: key, Value: value}); err != nil {
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
	s.link.Send(wire.Message{Kind: "get", Key: key}) // where that fails, ended follows
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
	case len(key) > wire.MaxKey || !utf8.ValidString(key):
		return fmt.Errorf("rendezvous: a key of %d bytes, %.40q: give at most %d bytes of UTF-8", len(key), key, wire.MaxKey)
	case ctx.Err() != nil:
		return fmt.Errorf("rendezvous: key %q: %w", key, context.Cause(ctx))
	}
	return nil
}

// Fail tells all ranks that this one is ending, and why. It returns once they
// are told, or after a second. It does nothing where err is nil or a rank has
// failed before. Close is still to be called.
func (s *Store) Fail(err error) { s.tell(err, 0) }

// Blame is Fail where another rank is the cause, for which this one has waited
// in vain: the launcher hears of that.
func (s *Store) Blame(rank int, err error) { s.tell(err, rank+1) }

// tell is Blame of the rank late, less 1, and Fail where that is 0.
func (s *Store) tell(err error, late int) {
	if err == nil || s.usable(context.Background(), "") != nil {
		return
	}
	if late > 0 { // at once, since rank 0, which tells the others, may be the one
		s.world.report("failed", late-1)
	}
	s.link.Send(wire.Message{Kind: "fail", Words: wire.LastWords(err.Error()), Late: late})
	if late == 1 { // rank 0 will not answer
		s.answer.Store(int64(time.Millisecond))
	}
	select {
	case <-s.failed:
	case <-s.ended:
	case <-time.After(time.Duration(s.answer.Load())):
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
		s.link.Send(wire.Message{Kind: "leave"})
		s.link.SetReadDeadline(time.Now().Add(time.Duration(s.answer.Load()))) // rank 0 closes the connection
		<-s.ended
		if s.server != nil {
			s.closeErr = s.shut()
		}
		if err := s.Err(); err != nil {
			s.closeErr = err
		}
	})
	return s.closeErr
}

// shut ends rank 0's server. Until its file is gone the server answers, so that
// no other rank 0 takes the file for stale.
func (s *Store) shut() error {
	err := s.server.Wait()
	if s.retract != nil {
		s.retract()
	}
	if failure := s.server.Stop(); err == nil && failure != nil {
		first := rankError(*failure)
		err = &first
	}
	return err
}
