package local

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shardfeed/shardfeed/trainer/local/internal/board"
)

// TimeoutError is the error of a group in which ranks have waited for others
// for Config.Timeout. All ranks get it, also those that have not come, once
// they go on. It is context.DeadlineExceeded to errors.Is.
type TimeoutError struct {
	Ranks []int         // that have not come, ascending
	Call  string        // what the others have called, for instance "exchange of 8 bytes (call 3)"
	After time.Duration // Config.Timeout

	where string // their processes
}

// Error is, for instance, "local: exchange of 8 bytes (call 3): rank 1 has not
// come within 30s (pid 4711): …".
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("local: %s: %s not come within %v%s: stopped, stuck, or slower than the timeout allows", e.Call, have(e.Ranks), e.After, e.where)
}

// Unwrap is context.DeadlineExceeded.
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }

// nap bounds a sleep, after which a rank looks whether it has waited enough.
const nap = 50 * time.Millisecond

// moment is how long an error may be late because of others.
const moment = 4 * nap

// patience is how long a rank waits for what should be there at once, where
// no Timeout says less: the reason why another one has broken the group, which
// comes by another way than the news.
const patience = 5 * time.Second

// meet returns once all ranks have come to their next meeting. Where that
// must come about, nothing else ends it.
func (g *Group) meet(ctx context.Context, p board.Post, number uint64, must bool) error {
	meeting := g.met
	g.board.Arrive(g.rank, meeting, p)
	for waited := time.Duration(0); ; {
		heard := g.medium.Heard()
		if g.board.Complete(meeting, must) {
			g.medium.Ring()
		}
		met, broken := g.board.State(meeting)
		long := g.timeout > 0 && waited >= g.timeout
		switch {
		case met:
			g.met++
			return nil
		case must:
			g.sleep(context.Background(), heard, nap)
			continue
		case broken:
			return g.cause(p, number)
		case long && g.board.Prevent(g.rank, meeting, board.Reason{Call: number, After: g.timeout}):
			return g.giveUp(g.verdict())
		case ctx.Err() != nil && g.board.Prevent(g.rank, meeting, board.Reason{Call: number}):
			late, _, _ := g.board.Verdict()
			return g.giveUp(fmt.Errorf("local: %v (call %d): %w; %s not come%s", p, number, context.Cause(ctx), have(late), g.where(late)))
		}
		waited += g.sleep(ctx, heard, nap)
	}
}

// sleep waits for news, for at most d, and returns for how long. Where that is
// much longer, this process was stopped itself, and has not waited.
func (g *Group) sleep(ctx context.Context, heard uint32, d time.Duration) time.Duration {
	began := time.Now()
	g.medium.Sleep(ctx, heard, min(d, nap))
	return min(time.Since(began), 2*nap)
}

// giveUp breaks the group by err, and tells the others.
func (g *Group) giveUp(err error) error {
	if g.fail(err) {
		g.telling.Add(1)
		briefly(func() {
			defer g.telling.Done()
			g.medium.tell(err)
		})
	}
	return err
}

// briefly runs f, but does not wait for long until it returns: rank 0, which
// passes on what the others tell, may be stopped.
func briefly(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timeout := time.NewTimer(moment)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
	}
}

// cause is why a meeting of a broken group did not come about.
func (g *Group) cause(p board.Post, number uint64) error {
	if err := g.verdict(); err != nil {
		return g.giveUp(err) // also here: the one that found it may be gone
	}
	if err := g.Err(); err != nil {
		return err
	}
	if left := g.board.Left(); left != nil {
		return fmt.Errorf("local: %v (call %d): %s left%s", p, number, have(left), g.where(left))
	}
	timeout := time.NewTimer(patience)
	if g.timeout > 0 {
		timeout.Reset(min(g.timeout, patience))
	}
	defer timeout.Stop()
	select {
	case <-g.calls.Failed():
		return g.Err()
	case <-timeout.C:
		return fmt.Errorf("local: %v (call %d): %s broken the group, and the reason does not come: rank 0, which passes it on, hangs or is stopped", p, number, have([]int{g.board.Breaker()}))
	}
}

// verdict is the error of all ranks where one has waited for too long.
func (g *Group) verdict() error {
	late, p, r := g.board.Verdict()
	if late == nil || r.After == 0 {
		return nil
	}
	err := &TimeoutError{Ranks: late, Call: fmt.Sprintf("%v (call %d)", p, r.Call), After: r.After, where: g.where(late)}
	if slices.Contains(late, g.rank) {
		return fmt.Errorf("local: the others have given up waiting for this rank: %w", err)
	}
	return err
}

// agree is an error where the ranks posted different calls for the meeting
// behind them. All see the same and come to the same error.
func (g *Group) agree(number uint64) error {
	words := g.board.Differ(g.met - 1)
	if words == "" {
		return nil
	}
	if number > 1 {
		words += fmt.Sprintf("; call %d was %v on all", number-1, g.before)
	}
	return fmt.Errorf("local: call %d: %s: every rank has to make the same calls in the same order, of Alloc too", number, words)
}

// have is "rank 1 has" or "ranks 1, 3 have".
func have(ranks []int) string {
	if len(ranks) == 1 {
		return board.Ranks(ranks) + " has"
	}
	return board.Ranks(ranks) + " have"
}

// where is " (pid 4711)" or " (pids 4711, 4713)", and "" for goroutines.
func (g *Group) where(ranks []int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pids == nil {
		return ""
	}
	var pids []int
	for _, rank := range ranks {
		pids = append(pids, g.pids[rank])
	}
	return " (" + strings.Replace(board.Ranks(pids), "rank", "pid", 1) + ")"
}
