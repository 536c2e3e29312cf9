package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func encode(t testing.TB, m Message) []byte {
	var b buffer
	if err := (&Link{Conn: &b}).Send(m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Knock hangs up on what it does not understand, and on what does not answer
// until its context ends.
func TestKnock(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		answer string
		want   error
	}{
		{"HTTP/1.1 400 Bad Request\r\n\r\n", ErrForeign},
		{"", ErrSilent},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		knocked := make(chan error)
		go func() {
			_, _, err := Knock(ctx, l.Addr().String(), Message{Kind: "hello"})
			knocked <- err
		}()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		if m, err := Read(conn, MaxHello); err != nil || m.Kind != "hello" {
			t.Errorf("%+v, %v", m, err)
		}
		if c.answer == "" {
			cancel()
		}
		conn.Write([]byte(c.answer))
		if err := <-knocked; !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.answer, err, c.want)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: %d bytes, %v, want the end", c.answer, n, err)
		}
		conn.Close()
		cancel()
	}
}

// buffer is a connection that only keeps what is written.
type buffer struct {
	bytes.Buffer
	net.Conn
}

func (b *buffer) Read(p []byte) (int, error)       { return b.Buffer.Read(p) }
func (b *buffer) Write(p []byte) (int, error)      { return b.Buffer.Write(p) }
func (b *buffer) SetWriteDeadline(time.Time) error { return nil }

func TestMessages(t *testing.T) {
	for _, m := range []Message{
		{Kind: "leave"},
		{Kind: "hello", Version: 1, Size: 4, Rank: 3, Host: "node", PID: 7, Token: bytes.Repeat([]byte{7}, 32)},
		{Kind: "value", Key: strings.Repeat("\x00", MaxKey), Value: make([]byte, MaxValue)},
		{Kind: "failed", Rank: 1, Words: strings.Repeat("\x00", MaxWords)},
	} {
		text := encode(t, m)
		if got, err := Read(bytes.NewReader(text), MaxMessage); err != nil || fmt.Sprint(got) != fmt.Sprint(m) {
			t.Errorf("%.100s: %v", fmt.Sprint(m), err)
		}
		for n := range min(len(text), 50) {
			if _, err := Read(bytes.NewReader(text[:n]), MaxMessage); err == nil {
				t.Errorf("%.100s: no error after %d bytes", fmt.Sprint(m), n)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, m := range []Message{{}, {Kind: "hello", Token: []byte{1}}, {Kind: "failed", Rank: -1, Words: "x"}} {
		text := encode(f, m)
		f.Add(text)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Read(bytes.NewReader(text), MaxHello)
		if err != nil {
			return
		}
		n := binary.BigEndian.Uint32(text)
		if n > MaxHello || len(text) < 4+int(n) {
			t.Fatalf("%d bytes of %d were read", len(text), n)
		}
		again := encode(t, m)
		if got, err := Read(bytes.NewReader(again), MaxMessage); err != nil || fmt.Sprint(got) != fmt.Sprint(m) {
			t.Errorf("%+v, then %+v, %v", m, got, err)
		}
	})
}

func TestLastWords(t *testing.T) {
	long := strings.Repeat("é", MaxWords)
	for _, c := range []struct{ text, want string }{
		{"disk full", "disk full"},
		{"", "no reason given"},
		{"two\nlines", "two\nlines"},
		{"a\xffb", "a\uFFFDb"},
		{long, long[:MaxWords] + " …"},
		{"x" + long, "x" + long[:MaxWords-2] + " …"},
	} {
		if got := LastWords(c.text); got != c.want {
			t.Errorf("%.20q: %.20q of %d bytes, want %.20q of %d", c.text, got, len(got), c.want, len(c.want))
		}
	}
}
