package server

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// zero is what rank 0 of a world of three says first.
var zero = wire.Message{Kind: "hello", Version: wire.Version, Size: 3, Host: "host", PID: 1}

// newcomer is a rank by hand, on a pipe: it says hello and returns the answer.
func newcomer(t *testing.T, s *Server, hello wire.Message) (*wire.Link, wire.Message) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close() })
	s.Start(theirs)
	l := &wire.Link{Conn: ours}
	m, err := l.Greet(hello)
	if err != nil {
		t.Fatal(err)
	}
	return l, m
}

// as is zero as another rank says it.
func as(rank int) wire.Message {
	m := zero
	m.Rank, m.PID = rank, rank+1
	return m
}

// A stranger that says nothing is hung up on.
func TestSilentStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(zero)
		defer s.Abort()
		ours, theirs := net.Pipe()
		s.Start(theirs)
		began := time.Now()
		if _, err := ours.Read(make([]byte, 1)); err != io.EOF || time.Since(began) != wire.Patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// Who comes after a failure learns of it.
func TestJoinAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(zero)
		defer s.Abort()
		first, _ := newcomer(t, s, zero)
		go first.Send(wire.Message{Kind: "fail", Words: "disk full"})
		if m, err := wire.Read(first, wire.MaxMessage); err != nil || m.Kind != "failed" {
			t.Fatal(m, err)
		}
		_, m := newcomer(t, s, as(1))
		if m.Kind != "failed" || m.Rank != 0 || m.Host != "host" || m.PID != 1 || m.Words != "disk full" {
			t.Errorf("%+v", m)
		}
	})
}

// A rank that asks again and again for a key that nobody has set costs no more
// than one that asks once.
func TestAskedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(zero)
		defer s.Abort()
		l, _ := newcomer(t, s, zero)
		for range 3 {
			l.Send(wire.Message{Kind: "get", Key: "key"})
		}
		synctest.Wait()
		if n := len(s.waiting["key"]); n != 1 {
			t.Errorf("it waits %d times", n)
		}
	})
}

// Who looks for another run is told so, before anything else is compared.
func TestStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hello := zero
		hello.Run, hello.Token = []byte("one"), []byte("token")
		s := New(hello)
		defer s.Abort()
		newcomer(t, s, hello)
		for _, run := range [][]byte{nil, []byte("other")} {
			hello.Run, hello.Token, hello.Rank = run, nil, 1
			if _, m := newcomer(t, s, hello); m.Kind != "stranger" {
				t.Errorf("run %q: %+v", run, m)
			}
		}
	})
}

// Where a rank is missing because it was turned away, all learn why.
func TestMissingAndTurnedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(zero)
		defer s.Abort()
		first, _ := newcomer(t, s, zero)
		other := as(1)
		other.Token = []byte("other")
		if _, m := newcomer(t, s, other); m.Kind != "refused" {
			t.Fatalf("%+v", m)
		}
		go first.Send(wire.Message{Kind: "expired", Words: "within 30s"})
		m, err := wire.Read(first, wire.MaxMessage)
		if err != nil || !strings.HasPrefix(m.Words, "ranks 1, 2 of 3 did not join within 30s; host, pid 2, came as rank 1 and was turned away: its token is another one") {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
