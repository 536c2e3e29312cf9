package rendezvous

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// hello is what a rank says first.
func hello(w World) wire.Message {
	token := sha256.Sum256([]byte(w.Token))
	return wire.Message{Kind: "hello", Version: wire.Version, Size: w.Size, Token: token[:], Rank: w.Rank, Host: "host", PID: 4711}
}

// reach connects to rank 0, as soon as it listens.
func reach(t *testing.T, w World) *wire.Link {
	t.Helper()
	for ctx := soon(t); ctx.Err() == nil; {
		if c, err := net.Dial("tcp", w.Addr); err == nil {
			t.Cleanup(func() { c.Close() })
			return &wire.Link{Conn: c}
		}
	}
	t.Fatalf("nobody listens at %s", w.Addr)
	return nil
}

// ask is a rank by hand: it says hello, and returns the answer.
func ask(t *testing.T, w World, hello wire.Message) (*wire.Link, wire.Message) {
	t.Helper()
	l := reach(t, w)
	if err := l.Send(hello); err != nil {
		t.Fatal(err)
	}
	return l, expect(t, l)
}

// expect is the next message.
func expect(t *testing.T, l *wire.Link) wire.Message {
	t.Helper()
	l.SetReadDeadline(time.Now().Add(20 * time.Second))
	m, err := wire.Read(l, wire.MaxMessage)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Newcomers that do not fit are told why, and disturb nobody.
func TestTurnedAway(t *testing.T) {
	world := worlds(t, 3)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	l, m := ask(t, world[1], hello(world[1]))
	if m.Kind != "accepted" {
		t.Fatal(m)
	}
	other := func(change func(*World)) World {
		w := world[2]
		change(&w)
		return w
	}
	for _, c := range []struct {
		name string
		w    World
		want string
	}{
		{"another token", other(func(w *World) { w.Token = "other" }), "turned rank 2 away: its token is another one: give all ranks of a run the same SHARDFEED_TOKEN"},
		{"no token", other(func(w *World) { w.Token = "" }), "turned rank 2 away: its token is another one"},
		{"another world", other(func(w *World) { w.Size = 4 }), "turned rank 2 away: it is one of 4, rank 0 expects a world of 3"},
		{"the rank of another", other(func(w *World) { w.Rank = 1 }), "turned rank 1 away: rank 1 has joined before, from host, pid 4711"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Join(soon(t), c.w)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.w.Addr) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	all := append(join(soon(t), world[2]), <-first...)
	for _, j := range all {
		if j.err != nil {
			t.Fatal(j.err)
		}
	}
	if m := expect(t, l); m.Kind != "start" {
		t.Errorf("rank 1: %+v", m)
	}
	// All are there; one more is still told why.
	if _, err := Join(soon(t), world[2]); err == nil || !strings.Contains(err.Error(), "rank 2 has joined before") {
		t.Errorf("a late duplicate: %v", err)
	}
	l.Send(wire.Message{Kind: "leave"})
	closeAll(t, []*Store{all[0].Store, all[1].Store})
}

func TestHello(t *testing.T) {
	world := worlds(t, 2)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	for _, c := range []struct {
		change func(*wire.Message)
		want   string
	}{
		{func(m *wire.Message) { m.Version = 2 }, "it speaks version 2 of the protocol, rank 0 version 1"},
		{func(m *wire.Message) { m.Rank = 2 }, "rank 0 expects a world of 2"},
		{func(m *wire.Message) { m.Rank = -1 }, "rank 0 expects a world of 2"},
		{func(m *wire.Message) { m.Rank = 0 }, "rank 0 has joined before"},
		{func(m *wire.Message) { m.Token = m.Token[:31] }, "its token"},
		{func(m *wire.Message) { m.Token = nil }, "its token"},
		{func(m *wire.Message) { m.Size = 0 }, "it is one of 0, rank 0 expects a world of 2"},
	} {
		asked := hello(world[1])
		c.change(&asked)
		_, m := ask(t, world[1], asked)
		if m.Kind != "refused" || !strings.Contains(m.Words, c.want) {
			t.Errorf("%+v, want %q", m, c.want)
		}
	}
	last := join(soon(t), world[1])
	all := append(<-first, last...)
	for rank, j := range all {
		if j.err != nil {
			t.Fatalf("rank %d: %v", rank, j.err)
		}
	}
	closeAll(t, []*Store{all[0].Store, all[1].Store})
}

// What is not of this protocol is hung up on, and costs nobody anything.
func TestGarbage(t *testing.T) {
	world := worlds(t, 2)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	long := append([]byte{0, 0, 0x10, 1}, `{"Kind":"hello","Words":"`+strings.Repeat("x", wire.MaxHello)...)
	for name, text := range map[string][]byte{
		"HTTP":            []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"TLS":             {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3},
		"TCPStore":        {0, 206, 247, 133, 60, 3, 4, 0, 0, 0, 0, 0, 0, 0},
		"long":            {255, 255, 255, 255},
		"long hello":      long,
		"no JSON":         {0, 0, 0, 2, '}', '{'},
		"JSON":            {0, 0, 0, 2, '{', '}'},
		"empty":           {0, 0, 0, 0},
		"another message": append([]byte{0, 0, 0, 14}, `{"Kind":"set"}`...),
	} {
		c := reach(t, world[0])
		if _, err := c.Write(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.SetReadDeadline(time.Now().Add(2 * wire.Patience))
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v, want the end", name, n, err)
		}
		c.Close()
	}
	silent, short := reach(t, world[0]), reach(t, world[0])
	short.Write([]byte{0, 0})
	last := join(soon(t), world[1])
	all := append(<-first, last...)
	for rank, j := range all {
		if j.err != nil {
			t.Fatalf("rank %d: %v", rank, j.err)
		}
	}
	// A member that talks nonsense counts as dead; the strangers do not keep Close waiting.
	all[1].link.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	told(t, []*Store{all[0].Store}, 1, "")
	all[0].Close()
	for _, c := range []net.Conn{silent, short} {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v, want the end", n, err)
		}
	}
}

// expiring is a context whose deadline passes when the test says so.
type expiring struct {
	context.Context
	deadline time.Time
	done     chan struct{}
}

func (e expiring) Deadline() (time.Time, bool) { return e.deadline, true }
func (e expiring) Done() <-chan struct{}       { return e.done }
func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Where the deadline of one rank passes, every rank learns who is missing.
func TestMissingRanks(t *testing.T) {
	for _, c := range []struct {
		size    int
		present []int
		want    string
	}{
		{2, nil, "rank 1 of 2 did not join within 30s"},
		{4, []int{1}, "ranks 2, 3 of 4 did not join within 30s"},
		{4, []int{2, 3}, "rank 1 of 4 did not join within 30s"},
	} {
		world := worlds(t, c.size)
		ctx := expiring{t.Context(), time.Now().Add(30 * time.Second), make(chan struct{})}
		first := make(chan []joined)
		go func() { first <- join(ctx, world[0]) }()
		reach(t, world[0])
		var others []*wire.Link
		for _, rank := range c.present {
			l, m := ask(t, world[rank], hello(world[rank]))
			if m.Kind != "accepted" {
				t.Fatal(m)
			}
			others = append(others, l)
		}
		close(ctx.done)
		if err := (<-first)[0].err; err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("rank 0 with %v: %v, want %q", c.present, err, c.want)
		}
		for i, l := range others {
			if m := expect(t, l); m.Kind != "failed" || m.Rank != 0 || m.Words != c.want {
				t.Errorf("rank %d: %+v, want %q", c.present[i], m, c.want)
			}
		}
	}
}

