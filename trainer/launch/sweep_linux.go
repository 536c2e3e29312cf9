package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const sweepTime = 5 * time.Second // bounds a sweep: what the kernel holds does not die

// sweep kills this user's processes with a mark, NAME=VALUE, among the
// variables with which they were started, and returns when none is left.
func sweep(mark string) {
	// A second look finds the child of a process that had ended before the first.
	for clean, deadline := false, time.Now().Add(sweepTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		before := clean
		if clean = !killMarked(mark); clean && before {
			return
		}
	}
}

// killMarked says whether there may be more to kill.
func killMarked(mark string) (again bool) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		found, unsure := marked(dir, mark)
		again = again || found || unsure
		if !found {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		p, err := os.FindProcess(pid) // holds a pidfd: from here on, it is this process or none
		if err != nil {
			continue
		}
		if found, _ := marked(dir, mark); found {
			p.Kill()
		}
		p.Release()
	}
	return again
}

// marked says whether the process of a folder of /proc carries the mark; one
// that has ended does not, reaped or not. It is unsure in the midst of execve,
// when the new variables do not show yet.
func marked(dir, mark string) (found, unsure bool) {
	if mark == "" { // the keeper of a launcher that died before its first attempt: nobody's, not everybody's
		return false, false
	}
	environ, err := os.ReadFile(dir + "/environ")
	if err != nil || len(environ) > 0 {
		all := append([]byte{0}, environ...)
		return bytes.Contains(all, []byte("\x00"+mark+"\x00")) && ours(dir), false
	}
	// proc_pid_stat(5), from the third field on. The 23rd, vsize, is 0 where
	// there is no memory: in a thread of the kernel, or after the end. The 26th,
	// startcode, is 1 where we may not see the 51st, env_end.
	stat, _ := os.ReadFile(dir + "/stat")
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return false, len(fields) > 48 && fields[20] != "0" && fields[23] != "1" && fields[48] == "0"
}

// ours says whether the process of a folder of /proc is this user's.
func ours(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid()
}
