// Package grouptest proves what a [trainer.Group] promises, whatever its
// ranks are: goroutines, processes, devices.
package grouptest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shardfeed/shardfeed/trainer"
)

// Group is a group under test.
type Group[V any] interface {
	trainer.Group[V]
	Failed() <-chan struct{} // closed once the group is broken
	Err() error              // why
}

// Case is what every rank of a group does.
type Case[V trainer.Span[V]] struct {
	// Name tells cases apart, also to a process that is to run one.
	Name string
	// Ranks is how many it needs at least.
	Ranks int
	// Rank is the program of a rank. Its error is what it found wrong, or
	// [ErrWords] on a rank that fails on purpose.
	Rank func(ctx context.Context, g Group[V]) error
}

// ErrWords is the error of a rank that fails on purpose.
var ErrWords = errors.New("the disk is on fire")

// Run runs a case on size ranks of one group and returns their errors, by
// rank. A rank whose program has returned an error ends as a user's does that
// has failed, and tells the others; one that has returned nil leaves.
type Run[V trainer.Span[V]] func(t *testing.T, size int, c Case[V]) []error

// Test runs all cases on groups of the given sizes.
func Test[V trainer.Span[V]](t *testing.T, sizes []int, run Run[V]) {
	for _, c := range Cases[V]() {
		for _, size := range sizes {
			if size < c.Ranks {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", c.Name, size), func(t *testing.T) {
				errs := run(t, size, c)
				if len(errs) != size {
					t.Fatalf("%d errors of %d ranks", len(errs), size)
				}
				for rank, err := range errs {
					if err != nil && err.Error() != ErrWords.Error() {
						t.Errorf("rank %d: %v", rank, err)
					}
				}
			})
		}
	}
}

// Cases are all cases.
func Cases[V trainer.Span[V]]() []Case[V] {
	return []Case[V]{
		{"memory", 1, memory[V]},
		{"all-reduce", 1, allReduce[V]},
		{"all-reduces in flight", 1, inFlight[V]},
		{"all-reduces of one span", 1, order[V]},
		{"broadcast", 1, broadcast[V]},
		{"exchange", 1, exchange[V]},
		{"barrier", 1, barrier[V]},
		{"two users", 1, twoUsers[V]},
		{"bad arguments break nothing", 1, arguments[V]},
		{"close", 1, closed[V]},
		{"close with a call pending", 2, pending[V]},
		{"kinds differ", 2, kinds[V]},
		{"an exchange meets an all-reduce", 2, mixed[V]},
		{"lengths differ", 2, lengths[V]},
		{"operations differ", 2, operations[V]},
		{"roots differ", 2, roots[V]},
		{"memories differ", 2, memories[V]},
		{"rank 0 skips a call", 2, func(ctx context.Context, g Group[V]) error { return skips(ctx, g, 0) }},
		{"the last rank skips a call", 2, func(ctx context.Context, g Group[V]) error { return skips(ctx, g, g.Size()-1) }},
		{"rank 0 makes one call more", 2, func(ctx context.Context, g Group[V]) error { return oneMore(ctx, g, 0) }},
		{"the last rank makes one call more", 2, func(ctx context.Context, g Group[V]) error { return oneMore(ctx, g, g.Size()-1) }},
		{"rank 0 leaves early", 2, func(ctx context.Context, g Group[V]) error { return leaves(ctx, g, 0) }},
		{"the last rank leaves early", 2, func(ctx context.Context, g Group[V]) error { return leaves(ctx, g, g.Size()-1) }},
		{"rank 0 fails", 2, func(ctx context.Context, g Group[V]) error { return fails(ctx, g, 0) }},
		{"the last rank fails", 2, func(ctx context.Context, g Group[V]) error { return fails(ctx, g, g.Size()-1) }},
		{"a deadline passes", 2, deadline[V]},
		{"a context is cancelled", 2, cancelled[V]},
	}
}

