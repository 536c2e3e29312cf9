package rendezvous

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// A message is a length of 4 bytes, big-endian, and so many bytes of JSON.
// From a rank to rank 0 go
//
//	hello    Version, Size, Token, and the rank's Rank, Host, PID
//	set      Key, Value
//	get      Key
//	fail     Words: why the rank is ending
//	expired  Words: until when the rank has waited for the others to join
//	leave
//
// and from rank 0 to a rank
//
//	accepted rank 0's Host, PID; then the rank waits for the others
//	refused  Words: why the rank cannot join
//	start    rank 0's Host, PID: all have joined
//	value    Key, Value: the answer to get, once the key is set
//	failed   Rank, Host, PID, Words: the first rank that has failed
type message struct {
	Kind, Host, Key, Words   string `json:",omitempty"`
	Version, Size, Rank, PID int    `json:",omitempty"`
	Token, Value             []byte `json:",omitempty"` // Token is its SHA-256
}

const (
	version    = 1       // of the messages and their meaning
	maxKey     = 1 << 10 // this and what follows in bytes
	maxValue   = 1 << 20
	maxWords   = 4 << 10
	maxHello   = 4 << 10
	maxMessage = 2 << 20 // a value in base64, a key with every byte escaped, and the rest
)

// rank is the rank that a message is about.
func (m message) rank() RankError {
	return RankError{Rank: m.Rank, Host: m.Host, PID: m.PID, Words: m.Words}
}

// lastWords makes text fit for a message, and never empty.
func lastWords(text string) string {
	text = strings.ToValidUTF8(cmp.Or(text, "no reason given"), "\uFFFD")
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + " …"
	}
	return text
}

var errForeign = errors.New("no message of this protocol")

// read reads a message of at most limit bytes. What is longer costs no memory.
func read(r io.Reader, limit uint32) (m message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > limit {
		return m, fmt.Errorf("%w: %d bytes, at most %d were expected", errForeign, n, limit)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errForeign, err)
	}
	return m, nil
}

// link is a connection on which several goroutines send.
type link struct {
	net.Conn
	mu sync.Mutex
}

// send sends a message, or closes the connection where the other side does
// not read it.
func (l *link) send(m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.SetWriteDeadline(time.Now().Add(patience))
	if _, err := l.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		l.Close()
		return err
	}
	return nil
}

// tune makes a connection notice a machine that is dead or cut off.
func tune(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silence - 5*time.Second, Interval: time.Second, Count: 5})
		userTimeout(tcp, silence)
	}
	return c
}
