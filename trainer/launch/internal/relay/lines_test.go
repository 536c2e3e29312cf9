package relay

import (
	"bytes"
	"strings"
	"testing"
)

// prefixed is what lines does, in one go.
func prefixed(prefix, text string) (all string) {
	for line := range strings.Lines(text) {
		all += prefix + strings.TrimSuffix(line, "\n") + "\n"
	}
	return all
}

// However a stream comes in pieces, the lines are the same, and each piece
// that is passed on ends with a line.
func FuzzLines(f *testing.F) {
	f.Add("[0] ", "one\ntwo\n", uint8(1))
	f.Add("[12] ", "\n\nx", uint8(2))
	f.Add("", "\x00\xff\r\n\nno end", uint8(3))
	f.Add("[0] ", "", uint8(1))
	f.Fuzz(func(t *testing.T, prefix, text string, size uint8) {
		l := lines{prefix: prefix}
		got, rest := "", []byte(text)
		for len(rest) > 0 {
			n := min(len(rest), 1+int(size))
			piece := bytes.Clone(rest[:n]) // not kept
			passed := string(l.add(piece))
			clear(piece)
			if passed != "" && !strings.HasSuffix(passed, "\n") {
				t.Fatalf("%q is not whole", passed)
			}
			got, rest = got+passed, rest[n:]
			if done := text[:len(text)-len(rest)]; got != prefixed(prefix, done[:strings.LastIndexByte(done, '\n')+1]) {
				t.Fatalf("after %q: %q", done, got)
			}
		}
		if got += string(l.end()); got != prefixed(prefix, text) {
			t.Fatalf("%q: %q, want %q", text, got, prefixed(prefix, text))
		}
		if again := l.end(); len(again) > 0 {
			t.Fatalf("a second end: %q", again)
		}
	})
}

// A line that does not end is broken, and not kept for ever.
func TestLongLine(t *testing.T) {
	l := lines{prefix: "[1] "}
	piece, got, most := bytes.Repeat([]byte("x"), 1000), 0, 0
	for range 5 * maxLine / len(piece) {
		whole := l.add(piece)
		got += bytes.Count(whole, []byte("x"))
		most = max(most, len(l.text))
		if len(whole) > 0 && (len(whole) < maxLine || !bytes.HasPrefix(whole, []byte("[1] x")) || !bytes.HasSuffix(whole, []byte("x\n"))) {
			t.Fatalf("a piece of %d bytes", len(whole))
		}
	}
	if got += bytes.Count(l.end(), []byte("x")); got != 5*maxLine/len(piece)*len(piece) || most > maxLine+len(piece)+1 {
		t.Errorf("%d bytes passed on, %d kept", got, most)
	}
}