// value is what rank brings at i of the call of that number: magnitudes from
// 2^-20 to 2^20 and both signs, so that any other order of additions gives
// other bits somewhere.
func value(rank, number, i int) float32 {
	x := uint64(rank+1)<<56 ^ uint64(number+1)<<40 ^ uint64(i)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9 // SplitMix64's finalizer
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	exponent := 107 + uint32(x>>32)%41
	return math.Float32frombits(uint32(x)&0x807fffff | exponent<<23)
}

func values(rank, number, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = value(rank, number, i)
	}
	return v
}

// reduced is the slow twin: what an all-reduce of every rank's values gives.
func reduced(op trainer.Op, size, number, n int) []float32 {
	sum := make([]float32, n)
	scale := float32(1)
	if op == trainer.Average {
		scale /= float32(size)
	}
	for i := range sum {
		x := float32(value(0, number, i) * scale) // the conversion keeps the product out of a fused multiply-add
		for rank := 1; rank < size; rank++ {
			x += float32(value(rank, number, i) * scale)
		}
		sum[i] = x
	}
	return sum
}

// span is memory of g with this rank's values.
func span[V trainer.Span[V]](g Group[V], number, n int) (V, error) {
	v, err := g.Alloc(n)
	if err == nil {
		err = v.Write(values(g.Rank(), number, n))
	}
	return v, err
}

// holds compares a span with what it must be, bit for bit.
func holds[V trainer.Span[V]](v V, want []float32) error {
	got := make([]float32, v.Len())
	if err := v.Read(got); err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			return fmt.Errorf("value %d of %d is %v, want %v", i, len(want), got[i], want[i])
		}
	}
	return nil
}

func memory[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	for _, n := range []int{0, 1, 3, 16, 1000, 100_000} {
		v, err := g.Alloc(n)
		if err != nil {
			return err
		}
		if err := holds(v, make([]float32, n)); err != nil {
			return fmt.Errorf("new memory: %w", err)
		}
		if err := v.Write(values(0, 0, n)); err != nil { // the next must not lie on it
			return err
		}
		if err := hostAligned(v); err != nil {
			return err
		}
	}
	for _, n := range []int{-1, math.MaxInt / 8, math.MaxInt, math.MinInt} {
		if _, err := g.Alloc(n); err == nil {
			return fmt.Errorf("memory for %d values is no error", n)
		}
	}
	_, err := g.Exchange(ctx, nil)
	return err
}

func allReduce[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	memory, err := g.Alloc(1<<20 + 200)
	if err != nil {
		return err
	}
	var sizes []int
	for n := range 66 { // all remainders of a cache line, and of what a kernel takes at a time
		sizes = append(sizes, n)
	}
	for number, n := range append(sizes, 4095, 1<<20-1, 1<<20+1) {
		for _, op := range []trainer.Op{trainer.Sum, trainer.Average} {
			if large := n > 1<<19; large && (n > 1<<20) != (op == trainer.Sum) {
				continue // one for each operation: they take long with -race
			}
			if err := allReduceOf(ctx, g, memory.Slice(number, number+n+2*margin), op, number); err != nil {
				return fmt.Errorf("operation %d on %d values: %w", op, n, err)
			}
		}
	}
	return nil
}

// margin is how many values on both sides of a span must stay as they are.
const margin = 5

// allReduceOf compares rank 0's result with the slow twin, and all other
// ranks' with rank 0's.
func allReduceOf[V trainer.Span[V]](ctx context.Context, g Group[V], all V, op trainer.Op, number int) error {
	n := all.Len() - 2*margin
	mine := make([]float32, all.Len())
	copy(mine[margin:], values(g.Rank(), number, n))
	if err := all.Write(mine); err != nil {
		return err
	}
	wait, err := g.AllReduce(ctx, all.Slice(margin, margin+n), op)
	if err != nil {
		return err
	}
	if err := errors.Join(wait(), wait()); err != nil {
		return err
	}
	if g.Rank() == 0 {
		want := make([]float32, all.Len())
		copy(want[margin:], reduced(op, g.Size(), number, n))
		if err := holds(all, want); err != nil {
			return err
		}
	}
	if err := all.Read(mine); err != nil {
		return err
	}
	digest := uint64(14695981039346656037) // FNV-1a, a value at a time
	for _, x := range mine {
		digest = (digest ^ uint64(math.Float32bits(x))) * 1099511628211
	}
	digests, err := g.Exchange(ctx, binary.LittleEndian.AppendUint64(nil, digest))
	if err == nil && !slices.Equal(digests[0], digests[g.Rank()]) {
		err = errors.New("other bits than on rank 0")
	}
	return err
}

