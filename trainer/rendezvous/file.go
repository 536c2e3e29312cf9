package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/notice"
	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// home is the name under which rank 0 of a file is reached.
func (w World) home() string {
	if w.LocalSize == 0 || w.LocalSize == w.Size {
		return "127.0.0.1"
	}
	return hostname()
}

// vacant fails where the file is not for rank 0 to replace.
func (w World) vacant(ctx context.Context) error {
	old, err := notice.Read(w.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, notice.ErrForeign):
		return fmt.Errorf("rendezvous: %w: give a path where nothing is, or remove it", err)
	case err != nil:
		return fmt.Errorf("rendezvous: rank 0: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, wordsTime)
	defer cancel()
	// As rank 0, whose place is taken, so that this never joins the other run.
	l, answer, err := wire.Knock(ctx, old.Addr, w.hello(old.Secret))
	if err != nil {
		return nil
	}
	l.Close()
	if answer.Kind == "stranger" {
		return nil
	}
	return fmt.Errorf("rendezvous: %s belongs to another rank 0 (%v), which is alive at %s: give each run a file, and each process a rank, of its own", w.File, old, old.Addr)
}

// post writes rank 0's file and looks after it until all have joined: two that
// have found none may both have written it.
func (s *Store) post(ctx context.Context, own notice.Notice) error {
	if err := own.Post(s.world.File); err != nil {
		return fmt.Errorf("rendezvous: rank 0 cannot write its file: %w: give a path in a folder that all ranks see", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if other, replaced := own.Watch(ctx, s.world.File, true); replaced {
			s.server.Fail(fmt.Sprintf("another rank 0 (%v) has replaced its file %s: give each run a file, and each process a rank, of its own", other, s.world.File))
		}
	}()
	s.retract = func() {
		cancel()
		<-done
		own.Remove(s.world.File) // one that stays counts as stale
	}
	return nil
}

// find tries to reach the rank 0 that has written the file; again is why to
// try it once more.
func (s *Store) find(ctx context.Context) (first wire.Message, again, err error) {
	n, err := notice.Read(s.world.File)
	switch {
	case errors.Is(err, notice.ErrForeign):
		return first, nil, fmt.Errorf("rendezvous: %w: give all ranks a path where nothing is, or remove it", err)
	case err != nil:
		return first, err, nil
	}
	// Only a file that is replaced is a reason to hang up: rank 0 would take it
	// for the death of the rank, however late it reads the hello.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		n.Watch(ctx, s.world.File, false)
		cancel()
	}()
	s.world.Addr = n.Addr
	s.link, first, again = wire.Knock(ctx, n.Addr, s.world.hello(n.Secret))
	switch {
	case again == nil && first.Kind != "stranger":
		return first, nil, s.welcome(first)
	case again == nil:
		s.link.Close()
		again = errors.New("another run answers")
	case errors.Is(again, wire.ErrSilent):
		return first, fmt.Errorf("rank 0 (%v) at %s: %w", n, n.Addr, again), nil
	}
	if loopback(n.Addr) && n.Host != hostname() {
		again = fmt.Errorf("%w, which is for ranks on one machine: set LOCAL_RANK and LOCAL_WORLD_SIZE", again)
	}
	return first, fmt.Errorf("the file is stale: rank 0 of an earlier run has written it (%v), and at %s: %w", n, n.Addr, again), nil
}
