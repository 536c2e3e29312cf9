package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/server"
	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// soon bounds what should take no time, so that a test that fails ends.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// worlds are the places of n ranks on a port that was free a moment ago, and
// that the system, which gives others from above, does not give away.
func worlds(t *testing.T, n int) []World {
	var l net.Listener
	for err := error(nil); l == nil; {
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(20000))); err != nil && t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	defer l.Close()
	all := make([]World, n)
	for rank := range all {
		all[rank] = World{Rank: rank, Size: n, LocalRank: rank, LocalSize: n, Addr: l.Addr().String(), Token: "secret"}
	}
	return all
}

// joined is what Join returned on a rank.
type joined struct {
	*Store
	err error
}

// join joins ranks side by side.
func join(ctx context.Context, worlds ...World) []joined {
	all := make([]joined, len(worlds))
	var joining sync.WaitGroup
	for i, w := range worlds {
		joining.Go(func() { all[i].Store, all[i].err = Join(ctx, w) })
	}
	joining.Wait()
	return all
}

// stores are n ranks that have joined. Those that the test has not closed
// are cut off at its end.
func stores(t *testing.T, n int) []*Store {
	t.Helper()
	all := make([]*Store, n)
	for rank, j := range join(soon(t), worlds(t, n)...) {
		if j.err != nil {
			t.Fatalf("rank %d: %v", rank, j.err)
		}
		all[rank] = j.Store
		t.Cleanup(func() { j.link.Close(); j.Close() })
	}
	return all
}

func closeAll(t *testing.T, all []*Store) {
	t.Helper()
	var closing sync.WaitGroup
	for rank, s := range all {
		closing.Go(func() {
			for range 2 {
				if err := s.Close(); err != nil {
					t.Errorf("rank %d: Close: %v", rank, err)
				}
			}
		})
	}
	closing.Wait()
}

// told waits until all have learned of a failure, and compares it.
func told(t *testing.T, all []*Store, rank int, words string) {
	t.Helper()
	for _, s := range all {
		select {
		case <-s.Failed():
		case <-soon(t).Done():
			t.Fatalf("rank %d has not learned of the failure", s.World().Rank)
		}
		failure, ok := errors.AsType[*RankError](s.Err())
		if !ok || failure.Rank != rank || failure.Words != words || failure.Host == "" || failure.PID == 0 {
			t.Errorf("rank %d: %v, want rank %d with the words %q", s.World().Rank, s.Err(), rank, words)
		}
		if _, err := s.Get(soon(t), "never set"); !errors.Is(err, failure) {
			t.Errorf("rank %d: Get: %v, want %v", s.World().Rank, err, failure)
		}
	}
}

func TestSetGet(t *testing.T) {
	for size := 1; size <= 4; size++ {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			all := stores(t, size)
			got := make([][]byte, 2*size)
			var getting sync.WaitGroup
			for i := range got { // two at a time, before and after it is set
				getting.Go(func() {
					var err error
					if got[i], err = all[i/2].Get(soon(t), "key"); err != nil {
						t.Error(err)
					}
				})
			}
			if err := all[size-1].Set(soon(t), "key", []byte("value")); err != nil {
				t.Fatal(err)
			}
			getting.Wait()
			for i, value := range got {
				if string(value) != "value" {
					t.Errorf("rank %d got %q", i/2, value)
				}
				value[0] = byte(i) // each owns what it got
			}
			closeAll(t, all)
		})
	}
}

func TestValues(t *testing.T) {
	all := stores(t, 2)
	for _, value := range [][]byte{nil, {0}, bytes.Repeat([]byte{0xff}, wire.MaxValue)} {
		key := strings.Repeat("\x00", wire.MaxKey) // the longest form in JSON
		if err := all[1].Set(soon(t), key, value); err != nil {
			t.Fatal(err)
		}
		// Rank 1 sees its own Set at once, the other one what came after it.
		if err := all[1].Set(soon(t), fmt.Sprint(len(value)), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := all[0].Get(soon(t), fmt.Sprint(len(value))); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if got, err := s.Get(soon(t), key); err != nil || !bytes.Equal(got, value) {
				t.Errorf("%d bytes, %v, want %d", len(got), err, len(value))
			}
		}
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		ctx   context.Context
		key   string
		value []byte
		want  string
	}{
		{t.Context(), "key", make([]byte, wire.MaxValue+1), `the value of key "key" has 1048577 bytes, the limit is 1048576`},
		{t.Context(), strings.Repeat("k", wire.MaxKey+1), nil, "a key of 1025 bytes"},
		{t.Context(), "\xff", nil, "UTF-8"},
		{over, "key", nil, "context canceled"},
	} {
		if err := all[1].Set(c.ctx, c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Set: %v, want %q", err, c.want)
		}
		if c.value != nil {
			continue
		}
		if _, err := all[1].Get(c.ctx, c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Get: %v, want %q", err, c.want)
		}
	}
	closeAll(t, all)
	if err := all[1].Set(t.Context(), "key", nil); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Set after Close: %v", err)
	}
	if _, err := all[0].Get(t.Context(), "key"); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Get after Close: %v", err)
	}
	all[0].Fail(errors.New("too late"))
	if all[0].Err() != nil || all[1].Err() != nil {
		t.Error("a failure after Close")
	}
}

