//go:build !unix

package main

import "os"

func userSignals() <-chan os.Signal { return nil }
