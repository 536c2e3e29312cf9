package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

func newVerify() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR|FILE…",
		Short: "Read shards whole and say which are bad",
		Long: `Read every byte of Arrow IPC shards, in directories or single files, compare it
with the checksums of index.json where there is one, and print a line for each
bad file. What cannot be read as columns of a batch counts as bad, with the
reason "unsupported".

The status is 1 if a file is bad.`,
		Example: `  shardfeed verify data/train data/test
  shardfeed verify --json data/train/part-00003.arrow`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("name the directories or files to verify")
			}
			return verify(args, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each bad file")
	return cmd
}

// verify prints each bad file of the paths, and is an error if there is one.
func verify(paths []string, asJSON bool) error {
	show := printProblem
	if asJSON {
		show = encodeProblem
	}
	var all arrowipc.Verified
	var failed error
	report := func(p arrowipc.Problem) {
		all.Bad++
		failed = errors.Join(failed, show(p))
	}
	for _, path := range paths {
		v, err := arrowipc.Verify(path, report)
		if err != nil { // such as no shards at this path
			report(arrowipc.Problem{File: path, Batch: -1, Err: err})
		}
		all.Files += v.Files
		all.Rows += v.Rows
		if failed != nil {
			return failed
		}
	}
	switch {
	case all.Bad > 0:
		return errors.New(count(all.Bad, "bad file"))
	case asJSON:
		return nil
	}
	_, err := fmt.Printf("%s, %s: all good\n", count(all.Files, "file"), count(all.Rows, "row"))
	return err
}

// count is 1 file, 2 files.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

func printProblem(p arrowipc.Problem) error {
	_, err := fmt.Println(p)
	return err
}

func encodeProblem(p arrowipc.Problem) error {
	line := struct {
		File   string `json:"file"`
		Batch  *int   `json:"batch"` // null where it is not known
		Reason string `json:"reason"`
	}{p.File, &p.Batch, p.Err.Error()}
	if p.Batch < 0 {
		line.Batch = nil
	}
	return json.NewEncoder(os.Stdout).Encode(line)
}
