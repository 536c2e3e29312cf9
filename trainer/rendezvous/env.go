package rendezvous

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// The variables of torchrun that say that a process is a rank.
var launched = []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

// Env is [FromEnv] of this process. The file descriptors that it names are
// marked close-on-exec, so that programs started later do not inherit them.
func Env() (World, error) {
	w, err := FromEnv(os.Getenv, os.Args[1:])
	wire.CloseOnExec(w.ListenFD)
	wire.CloseOnExec(w.ReportFD)
	return w, err
}

// FromEnv reads the place of a process from the variables that torchrun sets
// (https://docs.pytorch.org/docs/stable/elastic/run.html). Where none of them
// is set the process is alone. An empty variable counts as not set. An error
// names every variable that is missing or wrong.
//
//	RANK, WORLD_SIZE              always needed
//	MASTER_ADDR, MASTER_PORT      rank 0's address; not needed where WORLD_SIZE is 1
//	LOCAL_RANK, LOCAL_WORLD_SIZE  where one is missing: RANK and WORLD_SIZE, if the
//	                              address is loopback or WORLD_SIZE is 1; else needed
//	SHARDFEED_ADDR                host:port, wins over MASTER_ADDR and MASTER_PORT
//	SHARDFEED_TOKEN               World.Token
//	SHARDFEED_LISTEN_FD           World.ListenFD, on rank 0
//	SHARDFEED_REPORT_FD           World.ReportFD
//
// Where TORCHELASTIC_USE_AGENT_STORE is True, torchrun's agent itself listens
// on MASTER_PORT; SHARDFEED_ADDR is needed then.
//
// args are the program's arguments. Old launchers add --local-rank=N,
// --local_rank=N, or either with N as the next argument: it stands in for a
// LOCAL_RANK that is missing, and has to agree with one that is set.
func FromEnv(getenv func(string) string, args []string) (World, error) {
	v := variables{get: getenv}
	w := World{Size: 1, LocalSize: 1}
	if slices.ContainsFunc(launched, func(name string) bool { return getenv(name) != "" }) {
		w = v.world(args, v.addr)
	} else {
		v.agree(v.relic(args), 0)
	}
	if len(v.wrong) > 0 {
		return World{}, fmt.Errorf("rendezvous: %s: start the ranks with shardfeed launch or torchrun, which set all of %s, or unset these to run alone", strings.Join(v.wrong, "; "), strings.Join(launched, ", "))
	}
	return w, nil
}

// variables reads variables and collects what is wrong with them.
type variables struct {
	get   func(string) string
	wrong []string
}

func (v *variables) complain(format string, args ...any) {
	v.wrong = append(v.wrong, fmt.Sprintf(format, args...))
}

// world reads all of a World; addr is its address, where it needs one.
func (v *variables) world(args []string, addr func() string) World {
	relic := v.relic(args)
	w := World{Token: v.get("SHARDFEED_TOKEN")}
	w.Rank = v.number("RANK", needed, 0, maxRanks-1)
	w.Size = v.number("WORLD_SIZE", needed, 1, maxRanks)
	if w.Size != 1 {
		w.Addr = addr()
	}
	rank, size := needed, needed
	if w.Addr == "" || loopback(w.Addr) {
		rank, size = w.Rank, w.Size
	}
	if relic >= 0 {
		rank = relic
	}
	w.LocalRank = v.number("LOCAL_RANK", rank, 0, maxRanks-1)
	w.LocalSize = v.number("LOCAL_WORLD_SIZE", size, 1, maxRanks)
	if w.Size > 0 && w.Rank >= w.Size {
		v.complain("RANK is %d, but WORLD_SIZE is %d: ranks count from 0", w.Rank, w.Size)
	}
	if w.LocalSize > 0 && w.LocalRank >= w.LocalSize && (w.LocalRank != w.Rank || w.LocalSize != w.Size) {
		v.complain("LOCAL_RANK is %d, but LOCAL_WORLD_SIZE is %d: ranks count from 0", w.LocalRank, w.LocalSize)
	}
	if w.Size > 0 && w.LocalSize > w.Size {
		v.complain("LOCAL_WORLD_SIZE is %d, above WORLD_SIZE, which is %d", w.LocalSize, w.Size)
	}
	if w.Rank == 0 && w.Size > 1 {
		w.ListenFD = v.number("SHARDFEED_LISTEN_FD", 0, 3, 1<<20)
	}
	w.ReportFD = v.number("SHARDFEED_REPORT_FD", 0, 3, 1<<20)
	v.agree(relic, w.LocalRank)
	return w
}

const (
	unknown  = -1      // in place of a number that is missing or wrong
	needed   = -2      // as a stand-in: there is none
	maxRanks = 1 << 20 // bounds what a mistyped WORLD_SIZE can cost
)

// number is the value of a variable, from low to high. Where it is not set,
// it is the one that stands in for it.
func (v *variables) number(name string, standIn, low, high int) int {
	text := v.get(name)
	if text == "" && standIn != needed {
		return standIn
	}
	n, err := strconv.Atoi(text)
	switch {
	case text == "":
		v.complain("%s is not set", name)
	case err != nil:
		v.complain("%s is %q, not a whole number", name, text)
	case n < low || n > high:
		v.complain("%s is %d, not from %d to %d", name, n, low, high)
	default:
		return n
	}
	return unknown
}

// addr is the address of rank 0's store; "" where it is missing or wrong.
func (v *variables) addr() string {
	if addr := v.get("SHARDFEED_ADDR"); addr != "" {
		host, port, err := net.SplitHostPort(addr)
		if n, e := strconv.Atoi(port); err != nil || e != nil || host == "" || n < 1 || n > 65535 {
			v.complain("SHARDFEED_ADDR is %q, not host:port", addr)
			return ""
		}
		return addr
	}
	if v.get("TORCHELASTIC_USE_AGENT_STORE") == "True" {
		v.complain("torchrun's agent itself listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE is True): " +
			"set SHARDFEED_ADDR to host:port on every rank, with the name of rank 0's machine and a port that is free there")
		return ""
	}
	host, port := v.get("MASTER_ADDR"), v.number("MASTER_PORT", needed, 1, 65535)
	if host == "" {
		v.complain("MASTER_ADDR is not set")
	} else if port > 0 {
		return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
	}
	return ""
}

// relic is the value of an argument --local-rank; unknown where there is none.
func (v *variables) relic(args []string) int {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, text, ok := strings.Cut(arg, "=")
		if name != "--local-rank" && name != "--local_rank" {
			continue
		}
		if !ok && i+1 < len(args) {
			text = args[i+1]
		}
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			return n
		}
		v.complain("the argument %s is %q, not a whole number from 0", name, text)
		break
	}
	return unknown
}

// agree complains where an argument --local-rank is not the local rank.
func (v *variables) agree(relic, localRank int) {
	if relic >= 0 && localRank >= 0 && relic != localRank {
		v.complain("the argument --local-rank=%d contradicts LOCAL_RANK=%q", relic, v.get("LOCAL_RANK"))
	}
}

// loopback says whether only this machine itself can reach an address.
func loopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
