// Package notice is the file by which the ranks of a run find rank 0.
package notice

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Notice says where rank 0 of a run is. Its file is one line of JSON, readable
// for its user alone.
type Notice struct {
	Format string    // always format
	Addr   string    // host:port where rank 0 listens
	Secret string    // that the ranks of the run share; no two runs have the same
	Host   string    // where rank 0 runs
	PID    int       // of rank 0
	Time   time.Time // when it was written
}

const (
	format  = "shardfeed rendezvous 1"
	maxSize = 4 << 10 // bytes of a file
)

// ErrForeign is the error of Read where the file is something else.
var ErrForeign = errors.New("no rendezvous file")

// New is a notice with a fresh secret. The caller sets Addr.
func New(host string, pid int) Notice {
	return Notice{Format: format, Secret: rand.Text(), Host: host, PID: pid, Time: time.Now().UTC().Truncate(time.Second)}
}

// String says who has written it: "node7, pid 4711, 2026-01-02T15:04:05Z".
func (n Notice) String() string {
	return fmt.Sprintf("%s, pid %d, %s", n.Host, n.PID, n.Time.Format(time.RFC3339))
}

// Read reads a file. A file that is not there, or is empty as mktemp makes it,
// is an error of fs.ErrNotExist, one that is something else of ErrForeign.
func Read(path string) (n Notice, err error) {
	// A pipe would keep Open waiting.
	if info, err := os.Stat(path); err != nil {
		return n, err
	} else if !info.Mode().IsRegular() {
		return n, fmt.Errorf("%s is %w: it is of the type %v", path, ErrForeign, info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return n, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return n, err
	}
	if len(text) == 0 {
		return n, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	if n, err = parse(text); err != nil {
		return n, fmt.Errorf("%s is %w: %w", path, ErrForeign, err)
	}
	return n, nil
}

// parse is the notice that a file holds.
func parse(text []byte) (n Notice, err error) {
	if len(text) > maxSize {
		return n, fmt.Errorf("it has more than %d bytes", maxSize)
	}
	if json.Unmarshal(text, &n) != nil || n.Format != format {
		return Notice{}, fmt.Errorf("it begins with %.40q", text)
	}
	host, port, err := net.SplitHostPort(n.Addr)
	if number, e := strconv.Atoi(port); err != nil || e != nil || host == "" || number < 1 || number > 65535 {
		return Notice{}, fmt.Errorf("its address is %q, not host:port", n.Addr)
	}
	if len(n.Secret) < 16 {
		return Notice{}, fmt.Errorf("its secret has %d bytes, at least 16 were expected", len(n.Secret))
	}
	return n, nil
}

// Post writes the file. Who reads it meanwhile finds what was there before, or
// all of it.
func (n Notice) Post(path string) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// glance is between looks at a file.
const glance = 100 * time.Millisecond

// Watch returns the notice that has replaced this one, or false once ctx has
// ended. With keep it writes the file again where somebody has removed it.
func (n Notice) Watch(ctx context.Context, path string, keep bool) (other Notice, replaced bool) {
	for {
		select {
		case <-ctx.Done():
			return other, false
		case <-time.After(glance):
		}
		now, err := Read(path)
		if err == nil && now.Secret != n.Secret {
			return now, true
		}
		if keep && errors.Is(err, fs.ErrNotExist) {
			n.Post(path) // or at the next look
		}
	}
}

// Remove removes the file where it still holds this notice.
func (n Notice) Remove(path string) error {
	if now, err := Read(path); err != nil || now.Secret != n.Secret {
		return nil
	}
	return os.Remove(path)
}
