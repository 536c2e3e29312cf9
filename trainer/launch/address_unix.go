//go:build unix

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// address is where the ranks of an attempt find rank 0.
type address struct {
	ours     string           // host:port of rank 0's store
	listener *net.TCPListener // open for it; nil where rank 0 opens it by itself
	host     string
	foreign  string // a port that is free, for programs that are not ours
}

// address opens the listener of rank 0's store and finds another port that is
// free. A port that is given is both: the listener is not kept open on it, so
// that a program that is not ours can open it.
func (cfg *Config) address() (*address, error) {
	a := &address{host: cmp.Or(cfg.MasterAddr, "127.0.0.1")}
	first, err := a.listen(cfg.MasterPort)
	if err != nil {
		return nil, err
	}
	if cfg.MasterPort > 0 {
		a.ours, a.foreign = net.JoinHostPort(a.host, strconv.Itoa(cfg.MasterPort)), strconv.Itoa(cfg.MasterPort)
		return a, first.Close()
	}
	second, err := a.listen(0)
	if err != nil {
		first.Close()
		return nil, err
	}
	a.ours, a.listener = first.Addr().String(), first
	a.foreign = strconv.Itoa(second.Addr().(*net.TCPAddr).Port)
	return a, second.Close()
}

func (a *address) listen(port int) (*net.TCPListener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(a.host, strconv.Itoa(port)))
	switch {
	case err == nil:
		return l.(*net.TCPListener), nil
	case errors.Is(err, syscall.EADDRINUSE) && port > 0:
		by := owner(port)
		if by != "" {
			by = " by " + by
		}
		return nil, fmt.Errorf("launch: port %d of %s is in use%s: give another one, or none for one that is free", port, a.host, by)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("launch: %s is no address of this machine, and the ranks are started on no other: give one that is, or none for 127.0.0.1", a.host)
	}
	return nil, fmt.Errorf("launch: %w", err)
}
