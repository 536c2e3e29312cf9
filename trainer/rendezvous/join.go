// Package rendezvous brings the ranks of a run together and tells each of
// them when another one dies.
//
// [Env] says who this process is, from torchrun's variables, [URL] from a URL
// as well; [Join] returns once all ranks are there. What it returns is a
// [Store]: a small key-value store that rank 0 serves, and the line on which a
// failure travels. Each rank keeps one connection to rank 0. A connection that
// ends without Close means that its rank has died, and rank 0 tells the others
// at once.
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

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/notice"
	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/server"
	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// World is this process's place among the ranks.
type World struct {
	// Rank counts from 0 to Size-1 over all machines, LocalRank from 0 to
	// LocalSize-1 on this one.
	Rank, Size, LocalRank, LocalSize int
	// Addr is host:port of rank 0's store; "" where Size is 1. With File it is
	// what Join finds.
	Addr string
	// File is a path that all ranks see, in which rank 0 says where it listens;
	// "" where Addr says it.
	File string
	// Token is a secret that all ranks of a run share: who brings another one
	// is turned away. "" is a token like any other.
	Token string
	// ListenFD is a file descriptor on which rank 0 finds the listener of Addr
	// open, handed down by the launcher; 0 where rank 0 opens it by itself.
	ListenFD int
	// ReportFD is a file descriptor on which the launcher hears of the run, in
	// lines: "join 2" and "joined 2" of this rank's Join, "failed 1" of the
	// rank that has failed; 0 for none.
	ReportFD int
}

