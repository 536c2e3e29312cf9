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