// It need not be the deadline of rank 0.
func TestMissingRanksToldByRank1(t *testing.T) {
	world := worlds(t, 3)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	l, _ := ask(t, world[1], hello(world[1]))
	l.Send(wire.Message{Kind: "expired", Words: "within 30s"})
	const want = "rank 2 of 3 did not join within 30s"
	if err := (<-first)[0].err; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("rank 0: %v", err)
	}
	if m := expect(t, l); m.Kind != "failed" || m.Words != want {
		t.Errorf("rank 1: %+v", m)
	}
}

// A rank that dies or fails before all have joined ends it for all.
func TestJoinEnds(t *testing.T) {
	for _, words := range []string{"", "disk full"} {
		t.Run(words, func(t *testing.T) {
			world := worlds(t, 4)
			first := make(chan []joined)
			go func() { first <- join(soon(t), world[0]) }()
			one, _ := ask(t, world[1], hello(world[1]))
			two, m := ask(t, world[2], hello(world[2]))
			if m.Kind != "accepted" {
				t.Fatal(m)
			}
			if words != "" {
				one.Send(wire.Message{Kind: "fail", Words: words})
			} else {
				one.Close()
			}
			if m := expect(t, two); m.Kind != "failed" || rankError(m) != (RankError{Rank: 1, Host: "host", PID: 4711, Words: words}) {
				t.Errorf("rank 2: %+v", m)
			}
			err := (<-first)[0].err
			if failure, ok := errors.AsType[*RankError](err); !ok || failure.Rank != 1 || failure.Words != words {
				t.Errorf("rank 0: %v", err)
			}
		})
	}
}

