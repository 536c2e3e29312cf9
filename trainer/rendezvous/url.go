package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/shardfeed/shardfeed/trainer/rendezvous/internal/wire"
)

// URL is [FromURL] of this process. It marks file descriptors as [Env] does.
func URL(url string) (World, error) {
	w, err := FromURL(url, os.Getenv, os.Args[1:])
	wire.CloseOnExec(w.ListenFD)
	wire.CloseOnExec(w.ReportFD)
	return w, err
}

// FromURL reads the place of a process from a URL, as PyTorch's
// init_process_group does, and from the variables and arguments of [FromEnv]:
//
//	env://                                     all from the variables; so does ""
//	tcp://node0:29500?rank=1&world_size=4      rank 0 listens there
//	file:///shared/run7?rank=1&world_size=4    rank 0 says in this file where it listens
//
// What the query does not say comes from RANK and WORLD_SIZE; what both say has
// to agree. The URL wins over the variables that are addresses. The others
// count as with FromEnv, but for LOCAL_RANK and LOCAL_WORLD_SIZE with file://:
// where one is missing, all ranks are on this machine. An error names the URL
// and everything that is wrong with it.
//
// The file of file:// is on a file system that all ranks see. What a run has
// left there is no obstacle: see [Join]. Bytes of its name may be
// percent-encoded.
func FromURL(url string, getenv func(string) string, args []string) (World, error) {
	if url == "" || url == "env://" {
		return FromEnv(getenv, args)
	}
	v := variables{get: getenv}
	scheme, rest, found := strings.Cut(url, "://")
	place, query, _ := strings.Cut(rest, "?")
	var w World
	switch scheme = strings.ToLower(scheme); {
	case !found:
		v.complain("it has no scheme")
	case strings.Contains(rest, "#"):
		v.complain("it has a #, which is %%23 in a name")
	case scheme == "env":
		if place != "" {
			v.complain("env:// has no place, not %q", place)
		}
		v.query(query)
		w = v.world(args, v.addr)
	case scheme == "tcp":
		addr := v.hostPort(place)
		v.query(query)
		w = v.world(args, func() string { return addr })
		if !same(addr, getenv("SHARDFEED_ADDR")) {
			w.ListenFD = 0 // it listens elsewhere
		}
	case scheme == "file":
		file := v.file(place)
		v.query(query)
		w = v.world(args, func() string { return "" })
		w.ListenFD = 0
		if w.Size != 1 {
			w.File = file
		}
	default:
		v.complain("the scheme is %q", scheme)
	}
	if len(v.wrong) > 0 {
		return World{}, fmt.Errorf("rendezvous: URL %q: %s: give env://, tcp://host:port or file:///path, with ?rank=R&world_size=W where RANK and WORLD_SIZE are not set", url, strings.Join(v.wrong, "; "))
	}
	return w, nil
}

// query lets the query of a URL stand in for variables.
func (v *variables) query(text string) {
	keys := map[string]string{"rank": "RANK", "world_size": "WORLD_SIZE"}
	query, err := url.ParseQuery(text)
	if err != nil {
		v.complain("its query: %v", err)
	}
	env, given := v.get, map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		values, name := query[key], keys[key]
		switch {
		case name == "":
			v.complain("its query has the key %q, not rank or world_size", key)
		case len(values) > 1:
			v.complain("its query has %s %d times", key, len(values))
		case values[0] != "" && env(name) != "" && values[0] != env(name):
			v.complain("%s=%s contradicts %s=%s", key, values[0], name, env(name))
		}
		given[name] = values[0]
	}
	v.get = func(name string) string { return cmp.Or(given[name], env(name)) }
}

// hostPort is the place of tcp://; "" where it is wrong.
func (v *variables) hostPort(place string) string {
	place, err := url.PathUnescape(place)
	if err != nil {
		v.complain("%v", err)
		return ""
	}
	host, port, err := net.SplitHostPort(place)
	switch n, e := strconv.Atoi(port); {
	case err != nil && !strings.Contains(strings.TrimPrefix(place, "["), ":"):
		v.complain("%q has no port", place)
	case err != nil:
		v.complain("%v", err)
	case host == "" || strings.ContainsAny(place, "/@ "):
		v.complain("%q is not host:port", place)
	case e != nil || n < 1 || n > 65535:
		v.complain("the port is %q, not a whole number from 1 to 65535", port)
	default:
		return net.JoinHostPort(host, strconv.Itoa(n))
	}
	return ""
}

// file is the place of file://; "" where it is wrong.
func (v *variables) file(place string) string {
	path, err := url.PathUnescape(place)
	switch {
	case err != nil:
		v.complain("%v", err)
	case path == "":
		v.complain("it has no path")
	case path[0] != '/':
		host, _, _ := strings.Cut(path, "/")
		v.complain("its path is not absolute: %q stands for a host", host)
	case strings.HasSuffix(path, "/") || strings.Contains(path, "\x00"):
		v.complain("its path %q names no file", path)
	default:
		if runtime.GOOS == "windows" {
			path = strings.TrimPrefix(path, "/") // of /C:/run7
		}
		return filepath.Clean(filepath.FromSlash(path))
	}
	return ""
}

// same says whether two addresses are one.
func same(a, b string) bool {
	_, portA, _ := net.SplitHostPort(a)
	_, portB, _ := net.SplitHostPort(b)
	return a == b || portA == portB && loopback(a) && loopback(b)
}
