package idx

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

func TestConvert(t *testing.T) {
	images, labels := write(t, "images.gz", zipped(file(8, count(7*6), 7, 2, 3))), write(t, "labels", file(8, count(7), 7))
	for shard, shards := range map[int]int{0: 1, 1: 7, 3: 3, 7: 1, 100: 1} {
		dir := filepath.Join(t.TempDir(), "shards")
		last := 0
		cfg := Config{RowsPerShard: shard, Progress: func(done, total int) {
			if done <= last || total != 7 {
				t.Errorf("progress %d of %d after %d", done, total, last)
			}
			last = done
		}}
		if err := Convert(t.Context(), images, labels, dir, cfg); err != nil {
			t.Fatal(err)
		}
		if last != 7 {
			t.Errorf("progress ended at %d of 7", last)
		}
		set, err := arrowipc.Open(dir, arrowipc.Options{Checksums: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(set.Rows()) != shards {
			t.Errorf("%d rows a shard: shards of %v rows, want %d", shard, set.Rows(), shards)
		}
		b, err := set.Take(t.Context(), batch.Step{Samples: []int{0, 1, 2, 3, 4, 5, 6}})
		if err != nil {
			t.Fatal(err)
		}
		x, y := b.Column("image"), b.Column("label")
		if x.Field.String() != "image uint8[2 3]" || !bytes.Equal(x.Data, count(7*6)) {
			t.Errorf("%v: %v", x.Field, x.Data)
		}
		if y.Field.String() != "label uint8" || !bytes.Equal(y.Data, count(7)) {
			t.Errorf("%v: %v", y.Field, y.Data)
		}
		b.Release()
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What goes wrong leaves nothing behind.
func TestConvertFails(t *testing.T) {
	in := map[string]string{
		"images":     write(t, "images", file(8, count(7*6), 7, 2, 3)),
		"cut images": write(t, "images", file(8, count(7*6-1), 7, 2, 3)),
		"labels":     write(t, "labels", file(8, count(7), 7)),
		"cut labels": write(t, "labels", file(8, count(6), 7)),
		"6 labels":   write(t, "labels", file(8, count(6), 6)),
	}
	for _, c := range []struct{ images, labels, want string }{
		{"missing", "labels", "no such file"},
		{"images", "missing", "no such file"},
		{"cut images", "labels", "row 6 of 7: the file ends early"},
		{"images", "cut labels", "row 6 of 7: the file ends early"},
		{"images", "6 labels", "holds 7 images, " + in["6 labels"] + " holds 6 labels"},
		{"labels", "labels", "is this the file of the labels?"},
		{"images", "images", "is this the file of the images?"},
	} {
		parent := t.TempDir()
		err := Convert(t.Context(), in[c.images], in[c.labels], filepath.Join(parent, "out"), Config{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s and %s: the error is %v, want %q", c.images, c.labels, err, c.want)
		}
		empty(t, parent)
	}
}

func TestConvertCancelled(t *testing.T) {
	const rows = 40
	images, labels := write(t, "images", file(8, make([]byte, rows<<16), rows, 256, 256)), write(t, "labels", file(8, count(rows), rows))
	parent := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped by the test")
	err := Convert(ctx, images, labels, filepath.Join(parent, "out"), Config{Progress: func(done, total int) {
		if done == total {
			t.Error("all rows were written although the context was cancelled")
		}
		cancel(stop)
	}})
	if !errors.Is(err, stop) {
		t.Errorf("the error is %v, want %v", err, stop)
	}
	empty(t, parent)
}

func TestConvertKeepsWhatIsThere(t *testing.T) {
	images, labels := write(t, "images", file(8, count(7*6), 7, 2, 3)), write(t, "labels", file(8, count(7), 7))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	err := Convert(t.Context(), images, labels, dir, Config{})
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the error is %v, want %v with the directory", err, fs.ErrExist)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("the directory holds %v now", left)
	}
}

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("%s is left in %s", e.Name(), dir)
	}
}
