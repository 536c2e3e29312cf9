package local

import (
	"context"
	"fmt"
	"time"

	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// Config says how long a group waits.
type Config struct {
	// Timeout bounds every wait for other ranks: in Join, in a collective,
	// and in rank 0's Close. A rank that has waited so long breaks the group
	// by a [*TimeoutError], which all ranks get and which names those that
	// have not come. Time in which the waiting process was stopped itself
	// does not count. 0: the contexts alone bound collectives, and Join waits
	// up to 60 s, Close up to 5 s.
	Timeout time.Duration
}

// Join is [Config.Join] without a Timeout.
func Join(ctx context.Context, w rendezvous.World) (*Group, error) { return Config{}.Join(ctx, w) }

// Join makes this process a rank of the group that w describes and returns
// once all ranks have joined, or with an error when ctx has ended. All ranks
// are processes of one machine and one user, which may reach each other's
// /proc. The group owns the rendezvous, and Close ends it. A rank that fails
// calls Fail before Close; one that dies is found out by the others within
// half a second, and their calls return a *rendezvous.RankError.
//
// A World of size 1 needs neither a rendezvous nor shared memory.
func (c Config) Join(ctx context.Context, w rendezvous.World) (*Group, error) {
	switch {
	case w.Size < 1 || w.Size > board.MaxRanks || w.Rank < 0 || w.Rank >= w.Size:
		return nil, fmt.Errorf("local: rank %d of %d ranks: 1 to %d ranks are possible, and ranks count from 0", w.Rank, w.Size, board.MaxRanks)
	case w.LocalSize != 0 && w.LocalSize != w.Size:
		return nil, fmt.Errorf("local: %d of %d ranks are on this machine: this group needs all of them on one", w.LocalSize, w.Size)
	case w.Size == 1:
		return newHub(1, c.Timeout).groups[0], nil
	}
	return c.joinProcesses(ctx, w)
}