// inFlight starts many all-reduces, exchanges and broadcasts beside them, and
// waits for them in the wrong order.
func inFlight[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	const n = 9
	var spans []V
	var waits []func() error
	for k := range n {
		v, err := span(g, k, 1000*k)
		if err != nil {
			return err
		}
		wait, err := g.AllReduce(ctx, v, trainer.Sum)
		if err != nil {
			return err
		}
		spans, waits = append(spans, v), append(waits, wait)
		if k%3 == 1 {
			all, err := g.Exchange(ctx, []byte{byte(g.Rank()), byte(k)})
			if err != nil {
				return err
			}
			for rank, theirs := range all {
				if !slices.Equal(theirs, []byte{byte(rank), byte(k)}) {
					return fmt.Errorf("exchange %d gives %v of rank %d", k, theirs, rank)
				}
			}
		}
	}
	last, err := span(g, n, 100)
	if err != nil {
		return err
	}
	if err := g.Broadcast(ctx, last, g.Size()-1); err != nil {
		return err
	}
	for k := n - 1; k >= 0; k-- {
		if err := waits[k](); err != nil {
			return err
		}
		if err := holds(spans[k], reduced(trainer.Sum, g.Size(), k, 1000*k)); err != nil {
			return fmt.Errorf("all-reduce %d: %w", k, err)
		}
	}
	return holds(last, values(g.Size()-1, n, 100))
}

// order reduces one span three times: each takes what the one before gave.
func order[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	const n = 3000
	v, err := span(g, 0, n)
	if err != nil {
		return err
	}
	want := reduced(trainer.Sum, g.Size(), 0, n)
	var last func() error
	for k := range 3 {
		if last, err = g.AllReduce(ctx, v, trainer.Sum); err != nil {
			return err
		}
		for i, x := range want {
			for range g.Size() - 1 {
				if k > 0 {
					want[i] += x
				}
			}
		}
	}
	if err := last(); err != nil {
		return err
	}
	return holds(v, want)
}

func broadcast[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	for root := range g.Size() {
		for number, n := range []int{0, 1, 7, 100_001} {
			v, err := span(g, number, n)
			if err != nil {
				return err
			}
			if err := g.Broadcast(ctx, v, root); err != nil {
				return err
			}
			if err := holds(v, values(root, number, n)); err != nil {
				return fmt.Errorf("from rank %d: %w", root, err)
			}
		}
	}
	return nil
}

// exchange brings another length on each rank.
func exchange[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	bring := func(rank, k, n int) []byte {
		b := make([]byte, n*(rank+1)/g.Size())
		for i := range b {
			b[i] = byte(uint32(i)*2654435761>>13) ^ byte(7*rank+k)
		}
		return b
	}
	for k, n := range []int{0, 1, 5, 0, 1000, 1<<15 - 1, 1 << 15, 1<<15 + 1, 1 << 16, 300_000, 3} {
		all, err := g.Exchange(ctx, bring(g.Rank(), k, n))
		if err != nil {
			return err
		}
		if len(all) != g.Size() {
			return fmt.Errorf("an exchange of %d ranks gives %d pieces", g.Size(), len(all))
		}
		for rank, theirs := range all {
			if !slices.Equal(theirs, bring(rank, k, n)) {
				return fmt.Errorf("exchange %d gives other bytes than rank %d brought", k, rank)
			}
			_ = append(theirs, 'x') // the caller's own, and none of the others'
			clear(theirs)
		}
	}
	return nil
}

