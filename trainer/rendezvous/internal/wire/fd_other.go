//go:build !linux

package wire

// CloseOnExec does nothing: the descriptor is inheritable until Join.
func CloseOnExec(int) {}

// Report does nothing: the launcher goes by time alone.
func Report(int, string) {}
