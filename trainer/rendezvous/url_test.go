package rendezvous

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestFromURL(t *testing.T) {
	const local = " LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
	for _, c := range []struct {
		name, url, env, args string
		want                 World
	}{
		{"none: alone", "", "", "", World{Size: 1, LocalSize: 1}},
		{"env: alone", "env://", "", "", World{Size: 1, LocalSize: 1}},
		{"none: the variables", "", "RANK=1 WORLD_SIZE=2 SHARDFEED_ADDR=127.0.0.1:7", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:7"}},
		{"env with a query", "env://?rank=1&world_size=2", "MASTER_ADDR=127.0.0.1 MASTER_PORT=7", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:7"}},

		{"tcp", "tcp://127.0.0.1:29500?rank=1&world_size=2", "", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:29500"}},
		{"tcp, the other order", "TCP://localhost:1?world_size=2&rank=1", "", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "localhost:1"}},
		{"tcp with the variables", "tcp://localhost:1", "RANK=0 WORLD_SIZE=2 SHARDFEED_TOKEN=secret SHARDFEED_REPORT_FD=4", "", World{Size: 2, LocalSize: 2, Addr: "localhost:1", Token: "secret", ReportFD: 4}},
		{"one of each", "tcp://localhost:1?rank=1", "WORLD_SIZE=2", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "localhost:1"}},
		{"an empty one is none", "tcp://localhost:1?rank=&world_size=2", "RANK=1", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "localhost:1"}},
		{"both, and they agree", "tcp://localhost:1?rank=1&world_size=2", "RANK=1 WORLD_SIZE=2", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "localhost:1"}},
		{"the URL's address wins", "tcp://node1:1", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=2 SHARDFEED_ADDR=node0:3 TORCHELASTIC_USE_AGENT_STORE=True" + local, "", World{Size: 2, LocalSize: 1, Addr: "node1:1"}},
		{"IPv6", "tcp://[::1]:1?rank=0&world_size=2", "", "", World{Size: 2, LocalSize: 2, Addr: "[::1]:1"}},
		{"IPv6 with a zone", "tcp://[fe80::1%25eth0]:1?rank=0&world_size=2", local, "", World{Size: 2, LocalSize: 1, Addr: "[fe80::1%eth0]:1"}},
		{"a relic", "tcp://node0:1?rank=3&world_size=4", "LOCAL_WORLD_SIZE=2", "--local-rank=1", World{Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2, Addr: "node0:1"}},
		{"a world of one", "tcp://node0:1?rank=0&world_size=1", "", "", World{Size: 1, LocalSize: 1}},
		{"the launcher's listener is there", "tcp://localhost:7", "RANK=0 WORLD_SIZE=2 SHARDFEED_ADDR=127.0.0.1:7 SHARDFEED_LISTEN_FD=3", "", World{Size: 2, LocalSize: 2, Addr: "localhost:7", ListenFD: 3}},
		{"the launcher's listener is elsewhere", "tcp://localhost:8", "RANK=0 WORLD_SIZE=2 SHARDFEED_ADDR=127.0.0.1:7 SHARDFEED_LISTEN_FD=3", "", World{Size: 2, LocalSize: 2, Addr: "localhost:8"}},

		{"file", "file:///tmp/run?rank=1&world_size=2", "", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, File: "/tmp/run"}},
		{"file with the variables", "file:///tmp/run", "RANK=1 WORLD_SIZE=2 SHARDFEED_TOKEN=secret", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, File: "/tmp/run", Token: "secret"}},
		{"file on several machines", "file:///tmp/run", "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "", World{Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2, File: "/tmp/run"}},
		{"the file wins over addresses", "file:///tmp/run?rank=0&world_size=2", "MASTER_ADDR=node0 SHARDFEED_ADDR=node0:1 SHARDFEED_LISTEN_FD=3", "", World{Size: 2, LocalSize: 2, File: "/tmp/run"}},
		{"an odd name", "file:///tmp/a%20b%3fc%23d//e?rank=0&world_size=2", "", "", World{Size: 2, LocalSize: 2, File: "/tmp/a b?c#d/e"}},
		{"a file of one", "file:///tmp/run?rank=0&world_size=1", "", "", World{Size: 1, LocalSize: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.File = filepath.FromSlash(c.want.File)
			got, err := FromURL(c.url, vars(c.env), strings.Fields(c.args))
			if err != nil || got != c.want {
				t.Errorf("FromURL(%q) with %s = %+v, %v, want %+v", c.url, c.env, got, err, c.want)
			}
		})
	}
}

