//go:build unix

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The reader of a long list goes away: no message, status 0.
func TestClosedPipe(t *testing.T) {
	cmd := exec.Command("shardfeed", "sample", "--n", "1000000000")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Error(err)
	}
	out.Close()
	if err := cmd.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("%v, stderr %q", err, errs.String())
	}
}

// An interrupted conversion leaves nothing. The images come through a pipe
// that ends with its reader, so the interrupt comes in their midst.
func TestConvertInterrupted(t *testing.T) {
	dir := t.TempDir()
	labels := filepath.Join(dir, "labels")
	const rows = 1 << 20 // of 4 KiB, far more than are written
	if err := os.WriteFile(labels, idxFile(rows, rows), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("shardfeed", "convert", "--images", "/dev/stdin", "--labels", labels, "--out", filepath.Join(dir, "out"))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	images, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = images.Write(idxFile(0, rows, 64, 64))
	for mib := range rows / 256 {
		if mib == 4 {
			// More than the pipe holds was read: the shards are being written.
			if left, _ := os.ReadDir(dir); len(left) != 2 {
				t.Errorf("in the midst there are %v, expected the labels and one for the shards", left)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
		if _, err = images.Write(make([]byte, 1<<20)); err != nil {
			break // the reader has gone
		}
	}
	if err == nil {
		t.Error("all images were read")
	}
	images.Close()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !bytes.Contains(errs.Bytes(), []byte("interrupt")) {
		t.Errorf("%v, stderr %q", err, errs.String())
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
