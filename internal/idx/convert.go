package idx

import (
	"context"
	"fmt"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/loader/arrowipc"
)

// Config says how Convert makes shards.
type Config struct {
	RowsPerShard int                   // the last shard may have fewer; 0 means arrowipc's default
	Progress     func(done, total int) // called now and then with rows; nil means nobody is told
}

// Convert turns an IDX file of images and one of their labels into a
// directory of Arrow IPC shards with the columns image, uint8 of the shape of
// a row, and label, uint8. The directory appears when it is complete, or not at
// all. It is an error when it exists and holds something, then one that
// errors.Is(err, fs.ErrExist) knows.
func Convert(ctx context.Context, images, labels, dir string, cfg Config) error {
	x, err := Open(images)
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := Open(labels)
	if err != nil {
		return err
	}
	defer y.Close()
	switch {
	case len(x.Shape()) == 0:
		return x.wrong("one dimension: images have two at least; is this the file of the labels?")
	case len(y.Shape()) > 0:
		return y.wrong("rows of shape %v: a label is one value; is this the file of the images?", y.Shape())
	case x.Rows() != y.Rows():
		return fmt.Errorf("idx: %s holds %d images, %s holds %d labels: the files do not belong together", images, x.Rows(), labels, y.Rows())
	}
	w, err := arrowipc.Create(dir, arrowipc.WriterConfig{
		Fields: []batch.Field{
			{Name: "image", Type: batch.Uint8, Shape: x.Shape()},
			{Name: "label", Type: batch.Uint8},
		},
		RowsPerShard: cfg.RowsPerShard,
	})
	if err != nil {
		return err
	}
	defer w.Abort() // harmless after Close
	if err := copyRows(ctx, w, x, y, cfg.Progress); err != nil {
		return err
	}
	return w.Close()
}

// copyRows writes the rows of both files, about a MiB at a time.
func copyRows(ctx context.Context, w *arrowipc.Writer, x, y *Reader, progress func(done, total int)) error {
	chunk := max(1, 1<<20/x.RowBytes())
	images, labels := make([]byte, chunk*x.RowBytes()), make([]byte, chunk)
	for done := 0; done < x.Rows(); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := x.Read(images)
		if err != nil {
			return err
		}
		if _, err := y.Read(labels[:n]); err != nil {
			return err
		}
		if err := w.Write(n, images[:n*x.RowBytes()], labels[:n]); err != nil {
			return err
		}
		done += n
		if progress != nil {
			progress(done, x.Rows())
		}
	}
	return nil
}
