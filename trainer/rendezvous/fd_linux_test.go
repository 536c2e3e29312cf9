package rendezvous

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// handedDown is a listener as a launcher hands it down: a bare descriptor
// that survives an exec.
func handedDown(t *testing.T) (fd int, addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fd, err = unix.Dup(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	return fd, l.Addr().String()
}

func TestListenerHandedDown(t *testing.T) {
	fd, addr := handedDown(t)
	world := []World{{Size: 2, Addr: addr, ListenFD: fd}, {Rank: 1, Size: 2, Addr: addr}}
	var all []*Store
	for _, j := range join(soon(t), world[1], world[0]) {
		if j.err != nil {
			t.Fatal(j.err)
		}
		all = append(all, j.Store)
	}
	closeAll(t, all)
	// A listener is open until its last descriptor is closed.
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Errorf("%s is still open", addr)
	}
}

// What is started between Env and Join does not inherit the listener.
func TestEnvMarksTheListener(t *testing.T) {
	fd, addr := handedDown(t)
	defer unix.Close(fd)
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": "", "SHARDFEED_ADDR": addr, "SHARDFEED_LISTEN_FD": strconv.Itoa(fd)} {
		t.Setenv(name, value)
	}
	w, err := Env()
	if err != nil || w.ListenFD != fd || w.Addr != addr {
		t.Fatalf("%+v, %v", w, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

func TestNoListenerHandedDown(t *testing.T) {
	file, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{file, 1 << 19} {
		_, err := Join(soon(t), World{Size: 2, Addr: "127.0.0.1:1", ListenFD: fd})
		if err == nil || !strings.Contains(err.Error(), "is no open listener") || !strings.Contains(err.Error(), "SHARDFEED_LISTEN_FD") {
			t.Errorf("%d: %v", fd, err)
		}
	}
}

// The launcher learns which rank was the first.
func TestReport(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	world := worlds(t, 3)
	world[0].ReportFD = int(write.Fd())
	all := join(soon(t), world...)
	all[2].link.Close()
	<-all[0].Failed()
	all[1].Fail(errors.New("disk full"))
	for _, j := range all {
		j.Close()
	}
	write.Close()
	if text, err := io.ReadAll(read); err != nil || string(text) != "join 0\njoined 0\nfailed 2\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// Where the launcher's pipe is gone and its number a file's, nothing is written
// into that.
func TestReportIntoAFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := Join(soon(t), World{Size: 1, ReportFD: int(f.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%v, %v", info.Size(), err)
	}
}

// Of ranks that were waited for in vain the launcher hears, not of the rank
// that has waited.
func TestReportOfTheLate(t *testing.T) {
	soonOver := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	for _, c := range []struct {
		name, want string
		run        func(world []World)
	}{
		{"blamed", "failed 1", func(world []World) {
			all := join(soon(t), world...)
			all[0].Blame(1, errors.New("it has not come"))
			for _, s := range all {
				s.Close()
			}
		}},
		{"blamed for nothing, or too late", "", func(world []World) {
			all := join(soon(t), world...)
			all[0].Blame(1, nil)
			for _, s := range all[1:] {
				s.Close()
			}
			all[0].Close()
			all[0].Blame(1, errors.New("it has not come"))
		}},
		{"missing", "failed 1", func(world []World) {
			if _, err := Join(soonOver(), world[0]); err == nil || !strings.Contains(err.Error(), "ranks 1, 2 of 3 did not join") {
				t.Errorf("rank 0: %v", err)
			}
		}},
		{"rank 0 missing", "failed 0", func(world []World) {
			world[2].ReportFD, world[0].ReportFD = world[0].ReportFD, 0
			if _, err := Join(soonOver(), world[2]); err == nil || !strings.Contains(err.Error(), "could not reach rank 0") {
				t.Errorf("rank 2: %v", err)
			}
		}},
	} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		world := worlds(t, 3)
		world[0].ReportFD = int(write.Fd())
		c.run(world)
		write.Close()
		text, err := io.ReadAll(read)
		read.Close()
		first := ""
		for line := range strings.Lines(string(text)) {
			if first == "" && strings.HasPrefix(line, "failed") {
				first = strings.TrimSpace(line)
			}
		}
		if err != nil || first != c.want {
			t.Errorf("%s: %q (%v), want %q first", c.name, text, err, c.want)
		}
	}
}
