package trainer

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
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

// Gather gives every rank what each rank brought, by rank, by way of JSON:
// settings, metrics, anything small.
func Gather[T, V any](ctx context.Context, g Group[V], mine T) ([]T, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, fmt.Errorf("trainer: what rank %d brings to Gather: %w", g.Rank(), err)
	}
	texts, err := g.Exchange(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("trainer: what rank %d brought to Gather: %w", rank, err)
		}
	}
	return all, nil
}

// Barrier returns once all ranks have called it.
func Barrier[V any](ctx context.Context, g Group[V]) error {
	_, err := g.Exchange(ctx, nil)
	return err
}

// report is what a rank tells the others with each update.
type report struct {
	loss float64 // the sum over its rows
	rows int
	bad  int    // the parameter whose gradient is not finite, plus 1
	used []byte // a bit a parameter; empty without FindUnused
}

func (r report) uses(param int) bool { return r.used[param/8]>>(param%8)&1 != 0 }

// exchange is the reports of all ranks.
func (d *DDP[B, V]) exchange(ctx context.Context) ([]report, error) {
	msg := binary.LittleEndian.AppendUint64(d.message[:0], math.Float64bits(d.loss))
	msg = binary.LittleEndian.AppendUint64(msg, uint64(d.rows))
	msg = binary.LittleEndian.AppendUint32(msg, uint32(d.sums.Bad()))
	if d.cfg.FindUnused {
		head := len(msg)
		msg = append(msg, make([]byte, (len(d.used)+7)/8)...)
		for i, used := range d.used {
			if used {
				msg[head+i/8] |= 1 << (i % 8)
			}
		}
	}
	d.message = msg
	texts, err := d.group.Exchange(ctx, msg)
	if err != nil {
		return nil, err
	}
	all := make([]report, len(texts))
	for rank, text := range texts {
		if len(text) != len(msg) {
			return nil, fmt.Errorf("rank %d brought a report of %d bytes, rank %d of %d", rank, len(text), d.group.Rank(), len(msg))
		}
		all[rank] = report{
			loss: math.Float64frombits(binary.LittleEndian.Uint64(text)),
			rows: int(binary.LittleEndian.Uint64(text[8:])),
			bad:  int(binary.LittleEndian.Uint32(text[16:])),
			used: text[20:],
		}
	}
	return all, nil
}

// fingerprint is what must be the same on every rank, an item a line.
func fingerprint[V any](world int, params []*Param[V], cfg Config) []string {
	lines := []string{
		fmt.Sprintf("world size %d", world),
		fmt.Sprintf("seed %d", cfg.Seed),
		fmt.Sprintf("buckets of %d and %d bytes", cfg.FirstBucket, cfg.Bucket),
		fmt.Sprintf("%d accumulated steps, a global batch of %d", cfg.Accumulate, cfg.GlobalBatch),
		fmt.Sprintf("FindUnused %v, SkipNonFinite %v", cfg.FindUnused, cfg.SkipNonFinite),
		fmt.Sprintf("a model of %d parameters", len(params)),
	}
	for i, p := range params {
		lines = append(lines, fmt.Sprintf("parameter %d: %s float32%v%s", i, p.Name, p.Shape, [...]string{Trained: "", Frozen: " (frozen)", Buffer: " (buffer)"}[p.Role%3]))
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
		sum = crc32.Update(sum, table, fmt.Append(nil, t.Name, t.Shape))
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
