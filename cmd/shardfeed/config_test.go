package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// options is a flag set of every kind of option that a command has.
func options(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Int("global-batch", 128, "")
	f.Uint64("seed", 0, "")
	f.Float64("lr", 0.1, "")
	f.String("order", "keyed", "")
	f.Bool("json", false, "")
	f.String("config", "", "")
	f.Bool("help", false, "")
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func values(f *pflag.FlagSet) string {
	var all []string
	f.VisitAll(func(f *pflag.Flag) {
		if f.Value.String() != f.DefValue {
			all = append(all, f.Name+"="+f.Value.String())
		}
	})
	return strings.Join(all, " ")
}

func tomlFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOverlay(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		file string
		want string // the options that differ from their defaults
	}{
		{name: "defaults"},
		{
			name: "each from its place",
			args: []string{"--global-batch", "256"},
			env:  map[string]string{"SHARDFEED_GLOBAL_BATCH": "512", "SHARDFEED_LR": "0.2"},
			file: "global-batch = 1024\nlr = 0.4\nseed = 7\n",
			want: "global-batch=256 lr=0.2 seed=7",
		},
		{
			name: "an option that repeats its default wins, too",
			args: []string{"--lr=0.1", "--json=false"},
			env:  map[string]string{"SHARDFEED_LR": "0.2", "SHARDFEED_JSON": "true"},
		},
		{
			name: "what an option hides is not even read",
			args: []string{"--seed", "1"},
			env:  map[string]string{"SHARDFEED_SEED": "no number"},
			file: "seed = true\n",
			want: "seed=1",
		},
		{
			name: "an empty variable is none",
			env:  map[string]string{"SHARDFEED_SEED": "", "SHARDFEED_CONFIG": ""},
		},
		{
			name: "variables for other things, and what only a command line can say",
			env: map[string]string{
				"SHARDFEED_BLAS": "openblas", "SHARDFEED_ADDR": "127.0.0.1:1", "SHARDFEED_TOKEN": "x",
				"SHARDFEED_LISTEN_FD": "3", "SHARDFEED_KEEPER": "1", "SHARDFEED_HELP": "true", "HOME": "/",
			},
		},
		{
			name: "types in a file",
			file: "# a run\nglobal-batch = 1_024 # twice\nlr = 5e-1\norder = 'torch'\njson = true\nseed = \"18446744073709551615\"\n",
			want: "global-batch=1024 json=true lr=0.5 order=torch seed=18446744073709551615",
		},
		{name: "an empty file", file: "\n"},
	} {
		f, file := options(t, c.args...), ""
		if c.file != "" {
			file = tomlFile(t, c.file)
		}
		if err := overlay(f, func(k string) string { return c.env[k] }, file); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := values(f); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestOverlayFileFromVariable(t *testing.T) {
	env := map[string]string{"SHARDFEED_CONFIG": tomlFile(t, "seed = 3\n")}
	f := options(t)
	if err := overlay(f, func(k string) string { return env[k] }, ""); err != nil || values(f) != "seed=3" {
		t.Errorf("%s, error %v", values(f), err)
	}
	f = options(t)
	if err := overlay(f, func(k string) string { return env[k] }, tomlFile(t, "seed = 4\n")); err != nil || values(f) != "seed=4" {
		t.Errorf("--config beside the variable: %s, error %v", values(f), err)
	}
}

func TestOverlayErrors(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		file string
		want []string
	}{
		{env: map[string]string{"SHARDFEED_SEED": "-1"}, want: []string{`SHARDFEED_SEED: invalid argument "-1" for "--seed"`}},
		{env: map[string]string{"SHARDFEED_JSON": "yes please", "SHARDFEED_LR": "x"}, want: []string{"SHARDFEED_JSON:", "SHARDFEED_LR:"}},
		{file: "lr = 1\n\nglobl-batch = 2\nsed = 3\n", want: []string{"run.toml:3: there is no option globl-batch", "run.toml:4: there is no option sed"}},
		{file: "[train]\nlr = 1\n", want: []string{"run.toml:1: there is no option train"}},
		{file: "a.lr = 1\n", want: []string{"run.toml:1: there is no option a.lr"}},
		{file: "config = 'other.toml'\n", want: []string{"run.toml:1: there is no option config"}},
		{file: "help = true\n", want: []string{"run.toml:1: there is no option help"}},
		{file: "\nlr = [1, 2]\n", want: []string{"run.toml:2: option lr: expected one string, number or boolean"}},
		{file: "[lr]\nx = 1\n", want: []string{"run.toml:1: option lr: expected one"}},
		{file: "lr = 1979-05-27\n", want: []string{"run.toml:1: option lr: expected one"}},
		{file: "seed = -1\n", want: []string{"run.toml:1: ", `"--seed"`}},
		{file: "global-batch = 2.5\n", want: []string{"run.toml:1: ", `"--global-batch"`}},
		{file: "seed = 1\nlr = 1\nseed = 2\n", want: []string{"run.toml:3: ", "seed"}},
		{file: "seed = 18446744073709551615\n", want: []string{"run.toml:1: ", "64-bit"}},
		{file: "lr 1\n", want: []string{"run.toml:1: "}},
		{file: "lr = \xff\n", want: []string{"run.toml:1: "}},
	} {
		file := ""
		if c.file != "" {
			file = tomlFile(t, c.file)
		}
		err := overlay(options(t), func(k string) string { return c.env[k] }, file)
		if err == nil {
			t.Errorf("%v %q: no error", c.env, c.file)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v %q: the error is %v, want %q", c.env, c.file, err, want)
			}
		}
		if usage := (usageError{}); !errors.As(err, &usage) {
			t.Errorf("%v %q: %v is no usage error", c.env, c.file, err)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing.toml")
	if err := overlay(options(t), func(string) string { return "" }, missing); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("a missing file: %v", err)
	}
}
