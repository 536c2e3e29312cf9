package wire

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long sent bytes may go without an answer. While some
// are on their way, keepalive does not notice a dead machine.
func userTimeout(c *net.TCPConn, d time.Duration) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
}
