package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// Each process built with -race waits a second at its end, unless told otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	testscript.Main(m, map[string]func(){
		"shardfeed": func() { prepareFault(); main() },
		"rank":      rank,
		"lasting":   func() { <-time.After(time.Minute) },
	})
}

// prepareFault lets a rank fail where a test asks for it.
var prepareFault = func() {}

// rank is a program to launch: it says which rank it is and, where an argument
// names its rank, ends with status 3.
func rank() {
	fmt.Printf("rank %s of %s, arguments %q\n", os.Getenv("RANK"), os.Getenv("WORLD_SIZE"), os.Args[1:])
	for _, failing := range os.Args[1:] {
		if failing == os.Getenv("RANK") {
			os.Exit(3)
		}
	}
}

// Each file in testdata/script is a session with the command. Beside the
// commands of testscript there are
//
//	exits N PROGRAM ARGUMENT…     run the program, which ends with status N
//	idx FILE BYTES DIM…           write an IDX file of uint8 with so many bytes of values
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "idx": writeIDX},
	})
}

func exits(ts *testscript.TestScript, not bool, args []string) {
	if not || len(args) < 2 {
		ts.Fatalf("usage: exits N PROGRAM ARGUMENT…")
	}
	status := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		status = exit.ExitCode()
	}
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("exit status %d, want %s", status, args[0])
	}
}

func writeIDX(ts *testscript.TestScript, not bool, args []string) {
	if not || len(args) < 3 {
		ts.Fatalf("usage: idx FILE BYTES DIM…")
	}
	var n []int
	for _, a := range args[1:] {
		d, err := strconv.Atoi(a)
		ts.Check(err)
		n = append(n, d)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), idxFile(n[0], n[1:]...), 0o666))
}

func idxFile(values int, dims ...int) []byte {
	b := []byte{0, 0, 8, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	for k := range values {
		b = append(b, byte(k))
	}
	return b
}