// barrier lets one rank after the other come late to an exchange of nothing.
func barrier[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	for late := range g.Size() {
		if g.Rank() == late {
			<-time.After(5 * time.Millisecond)
		}
		came := time.Now()
		if _, err := g.Exchange(ctx, nil); err != nil {
			return err
		}
		passed := time.Now()
		all, err := g.Exchange(ctx, fmt.Append(nil, came.UnixNano()))
		if err != nil {
			return err
		}
		for rank, text := range all {
			if t, err := strconv.ParseInt(string(text), 10, 64); err != nil || t > passed.UnixNano() {
				return fmt.Errorf("rank %d came at %d, %v, when rank %d had passed at %d", rank, t, err, g.Rank(), passed.UnixNano())
			}
		}
	}
	return nil
}

// twoUsers are two models that train on one group, each with its own memory:
// their calls are mixed as their backward passes are.
func twoUsers[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	const n = 1000
	var users [2]V
	for u := range users {
		var err error
		if users[u], err = g.Alloc(2 * n); err != nil {
			return err
		}
	}
	for k := range 10 {
		var waits []func() error
		for i := range 4 { // user and half, in an order that changes
			u, half := (i+k)%2, i/2
			part := users[u].Slice(n*half, n*half+n)
			if err := part.Write(values(g.Rank(), 4*k+2*u+half, n)); err != nil {
				return err
			}
			wait, err := g.AllReduce(ctx, part, trainer.Average)
			if err != nil {
				return err
			}
			waits = append(waits, wait)
		}
		for i := range 4 {
			if err := waits[(i+2*k)%4](); err != nil {
				return err
			}
		}
		for u, v := range users {
			want := append(reduced(trainer.Average, g.Size(), 4*k+2*u, n), reduced(trainer.Average, g.Size(), 4*k+2*u+1, n)...)
			if err := holds(v, want); err != nil {
				return fmt.Errorf("user %d in round %d: %w", u, k, err)
			}
		}
	}
	return nil
}

func arguments[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	v, err := span(g, 0, 10)
	if err != nil {
		return err
	}
	for _, root := range []int{-1, g.Size()} {
		if err := g.Broadcast(ctx, v, root); err == nil {
			return fmt.Errorf("a broadcast from rank %d of %d is no error", root, g.Size())
		}
	}
	if _, err := g.AllReduce(ctx, v, 99); err == nil {
		return errors.New("an all-reduce with the operation 99 is no error")
	}
	wait, err := g.AllReduce(ctx, v, trainer.Sum)
	if err != nil {
		return err
	}
	return wait()
}

func closed[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	v, err := span(g, 0, 10)
	if err != nil {
		return err
	}
	if err := g.Broadcast(ctx, v, 0); err != nil {
		return err
	}
	other := make(chan error)
	go func() { other <- g.Close() }()
	if err := errors.Join(g.Close(), <-other); err != nil {
		return err
	}
	if err := g.Close(); err != nil {
		return fmt.Errorf("another Close: %w", err)
	}
	_, alloc := g.Alloc(1)
	_, reduce := g.AllReduce(ctx, v.Slice(0, 0), trainer.Sum)
	_, exchange := g.Exchange(ctx, nil)
	for i, err := range []error{alloc, reduce, exchange, g.Broadcast(ctx, v.Slice(0, 0), 0)} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			return fmt.Errorf("call %d after Close: the error is %v", i, err)
		}
	}
	return nil
}

// pending closes rank 0 while it waits for the others, which never come.
func pending[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	if g.Rank() != 0 {
		return broken(ctx, g, "rank 0", "pending")
	}
	v, err := g.Alloc(10)
	if err != nil {
		return err
	}
	wait, err := g.AllReduce(ctx, v, trainer.Sum)
	if err != nil {
		return err
	}
	if err := says(g.Close(), "pending"); err != nil {
		return err
	}
	return says(wait(), "pending")
}

// kinds and those below make rank 1, or the last, call something else.
func kinds[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	return differ(ctx, g, 100, func(v V, odd bool) error {
		if odd {
			return g.Broadcast(ctx, v.Slice(0, 50), 0)
		}
		return reduce(ctx, g, v, trainer.Sum)
	}, "broadcast of 50 values", "all-reduce", "100 values")
}

