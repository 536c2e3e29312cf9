//go:build !linux

package main

import "syscall"

// tied has nothing to offer here: the process ends when it cannot print.
func tied() *syscall.SysProcAttr { return nil }