// So does a rank whose context is cancelled.
func TestJoinCancelled(t *testing.T) {
	world := worlds(t, 3)
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan []joined)
	go func() { first <- join(ctx, world[0]) }()
	l, _ := ask(t, world[1], hello(world[1]))
	cancel(errors.New("interrupt signal received"))
	const want = "rank 2 of 3 did not join before rank 0 gave up: interrupt signal received"
	if m := expect(t, l); m.Kind != "failed" || m.Rank != 0 || m.Words != want {
		t.Errorf("rank 1: %+v", m)
	}
	if err := (<-first)[0].err; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("rank 0: %v", err)
	}
	// Nobody listens any more.
	if _, err := Join(ctx, world[2]); err == nil || !strings.Contains(err.Error(), "rank 2 gave up reaching rank 0 at "+world[2].Addr+": interrupt signal received") {
		t.Errorf("rank 2: %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	world := worlds(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Join(ctx, world[1])
	for _, want := range []string{"rank 1 could not reach rank 0 at " + world[1].Addr + " within 1s", "refused", "MASTER_ADDR and MASTER_PORT, or the URL, are the same"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Rank 0 that comes late is found.
func TestLateRank0(t *testing.T) {
	world := worlds(t, 2)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[1]) }()
	last := join(soon(t), world[0])
	all := append(last, <-first...)
	for rank, j := range all {
		if j.err != nil {
			t.Fatalf("rank %d: %v", rank, j.err)
		}
	}
	closeAll(t, []*Store{all[0].Store, all[1].Store})
}

// Whoever else listens at the address is found out.
func TestAnotherProgram(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		serve func(net.Conn)
		want  string
	}{
		{"HTTP", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, "is not rank 0 but another program"},
		{"silent", func(c net.Conn) {}, "it listens, but does not answer"},
		{"hangs up", func(c net.Conn) { c.Close() }, "it listens, but does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					c.serve(conn)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = Join(ctx, World{Rank: 1, Size: 2, Addr: l.Addr().String()})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestOccupiedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Join(soon(t), World{Size: 2, Addr: l.Addr().String()})
	for _, want := range []string{l.Addr().String(), "address already in use", "another MASTER_PORT", "shardfeed launch"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWrongWorld(t *testing.T) {
	for _, c := range []struct {
		w    World
		want string
	}{
		{World{}, "rank 0 in a world of 0"},
		{World{Rank: 2, Size: 2, Addr: "localhost:1"}, "rank 2 in a world of 2"},
		{World{Rank: -1, Size: 2, Addr: "localhost:1"}, "rank -1 in a world of 2"},
		{World{Size: 1 << 40, Addr: "localhost:1"}, "at most 1048576"},
		{World{Size: 2}, "no World.Addr"},
		{World{Size: 2, Addr: "localhost"}, "localhost"},
	} {
		if _, err := Join(soon(t), c.w); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.w, err, c.want)
		}
	}
}

// Nothing listens any more after Close, and after a Join that failed.
func TestPortIsFree(t *testing.T) {
	all := stores(t, 2)
	closeAll(t, all)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	world := worlds(t, 2)
	if _, err := Join(ctx, world[0]); err == nil {
		t.Fatal("rank 0 joined alone")
	}
	for _, addr := range []string{all[0].World().Addr, world[0].Addr} {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			t.Errorf("%s is still open", addr)
		}
	}
}
