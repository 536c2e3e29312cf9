package rendezvous

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/notice"
	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// fileWorlds are the places of n ranks that meet by a file that is not there.
func fileWorlds(t *testing.T, n int) []World {
	all := make([]World, n)
	file := filepath.Join(t.TempDir(), "run")
	for rank := range all {
		all[rank] = World{Rank: rank, Size: n, LocalRank: rank, LocalSize: n, File: file, Token: "secret"}
	}
	return all
}

// brief is a deadline that passes.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// leave leaves a notice as a rank 0 that was killed does.
func leave(t *testing.T, w World, addr string) notice.Notice {
	t.Helper()
	n := notice.New("node7", 4711)
	n.Addr = addr
	if err := n.Post(w.File); err != nil {
		t.Fatal(err)
	}
	return n
}

// written waits until the file holds a notice.
func written(t *testing.T, w World) notice.Notice {
	t.Helper()
	for ctx := soon(t); ctx.Err() == nil; {
		if n, err := notice.Read(w.File); err == nil {
			return n
		}
	}
	t.Fatalf("nobody has written %s", w.File)
	return notice.Notice{}
}

// gone checks that nothing is left beside where the file was.
func gone(t *testing.T, w World) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Dir(w.File)); err != nil || len(left) > 0 {
		t.Errorf("%v, %v: something is left", left, err)
	}
}

func met(t *testing.T, all []joined) []*Store {
	t.Helper()
	stores := make([]*Store, len(all))
	for _, j := range all {
		if j.err != nil {
			t.Fatal(j.err)
		}
		stores[j.World().Rank] = j.Store
	}
	return stores
}

// Ranks meet by a file, however early they come, and Close removes it.
func TestFile(t *testing.T) {
	for _, late := range []bool{false, true} {
		world := fileWorlds(t, 3)
		first := make(chan []joined)
		if late {
			go func() { first <- join(soon(t), world[1:]...) }()
			all := append(join(soon(t), world[0]), <-first...)
			closeAll(t, met(t, all))
		} else {
			go func() { first <- join(soon(t), world[0]) }()
			n := written(t, world[0])
			if info, err := os.Stat(world[0].File); err != nil || info.Mode().Perm()&0o077 != 0 && filepath.Separator == '/' {
				t.Errorf("%v, %v: others can read it", info.Mode(), err)
			}
			all := met(t, append(join(soon(t), world[1:]...), <-first...))
			if addr := all[2].World().Addr; addr != n.Addr || !loopback(addr) {
				t.Errorf("%s, want %s, of loopback", addr, n.Addr)
			}
			if err := all[2].Set(soon(t), "key", []byte("value")); err != nil {
				t.Error(err)
			}
			if got, err := all[1].Get(soon(t), "key"); err != nil || string(got) != "value" {
				t.Errorf("%q, %v", got, err)
			}
			closeAll(t, all)
		}
		gone(t, world[0])
	}
}

// An empty file, as mktemp makes it, is as good as none.
func TestEmptyFile(t *testing.T) {
	world := fileWorlds(t, 2)
	if err := os.WriteFile(world[0].File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	closeAll(t, met(t, join(soon(t), world...)))
	gone(t, world[0])
}

// A run on several machines listens for all of them.
func TestFileOfSeveralMachines(t *testing.T) {
	world := fileWorlds(t, 2)
	world[0].LocalSize = 1
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	n := written(t, world[0])
	if host, _, _ := net.SplitHostPort(n.Addr); host != hostname() {
		t.Errorf("%s, want the machine's name %s", n.Addr, hostname())
	}
	// Reached by hand: a machine need not resolve its own name.
	_, port, _ := net.SplitHostPort(n.Addr)
	n.Addr = net.JoinHostPort("127.0.0.1", port)
	l, m, err := wire.Knock(soon(t), n.Addr, world[1].hello(n.Secret))
	if err != nil || m.Kind != "accepted" {
		t.Fatal(m, err)
	}
	l.Send(wire.Message{Kind: "leave"})
	closeAll(t, met(t, <-first))
	gone(t, world[0])
}

// stale are the ways in which the address of a file that a killed run has left
// answers.
func stale(t *testing.T) map[string]struct{ addr, want string } {
	answer := func(serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
				serve(c)
			}
		}()
		return l.Addr().String()
	}
	other := worlds(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan []joined)
	go func() { ended <- join(ctx, other[0]) }()
	t.Cleanup(func() { cancel(); <-ended })
	reach(t, other[0])
	return map[string]struct{ addr, want string }{
		"nobody":          {worlds(t, 1)[0].Addr, "refused"},
		"another program": {answer(func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }), "no message of this protocol"},
		"another run":     {other[0].Addr, "another run answers"},
		"silence":         {answer(func(net.Conn) {}), "it listens, but does not answer"},
	}
}