func mixed[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	return differ(ctx, g, 100, func(v V, odd bool) error {
		if odd {
			_, err := g.Exchange(ctx, make([]byte, 7))
			return err
		}
		return reduce(ctx, g, v, trainer.Sum)
	}, "exchange of 7 bytes", "all-reduce", "100 values")
}

func lengths[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	return differ(ctx, g, 100, func(v V, odd bool) error {
		if odd {
			v = v.Slice(0, 99)
		}
		return reduce(ctx, g, v, trainer.Average)
	}, "100 values", "99 values")
}

func operations[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	return differ(ctx, g, 100, func(v V, odd bool) error {
		if odd {
			return reduce(ctx, g, v, trainer.Average)
		}
		return reduce(ctx, g, v, trainer.Sum)
	}, "sum", "average")
}

func roots[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	return differ(ctx, g, 100, func(v V, odd bool) error {
		if odd {
			return g.Broadcast(ctx, v, g.Size()-1)
		}
		return g.Broadcast(ctx, v, 0)
	}, "from rank 0", fmt.Sprintf("from rank %d", g.Size()-1))
}

func memories[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	return differ(ctx, g, 100, func(v V, odd bool) error {
		if odd {
			return reduce(ctx, g, v.Slice(10, 60), trainer.Sum)
		}
		return reduce(ctx, g, v.Slice(20, 70), trainer.Sum)
	}, "50 values", "Alloc")
}

// differ makes a first call that is right and a second one that is not, at
// which every rank must get the same error, with those words.
func differ[V trainer.Span[V]](ctx context.Context, g Group[V], n int, second func(v V, odd bool) error, words ...string) error {
	v, err := g.Alloc(n)
	if err != nil {
		return err
	}
	if err := reduce(ctx, g, v, trainer.Sum); err != nil {
		return err
	}
	return outOfStep(g, g.Size()-1, second(v, g.Rank() == g.Size()-1), func() error { return second(v, false) }, words...)
}

// outOfStep checks the error of a second call that one rank has not made as
// the others, and that the next call has the same.
func outOfStep[V trainer.Span[V]](g Group[V], odd int, err error, next func() error, words ...string) error {
	var others []int
	for rank := range g.Size() {
		if rank != odd {
			others = append(others, rank)
		}
	}
	for _, who := range []string{ranks([]int{odd}), ranks(others)} {
		words = append(words, who+" called")
	}
	if wrong := says(err, append(words, "call 2:")...); wrong != nil {
		return wrong
	}
	if again := next(); again == nil || again.Error() != err.Error() {
		return fmt.Errorf("the next call's error is %v, not %v", again, err)
	}
	return nil
}

// skips lets a rank forget its second call and go on with the third.
func skips[V trainer.Span[V]](ctx context.Context, g Group[V], who int) error {
	v, err := g.Alloc(100)
	if err != nil {
		return err
	}
	if err := g.Broadcast(ctx, v.Slice(0, 7), 0); err != nil {
		return err
	}
	third := func() error {
		_, err := g.Exchange(ctx, make([]byte, 5))
		return err
	}
	if g.Rank() == who {
		err = third()
	} else {
		err = reduce(ctx, g, v, trainer.Sum)
	}
	return outOfStep(g, who, err, third, "exchange of 5 bytes", "all-reduce (sum) of 100 values", "call 1 was broadcast of 7 values")
}

// oneMore lets a rank call when the others have made their last call: to it
// they have left.
func oneMore[V trainer.Span[V]](ctx context.Context, g Group[V], who int) error {
	if _, err := g.Exchange(ctx, nil); err != nil {
		return err
	}
	if g.Rank() != who {
		return nil
	}
	_, err := g.Exchange(ctx, make([]byte, 9))
	return says(err, "exchange of 9 bytes", "call 2", "left")
}

// ranks is "rank 1" or "ranks 1, 3".
func ranks(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("rank %d", list[0])
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}

