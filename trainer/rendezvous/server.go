package rendezvous

import (
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
)

// server is rank 0's part: it lets the ranks in, keeps the values, and tells
// all of a failure. Rank 0 is one of its clients, through a pipe.
type server struct {
	hello message // rank 0's, with which the others have to agree

	mu      sync.Mutex
	members []*member // by rank; nil where it has not joined
	gone    int       // members that have left or died
	values  map[string][]byte
	waiting map[string][]*member // for a key
	failure *RankError           // the first

	ended   context.Context // done with failure, or once all members are gone
	end     func()
	ctx     context.Context // of the listener and all connections
	cancel  func()
	telling sync.WaitGroup // failures on their way
	running sync.WaitGroup // goroutines
}

// member is a rank that has joined.
type member struct {
	*link
	RankError // who it is, without words
	left      atomic.Bool
}

func newServer(hello message) *server {
	s := &server{hello: hello, members: make([]*member, hello.Size), values: map[string][]byte{}, waiting: map[string][]*member{}}
	s.ended, s.end = context.WithCancel(context.Background())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// listen lets ranks in until close.
func (s *server) listen(w World) error {
	listener, err := w.listen()
	if err != nil {
		return err
	}
	context.AfterFunc(s.ctx, func() { listener.Close() })
	s.running.Go(func() {
		for {
			c, err := listener.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // no descriptor is left, for instance
				time.Sleep(pause)
			default:
				s.start(tune(c))
			}
		}
	})
	return nil
}

// start serves a connection, which it owns.
func (s *server) start(c net.Conn) {
	s.running.Go(func() {
		defer c.Close()
		defer context.AfterFunc(s.ctx, func() { c.Close() })()
		s.serve(&link{Conn: c})
	})
}

// serve serves a connection until it ends or the rank leaves. A stranger on
// the port disturbs nobody.
func (s *server) serve(l *link) {
	l.SetReadDeadline(time.Now().Add(patience))
	hello, err := read(l, maxHello)
	if err != nil || hello.Kind != "hello" {
		return
	}
	l.SetReadDeadline(time.Time{})
	m := &member{link: l, RankError: hello.rank()}
	all, words := s.admit(hello, m)
	if words != "" {
		l.send(message{Kind: "refused", Words: words})
		return
	}
	l.send(message{Kind: "accepted", Host: s.hello.Host, PID: s.hello.PID})
	if all {
		s.tell(message{Kind: "start", Host: s.hello.Host, PID: s.hello.PID})
	}
	for !m.left.Load() {
		msg, err := read(l, maxMessage)
		if err != nil {
			break
		}
		s.handle(m, msg)
	}
	s.depart(m)
}

// admit makes a newcomer a member, or says why not; all says that nobody is
// missing now.
func (s *server) admit(hello message, m *member) (all bool, words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch size := len(s.members); {
	case subtle.ConstantTimeCompare(hello.Token, s.hello.Token) != 1:
		return false, "its token is another one: give all ranks of a run the same SHARDFEED_TOKEN, and each run a port of its own"
	case hello.Version != version:
		return false, fmt.Sprintf("it speaks version %d of the protocol, rank 0 version %d: build all ranks alike", hello.Version, version)
	case hello.Size != size || hello.Rank < 0 || hello.Rank >= size:
		return false, fmt.Sprintf("it is one of %d, rank 0 expects a world of %d: give all ranks the same WORLD_SIZE", hello.Size, size)
	case s.members[hello.Rank] != nil:
		first := s.members[hello.Rank]
		return false, fmt.Sprintf("rank %d has joined before, from %s, pid %d: give each process a RANK of its own", first.Rank, first.Host, first.PID)
	case s.failure != nil:
		return false, s.failure.Error()
	}
	s.members[hello.Rank] = m
	return !slices.Contains(s.members, nil), ""
}

func (s *server) handle(m *member, msg message) {
	switch msg.Kind {
	case "set":
		s.mu.Lock()
		s.values[msg.Key] = msg.Value
		waiting := s.waiting[msg.Key]
		delete(s.waiting, msg.Key)
		s.mu.Unlock()
		for _, w := range waiting {
			w.send(message{Kind: "value", Key: msg.Key, Value: msg.Value})
		}
	case "get":
		s.mu.Lock()
		value, ok := s.values[msg.Key]
		if !ok && !slices.Contains(s.waiting[msg.Key], m) {
			s.waiting[msg.Key] = append(s.waiting[msg.Key], m)
		}
		s.mu.Unlock()
		if ok {
			m.send(message{Kind: "value", Key: msg.Key, Value: value})
		}
	case "fail":
		s.fail(m, msg.Words)
	case "expired":
		if names := s.ranks(func(m *member) bool { return m == nil }); names != "" { // else the last has just joined
			s.fail(m, lastWords(fmt.Sprintf("%s of %d did not join %s", names, len(s.members), msg.Words)))
		}
	case "leave":
		m.left.Store(true)
	}
}

// depart ends a membership: the rank has left, or has died.
func (s *server) depart(m *member) {
	if !m.left.Load() {
		s.fail(m, "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone++
	if s.gone == len(s.members) {
		s.end()
	}
}

// fail tells all that a member has failed, if it is the first; then the member
// itself, and rank 0 last: once it knows it may end, and the server with it.
func (s *server) fail(m *member, words string) {
	s.mu.Lock()
	if s.failure != nil {
		s.mu.Unlock()
		return
	}
	failure := m.RankError
	failure.Words = words
	s.failure = &failure
	s.telling.Add(1)
	s.end()
	s.mu.Unlock()
	msg := message{Kind: "failed", Rank: m.Rank, Host: m.Host, PID: m.PID, Words: words}
	s.tell(msg, m, s.members[0])
	m.send(msg)
	s.members[0].send(msg)
	s.telling.Done()
}

// tell sends a message to all members but some side by side, so that one that
// does not read keeps none of the others waiting.
func (s *server) tell(msg message, but ...*member) {
	s.mu.Lock()
	members := slices.Clone(s.members)
	s.mu.Unlock()
	var sending sync.WaitGroup
	for _, m := range members {
		if m != nil && !slices.Contains(but, m) {
			sending.Go(func() { m.send(msg) })
		}
	}
	sending.Wait()
}

// ranks names the ranks of some members: "ranks 2, 3"; "" where there are none.
func (s *server) ranks(of func(*member) bool) string {
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

// close waits until all have left, but not for long, and ends the server. The
// error names those that have not left.
func (s *server) close() (err error) {
	select {
	case <-s.ended.Done():
	case <-time.After(patience):
		late := s.ranks(func(m *member) bool { return m != nil && !m.left.Load() })
		err = fmt.Errorf("rendezvous: rank 0 closed the store, and %s had not within %v", late, patience)
		s.fail(s.members[0], "it closed the store before the others")
	}
	s.telling.Wait()
	s.cancel()
	s.running.Wait()
	if err == nil && s.failure != nil {
		err = s.failure
	}
	return err
}
