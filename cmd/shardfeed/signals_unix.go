//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// userSignals are those that have no meaning of their own, as they come.
func userSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	return signals
}
