// Package relay passes on what several processes write, in whole lines: no
// process's line is torn by another's.
package relay

import (
	"bytes"
	"slices"
)

// maxLine is how many bytes of a line are kept until its end comes.
const maxLine = 1 << 20

// lines cuts a stream into lines and begins each with the prefix.
type lines struct {
	prefix string
	text   []byte // whole lines, which have been returned, and a part of the next
	whole  int    // bytes of whole lines
}

// add takes the next bytes of the stream and is the lines that are whole with
// them, until the next call.
func (l *lines) add(b []byte) []byte {
	l.text = slices.Delete(l.text, 0, l.whole)
	l.whole = 0
	for line := range bytes.Lines(b) {
		if len(l.text) == l.whole {
			l.text = append(l.text, l.prefix...)
		}
		l.text = append(l.text, line...)
		switch {
		case line[len(line)-1] == '\n':
			l.whole = len(l.text)
		case len(l.text)-l.whole >= maxLine:
			l.end()
		}
	}
	return l.text[:l.whole]
}

// end ends a line that has begun, and is what add has not returned.
func (l *lines) end() []byte {
	begun := l.whole
	if len(l.text) > l.whole {
		l.text = append(l.text, '\n')
		l.whole = len(l.text)
	}
	return l.text[begun:]
}
