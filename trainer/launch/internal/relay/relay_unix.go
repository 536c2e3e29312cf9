//go:build unix

package relay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pipeBytes = 64 << 10              // what a pipe holds: one read empties it
	holdTime  = time.Second           // for those who hold a pipe though the ranks have ended
	lastTime  = 10 * time.Millisecond // for a last look into it
)

// Relay passes on what ranks write into pipes.
type Relay struct {
	// Prefix begins each line with the rank: "[3] ".
	Prefix bool
	// Dir is for copies of what the ranks write: rank-3/stdout.log and
	// stderr.log in it, appended to. "" is none.
	Dir string

	sinks   [2]*os.File // standard output and standard error; one where they are the same
	failed  func(error)
	pipes   []*os.File
	copying sync.WaitGroup
}

var streams = [2]string{"stdout", "stderr"}

// New is a relay to two files, which stay the caller's. It calls failed when
// they, or a file in Dir, cannot be written, perhaps several times.
func New(stdout, stderr *os.File, failed func(error)) (*Relay, error) {
	r := &Relay{failed: failed}
	for i, f := range []*os.File{stdout, stderr} {
		if i == 1 && same(stdout, stderr) {
			r.sinks[1] = r.sinks[0]
			break
		}
		file, err := duplicate(f)
		if err != nil {
			r.close()
			return nil, fmt.Errorf("%s: %w", streams[i], err)
		}
		r.sinks[i] = file
	}
	return r, nil
}

func same(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// duplicate is f under a number of its own: a write to the numbers 1 and 2
// that finds no reader would end this process.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	err = raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Open is the pipes for the standard output and standard error of a rank,
// which the caller closes, also after an error, once the rank has them. What
// is written into them is passed on from now on.
func (r *Relay) Open(rank int) (ends [2]*os.File, err error) {
	for i, s := range r.sinks {
		t := &tap{to: s, failed: r.failed}
		if r.Prefix {
			t.lines.prefix = fmt.Sprintf("[%d] ", rank)
		}
		if t.log, err = r.log(rank, streams[i]); err != nil {
			return ends, err
		}
		if t.pipe, ends[i], err = os.Pipe(); err != nil {
			t.log.Close()
			return ends, err
		}
		r.pipes = append(r.pipes, t.pipe)
		r.copying.Go(t.copy)
	}
	return ends, nil
}

// log opens a copy; it is nil where there is none.
func (r *Relay) log(rank int, stream string) (*os.File, error) {
	if r.Dir == "" {
		return nil, nil
	}
	dir := filepath.Join(r.Dir, "rank-"+strconv.Itoa(rank))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, stream+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
}

// End returns when all is passed on that the ranks have written, and says
// whether it is. They have ended: others that hold their pipes are waited for a
// second. Once hurry is closed, a reader of our own output that does not read is
// waited for 2 seconds at most.
func (r *Relay) End(hurry <-chan struct{}) (all bool) {
	for _, pipe := range r.pipes {
		pipe.SetReadDeadline(time.Now().Add(holdTime))
	}
	ended := make(chan struct{})
	go func() {
		r.copying.Wait()
		r.close()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-hurry:
	}
	select {
	case <-ended:
		return true
	case <-time.After(2 * holdTime):
		return false
	}
}

func (r *Relay) close() {
	r.sinks[0].Close()
	r.sinks[1].Close() // a second time where both are the same
}

// tap passes on one stream of one rank.
type tap struct {
	pipe   *os.File
	log    *os.File // nil for none
	to     *os.File // one write at a time, as os.File sees to: no lines are torn
	lines  lines
	failed func(error)
}

func (t *tap) copy() {
	defer t.pipe.Close()
	defer t.log.Close()
	buf := make([]byte, pipeBytes)
	for last := false; ; {
		n, err := t.pipe.Read(buf)
		t.pass(buf[:n], t.lines.add(buf[:n]))
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !last:
			// If writing took until now, the pipe may still be full.
			last = true
			t.pipe.SetReadDeadline(time.Now().Add(lastTime))
		default:
			t.pass(nil, t.lines.end())
			return
		}
	}
}

// pass writes on. What fails is reported, and the pipe emptied nevertheless:
// a rank that is to end must not be blocked.
func (t *tap) pass(raw, lines []byte) {
	for _, c := range []struct {
		to   *os.File
		text []byte
	}{{t.log, raw}, {t.to, lines}} {
		if c.to == nil || len(c.text) == 0 {
			continue
		}
		if _, err := c.to.Write(c.text); err != nil {
			t.failed(err)
		}
	}
}