// A Get that gives up leaves nothing behind that grows, and the next one gets the value.
func TestGetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fake(t, 2)
		for range 10 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("too long"))
			if _, err := all[1].Get(ctx, "key"); err == nil || err.Error() != `rendezvous: key "key": too long` {
				t.Error(err)
			}
			cancel()
		}
		if err := all[0].Set(t.Context(), "key", []byte("value")); err != nil {
			t.Fatal(err)
		}
		if got, err := all[1].Get(t.Context(), "key"); err != nil || string(got) != "value" {
			t.Errorf("%q, %v", got, err)
		}
		closeAll(t, all)
	})
}

// A Get that waits fails with the Store.
func TestGetEnds(t *testing.T) {
	for _, how := range []string{"rank 2 dies", "rank 2 fails", "rank 0 dies", "Close"} {
		t.Run(how, func(t *testing.T) {
			all := stores(t, 3)
			getting := make(chan error)
			go func() {
				_, err := all[1].Get(soon(t), "key")
				getting <- err
			}()
			want := how
			switch how {
			case "rank 2 dies":
				all[2].link.Close()
				want = "rank 2 ("
			case "rank 2 fails":
				all[2].Fail(errors.New("disk full"))
				want = "failed: disk full"
			case "rank 0 dies":
				die(all[0])
				want = "rank 0 ("
			case "Close":
				go all[1].Close()
				want = "the store is closed"
			}
			if err := <-getting; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// Rank 0 is told last: it may end at once, and that must not be what the
// others learn of.
func TestRank0ToldLast(t *testing.T) {
	for range 50 {
		all := stores(t, 4)
		go func() {
			<-all[0].Failed()
			die(all[0])
		}()
		all[2].link.Close()
		told(t, []*Store{all[1], all[3]}, 2, "")
	}
}

// die ends all connections of rank 0 as the end of its process does.
func die(zero *Store) { zero.server.Abort() }

func TestDeath(t *testing.T) {
	for _, size := range []int{2, 5} {
		all := stores(t, size)
		all[1].link.Close()
		told(t, append(all[:1:1], all[2:]...), 1, "")
		for _, rank := range []int{0, size - 1} {
			if err := all[rank].Close(); rank != 1 && !strings.Contains(fmt.Sprint(err), "rank 1 (") {
				t.Errorf("rank %d: Close: %v", rank, err)
			}
		}
	}
}

func TestDeathOfRank0(t *testing.T) {
	all := stores(t, 3)
	die(all[0])
	told(t, all[1:], 0, "")
}

// The first failure stays, on all ranks.
func TestFirstFailure(t *testing.T) {
	all := stores(t, 4)
	all[2].Fail(nil)
	all[2].Fail(errors.New("disk full"))
	told(t, all, 2, "disk full")
	all[1].Fail(fmt.Errorf("because of it: %w", all[1].Err()))
	all[3].link.Close()
	all[2].link.Close()
	told(t, all, 2, "disk full")
	if err := all[1].Close(); !strings.Contains(fmt.Sprint(err), "failed: disk full") {
		t.Errorf("Close: %v", err)
	}
	if err := all[0].Close(); !strings.Contains(fmt.Sprint(err), "failed: disk full") {
		t.Errorf("Close: %v", err)
	}
}

// Failures at the same time: one of them is the first, the same for all.
func TestFailTogether(t *testing.T) {
	for range 20 {
		all := stores(t, 4)
		var failing sync.WaitGroup
		for rank, s := range all {
			failing.Go(func() { s.Fail(fmt.Errorf("words of %d", rank)) })
		}
		failing.Wait()
		first, ok := errors.AsType[*RankError](all[0].Err())
		if !ok {
			t.Fatal(all[0].Err())
		}
		told(t, all, first.Rank, fmt.Sprintf("words of %d", first.Rank))
		for _, s := range all {
			s.link.Close()
		}
	}
}

func TestLongLastWords(t *testing.T) {
	all := stores(t, 2)
	all[1].Fail(errors.New(strings.Repeat("\x00", 2*wire.MaxWords)))
	told(t, all, 1, strings.Repeat("\x00", wire.MaxWords)+" …")
}

// fake is n ranks that have joined through pipes, on a fake clock. Some of
// them read nothing after that, as stopped processes do.
func fake(t *testing.T, n int, stopped ...int) []*Store {
	server := server.New(wire.Message{Kind: "hello", Version: wire.Version, Size: n, Host: "host", PID: 1})
	all := make([]*Store, n)
	for rank := range all {
		ours, theirs := net.Pipe()
		server.Start(theirs)
		s := newStore(World{Rank: rank, Size: n})
		s.link = &wire.Link{Conn: ours}
		first, err := s.link.Greet(wire.Message{Kind: "hello", Version: wire.Version, Size: n, Rank: rank, Host: "host", PID: rank + 1})
		if err != nil {
			t.Fatal(err)
		}
		all[rank] = s
		if slices.Contains(stopped, rank) {
			go wire.Read(s.link, wire.MaxMessage) // start
			close(s.started)
			continue
		}
		go s.receive(first)
	}
	all[0].server = server
	for _, s := range all {
		if err := s.wait(t.Context(), "at once"); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestRank0LeavesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fake(t, 3)
		left := make(chan error, 1)
		go func() { left <- all[0].Close() }()
		for _, s := range all[1:] {
			time.Sleep(wire.Patience / 3)
			select {
			case err := <-left:
				t.Fatalf("rank 0 has left before rank %d: %v", s.world.Rank, err)
			default:
			}
			if err := s.Close(); err != nil {
				t.Errorf("rank %d: %v", s.world.Rank, err)
			}
		}
		if err := <-left; err != nil {
			t.Error(err)
		}
	})
}

func TestRank0DoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fake(t, 4)
		if err := all[2].Close(); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if err := all[0].Close(); !strings.Contains(fmt.Sprint(err), "ranks 1, 3 had not within 5s") || time.Since(began) != wire.Patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		for _, rank := range []int{1, 3} {
			<-all[rank].Failed()
			if err := all[rank].Close(); !strings.Contains(fmt.Sprint(err), "rank 0 (host, pid 1) failed: it closed the store before the others") {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	})
}

// After a failure nobody waits for anybody.
func TestCloseAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fake(t, 4)
		all[2].Fail(errors.New("disk full"))
		began := time.Now()
		for _, s := range all {
			<-s.Failed()
			if err := s.Close(); !strings.Contains(fmt.Sprint(err), "disk full") {
				t.Errorf("rank %d: %v", s.world.Rank, err)
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("it took %v", time.Since(began))
		}
	})
}

