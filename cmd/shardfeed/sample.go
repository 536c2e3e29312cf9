package main

import (
	"bufio"
	"errors"
	"iter"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shardfeed/shardfeed/sampler"
)

// mostTorch is a permutation of 64 GiB. Go cannot recover from asking for more
// memory than there is.
const mostTorch int64 = 1 << 33

func newSample() *cobra.Command {
	var (
		d           sampler.Distributed
		n, epoch    int
		skip, limit int
		order, tail string
	)
	cmd := &cobra.Command{
		Use:   "sample --n N",
		Short: "Print which samples a rank visits in an epoch",
		Long: `Print the numbers of the samples that one rank visits in one epoch, one a
line, in their order. The padding that evens out the ranks is printed, too.

The order is computed, not stored: --skip takes no time, whatever --n is, with
the keyed and the sequential order.`,
		Example: `  shardfeed sample --n 10
  shardfeed sample --n 60000 --world 4 --rank 1 --epoch 3 --limit 5
  shardfeed sample --n 1000000000 --world 8 --rank 3 --skip 100000000 --limit 5
  shardfeed sample --n 10000 --world 3 --rank 2 --order torch --tail uneven`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			switch {
			case n < 0:
				return usagef("--n is %d: give the number of samples", n)
			case d.World < 1:
				return usagef("--world is %d: give the number of ranks", d.World)
			case epoch < 0, skip < 0:
				return usagef("--epoch is %d and --skip is %d: both count from 0", epoch, skip)
			case order == "torch" && int64(n) > mostTorch:
				return usagef("--order torch keeps the permutation of an epoch in memory, %d GiB for --n %d: take --order keyed, which computes it", n>>27, n)
			case limit < -1:
				return usagef("--limit is %d: give a number of samples, or -1 for all", limit)
			}
			if d.Order, err = sampler.ByName(order, n); err != nil {
				return usageError{err}
			}
			if d.Tail, err = sampler.ParseTail(tail); err != nil {
				return usageError{err}
			}
			if err := d.Validate(); err != nil {
				return usageError{err}
			}
			return printSamples(d.Epoch(epoch, skip), limit)
		},
	}
	f := cmd.Flags()
	f.IntVar(&n, "n", 0, "number of samples of the data")
	f.IntVar(&d.World, "world", 1, "number of ranks")
	f.IntVar(&d.Rank, "rank", 0, "the rank, from 0")
	f.Uint64Var(&d.Seed, "seed", 0, "seed of the order")
	f.IntVar(&epoch, "epoch", 0, "the epoch, from 0")
	f.StringVar(&order, "order", "keyed", "order: keyed, torch or sequential")
	f.StringVar(&tail, "tail", "pad", "where the samples do not go round: pad (repeat samples), drop (leave some out) or uneven (some ranks visit one more)")
	f.IntVar(&d.Global, "global", 0, "global batch: dealing begins again at rank 0 for each (0: once an epoch)")
	f.IntVar(&skip, "skip", 0, "leave out so many of the rank's samples at the beginning")
	f.IntVar(&limit, "limit", -1, "print at most so many samples (-1: all)")
	cmd.MarkFlagRequired("n")
	return cmd
}

// printSamples prints at most limit samples. A reader that has read enough and
// goes away, such as head, is no error.
func printSamples(samples iter.Seq[int], limit int) error {
	if limit == 0 {
		return nil
	}
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is then an error of Write
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	var line []byte
	for s := range samples {
		line = append(strconv.AppendInt(line[:0], int64(s), 10), '\n')
		if _, err := out.Write(line); err != nil {
			break // Flush returns it again
		}
		if limit--; limit == 0 {
			break
		}
	}
	if err := out.Flush(); !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}
