// Package server is rank 0's part of a rendezvous: it lets the ranks in, keeps
// the values, and tells all of a failure. Rank 0 is one of its clients.
package server

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// pause is between attempts to accept a connection.
const pause = 20 * time.Millisecond

// Server serves the ranks of one run.
type Server struct {
	hello wire.Message // rank 0's, with which the others have to agree

	mu      sync.Mutex
	members []*member // by rank; nil where it has not joined
	gone    int       // members that have left or died
	turned  string    // the last rank that was turned away, and why
	values  map[string][]byte
	waiting map[string][]*member // for a key
	failure *wire.Message        // the first; of the kind failed

	ended   context.Context // done with failure, or once all members are gone
	end     func()
	ctx     context.Context // of the listener and all connections
	cancel  func()
	telling sync.WaitGroup // failures on their way
	running sync.WaitGroup // goroutines
}

// member is a rank that has joined.
type member struct {
	*wire.Link
	hello wire.Message
	left  atomic.Bool
}

// New is a server of a run, as rank 0's hello describes it. Rank 0 has to be
// the first to join, and the caller calls Wait and Stop, or Abort.
func New(hello wire.Message) *Server {
	s := &Server{hello: hello, members: make([]*member, hello.Size), values: map[string][]byte{}, waiting: map[string][]*member{}}
	s.ended, s.end = context.WithCancel(context.Background())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Listen lets ranks in until Stop, which closes the listener.
func (s *Server) Listen(l net.Listener) {
	context.AfterFunc(s.ctx, func() { l.Close() })
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // no descriptor is left, for instance
				time.Sleep(pause)
			default:
				s.Start(wire.Tune(c))
			}
		}
	})
}

// Start serves a connection, which the server owns from here on.
func (s *Server) Start(c net.Conn) {
	s.running.Go(func() {
		defer c.Close()
		defer context.AfterFunc(s.ctx, func() { c.Close() })()
		s.serve(&wire.Link{Conn: c})
	})
}

// serve serves a connection until it ends or the rank leaves. A stranger on
// the port disturbs nobody.
func (s *Server) serve(l *wire.Link) {
	l.SetReadDeadline(time.Now().Add(wire.Patience))
	hello, err := wire.Read(l, wire.MaxHello)
	if err != nil || hello.Kind != "hello" {
		return
	}
	l.SetReadDeadline(time.Time{})
	m := &member{Link: l, hello: hello}
	answer, all := s.admit(m)
	l.Send(answer)
	if answer.Kind != "accepted" {
		return
	}
	if all {
		s.tell(wire.Message{Kind: "start", Host: s.hello.Host, PID: s.hello.PID})
	}
	for !m.left.Load() {
		msg, err := wire.Read(l, wire.MaxMessage)
		if err != nil {
			break
		}
		s.handle(m, msg)
	}
	s.depart(m)
}

// admit makes a newcomer a member, or says why not; all says that nobody is
// missing now.
func (s *Server) admit(m *member) (answer wire.Message, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(m.hello.Run, s.hello.Run) {
		return wire.Message{Kind: "stranger", Words: "it looks for another run"}, false
	}
	if words := s.unfit(m.hello); words != "" {
		s.turned = fmt.Sprintf("%s, pid %d, came as rank %d and was turned away: %s", m.hello.Host, m.hello.PID, m.hello.Rank, words)
		return wire.Message{Kind: "refused", Words: words}, false
	}
	if s.failure != nil {
		return *s.failure, false
	}
	s.members[m.hello.Rank] = m
	return wire.Message{Kind: "accepted", Host: s.hello.Host, PID: s.hello.PID}, !slices.Contains(s.members, nil)
}

// unfit says why a rank cannot join; "" where it can. The caller holds mu.
func (s *Server) unfit(hello wire.Message) string {
	switch size := len(s.members); {
	case subtle.ConstantTimeCompare(hello.Token, s.hello.Token) != 1:
		return "its token is another one: give all ranks of a run the same SHARDFEED_TOKEN, and each run a port, or a file, of its own"
	case hello.Version != s.hello.Version:
		return fmt.Sprintf("it speaks version %d of the protocol, rank 0 version %d: build all ranks alike", hello.Version, s.hello.Version)
	case hello.Size != size || hello.Rank < 0 || hello.Rank >= size:
		return fmt.Sprintf("it is one of %d, rank 0 expects a world of %d: give all ranks the same WORLD_SIZE", hello.Size, size)
	case s.members[hello.Rank] != nil:
		first := s.members[hello.Rank].hello
		return fmt.Sprintf("rank %d has joined before, from %s, pid %d: give each process a RANK of its own", first.Rank, first.Host, first.PID)
	}
	return ""
}

