// Command shardfeed trains a classifier from sharded files, on several ranks,
// and has the tools around that: it starts ranks, makes shards, checks them,
// and prints which samples a rank visits.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:])) }

// run runs the command and returns its exit status: 0, 1 where it failed, 2
// where it was called wrongly.
func run(args []string) int {
	root, running := newRoot(), false
	for _, c := range root.Commands() {
		body := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			running = true
			return body(cmd, args)
		}
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	status := 1
	var usage usageError
	// What fails before a command runs is a wrong option or argument.
	if !running || errors.As(err, &usage) {
		fmt.Fprintln(os.Stderr, cmd.UsageString())
		status = 2
	}
	fmt.Fprintf(os.Stderr, "shardfeed: %v\n", err)
	return status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "shardfeed",
		Short:         "Feed training from sharded files",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			return usagef("name a command")
		},
	}
	for _, c := range []*cobra.Command{newTrain(), newLaunch(), newConvert()} {
		c.RunE = interruptible(c.RunE)
		root.AddCommand(c)
	}
	root.AddCommand(newVerify(), newSample())
	return root
}

// interruptible ends the context of a command that has something to clean up
// at the first SIGINT, SIGTERM or SIGHUP; the second kills it. A SIGHUP that
// nohup lets it ignore stays ignored.
func interruptible(body func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), signals...)
		defer stop()
		context.AfterFunc(ctx, stop)
		cmd.SetContext(ctx)
		return body(cmd, args)
	}
}

// usageError is a mistake in how a command was called. A command that returns
// one ends with its usage and status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// version is the module's version, and of what it was built for.
func version() string {
	v := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s (%s %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
