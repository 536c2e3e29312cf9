// Package wire is what the ranks of a rendezvous say to each other, and the
// connection on which they say it.
package wire

import (
	"cmp"
	"context"
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

// Message is a length of 4 bytes, big-endian, and so many bytes of JSON.
// From a rank to rank 0 go
//
//	hello    Version, Size, Run, Token, and the rank's Rank, Host, PID
//	set      Key, Value
//	get      Key
//	fail     Words: why the rank is ending; Late
//	expired  Words: until when the rank has waited for the others to join
//	leave
//
// and from rank 0 to a rank
//
//	accepted rank 0's Host, PID; then the rank waits for the others
//	refused  Words: why the rank cannot join
//	stranger Words: rank 0 serves another run than the one that the rank looks for
//	start    rank 0's Host, PID: all have joined
//	value    Key, Value: the answer to get, once the key is set
//	failed   Rank, Host, PID, Words: the first rank that has failed; Late
type Message struct {
	Kind, Host, Key, Words   string `json:",omitempty"`
	Version, Size, Rank, PID int    `json:",omitempty"`
	Late                     int    `json:",omitempty"` // the rank that was waited for in vain, plus 1; 0 where that is not why
	Run, Token, Value        []byte `json:",omitempty"` // Run and Token are SHA-256 sums
}

// The limits of messages, in bytes but for Version.
const (
	Version    = 1 // of the messages and their meaning
	MaxKey     = 1 << 10
	MaxValue   = 1 << 20
	MaxWords   = 4 << 10
	MaxHello   = 4 << 10
	MaxMessage = 2 << 20 // a value in base64, a key with every byte escaped, and the rest
)

// Patience is how long the other side may take to read a message, and a
// newcomer to say hello.
const Patience = 5 * time.Second

// Silence is how long a machine may not answer until it counts as dead.
const Silence = 8 * time.Second

// LastWords makes text fit for a message, and never empty.
func LastWords(text string) string {
	text = strings.ToValidUTF8(cmp.Or(text, "no reason given"), "\uFFFD")
	if len(text) > MaxWords {
		text = strings.ToValidUTF8(text[:MaxWords], "") + " …"
	}
	return text
}

// ErrForeign is the error of Read where the other side speaks another protocol.
var ErrForeign = errors.New("no message of this protocol")

// Read reads a message of at most limit bytes. What is longer costs no memory.
func Read(r io.Reader, limit uint32) (m Message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > limit {
		return m, fmt.Errorf("%w: %d bytes, at most %d were expected", ErrForeign, n, limit)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return m, nil
}

// Link is a connection on which several goroutines send.
type Link struct {
	net.Conn
	mu sync.Mutex
}

// Send sends a message, or closes the connection where the other side does
// not read it.
func (l *Link) Send(m Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.SetWriteDeadline(time.Now().Add(Patience))
	if _, err := l.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		l.Close()
		return err
	}
	return nil
}

// Greet sends a hello and returns the answer.
func (l *Link) Greet(hello Message) (Message, error) {
	if err := l.Send(hello); err != nil {
		return Message{}, err
	}
	return Read(l, MaxMessage)
}

// ErrSilent is the error of Knock where nothing of this protocol comes back.
var ErrSilent = errors.New("it listens, but does not answer")

// Knock says hello at an address and returns the link and the answer. It fails
// when ctx ends, and with ErrForeign or ErrSilent. A listener may be open long
// before anybody serves it, so the answer may take its time.
func Knock(ctx context.Context, addr string, hello Message) (l *Link, answer Message, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, answer, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	l = &Link{Conn: Tune(c)}
	answer, err = l.Greet(hello)
	switch in := stop(); {
	case errors.Is(err, ErrForeign):
	case err != nil || !in:
		err = ErrSilent
	default:
		return l, answer, nil
	}
	c.Close()
	return nil, Message{}, err
}

// Tune makes a connection notice a machine that is dead or cut off. A process
// that is stopped is neither: its machine answers for it.
func Tune(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: Silence - 5*time.Second, Interval: time.Second, Count: 5})
		userTimeout(tcp, Silence)
	}
	return c
}
