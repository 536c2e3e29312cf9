package main

import (
	"encoding/json"
	"os"

	"github.com/spf13/cobra"

	"github.com/shardfeed/shardfeed/internal/idx"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

func newConvert() *cobra.Command {
	var (
		images, labels, out string
		rows                int
		asJSON              bool
	)
	cmd := &cobra.Command{
		Use:   "convert --images FILE --labels FILE --out DIR",
		Short: "Make shards of IDX files, the format of MNIST",
		Long: `Make Arrow IPC shards, with the columns image and label, and their index.json
of a file of images and one of labels in the IDX format of MNIST, gzipped or
not.

The directory appears when it is complete: a conversion that fails or is
interrupted leaves nothing.`,
		Example: `  shardfeed convert --images train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz --out data/train
  shardfeed convert --images images --labels labels --out data/test --rows 1000 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rows < 0 {
				return usagef("--rows is %d: give the number of rows of a shard", rows)
			}
			bar := progressBar{format: "%d / %d rows"}
			err := idx.Convert(cmd.Context(), images, labels, out, idx.Config{RowsPerShard: rows, Progress: bar.set})
			bar.close()
			if err != nil || !asJSON {
				return err
			}
			return printConverted(out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&images, "images", "", "IDX file of images")
	f.StringVar(&labels, "labels", "", "IDX file of their labels")
	f.StringVar(&out, "out", "", "directory to make; it must not hold anything yet")
	f.IntVar(&rows, "rows", 0, "rows of a shard (0: so many that it has about 128 MiB)")
	f.BoolVar(&asJSON, "json", false, "print a JSON object of what was made")
	for _, name := range []string{"images", "labels", "out"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}

// printConverted says what a directory of shards holds.
func printConverted(dir string) error {
	set, err := arrowipc.Open(dir, arrowipc.Options{})
	if err != nil {
		return err
	}
	defer set.Close()
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var bytes int64
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return err
		}
		bytes += info.Size()
	}
	return json.NewEncoder(os.Stdout).Encode(struct {
		Rows   int    `json:"rows"`
		Shards int    `json:"shards"`
		Bytes  int64  `json:"bytes"`
		Dir    string `json:"dir"`
	}{set.Len(), len(set.Rows()), bytes, dir})
}