// How long things may take. Failures are told at once; these are bounds for
// what does not answer.
const (
	joinTimeout = 60 * time.Second      // of Join, where ctx has no deadline
	wordsTime   = time.Second           // for the answer to a rank's last message
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
//
// With File rank 0 listens on a free port, of loopback where LocalSize is 0 or
// Size. It writes the file, which only its user can read, with a fresh secret
// for the other ranks, and Close removes it. A file that a killed run has left
// is replaced; the other ranks know it by its secret and wait for the next one.
// Rank 0 fails where the file belongs to a run that is alive, and where it is
// no such file and not empty.
func Join(ctx context.Context, w World) (*Store, error) {
	switch {
	case w.Rank < 0 || w.Rank >= w.Size || w.Size > maxRanks:
		return nil, fmt.Errorf("rendezvous: rank %d in a world of %d: ranks count from 0, a world has at most %d", w.Rank, w.Size, maxRanks)
	case w.Size > 1 && w.Addr == "" && w.File == "":
		return nil, fmt.Errorf("rendezvous: rank %d of %d has no World.Addr and no World.File: give host:port of rank 0, or a path that all ranks see", w.Rank, w.Size)
	}
	timeout := joinTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(0, time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	waited := "within " + timeout.Round(100*time.Millisecond).String()
	s := newStore(w)
	w.report("join", w.Rank)
	connect := s.dial
	if w.Rank == 0 {
		connect = s.serve
	}
	first, err := connect(ctx, waited)
	if err != nil {
		return nil, err
	}
	go s.receive(first)
	if err = s.wait(ctx, waited); err == nil {
		w.report("joined", w.Rank)
		return s, nil
	}
	s.link.Close()
	<-s.ended
	if s.server != nil {
		s.shut() // its error is no news
	}
	return nil, err
}

// hello is what a rank says first. secret is that of the file; "" without one.
func (w World) hello(secret string) wire.Message {
	token := sha256.Sum256([]byte(secret + w.Token))
	m := wire.Message{Kind: "hello", Version: wire.Version, Size: w.Size, Token: token[:], Rank: w.Rank, Host: hostname(), PID: os.Getpid()}
	if secret != "" {
		run := sha256.Sum256([]byte(secret))
		m.Run = run[:]
	}
	return m
}

func hostname() string {
	host, _ := os.Hostname()
	return cmp.Or(host, "unknown host")
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
	s.link.Send(wire.Message{Kind: "expired", Words: wire.LastWords(waited)})
	select {
	case <-s.started:
		return nil
	case <-s.failed:
		return fmt.Errorf("rendezvous: %w", s.Err())
	case <-time.After(wordsTime):
		s.world.report("failed", 0)
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("rendezvous: rank 0 (%s, pid %d) at %s does not answer any more", s.zero.Host, s.zero.PID, s.world.Addr)
	}
}

// serve makes rank 0 the server of the others, and its first client.
func (s *Store) serve(ctx context.Context, _ string) (first wire.Message, err error) {
	var own notice.Notice
	if s.world.Size > 1 && s.world.File != "" {
		if err := s.world.vacant(ctx); err != nil {
			return first, err
		}
		own = notice.New(hostname(), os.Getpid())
	}
	hello := s.world.hello(own.Secret)
	s.server = server.New(hello)
	ours, theirs := net.Pipe()
	s.server.Start(theirs)
	s.link = &wire.Link{Conn: ours}
	first, err = s.link.Greet(hello)
	if err == nil && s.world.Size > 1 {
		err = s.open(ctx, own) // after rank 0 has joined
	}
	if err != nil {
		s.server.Abort()
	}
	return first, err
}

// open lets the others in, and says in the file, where there is one, how they
// get there.
func (s *Store) open(ctx context.Context, own notice.Notice) error {
	if s.world.File != "" {
		s.world.Addr = net.JoinHostPort(s.world.home(), "0")
	}
	l, err := s.world.listen()
	if err != nil {
		return err
	}
	s.server.Listen(l)
	if s.world.File == "" {
		return nil
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s.world.Addr = net.JoinHostPort(s.world.home(), port)
	own.Addr = s.world.Addr
	return s.post(ctx, own)
}

// listen opens rank 0's listener, or takes the one that was handed down.
func (w World) listen() (net.Listener, error) {
	if w.ListenFD > 0 {
		wire.CloseOnExec(w.ListenFD)
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
		return nil, fmt.Errorf("rendezvous: rank 0 of %s: %w: give all ranks another MASTER_PORT, or port in the URL, that is free, or let shardfeed launch choose one", w.Addr, err)
	}
	return l, nil
}

// dial reaches rank 0, or fails when ctx ends.
func (s *Store) dial(ctx context.Context, waited string) (first wire.Message, err error) {
	approach, zero := s.call, "rank 0 at "+s.world.Addr
	cure := "check that rank 0 runs, and that MASTER_ADDR and MASTER_PORT, or the URL, are the same on all ranks"
	if s.world.File != "" {
		approach, zero = s.find, "rank 0 by the file "+s.world.File
		cure = "start rank 0, which writes the file anew, and give all ranks the same file"
	}
	var cause error
	for ctx.Err() == nil {
		began := time.Now()
		first, again, err := approach(ctx)
		if again == nil {
			return first, err
		}
		// An attempt that the deadline has cut short says less than the one before.
		timeout, ok := errors.AsType[net.Error](again)
		cut := ctx.Err() != nil || ok && timeout.Timeout()
		if cause == nil || !cut || time.Since(began) > wordsTime/2 {
			cause = again
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return first, fmt.Errorf("rendezvous: rank %d gave up reaching %s: %w", s.world.Rank, zero, context.Cause(ctx))
	}
	if cause == nil {
		cause = errors.New("not tried")
	}
	s.world.report("failed", 0)
	return first, fmt.Errorf("rendezvous: rank %d could not reach %s %s: %w: %s", s.world.Rank, zero, waited, cause, cure)
}

// call tries to reach rank 0 at Addr; again is why to try it once more.
func (s *Store) call(ctx context.Context) (first wire.Message, again, err error) {
	s.link, first, again = wire.Knock(ctx, s.world.Addr, s.world.hello(""))
	if errors.Is(again, wire.ErrForeign) {
		return first, nil, fmt.Errorf("rendezvous: what answers at %s is not rank 0 but another program (%w): give all ranks another MASTER_PORT, or port in the URL", s.world.Addr, again)
	}
	return first, again, s.welcome(first)
}

// welcome is the error of a rank that is turned away.
func (s *Store) welcome(first wire.Message) error {
	if first.Kind != "refused" && first.Kind != "stranger" {
		return nil
	}
	s.link.Close()
	return fmt.Errorf("rendezvous: rank 0 at %s turned rank %d away: %s", s.world.Addr, s.world.Rank, first.Words)
}
