package rendezvous

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// vars is the environment "A=1 B=2".
func vars(text string) func(string) string {
	values := map[string]string{}
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

func TestFromEnv(t *testing.T) {
	const addr = " MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
	for _, c := range []struct {
		name, env, args string
		want            World
	}{
		{"no variable: alone", "HOME=/root OMP_NUM_THREADS=1", "", World{Size: 1, LocalSize: 1}},
		{"empty counts as not set", "RANK= WORLD_SIZE=", "", World{Size: 1, LocalSize: 1}},
		{"torchrun", "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500", "",
			World{Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2, Addr: "node0:29500"}},
		{"a world of one needs no address", "RANK=0 WORLD_SIZE=1", "", World{Size: 1, LocalSize: 1}},
		{"one machine: local as global", "RANK=2 WORLD_SIZE=3" + addr, "", World{Rank: 2, Size: 3, LocalRank: 2, LocalSize: 3, Addr: "127.0.0.1:29500"}},
		{"localhost", "RANK=2 WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=1", "", World{Rank: 2, Size: 3, LocalRank: 2, LocalSize: 3, Addr: "localhost:1"}},
		{"IPv6", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=65535", "", World{Size: 2, LocalSize: 2, Addr: "[::1]:65535"}},
		{"all local ranks 0, as torchrun's virtual local rank", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2" + addr, "",
			World{Rank: 1, Size: 2, LocalSize: 2, Addr: "127.0.0.1:29500"}},
		{"our address wins", "RANK=1 WORLD_SIZE=2 SHARDFEED_ADDR=localhost:7 SHARDFEED_TOKEN=secret TORCHELASTIC_USE_AGENT_STORE=True" + addr, "",
			World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "localhost:7", Token: "secret"}},
		{"our address is enough", "RANK=1 WORLD_SIZE=2 SHARDFEED_ADDR=127.0.0.1:7", "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:7"}},
		{"the agent's store is off", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=False" + addr, "", World{Size: 2, LocalSize: 2, Addr: "127.0.0.1:29500"}},
		{"a listener for rank 0", "RANK=0 WORLD_SIZE=2 SHARDFEED_LISTEN_FD=3" + addr, "", World{Size: 2, LocalSize: 2, Addr: "127.0.0.1:29500", ListenFD: 3}},
		{"not for rank 1", "RANK=1 WORLD_SIZE=2 SHARDFEED_LISTEN_FD=3 SHARDFEED_REPORT_FD=4" + addr, "", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:29500", ReportFD: 4}},
		{"a relic that agrees", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1" + addr, "train --local-rank=1", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:29500"}},
		{"with an underscore, as two arguments", "RANK=1 WORLD_SIZE=2" + addr, "--local_rank 1 x", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:29500"}},
		{"a relic in place of LOCAL_RANK", "RANK=3 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=1", "--local-rank=1",
			World{Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2, Addr: "node0:1"}},
		{"a relic alone", "", "--local-rank=0", World{Size: 1, LocalSize: 1}},
		{"the arguments of another program", "RANK=1 WORLD_SIZE=2" + addr, "-- prog --local-rank=7", World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Addr: "127.0.0.1:29500"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromEnv(vars(c.env), strings.Fields(c.args))
			if err != nil || got != c.want {
				t.Errorf("FromEnv(%s) = %+v, %v, want %+v", c.env, got, err, c.want)
			}
		})
	}
}

func TestFromEnvErrors(t *testing.T) {
	const addr = " MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
	for _, c := range []struct{ name, env, args, want string }{
		{"all missing but one", "RANK=0", "", "WORLD_SIZE is not set; MASTER_PORT is not set; MASTER_ADDR is not set"},
		{"no rank", "WORLD_SIZE=2 MASTER_ADDR=node0", "", "RANK is not set; MASTER_PORT is not set"},
		{"a world of one has a rank", "WORLD_SIZE=1", "", "RANK is not set"},
		{"an address alone", "MASTER_ADDR=node0 MASTER_PORT=1", "", "RANK is not set; WORLD_SIZE is not set; LOCAL_RANK is not set; LOCAL_WORLD_SIZE is not set"},
		{"missing and malformed together", "RANK=one WORLD_SIZE=0 MASTER_PORT=70000", "",
			`RANK is "one", not a whole number; WORLD_SIZE is 0, not from 1 to 1048576; MASTER_PORT is 70000, not from 1 to 65535; MASTER_ADDR is not set`},
		{"rank of another world", "RANK=2 WORLD_SIZE=2" + addr, "", "RANK is 2, but WORLD_SIZE is 2: ranks count from 0"},
		{"negative", "RANK=-1 WORLD_SIZE=2" + addr, "", "RANK is -1, not from 0"},
		{"local rank", "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2" + addr, "", "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"},
		{"local world", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4" + addr, "", "LOCAL_WORLD_SIZE is 4, above WORLD_SIZE, which is 2"},
		{"many machines", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=1", "", "LOCAL_RANK is not set; LOCAL_WORLD_SIZE is not set"},
		{"port 0", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=0", "", "MASTER_PORT is 0, not from 1 to 65535"},
		{"the agent's store", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True" + addr, "", "set SHARDFEED_ADDR to host:port"},
		{"our address", "RANK=0 WORLD_SIZE=2 SHARDFEED_ADDR=node0", "", `SHARDFEED_ADDR is "node0", not host:port`},
		{"our address without a host", "RANK=0 WORLD_SIZE=2 SHARDFEED_ADDR=:7", "", `SHARDFEED_ADDR is ":7", not host:port`},
		{"our listener", "RANK=0 WORLD_SIZE=2 SHARDFEED_LISTEN_FD=1" + addr, "", "SHARDFEED_LISTEN_FD is 1, not from 3"},
		{"a relic that contradicts", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1" + addr, "--local-rank=0", `--local-rank=0 contradicts LOCAL_RANK="1"`},
		{"a relic alone", "", "--local_rank 1", `--local-rank=1 contradicts LOCAL_RANK=""`},
		{"no relic's value", "", "--local-rank", `--local-rank is "", not a whole number`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromEnv(vars(c.env), strings.Fields(c.args))
			if err == nil || !strings.HasPrefix(err.Error(), "rendezvous: "+c.want) && !strings.Contains(err.Error(), c.want) {
				t.Errorf("FromEnv(%s) = %+v, %v, want an error with %q", c.env, got, err, c.want)
			}
			if got != (World{}) {
				t.Errorf("a world beside the error: %+v", got)
			}
		})
	}
}

// Whatever the environment, the answer is an error or a world in which all
// numbers fit together.
func FuzzFromEnv(f *testing.F) {
	f.Add("0", "1", "", "", "", "", "", "")
	f.Add("3", "4", "1", "2", "node0", "29500", "", "--local-rank=1")
	f.Add("1", "2", "", "", "::1", "1", "localhost:1", "--local_rank")
	f.Fuzz(func(t *testing.T, rank, world, localRank, localWorld, host, port, ours, arg string) {
		env := map[string]string{
			"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": localRank, "LOCAL_WORLD_SIZE": localWorld,
			"MASTER_ADDR": host, "MASTER_PORT": port, "SHARDFEED_ADDR": ours,
		}
		w, err := FromEnv(func(name string) string { return env[name] }, []string{arg})
		if err != nil {
			return
		}
		if w.Rank < 0 || w.Rank >= w.Size || w.LocalRank < 0 || w.LocalRank >= w.LocalSize || w.LocalSize > w.Size {
			t.Errorf("%+v", w)
		}
		if n, err := strconv.Atoi(rank); rank != "" && (err != nil || n != w.Rank) {
			t.Errorf("RANK is %q: %+v", rank, w)
		}
		if (w.Addr == "") != (w.Size == 1) {
			t.Errorf("%+v", w)
		}
		if w.Addr != "" {
			if _, port, err := net.SplitHostPort(w.Addr); err != nil || slices.Contains([]string{"", "0"}, port) {
				t.Errorf("%+v: %v", w, err)
			}
		}
	})
}
