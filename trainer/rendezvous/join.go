// Package rendezvous brings the ranks of a run together and tells each of
// them when another one dies.
//
// [Env] says who this process is, from torchrun's variables; [Join] returns
// once all ranks are there. What it returns is a [Store]: a small key-value
// store that rank 0 serves, and the line on which a failure travels. Each rank
// keeps one connection to rank 0. A connection that ends without Close means
// that its rank has died, and rank 0 tells the others at once.
package rendezvous

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// World is this process's place among the ranks.
type World struct {
	// Rank counts from 0 to Size-1 over all machines, LocalRank from 0 to
	// LocalSize-1 on this one.
	Rank, Size, LocalRank, LocalSize int
	// Addr is host:port of rank 0's store; "" where Size is 1.
	Addr string
	// Token is a secret that all ranks of a run share: who brings another one
	// is turned away. "" is a token like any other.
	Token string
	// ListenFD is a file descriptor on which rank 0 finds the listener of Addr
	// open, handed down by the launcher; 0 where rank 0 opens it by itself.
	ListenFD int
	// ReportFD is a file descriptor to which the number of the rank that has
	// failed is written, as a line, for the launcher; 0 for none.
	ReportFD int
}

// How long things may take. Failures are told at once; these are bounds for
// what does not answer.
const (
	joinTimeout = 60 * time.Second      // of Join, where ctx has no deadline
	patience    = 5 * time.Second       // with a newcomer's hello, a rank that does not read, and ranks that have not left
	wordsTime   = time.Second           // for the answer to a rank's last message
	silence     = 8 * time.Second       // of a machine, until it counts as dead
	pause       = 20 * time.Millisecond // between attempts
)

// Join returns once all ranks of the world have joined; rank 0 serves them.
// It waits until ctx's deadline, or 60 s without one, and then fails on every
// rank with the names of the ranks that are missing. It fails before that
// where rank 0 turns this rank away, and where a rank that has joined dies. A
// rank that cannot reach rank 0 tries again until the deadline.
//
// Rank 0 listens on Addr where that is loopback, else on its port of all
// interfaces; it takes over ListenFD, whatever becomes of it.
func Join(ctx context.Context, w World) (*Store, error) {
	switch {
	case w.Rank < 0 || w.Rank >= w.Size || w.Size > maxRanks:
		return nil, fmt.Errorf("rendezvous: rank %d in a world of %d: ranks count from 0, a world has at most %d", w.Rank, w.Size, maxRanks)
	case w.Size > 1 && w.Addr == "":
		return nil, fmt.Errorf("rendezvous: rank %d of %d has no World.Addr: give host:port of rank 0", w.Rank, w.Size)
	}
	if _, ok := ctx.Deadline(); !ok {
		timed, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		ctx = timed
	}
	deadline, _ := ctx.Deadline()
	waited := "within " + max(0, time.Until(deadline)).Round(10*time.Millisecond).String()
	host, _ := os.Hostname()
	token := sha256.Sum256([]byte(w.Token))
	hello := message{Kind: "hello", Version: version, Size: w.Size, Token: token[:], Rank: w.Rank, Host: cmp.Or(host, "unknown host"), PID: os.Getpid()}
	s := &Store{world: w, started: make(chan struct{}), failed: make(chan struct{}), ended: make(chan struct{}), waiting: map[string]*arrival{}}
	connect := s.dial
	if w.Rank == 0 {
		connect = s.serve
	}
	first, err := connect(ctx, hello, waited)
	if err != nil {
		return nil, err
	}
	go s.receive(first)
	if err = s.wait(ctx, waited); err == nil {
		return s, nil
	}
	s.link.Close()
	<-s.ended
	if s.server != nil {
		s.server.close() // its error is no news
	}
	return nil, err
}

// wait waits until all have joined. Where ctx ends before, it tells rank 0,
// which tells all others, and waits a moment for the answer.
func (s *Store) wait(ctx context.Context, waited string) error {
	select {
	case <-s.started:
		return nil
	case <-s.failed:
		return fmt.Errorf("rendezvous: %w", s.Err())
	case <-ctx.Done():
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		waited = fmt.Sprintf("before rank %d gave up: %v", s.world.Rank, context.Cause(ctx))
	}
	s.link.send(message{Kind: "expired", Words: lastWords(waited)})
	select {
	case <-s.started:
		return nil
	case <-s.failed:
		return fmt.Errorf("rendezvous: %w", s.Err())
	case <-time.After(wordsTime):
		return fmt.Errorf("rendezvous: rank 0 at %s does not answer any more", s.world.Addr)
	}
}

// serve makes rank 0 the server of the others, and its first client.
func (s *Store) serve(_ context.Context, hello message, _ string) (first message, err error) {
	s.server = newServer(hello)
	ours, theirs := net.Pipe()
	s.server.start(theirs)
	s.link = &link{Conn: ours}
	if first, err = s.greet(hello); err == nil && s.world.Size > 1 {
		err = s.server.listen(s.world) // after rank 0 has joined
	}
	if err != nil {
		s.server.cancel()
	}
	return first, err
}

// listen opens rank 0's listener, or takes the one that was handed down.
func (w World) listen() (net.Listener, error) {
	if w.ListenFD > 0 {
		closeOnExec(w.ListenFD)
		f := os.NewFile(uintptr(w.ListenFD), "listener")
		defer f.Close() // the listener has a copy
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("rendezvous: file descriptor %d is no open listener: %w: unset SHARDFEED_LISTEN_FD in a process that the launcher has not started", w.ListenFD, err)
		}
		return l, nil
	}
	addr := w.Addr
	if _, port, err := net.SplitHostPort(addr); err == nil && !loopback(addr) {
		addr = net.JoinHostPort("", port)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("rendezvous: rank 0 of %s: %w: give all ranks another MASTER_PORT that is free, or let shardfeed launch choose one", w.Addr, err)
	}
	return l, nil
}

// dial reaches rank 0, or fails when ctx ends. The listener may be open long
// before rank 0 serves it, so the answer may take its time.
func (s *Store) dial(ctx context.Context, hello message, waited string) (first message, err error) {
	untried := errors.New("not tried")
	cause := untried
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.world.Addr)
		if err == nil {
			s.link = &link{Conn: tune(c)}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			first, err = s.greet(hello)
			if stop() && err == nil && first.Kind != "refused" {
				return first, nil
			}
			c.Close()
			switch {
			case first.Kind == "refused":
				return first, fmt.Errorf("rendezvous: rank 0 at %s turned rank %d away: %s", s.world.Addr, hello.Rank, first.Words)
			case errors.Is(err, errForeign):
				return first, fmt.Errorf("rendezvous: what answers at %s is not rank 0 but another program (%w): give all ranks another MASTER_PORT", s.world.Addr, err)
			}
			cause = errors.New("it listens, but does not answer")
		} else if cause == untried || !os.IsTimeout(err) { // ctx's own end says less
			cause = err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return first, fmt.Errorf("rendezvous: rank %d gave up reaching rank 0 at %s: %w", hello.Rank, s.world.Addr, context.Cause(ctx))
	}
	return first, fmt.Errorf("rendezvous: rank %d could not reach rank 0 at %s %s: %w: check that rank 0 runs, and that MASTER_ADDR and MASTER_PORT are the same on all ranks", hello.Rank, s.world.Addr, waited, cause)
}

// greet sends a hello and returns the answer.
func (s *Store) greet(hello message) (message, error) {
	if err := s.link.send(hello); err != nil {
		return message{}, err
	}
	return read(s.link, maxMessage)
}