// What a killed run has left is replaced by rank 0. A rank that comes before
// rank 0 does not fall for it.
func TestStaleFile(t *testing.T) {
	t.Parallel()
	for name, c := range stale(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := fileWorlds(t, 3)
			leave(t, world[0], c.addr)
			first := make(chan []joined)
			go func() { first <- join(soon(t), world[1:]...) }()
			all := append(join(soon(t), world[0]), <-first...)
			closeAll(t, met(t, all))
			gone(t, world[0])
		})
	}
}

// Where rank 0 does not come, a rank knows what it has found.
func TestStaleFileFound(t *testing.T) {
	t.Parallel()
	for name, c := range stale(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fileWorlds(t, 2)[1]
			n := leave(t, w, c.addr)
			ctx, wants := soon(t), []string{"the file is stale: rank 0 of an earlier run has written it (" + n.String() + ")", "for ranks on one machine: set LOCAL_RANK"}
			if name == "silence" {
				ctx, wants = brief(t), []string{"rank 0 (" + n.String() + ")"}
			}
			_, again, err := newStore(w).find(ctx)
			if err != nil {
				t.Error(err)
			}
			for _, want := range append(wants, c.addr, c.want) {
				if again == nil || !strings.Contains(again.Error(), want) {
					t.Errorf("%v, want %q", again, want)
				}
			}
			if got, err := notice.Read(w.File); err != nil || got != n {
				t.Errorf("rank 1 has changed the file: %+v, %v", got, err)
			}
		})
	}
}

// Without a deadline a rank waits for a minute.
func TestNoFile(t *testing.T) {
	world := fileWorlds(t, 2)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := Join(t.Context(), world[1])
		if want := "rank 1 could not reach rank 0 by the file " + world[1].File + " within 1m0s: "; err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v, want %q", err, want)
		}
		if d := time.Since(began); d != joinTimeout {
			t.Errorf("it took %v", d)
		}
	})
}