// leaves lets a rank end while the others go on.
func leaves[V trainer.Span[V]](ctx context.Context, g Group[V], who int) error {
	if _, err := g.Exchange(ctx, nil); err != nil {
		return err
	}
	if g.Rank() == who {
		return nil
	}
	v, err := g.Alloc(1000)
	if err != nil {
		return err
	}
	return says(reduce(ctx, g, v, trainer.Sum), fmt.Sprintf("rank %d has left", who))
}

// fails lets a rank end with an error while the others wait for it, with
// several calls in flight.
func fails[V trainer.Span[V]](ctx context.Context, g Group[V], who int) error {
	v, err := g.Alloc(1 << 20)
	if err != nil {
		return err
	}
	var waits []func() error
	for range 5 {
		wait, err := g.AllReduce(ctx, v, trainer.Sum)
		if err != nil {
			return says(err, fmt.Sprintf("rank %d", who), ErrWords.Error())
		}
		waits = append(waits, wait)
	}
	if g.Rank() == who {
		return errors.Join(waits[0](), ErrWords)
	}
	if err := waits[0](); err != nil {
		return err
	}
	if _, err := g.Exchange(ctx, nil); err == nil {
		return errors.New("an exchange with a rank that has failed is no error")
	}
	return broken(ctx, g, fmt.Sprintf("rank %d", who), ErrWords.Error())
}

// deadline lets rank 0 wait for others that do not come.
func deadline[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	if _, err := g.Exchange(ctx, nil); err != nil {
		return err
	}
	if g.Rank() != 0 {
		return broken(ctx, g, "rank 0", "deadline exceeded")
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err := g.Exchange(short, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the error is %v, not the context's", err)
	}
	if err := says(err, late(g), "call 2", "not come"); err != nil {
		return err
	}
	return broken(ctx, g, "deadline exceeded")
}

func cancelled[V trainer.Span[V]](ctx context.Context, g Group[V]) error {
	if g.Rank() != 0 {
		return broken(ctx, g, "rank 0", "the user has had enough")
	}
	v, err := g.Alloc(100)
	if err != nil {
		return err
	}
	short, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wait, err := g.AllReduce(short, v, trainer.Sum)
	if err != nil {
		return err
	}
	cancel(errors.New("the user has had enough"))
	return says(wait(), "the user has had enough", late(g))
}

// late names all ranks but 0.
func late[V any](g Group[V]) string {
	var others []int
	for rank := 1; rank < g.Size(); rank++ {
		others = append(others, rank)
	}
	return ranks(others)
}

// broken waits until the group is broken and checks that all calls say why.
func broken[V trainer.Span[V]](ctx context.Context, g Group[V], words ...string) error {
	<-g.Failed()
	if err := says(g.Err(), words...); err != nil {
		return err
	}
	v, err := g.Alloc(0)
	if err != nil {
		return err
	}
	_, exchange := g.Exchange(ctx, nil)
	_, reduce := g.AllReduce(ctx, v, trainer.Sum)
	for _, err := range []error{exchange, reduce, g.Broadcast(ctx, v, 0)} {
		if err == nil || err.Error() != g.Err().Error() {
			return fmt.Errorf("a call of a broken group: the error is %v, not %v", err, g.Err())
		}
	}
	return nil
}

func reduce[V trainer.Span[V]](ctx context.Context, g Group[V], v V, op trainer.Op) error {
	wait, err := g.AllReduce(ctx, v, op)
	if err != nil {
		return err
	}
	return wait()
}

// says checks that err is an error with those words.
func says(err error, words ...string) error {
	if err == nil {
		return fmt.Errorf("there is no error, want one with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			return fmt.Errorf("the error does not say %q: %w", w, err)
		}
	}
	return nil
}

// hostAligned checks memory on the host; a device's answers for itself.
func hostAligned(v any) error {
	if h, ok := v.(trainer.Host); ok && len(h) > 0 {
		if at := reflect.ValueOf(h).Pointer(); at%64 != 0 {
			return fmt.Errorf("memory at %#x, not at a multiple of 64", at)
		}
	}
	return nil
}
