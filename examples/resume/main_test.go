package main

import (
	"os"
	"runtime"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("RESUME_DIR") != "" { // a rank
		main()
		return
	}
	// Each process built with -race waits a second at its end, unless told otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

func TestResume(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ranks are processes on linux only")
	}
	if err := show(); err != nil {
		t.Error(err)
	}
}
