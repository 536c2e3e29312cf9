package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// owner is the process that listens on a TCP port, such as "python3 (pid
// 4711)"; "" where this user cannot see it.
func owner(port int) string {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			// number, local address:port, remote one, state, …, the tenth is the inode
			f := strings.Fields(line)
			if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == "0A" {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && sockets[target] {
			process := filepath.Dir(filepath.Dir(file))
			name, _ := os.ReadFile(process + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), filepath.Base(process))
		}
	}
	return ""
}
