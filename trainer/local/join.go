package local

import (
	"context"
	"fmt"
	"math"

	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

// arenaBytes is the address space of a rank's arena. Only memory that Alloc
// has given is backed.
const arenaBytes = min(16<<30, math.MaxInt/64)

// Join makes this process a rank of the group that w describes and returns
// once all ranks have joined, or with an error when ctx has ended. All ranks
// are processes of one machine and one user, which may reach each other's
// /proc. The group owns the rendezvous, and Close ends it. A rank that fails
// calls Fail before Close; one that dies is found out by the others within
// half a second, and their calls return a *rendezvous.RankError.
//
// A World of size 1 needs neither a rendezvous nor shared memory.
func Join(ctx context.Context, w rendezvous.World) (*Group, error) {
	switch {
	case w.Size < 1 || w.Size > board.MaxRanks || w.Rank < 0 || w.Rank >= w.Size:
		return nil, fmt.Errorf("local: rank %d of %d ranks: 1 to %d ranks are possible, and ranks count from 0", w.Rank, w.Size, board.MaxRanks)
	case w.LocalSize != 0 && w.LocalSize != w.Size:
		return nil, fmt.Errorf("local: %d of %d ranks are on this machine: this group needs all of them on one", w.LocalSize, w.Size)
	case w.Size == 1:
		return newHub(1).groups[0], nil
	}
	return joinProcesses(ctx, w)
}
