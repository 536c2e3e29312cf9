package wire

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A machine that is cut off, with bytes on their way, counts as dead within
// seconds, not after the quarter of an hour that TCP would try.
func TestUserTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := Tune(c).(*net.TCPConn).SyscallConn()
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
}
