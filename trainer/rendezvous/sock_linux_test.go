package rendezvous

import (
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

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
	if text, err := io.ReadAll(read); err != nil || string(text) != "2\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// A machine that is cut off, with bytes on their way, counts as dead within
// seconds, not after the quarter of an hour that TCP would try.
func TestUserTimeout(t *testing.T) {
	all := stores(t, 2)
	raw, err := all[1].link.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 8000, unix.TCP_KEEPIDLE: 3, unix.TCP_KEEPINTVL: 1, unix.TCP_KEEPCNT: 5} {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
				t.Errorf("option %d is %d, %v, want %d", option, got, err, want)
			}
		}
	})
	closeAll(t, all)
}
