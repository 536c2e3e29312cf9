//go:build !linux

package rendezvous

func closeOnExec(int) {} // the listener is inheritable until Join

func report(int, string) {} // the launcher goes by time alone