func (s *Server) handle(m *member, msg wire.Message) {
	switch msg.Kind {
	case "set":
		s.mu.Lock()
		s.values[msg.Key] = msg.Value
		waiting := s.waiting[msg.Key]
		delete(s.waiting, msg.Key)
		s.mu.Unlock()
		for _, w := range waiting {
			w.Send(wire.Message{Kind: "value", Key: msg.Key, Value: msg.Value})
		}
	case "get":
		s.mu.Lock()
		value, ok := s.values[msg.Key]
		if !ok && !slices.Contains(s.waiting[msg.Key], m) {
			s.waiting[msg.Key] = append(s.waiting[msg.Key], m)
		}
		s.mu.Unlock()
		if ok {
			m.Send(wire.Message{Kind: "value", Key: msg.Key, Value: value})
		}
	case "fail":
		s.fail(m, msg.Words, msg.Late)
	case "expired":
		s.expired(m, msg.Words)
	case "leave":
		m.left.Store(true)
	}
}

// expired ends the run where a rank has waited for the others until its
// deadline, unless the last has just joined.
func (s *Server) expired(m *member, until string) {
	missing := s.ranks(func(m *member) bool { return m == nil })
	if missing == "" {
		return
	}
	words := fmt.Sprintf("%s of %d did not join %s", missing, len(s.members), until)
	s.mu.Lock()
	late := slices.Index(s.members, nil) + 1
	if s.turned != "" {
		words += "; " + s.turned
	}
	s.mu.Unlock()
	s.fail(m, wire.LastWords(words), late)
}

// depart ends a membership: the rank has left, or has died.
func (s *Server) depart(m *member) {
	if !m.left.Load() {
		s.fail(m, "", 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone++
	if s.gone == len(s.members) {
		s.end()
	}
}

// Fail tells all that rank 0, which has joined, has failed.
func (s *Server) Fail(words string) {
	s.mu.Lock()
	zero := s.members[0]
	s.mu.Unlock()
	s.fail(zero, words, 0)
}

// fail tells all that a member has failed, if it is the first, and for whom it
// has waited in vain, less 1, where late is not 0; then the member itself, and
// rank 0 last: once it knows it may end, and the server with it.
func (s *Server) fail(m *member, words string, late int) {
	s.mu.Lock()
	if s.failure != nil {
		s.mu.Unlock()
		return
	}
	s.failure = &wire.Message{Kind: "failed", Rank: m.hello.Rank, Host: m.hello.Host, PID: m.hello.PID, Words: words, Late: late}
	s.telling.Add(1)
	s.end()
	zero := s.members[0]
	s.mu.Unlock()
	s.tell(*s.failure, m, zero)
	m.Send(*s.failure)
	zero.Send(*s.failure)
	s.telling.Done()
}

// tell sends a message to all members but some side by side, so that one that
// does not read keeps none of the others waiting.
func (s *Server) tell(msg wire.Message, but ...*member) {
	s.mu.Lock()
	members := slices.Clone(s.members)
	s.mu.Unlock()
	var sending sync.WaitGroup
	for _, m := range members {
		if m != nil && !slices.Contains(but, m) {
			sending.Go(func() { m.Send(msg) })
		}
	}
	sending.Wait()
}

// ranks names the ranks of some members: "ranks 2, 3"; "" where there are none.
func (s *Server) ranks(of func(*member) bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for rank, m := range s.members {
		if of(m) {
			names = append(names, strconv.Itoa(rank))
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "rank " + names[0]
	}
	return "ranks " + strings.Join(names, ", ")
}

// Wait waits until all have left or one has failed, but not longer than
// wire.Patience. The error names those that have not left.
func (s *Server) Wait() error {
	select {
	case <-s.ended.Done():
		return nil
	case <-time.After(wire.Patience):
	}
	late := s.ranks(func(m *member) bool { return m != nil && !m.left.Load() })
	s.Fail("it closed the store before the others")
	return fmt.Errorf("rendezvous: rank 0 closed the store, and %s had not within %v", late, wire.Patience)
}

// Stop ends the server once all are told of a failure, which it returns; nil
// where there was none.
func (s *Server) Stop() *wire.Message {
	s.telling.Wait()
	s.cancel()
	s.running.Wait()
	return s.failure
}

// Abort ends all connections as the end of the process does: without a message.
func (s *Server) Abort() {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = &wire.Message{}
	}
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}
