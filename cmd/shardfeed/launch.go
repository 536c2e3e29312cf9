package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardfeed/shardfeed/trainer/launch"
)

func newLaunch() *cobra.Command {
	var o launchOptions
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "launch [OPTION…] -- PROGRAM [ARGUMENT…]",
		Short: "Start a program as several ranks on this machine, and end them together",
		Long: `Start a program N times on this machine, each a rank with the variables of
torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT, TORCHELASTIC_RESTART_COUNT and the like.

When a rank fails the others are ended, all are started again if
--max-restarts allows it, and else the status is 1. When the launcher itself is
interrupted or killed, no process of the ranks is left. SIGUSR1 and SIGUSR2 are
passed on to the ranks.

With --prefix or --log-dir the ranks write into pipes, and whole lines are
passed on.`,
		Example: `  shardfeed launch --nproc 4 -- ./mytrainer --lr 0.1
  shardfeed launch --nproc auto --max-restarts 3 --log-dir logs -- python train.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no program to launch: name it and its arguments after --")
			}
			if timeout < 0 {
				return usagef("--timeout is %v: give a duration such as 30s, or 0", timeout)
			}
			cfg := o.config()
			cfg.Args = args
			cfg.Timeout = timeout
			cfg.Prefix = cfg.Prefix || !cmd.Flags().Changed("prefix") && cfg.Nproc > 1
			return launch.Run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // options after the program are the program's
	o.flags(f)
	f.Lookup("prefix").Usage += " (default: with more than one rank)"
	f.DurationVar(&timeout, "timeout", 0, "how long the other ranks may run once one has ended well (0: for ever)")
	return cmd
}

// launchOptions are the options of a command that starts ranks.
type launchOptions struct {
	nproc       rankCount
	masterAddr  string
	masterPort  uint16
	maxRestarts uint16
	logDir      string
	prefix      bool
	grace       time.Duration
}

func (o *launchOptions) flags(f *pflag.FlagSet) {
	o.nproc = 2
	f.Var(&o.nproc, "nproc", "ranks to start on this machine; auto: one for each processor")
	f.StringVar(&o.masterAddr, "master-addr", "", "address of this machine for the ranks to find rank 0 (default: 127.0.0.1)")
	f.Uint16Var(&o.masterPort, "master-port", 0, "port to find rank 0 (0: one that is free)")
	f.Uint16Var(&o.maxRestarts, "max-restarts", 0, "how often all ranks are started again after one has failed")
	f.StringVar(&o.logDir, "log-dir", "", "directory for what each rank writes: attempt-0/rank-3/stdout.log and stderr.log (default: none)")
	f.BoolVar(&o.prefix, "prefix", false, "begin each line that a rank writes with [RANK]")
	f.DurationVar(&o.grace, "grace", 3*time.Second, "time from SIGTERM to SIGKILL for ranks that are to end")
}

// used says whether an option asks for what only a launcher does.
func (o *launchOptions) used() bool { return o.maxRestarts > 0 || o.logDir != "" || o.prefix }

// launchFlags are the flags of launchOptions, to look up their names.
func launchFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(launchOptions).flags(f)
	return f
}

// givenLaunchFlag is the first option of launchOptions that f was given; "" is
// none.
func givenLaunchFlag(f *pflag.FlagSet) (name string) {
	launchFlags().VisitAll(func(flag *pflag.Flag) {
		if name == "" && f.Changed(flag.Name) {
			name = flag.Name
		}
	})
	return name
}

// ranks is the number of ranks to start.
func (o *launchOptions) ranks() int { return int(o.nproc) }

// config is what the options say; restarts are told on standard error, and the
// signals that users send are passed on.
func (o *launchOptions) config() launch.Config {
	grace := o.grace
	if grace <= 0 {
		grace = -1 // for Config, 0 is its default
	}
	return launch.Config{
		Nproc: o.ranks(), MasterAddr: o.masterAddr, MasterPort: int(o.masterPort), MaxRestarts: int(o.maxRestarts),
		LogDir: o.logDir, Prefix: o.prefix, Grace: grace, Signals: userSignals(),
		Restarted: func(attempt int, err error) {
			fmt.Fprintf(os.Stderr, "shardfeed: %v\nshardfeed: all ranks are started again (%d of %d)\n", err, attempt, o.maxRestarts)
		},
	}
}

// rankCount is a number of ranks; as an option auto is one for each processor.
type rankCount int

func (n *rankCount) String() string { return strconv.Itoa(int(*n)) }

func (n *rankCount) Type() string { return "N|auto" }

func (n *rankCount) Set(text string) error {
	if text == "auto" {
		*n = rankCount(launch.CPUs())
		return nil
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 {
		return errors.New("give at least 1, or auto")
	}
	*n = rankCount(count)
	return nil
}
