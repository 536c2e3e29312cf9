package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// escape leaves a daemon behind: a process without a parent, in a session and
// a process group that are not the rank's.
func escape() {
	sh := exec.Command("sh", "-c", "sleep 1000 & echo child $RANK $!")
	sh.Stdout = os.Stdout
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := sh.Run(); err != nil {
		panic(err)
	}
}

// A process that has left its rank's group ends with the run, however that ends.
func TestEscaped(t *testing.T) {
	for _, c := range []struct {
		role, want string
		cancel     bool
	}{
		{"escape", "<nil>", false},
		{"escape that fails", "exit status 3", false},
		{"escape that holds", "enough", true},
	} {
		s := start(t, config(c.role, 2))
		s.pid("child")
		s.pid("child")
		if c.cancel {
			s.cancel(errors.New("enough"))
		}
		s.end()
		if err := <-s.result; !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %s", c.role, err, c.want)
		}
	}
}

// So it does after the launcher has been killed; and so do, of a launcher
// that is a rank of another one, the ranks and what has left their groups.
func TestEscapedLauncherKilled(t *testing.T) {
	for _, c := range []struct {
		role  string
		args  []string
		ranks int
	}{
		{"escape that holds", nil, 2},
		{"launcher", []string{"escape that holds"}, 4},
	} {
		out, cmd := launcher(t, c.role, c.args...)
		var keepers []int
		for range c.ranks {
			_, pid := out.pid("rank")
			keepers = append(keepers, children(t, parentOf(t, pid), "shardfeed-keeper")...)
		}
		if len(keepers) != c.ranks { // of each rank's launcher
			t.Errorf("keepers: %v", keepers)
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		out.pids = append(out.pids, keepers...)
		out.end()
	}
}

func parentOf(t *testing.T, pid int) (parent int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fmt.Sscanf(rest, "%s %d", new(string), &parent)
	return parent
}

// A launcher that is told to end tells its ranks, which may be launchers.
func TestNestedInterrupted(t *testing.T) {
	out, cmd := launcher(t, "launcher", "escape that holds")
	out.ranks(4)
	cmd.Process.Signal(os.Interrupt)
	for range 3 {
		if _, words := out.next("returned"); !strings.HasPrefix(words, "launch: the ranks were told to end: interrupt signal received") {
			t.Error(words)
		}
	}
	out.end()
}

// Without a mark nobody is marked: a launcher that dies before its first
// attempt has told its keeper none.
func TestUnmarked(t *testing.T) {
	for _, dir := range []string{"/proc/self", "/proc/" + strconv.Itoa(os.Getppid())} {
		if found, unsure := marked(dir, ""); found || unsure {
			t.Fatalf("%s is marked", dir)
		}
	}
}

// A sweep kills who carries the mark, and nobody else.
func TestSweep(t *testing.T) {
	const mark = tokenVariable + "=ABC"
	for _, c := range []struct {
		env    []string
		killed bool
	}{
		{[]string{mark}, true},
		{[]string{"A=1", mark, "B=2"}, true},
		{[]string{"A=1"}, false},
		{[]string{mark + "D"}, false},
		{[]string{tokenVariable + "=AB"}, false},
		{[]string{"OLD_" + mark}, false},
		{[]string{"A=" + mark}, false},
		{[]string{"A=1\n" + mark}, false},
	} {
		for _, stopped := range []bool{false, true} {
			cmd := exec.Command("/proc/self/exe", mark)
			cmd.Env = append(c.env, "ROLE=hold")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if stopped {
				cmd.Process.Signal(syscall.SIGSTOP)
			}
			sweep(mark)
			if !c.killed {
				var info syscall.WaitStatus
				if pid, err := syscall.Wait4(cmd.Process.Pid, &info, syscall.WNOHANG, nil); pid != 0 {
					t.Errorf("%q: it has ended: %v, %v", c.env, info, err)
				}
				cmd.Process.Kill()
			}
			// Where it was not killed this waits for its end in vain.
			if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
				t.Errorf("%q: %v", c.env, err)
			}
		}
	}
}