// A rank that is alone needs no file, and leaves what is there.
func TestFileOfOne(t *testing.T) {
	w := fileWorlds(t, 1)[0]
	if err := os.WriteFile(w.File, []byte("import torch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	closeAll(t, met(t, join(soon(t), w)))
	if text, err := os.ReadFile(w.File); err != nil || string(text) != "import torch\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// A file that is something else is left as it is, on every rank.
func TestForeignFile(t *testing.T) {
	world := fileWorlds(t, 2)
	if err := os.WriteFile(world[0].File, []byte("import torch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for rank, j := range join(soon(t), world...) {
		if want := world[0].File + ` is no rendezvous file: it begins with "import torch\n"`; j.err == nil || !strings.Contains(j.err.Error(), want) || !strings.Contains(j.err.Error(), "where nothing is") {
			t.Errorf("rank %d: %v, want %q", rank, j.err, want)
		}
	}
	if text, err := os.ReadFile(world[0].File); err != nil || string(text) != "import torch\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestFileCannotBeWritten(t *testing.T) {
	w := fileWorlds(t, 2)[0]
	w.File = filepath.Join(w.File, "below")
	if _, err := Join(soon(t), w); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "rank 0 cannot write its file") {
		t.Error(err)
	}
}

// A second rank 0 fails at once and names the first, before and after that one
// has found its others, which are not disturbed.
func TestFileOfALiveRun(t *testing.T) {
	world := fileWorlds(t, 2)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	n := written(t, world[0])
	second := func(w World) {
		t.Helper()
		_, err := Join(soon(t), w)
		for _, want := range []string{world[0].File + " belongs to another rank 0 (" + n.String() + "), which is alive at " + n.Addr, "a file", "of its own"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
	other := world[0]
	other.Size, other.LocalSize, other.Token = 5, 5, "of another run"
	second(other)
	second(world[0])
	all := met(t, append(join(soon(t), world[1]), <-first...))
	second(world[0])
	second(other)
	closeAll(t, all)
	gone(t, world[0])
}

// Two that start together may both have found no file. The one whose notice is
// replaced says so, to those of its ranks too that it has let in.
func TestFileReplaced(t *testing.T) {
	t.Parallel()
	world := fileWorlds(t, 3)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	n := written(t, world[0])
	l, m, err := wire.Knock(soon(t), n.Addr, world[1].hello(n.Secret))
	if err != nil || m.Kind != "accepted" {
		t.Fatal(m, err)
	}
	other := leave(t, world[0], "127.0.0.1:1")
	want := "another rank 0 (" + other.String() + ") has replaced its file " + world[0].File
	if err := (<-first)[0].err; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("rank 0: %v, want %q", err, want)
	}
	if m := expect(t, l); m.Kind != "failed" || m.Rank != 0 || !strings.HasPrefix(m.Words, want) {
		t.Errorf("rank 1: %+v, want %q", m, want)
	}
	if got, err := notice.Read(world[0].File); err != nil || got != other {
		t.Errorf("the other's file: %+v, %v", got, err)
	}
}

// Users of PyTorch remove the file before they start: it comes back.
func TestFileRemoved(t *testing.T) {
	t.Parallel()
	world := fileWorlds(t, 2)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	n := written(t, world[0])
	if err := n.Remove(world[0].File); err != nil {
		t.Fatal(err)
	}
	all := append(join(soon(t), world[1]), <-first...)
	closeAll(t, met(t, all))
	gone(t, world[0])
}

// Ranks that do not fit are told why, as without a file, and rank 0 says it of
// those that it has missed.
func TestTurnedAwayByFile(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*World)
		want   string
	}{
		{"another token", func(w *World) { w.Token = "other" }, "its token is another one"},
		{"no token", func(w *World) { w.Token = "" }, "its token is another one"},
		{"another world", func(w *World) { w.Size = 4 }, "it is one of 4, rank 0 expects a world of 3"},
		{"the rank of another", func(w *World) { w.Rank = 1 }, "rank 1 has joined before, from "},
	} {
		t.Run(c.name, func(t *testing.T) {
			world := fileWorlds(t, 3)
			ctx := expiring{t.Context(), time.Now().Add(30 * time.Second), make(chan struct{})}
			first := make(chan []joined)
			go func() { first <- join(ctx, world[0]) }()
			n := written(t, world[0])
			if _, m, err := wire.Knock(soon(t), n.Addr, world[1].hello(n.Secret)); err != nil || m.Kind != "accepted" {
				t.Fatal(m, err)
			}
			w := world[2]
			c.change(&w)
			_, err := Join(soon(t), w)
			if err == nil || !strings.Contains(err.Error(), "rank 0 at "+n.Addr+" turned rank") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			close(ctx.done)
			err = (<-first)[0].err
			for _, want := range []string{"rank 2 of 3 did not join within 30s; ", "was turned away: " + c.want} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("rank 0: %v, want %q", err, want)
				}
			}
			gone(t, world[0])
		})
	}
}

// A file without its secret opens nothing.
func TestFileSecret(t *testing.T) {
	world := fileWorlds(t, 2)
	first := make(chan []joined)
	go func() { first <- join(soon(t), world[0]) }()
	n := written(t, world[0])
	_, err := Join(soon(t), World{Rank: 1, Size: 2, Addr: n.Addr, Token: world[1].Token})
	if err == nil || !strings.Contains(err.Error(), "turned rank 1 away: it looks for another run") {
		t.Errorf("by the address alone: %v", err)
	}
	forged := world[1].hello(n.Secret)
	forged.Token = world[1].hello("").Token
	if _, m, err := wire.Knock(soon(t), n.Addr, forged); err != nil || m.Kind != "refused" {
		t.Errorf("%+v, %v", m, err)
	}
	closeAll(t, met(t, append(join(soon(t), world[1]), <-first...)))
}

// The missing are named on every rank, and the file goes with the run.
func TestMissingByFile(t *testing.T) {
	t.Parallel()
	world := fileWorlds(t, 4)
	all := join(brief(t), world[:3]...)
	for rank, j := range all {
		if j.err == nil || !strings.Contains(j.err.Error(), "rank 3 of 4 did not join within ") {
			t.Errorf("rank %d: %v", rank, j.err)
		}
	}
	gone(t, world[0])
}
