package trainer

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"strings"
)

// Totals adds up what the ranks counted, in the order of the ranks, and gives
// every rank the same sums: exact totals of an evaluation, for instance.
func Totals[V any](ctx context.Context, g Group[V], mine ...float64) ([]float64, error) {
	msg := make([]byte, 0, 8*len(mine))
	for _, x := range mine {
		msg = binary.LittleEndian.AppendUint64(msg, math.Float64bits(x))
	}
	all, err := g.Exchange(ctx, msg)
	if err != nil {
		return nil, err
	}
	sums := make([]float64, len(mine))
	for rank, theirs := range all {
		if len(theirs) != len(msg) {
			return nil, fmt.Errorf("trainer: rank %d brought %d bytes of counts, rank %d %d", rank, len(theirs), g.Rank(), len(msg))
		}
		for i := range sums {
			sums[i] += math.Float64frombits(binary.LittleEndian.Uint64(theirs[8*i:]))
		}
	}
	return sums, nil
}

// fingerprint is what must be the same on every rank, an item a line.
func fingerprint[V any](world int, params []*Param[V], cfg Config) []string {
	lines := []string{
		fmt.Sprintf("world size %d", world),
		fmt.Sprintf("seed %d", cfg.Seed),
		fmt.Sprintf("buckets of %d and %d bytes", cfg.FirstBucket, cfg.Bucket),
		fmt.Sprintf("a model of %d parameters", len(params)),
	}
	for i, p := range params {
		lines = append(lines, fmt.Sprintf("parameter %d: %s float32%v", i, p.Name, p.Shape))
	}
	return append(lines, cfg.Agree...)
}

// compare fails on every rank with the same message where the lines of one
// rank differ from rank 0's.
func compare[V any](ctx context.Context, g Group[V], lines []string) error {
	all, err := g.Exchange(ctx, []byte(strings.Join(lines, "\n")))
	if err != nil {
		return err
	}
	first := strings.Split(string(all[0]), "\n")
	for rank, theirs := range all {
		lines := strings.Split(string(theirs), "\n")
		for i := range max(len(lines), len(first)) {
			a, b := "nothing more", "nothing more"
			if i < len(first) {
				a = first[i]
			}
			if i < len(lines) {
				b = lines[i]
			}
			if a != b {
				return fmt.Errorf("trainer: the ranks differ: rank %d has %s, rank 0 has %s", rank, b, a)
			}
		}
	}
	return nil
}

// checksum tells the ranks' tensors apart.
func checksum(tensors []Tensor) uint32 {
	sum, buf := uint32(0), make([]byte, 0, 4096)
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, t := range tensors {
		sum = crc32.Update(sum, table, []byte(t.Name))
		for block := range slices.Chunk(t.Data, 1024) {
			buf = buf[:0]
			for _, x := range block {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
			}
			sum = crc32.Update(sum, table, buf)
		}
	}
	return sum
}

func sortedKeys[K cmp.Ordered, T any](m map[K]T) []K { return slices.Sorted(maps.Keys(m)) }
