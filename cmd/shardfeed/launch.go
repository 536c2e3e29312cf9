package main

import (
	"github.com/spf13/cobra"

	"github.com/shardfeed/shardfeed/trainer/launch"
)

func newLaunch() *cobra.Command {
	var nproc int
	cmd := &cobra.Command{
		Use:   "launch [--nproc N] -- PROGRAM [ARGUMENT…]",
		Short: "Start a program as several ranks on this machine, and end them together",
		Long: `Start a program N times on this machine, each a rank with the variables of
torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT.

When a rank fails the others are ended, and the status is 1. When the launcher
itself is interrupted or killed, no rank is left.`,
		Example: `  shardfeed launch --nproc 4 -- ./mytrainer --lr 0.1
  shardfeed launch -- python train.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef("no program to launch: name it and its arguments after --")
			case nproc < 1:
				return usagef("--nproc is %d: give at least 1", nproc)
			}
			return launch.Run(cmd.Context(), launch.Config{Nproc: nproc, Args: args})
		},
	}
	cmd.Flags().SetInterspersed(false) // options after the program are the program's
	cmd.Flags().IntVar(&nproc, "nproc", 2, "number of ranks")
	return cmd
}
