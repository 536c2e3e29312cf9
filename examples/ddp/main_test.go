package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
	"github.com/shardfeed/shardfeed/trainer/launch"
)

func TestMain(m *testing.M) {
	if os.Getenv("RANK") != "" || os.Getenv("DDP_ALONE") != "" {
		main()
		return
	}
	// Each process built with -race waits a second at its end, unless told otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

// Alone and on two ranks the program prints the same losses.
func TestDDP(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shards")
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{Fields: []batch.Field{
		{Name: "image", Type: batch.Uint8, Shape: []int{28, 28}}, {Name: "label", Type: batch.Uint8},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for i := range 300 {
		image := make([]byte, 784)
		image[i%10] = 255
		if err := w.Write(1, image, []byte{byte(i % 10)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	alone := exec.Command(self, dir)
	alone.Env = append(os.Environ(), "DDP_ALONE=1")
	want, err := alone.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, want)
	}
	if strings.Count(string(want), "loss 2.3") != 1 || strings.Count(string(want), "\n") != 2 {
		t.Errorf("alone, the program printed\n%s", want)
	}
	if runtime.GOOS != "linux" {
		t.Skip("ranks are processes on linux only")
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := launch.Run(t.Context(), launch.Config{Nproc: 2, Args: []string{self, dir}, Stdout: out}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("on two ranks the program printed\n%salone\n%s", got, want)
	}
}