// A rank that does not read, as when it is stopped, does not keep the others
// from learning of a failure; rank 0, which is told last, not for ever.
func TestStoppedRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fake(t, 4, 1)
		began := time.Now()
		go all[2].Fail(errors.New("disk full"))
		<-all[3].Failed()
		if time.Since(began) != 0 {
			t.Errorf("rank 3 was told after %v", time.Since(began))
		}
		<-all[0].Failed()
		if time.Since(began) > wire.Patience {
			t.Errorf("rank 0 was told after %v", time.Since(began))
		}
		all[2].Close()
		all[3].Close()
		if err := all[0].Close(); !strings.Contains(fmt.Sprint(err), "disk full") || time.Since(began) > 2*wire.Patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := all[1].link.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection is still open: %v", err)
		}
	})
}

// Where rank 0 closes meanwhile, the others still learn who has failed.
func TestFailureWhileRank0Closes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fake(t, 3, 1)
		go all[0].Close()
		synctest.Wait()
		all[2].link.Close()
		time.Sleep(wire.Patience / 2) // rank 1 is busy
		m, err := wire.Read(all[1].link, wire.MaxMessage)
		if err != nil || m.Kind != "failed" || m.Rank != 2 {
			t.Errorf("%+v, %v", m, err)
		}
		all[1].link.Close()
	})
}
