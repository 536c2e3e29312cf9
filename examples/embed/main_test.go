package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// Two epochs of 300 rows are 2×3 batches, in orders that differ.
func TestEmbed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shards")
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: []batch.Field{
		{Name: "image", Type: batch.Uint8, Shape: []int{2, 2}}, {Name: "label", Type: batch.Uint8},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Write(300, make([]byte, 1200), make([]byte, 300)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args, stdout := os.Args, os.Stdout
	os.Args, os.Stdout = []string{"embed", dir}, out
	main()
	os.Args, os.Stdout = args, stdout
	out.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 6 || !strings.HasSuffix(lines[0], " 512 0") || !strings.HasSuffix(lines[5], " 176 0") || lines[0][4:] == lines[3][4:] {
		t.Errorf("the program printed\n%s", text)
	}
}
