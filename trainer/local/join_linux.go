package local

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/local/internal/segment"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

func (c Config) joinProcesses(ctx context.Context, w rendezvous.World) (*Group, error) {
	joining, cancel := ctx, context.CancelFunc(func() {})
	if c.Timeout > 0 {
		joining, cancel = context.WithTimeoutCause(ctx, c.Timeout, &TimeoutError{Ranks: []int{0}, Call: "join", After: c.Timeout})
	}
	defer cancel()
	store, err := rendezvous.Join(joining, w)
	if err != nil {
		return nil, err
	}
	p := &peer{store: store, closing: make(chan struct{})}
	if p.Segment, err = segment.Share(joining, store); err != nil {
		if late := new(TimeoutError); errors.As(err, &late) {
			err = late
		} else {
			err = fmt.Errorf("local: rank %d: %w", w.Rank, err)
			select {
			case <-store.Failed(): // and that has taken the memory with it
				err = store.Err()
			case <-time.After(time.Second):
			}
		}
		briefly(func() {
			p.tell(err)
			store.Close()
		})
		return nil, err
	}
	g := newGroup(w.Rank, w.Size, p.Board, p.Arenas, p)
	g.process, g.timeout = true, c.Timeout
	p.watch.Go(func() {
		select {
		case <-store.Failed():
			g.fail(cmp.Or(g.verdict(), store.Err()))
		case <-p.closing:
		}
	})
	if err = g.meetFirst(ctx); err == nil {
		err = p.Detach()
	}
	if err != nil {
		g.Fail(err)
		g.Close()
		return nil, err
	}
	return g, nil
}

// meetFirst returns when all have mapped the memory. It brings the ranks'
// process ids.
func (g *Group) meetFirst(ctx context.Context) error {
	var all [][]byte
	mine := binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid()))
	if err := g.exchange(call{ctx: ctx, Post: board.Post{What: board.Join, Length: uint64(len(mine))}, mine: mine, all: &all}, 0); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, pid := range all {
		g.pids = append(g.pids, int(binary.LittleEndian.Uint64(pid)))
	}
	return nil
}

// peer is a process's place in its group.
type peer struct {
	*segment.Segment
	store   *rendezvous.Store
	closing chan struct{}
	watch   sync.WaitGroup
}

// tell goes by way of the store. The launcher is to hear of the rank that is
// to blame for a timeout, not of the one that tells.
func (p *peer) tell(err error) {
	var late *TimeoutError
	if errors.As(err, &late) {
		p.store.Blame(late.Ranks[0], err)
		return
	}
	p.store.Fail(err)
}

func (p *peer) close() error {
	close(p.closing)
	p.watch.Wait()
	return errors.Join(p.Segment.Close(), p.store.Close())
}
