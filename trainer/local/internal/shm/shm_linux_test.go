package shm

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func create(t *testing.T, size int) *Memory {
	t.Helper()
	m, err := Create(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// Two mappings are the same memory, which stays when the file is closed.
func TestShared(t *testing.T) {
	m := create(t, 1<<40)
	other, err := Open(m.Ticket())
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1, 1 << 50} {
		if err := unix.Ftruncate(int(other.file.Fd()), size); err != unix.EPERM {
			t.Errorf("another size: %v, want %v", err, unix.EPERM)
		}
	}
	const at = 1<<39 + 12345
	if err := m.Back(at, at+100_000); err != nil {
		t.Error(err)
	}
	if err := m.Detach(); err != nil {
		t.Error(err)
	}
	if len(other.Bytes) != 1<<40 || other.Bytes[at] != 0 {
		t.Fatalf("%d bytes, %d", len(other.Bytes), other.Bytes[at])
	}
	m.Bytes[at] = 42
	if other.Bytes[at] != 42 {
		t.Error("the mappings are not the same memory")
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if m.Bytes[at] != 42 {
		t.Error("the memory is gone with one of its mappings")
	}
}

// Whatever else a process finds is an error that says what to do.
func TestWrong(t *testing.T) {
	m, strange := create(t, 1<<20), create(t, 1<<20)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, test := range []struct {
		name   string
		ticket func(*ticket)
		says   string
	}{
		{"no such process", func(w *ticket) { w.PID = 1 << 30 }, "no such file"},
		{"no such file", func(w *ticket) { w.FD = 1 << 20 }, "no such file"},
		{"another file", func(w *ticket) { w.FD = int(file.Fd()) }, "is not the shared memory"},
		{"memory of another run", func(w *ticket) { w.FD = strange.ticket.FD }, "is not the shared memory"},
		{"another size", func(w *ticket) { w.Size /= 2 }, "is not the shared memory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := m.ticket
			test.ticket(&w)
			text, _ := json.Marshal(w)
			if _, err := Open(text); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "container") {
				t.Errorf("the error is %v", err)
			}
		})
	}
	if _, err := Open([]byte("no ticket")); err == nil || !strings.Contains(err.Error(), "same program") {
		t.Errorf("the error is %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	if m, err := Create(1 << 60); err == nil {
		t.Errorf("there is memory of %d bytes", len(m.Bytes))
	}
}
