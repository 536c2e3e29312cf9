package mmap

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

func TestMap(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for _, content := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("0123456789"), 10_000)} {
		if err := os.WriteFile(name, content, 0o666); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Map(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil { // the mapping stays
			t.Fatal(err)
		}
		if !bytes.Equal(m.Bytes(), content) {
			t.Errorf("%d bytes were mapped as %d others", len(content), len(m.Bytes()))
		}
		for range 2 {
			if err := m.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if m.Bytes() != nil {
			t.Error("bytes after Close")
		}
	}
}

func TestMapRefuses(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := Map(dir); err == nil || !strings.Contains(err.Error(), dir.Name()) {
		t.Errorf("a directory: %v, want an error that names it", err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Map(dir); err == nil {
		t.Error("a closed file was mapped")
	}
}

func TestAnonymous(t *testing.T) {
	for _, n := range []int{1, 4096, 4097, hugePage, hugePage + 1} {
		b, err := Anonymous(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != n || bytes.Count(b, []byte{0}) != n {
			t.Errorf("%d bytes: got %d, not all zero", n, len(b))
		}
		if at := uintptr(unsafe.Pointer(&b[0])); at%uintptr(os.Getpagesize()) != 0 {
			t.Errorf("%d bytes lie at %#x, not at the beginning of a page", n, at)
		}
		for i := range b {
			b[i] = byte(i)
		}
		if err := Lock(b); err != nil {
			if !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") && !strings.Contains(err.Error(), "not possible") {
				t.Errorf("Lock says neither the limit nor that it is impossible: %v", err)
			}
			t.Log(err)
		}
		if b[n-1] != byte(n-1) {
			t.Error("Lock changed the memory")
		}
		if err := Free(b); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := Anonymous(n); err == nil {
			t.Errorf("memory of %d bytes", n)
		}
	}
	if _, err := Anonymous(1 << 46); err == nil {
		t.Error("memory of 64 TiB")
	}
}

func BenchmarkAnonymous(b *testing.B) {
	const n = 64 << 20
	b.SetBytes(n)
	for b.Loop() {
		m, err := Anonymous(n)
		if err != nil {
			b.Fatal(err)
		}
		if err := Free(m); err != nil {
			b.Fatal(err)
		}
	}
}