// An error begins with the URL, and names all that is wrong with it.
func TestFromURLErrors(t *testing.T) {
	for _, c := range []struct{ url, env, want string }{
		{"node0:29500", "", "it has no scheme: give env://, tcp://host:port or file:///path"},
		{"http://node0:1", "RANK=0 WORLD_SIZE=2", `the scheme is "http": give`},
		{"env://node0", "", `env:// has no place, not "node0"; RANK is not set; WORLD_SIZE is not set`},
		{"tcp://", "", `"" has no port; RANK is not set; WORLD_SIZE is not set: give`},
		{"tcp://node0?rank=0", "", `"node0" has no port; WORLD_SIZE is not set: give`},
		{"tcp://:1?rank=0&world_size=2", "", `":1" is not host:port: give`},
		{"tcp://[::1]?rank=0&world_size=2", "", "address [::1]: missing port in address: give"},
		{"tcp://::1?rank=0&world_size=2", "", "too many colons in address: give"},
		{"tcp://node0:0?rank=0&world_size=2", "", `the port is "0", not a whole number from 1 to 65535`},
		{"tcp://node0:65536?rank=0&world_size=2", "", `the port is "65536", not a whole number from 1 to 65535`},
		{"tcp://node0:http?rank=2&world_size=2", "", `the port is "http", not a whole number from 1 to 65535; RANK is 2, but WORLD_SIZE is 2`},
		{"tcp://node0:1/x?rank=0&world_size=2", "", `"node0:1/x" is not host:port`},
		{"tcp://me@node0:1?rank=0&world_size=2", "", `"me@node0:1" is not host:port`},
		{"tcp://node%zz:1?rank=x&world_size=0&size=3", "", `invalid URL escape "%zz"; its query has the key "size", not rank or world_size; RANK is "x", not a whole number; WORLD_SIZE is 0, not from 1 to 1048576: give`},
		{"tcp://localhost:1?rank=0&rank=1&world_size=2", "", "its query has rank 2 times: give"},
		{"tcp://localhost:1?rank=0&world_size=%zz", "", `its query: invalid URL escape "%zz"; WORLD_SIZE is not set: give`},
		{"tcp://localhost:1?rank=0&world_size=2", "RANK=1 WORLD_SIZE=4", "rank=0 contradicts RANK=1; world_size=2 contradicts WORLD_SIZE=4: give"},
		{"tcp://node0:1?rank=0&world_size=2", "", "LOCAL_RANK is not set; LOCAL_WORLD_SIZE is not set: give"},
		{"tcp://localhost:1?rank=0&world_size=2#x", "", "it has a #, which is %23 in a name: give"},
		{"file://", "", "it has no path; RANK is not set; WORLD_SIZE is not set: give"},
		{"file://tmp/run?rank=0&world_size=2", "", `its path is not absolute: "tmp" stands for a host: give`},
		{"file:///tmp/?rank=0&world_size=2", "", `its path "/tmp/" names no file: give`},
		{"file:///tmp/%00?rank=0&world_size=2", "", "names no file: give"},
		{"file:///tmp/%?rank=0&world_size=2", "", `invalid URL escape "%": give`},
		{"file:///tmp/a#b?rank=0", "", "it has a #, which is %23 in a name: give"},
		{"file:///tmp/run?rank=0&world_size=2", "LOCAL_RANK=1 LOCAL_WORLD_SIZE=1", "LOCAL_RANK is 1, but LOCAL_WORLD_SIZE is 1"},
		{"file:///tmp/run", "RANK=1 WORLD_SIZE=1", "RANK is 1, but WORLD_SIZE is 1"},
	} {
		t.Run(c.url, func(t *testing.T) {
			got, err := FromURL(c.url, vars(c.env), nil)
			if err == nil || !strings.HasPrefix(err.Error(), `rendezvous: URL "`+c.url+`": `) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("FromURL with %s = %v, want %q", c.env, err, c.want)
			}
			if got != (World{}) {
				t.Errorf("a world beside the error: %+v", got)
			}
		})
	}
	if _, err := FromURL("tcp://localhost:1?rank=1&world_size=2", vars("LOCAL_RANK=1"), []string{"--local-rank=0"}); err == nil || !strings.Contains(err.Error(), "--local-rank=0 contradicts") {
		t.Error(err)
	}
}

// Whatever the URL, the answer is an error that names it, or a world in which
// all fits together.
func FuzzFromURL(f *testing.F) {
	for _, url := range []string{"", "env://", "tcp://[::1]:29500?rank=1&world_size=2", "file:///tmp/a%20b?world_size=2", "file://x", "tcp://a:0#?rank=;"} {
		f.Add(url, "")
		f.Add(url, "1")
	}
	f.Fuzz(func(t *testing.T, url, rank string) {
		env := map[string]string{"RANK": rank, "LOCAL_RANK": rank}
		w, err := FromURL(url, func(name string) string { return env[name] }, nil)
		if err != nil {
			if url != "" && url != "env://" && !strings.HasPrefix(err.Error(), "rendezvous: URL ") {
				t.Errorf("%q: %v", url, err)
			}
			return
		}
		if w.Rank < 0 || w.Rank >= w.Size || w.LocalRank < 0 || w.LocalRank >= w.LocalSize || w.LocalSize > w.Size {
			t.Errorf("%q: %+v", url, w)
		}
		if meets := (w.Addr != "") != (w.File != ""); meets != (w.Size > 1) {
			t.Errorf("%q: %+v", url, w)
		}
		if w.File != "" && !filepath.IsAbs(w.File) {
			t.Errorf("%q: %+v", url, w)
		}
		if _, port, err := net.SplitHostPort(w.Addr); w.Addr != "" && (err != nil || port == "" || port == "0") {
			t.Errorf("%q: %+v, %v", url, w, err)
		}
	})
}
