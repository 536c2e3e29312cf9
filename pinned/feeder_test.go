package pinned_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/internal/stagetest"
	"github.com/shardfeed/shardfeed/pinned"
)

// rows is the number of rows of a step: the last step is short.
func rows(index, steps int) int {
	if index == steps-1 {
		return 3
	}
	return 8
}

// bytesOf is the size of a batch of the source.
func bytesOf(rows int) int { return rows * 128 }

// source makes batches of a column x of 128 bytes a row that repeat the
// sample's number, and releases each after the loop's body as a loader does.
func source(alloc batch.Allocator, steps int) pinned.Source {
	return func(ctx context.Context, epoch, skip int) iter.Seq2[*batch.Batch, error] {
		return func(yield func(*batch.Batch, error) bool) {
			for k := skip; k < steps; k++ {
				b, err := makeBatch(alloc, epoch, k, rows(k, steps))
				if err != nil {
					yield(nil, err)
					return
				}
				if !lend(b, yield) {
					return
				}
			}
		}
	}
}

// lend releases the batch however the body ends.
func lend(b *batch.Batch, yield func(*batch.Batch, error) bool) bool {
	defer b.Release()
	return yield(b, nil)
}

func makeBatch(alloc batch.Allocator, epoch, index, rows int) (*batch.Batch, error) {
	layout, err := batch.NewLayout([]batch.Field{{Name: "x", Type: batch.Uint64, Shape: []int{16}}}, rows)
	if err != nil {
		return nil, err
	}
	step := batch.Step{Epoch: epoch, Index: index}
	for r := range rows {
		step.Samples = append(step.Samples, 1000*epoch+8*index+r)
	}
	b, err := batch.New(step, layout, alloc)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(b.Slab); i += 8 {
		binary.NativeEndian.PutUint64(b.Slab[i:], uint64(step.Samples[i/128]))
	}
	return b, nil
}

// verify fails where a batch is not what makeBatch made. It is compute.
func verify(t testing.TB, b *pinned.Batch) {
	x := batch.View[uint64](b.Column("x"))
	if len(x) != 16*len(b.Samples) || b.Bytes() != 8*len(x) {
		t.Errorf("step %d: %d values for %d samples", b.Index, len(x), len(b.Samples))
		return
	}
	for i, v := range x {
		if v != uint64(b.Samples[i/16]) {
			t.Errorf("epoch %d, step %d: value %d is %d, want %d", b.Epoch, b.Index, i, v, b.Samples[i/16])
			return
		}
	}
}

// rig is a feeder over a Host and a pool.
type rig struct {
	host   *pinned.Host
	pool   *pinned.Pool
	feeder *pinned.Feeder
}

func newRig(t testing.TB, steps, depth int, wrap func(pinned.Source) pinned.Source) *rig {
	t.Helper()
	r := &rig{host: pinned.NewHost()}
	r.pool = pinned.NewPool(r.host, pinned.PoolConfig{Poison: true})
	src := source(r.pool, steps)
	if wrap != nil {
		src = wrap(src)
	}
	var err error
	r.feeder, err = pinned.NewFeeder(src, r.host, pinned.FeederConfig{Depth: depth, Bytes: bytesOf(8)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) Close() error {
	return errors.Join(r.feeder.Close(), r.pool.Close(), r.host.Close())
}

func TestFeederDelivers(t *testing.T) {
	for _, depth := range []int{0, 1, 2, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			const steps = 6
			r := newRig(t, steps, depth, nil)
			for epoch := range 3 {
				next := 0
				for b, err := range r.feeder.Epoch(t.Context(), epoch, 0) {
					if err != nil {
						t.Fatal(err)
					}
					if b.Epoch != epoch || b.Index != next || b.Layout.Rows() != rows(next, steps) {
						t.Errorf("epoch %d, step %d of %d rows, want epoch %d, step %d", b.Epoch, b.Index, b.Layout.Rows(), epoch, next)
					}
					next++
					r.host.Queue(func() {
						time.Sleep(time.Second) // the host runs ahead
						verify(t, b)
					})
				}
				if next != steps {
					t.Errorf("depth %d: %d batches, want %d", depth, next, steps)
				}
				if s := r.pool.Stats(); s.InUse != 0 {
					t.Errorf("depth %d: %d host batches are still retained after the loop", depth, s.InUse)
				}
			}
			if err := r.host.Sync(); err != nil {
				t.Error(err)
			}
			closeAll(t, r, r.feeder)
		})
	}
}

func TestFeederSeek(t *testing.T) {
	r := newRig(t, 5, 2, nil)
	defer closeAll(t, r)
	stagetest.Seek(t, func(epoch, skip int) iter.Seq[string] {
		return func(yield func(string) bool) {
			for b, err := range r.feeder.Epoch(t.Context(), epoch, skip) {
				var s string
				r.host.Run(func() { s = fmt.Sprint(b.Step, batch.View[uint64](b.Column("x")), err) })
				if !yield(s) {
					return
				}
			}
		}
	}, 0, 1)
}

func TestFeederEndings(t *testing.T) {
	for _, depth := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("depth ", depth), func(t *testing.T) {
			stagetest.Endings(t, 6, func(t *testing.T, fail func(int) error) stagetest.Stage[*pinned.Batch] {
				r := newRig(t, 6, depth, func(src pinned.Source) pinned.Source { return failing(src, fail) })
				return stagetest.Stage[*pinned.Batch]{Epoch: slow(r), Close: r.Close, Left: r.host.InUse}
			})
		})
	}
}

// failing is a source that asks fail before each batch.
func failing(src pinned.Source, fail func(int) error) pinned.Source {
	return func(ctx context.Context, epoch, skip int) iter.Seq2[*batch.Batch, error] {
		return func(yield func(*batch.Batch, error) bool) {
			item := skip
			if err := fail(item); err != nil {
				yield(nil, err)
				return
			}
			for b, err := range src(ctx, epoch, skip) {
				if !yield(b, err) {
					return
				}
				item++
				if err := fail(item); err != nil {
					yield(nil, err)
					return
				}
			}
		}
	}
}

// slow is the rig's Epoch with copies and compute that lag behind the loop.
func slow(r *rig) func(ctx context.Context, epoch, skip int) iter.Seq2[*pinned.Batch, error] {
	return func(ctx context.Context, epoch, skip int) iter.Seq2[*pinned.Batch, error] {
		return func(yield func(*pinned.Batch, error) bool) {
			r.host.QueueCopy(func() { time.Sleep(time.Second) })
			for b, err := range r.feeder.Epoch(ctx, epoch, skip) {
				r.host.Queue(func() { time.Sleep(time.Second) })
				if !yield(b, err) {
					return
				}
			}
		}
	}
}

// The order of calls is the whole of what a Feeder does: see the two
// orderings of the package comment.
func TestFeederOrder(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"end", `
			hold
			copy 0
			copy 1
			join 0, body 0, hold, wait 0, release 0
			copy 2
			join 1, body 1, hold, wait 1, release 1
			copy 3
			join 2, body 2, hold, wait 2, release 2
			join 3, body 3, hold, wait 3, release 3`},
		{"break", `
			hold
			copy 0
			copy 1
			join 0, body 0, hold, wait 0, release 0
			copy 2
			join 1, body 1, hold, wait 1, release 1
			wait 2, release 2`},
		{"panic", `
			hold
			copy 0
			copy 1
			join 0, body 0, hold, wait 0, release 0
			copy 2
			join 1, body 1, hold
			wait 1, release 1
			wait 2, release 2`},
		{"cancel", `
			hold
			copy 0
			copy 1
			join 0, body 0, hold, wait 0, release 0
			copy 2
			join 1, body 1, hold, wait 1, release 1
			copy 3
			error
			wait 2, release 2
			wait 3, release 3`},
		{"error", `
			hold
			copy 0
			copy 1
			join 0, body 0, hold, wait 0, release 0
			copy 2
			join 1, body 1, hold, wait 1, release 1
			join 2, body 2, hold, wait 2, release 2
			error`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &trace{Host: pinned.NewHost()}
			src := source(tr, 4)
			if c.name == "error" {
				src = failing(src, func(item int) error {
					if item == 3 {
						return stagetest.ErrInjected
					}
					return nil
				})
			}
			f, err := pinned.NewFeeder(src, tr, pinned.FeederConfig{Bytes: bytesOf(8)})
			if err != nil {
				t.Fatal(err)
			}
			loop(t, f, c.name, tr.add)
			got := strings.Join(tr.log, " ")
			want := strings.Join(strings.Fields(strings.ReplaceAll(c.want, ",", "")), " ")
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			closeAll(t, f, tr)
		})
	}
}

// loop ranges over epoch 0 and ends it in the body of step 1 as named.
func loop(t *testing.T, f *pinned.Feeder, how string, log func(string, ...any)) (last error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer func() {
		if p := recover(); p != nil && p != "the body's panic" {
			panic(p)
		}
	}()
	for b, err := range f.Epoch(ctx, 0, 0) {
		if err != nil {
			log("error")
			last = err
			continue
		}
		log("body %d", b.Index)
		if b.Index == 1 {
			switch how {
			case "break":
				return last
			case "panic":
				panic("the body's panic")
			case "cancel":
				cancel()
			}
		}
	}
	return last
}

// trace is a Host that writes down what is called, and the allocator of its
// source. It knows a step by its first sample.
type trace struct {
	*pinned.Host
	log []string
}

func (tr *trace) add(format string, args ...any) {
	tr.log = append(tr.log, fmt.Sprintf(format, args...))
}

func (tr *trace) Hold() error { tr.add("hold"); return tr.Host.Hold() }

func (tr *trace) Copy(dst pinned.Mem, src []byte) (pinned.Fence, error) {
	f, err := tr.Host.Copy(dst, src)
	if len(src) == 0 {
		return f, err // Close's
	}
	step := int(binary.NativeEndian.Uint64(src)) / 8
	tr.add("copy %d", step)
	return tracedFence{f, tr, step}, err
}

func (tr *trace) Get(n int) ([]byte, error) { return make([]byte, n), nil }

func (tr *trace) Put(b []byte) { tr.add("release %d", binary.NativeEndian.Uint64(b)/8) }

type tracedFence struct {
	pinned.Fence
	tr   *trace
	step int
}

func (f tracedFence) Join() error { f.tr.add("join %d", f.step); return f.Fence.Join() }

func (f tracedFence) Wait(ctx context.Context) error {
	f.tr.add("wait %d", f.step)
	return f.Fence.Wait(ctx)
}

// Every call of the device fails once, in loops that end in every way: there
// is an error that says where, nothing is left, and the same feeder works afterwards.
func TestFeederDeviceFails(t *testing.T) {
	for _, method := range []string{"AllocHost", "FreeHost", "Alloc", "Free", "Copy", "Hold", "Join", "Wait"} {
		for _, how := range []string{"end", "break", "panic"} {
			t.Run(method+"/"+how, func(t *testing.T) {
				for k := 1; ; k++ {
					reached := false
					synctest.Test(t, func(t *testing.T) { reached = deviceFails(t, method, how, k) })
					if t.Failed() {
						t.Fatalf("call %d", k)
					}
					if !reached {
						if k == 1 {
							t.Fatal("the method is never called")
						}
						break
					}
				}
			})
		}
	}
}

func deviceFails(t *testing.T, method, how string, k int) (reached bool) {
	dev := &faulty{Host: pinned.NewHost(), method: method, at: k}
	pool := pinned.NewPool(dev, pinned.PoolConfig{Poison: true})
	errs := []error{}
	f, err := pinned.NewFeeder(source(pool, 4), dev, pinned.FeederConfig{Bytes: bytesOf(8)})
	errs = append(errs, err)
	if f != nil {
		dev.QueueCopy(func() { time.Sleep(time.Second) })
		err := loop(t, f, how, func(string, ...any) {
			dev.Queue(func() { time.Sleep(time.Second) })
		})
		place := "pinned: epoch 0, step "
		if method == "AllocHost" {
			place = "batch: "
		} else if method == "Hold" && k == 1 {
			place = "pinned: epoch 0: hold: "
		}
		if err != nil && !strings.HasPrefix(err.Error(), place) {
			t.Errorf("the error is %q, want it to begin with %q", err, place)
		}
		// The next epoch and a second Close find nothing in their way.
		n, last := 0, error(nil)
		for b, err := range f.Epoch(t.Context(), 1, 0) {
			if last = err; err == nil {
				n++
				dev.Queue(func() { verify(t, b) })
			}
		}
		if last == nil && n != 4 {
			t.Errorf("%d batches of the next epoch", n)
		}
		errs = append(errs, err, last, f.Close(), f.Close())
	}
	errs = append(errs, pool.Close(), pool.Close())
	injected := 0
	for _, err := range errs {
		if errors.Is(err, stagetest.ErrInjected) {
			injected++
		} else if err != nil {
			t.Errorf("an error beside the injected one: %v", err)
		}
	}
	reached = dev.at <= 0
	served := method == "AllocHost" && k == 3 // by a larger slab that is free
	if reached != (injected > 0) && !served {
		t.Errorf("call %d of %s failed: %v, and %d errors tell of it: %v", k, method, reached, injected, errs)
	}
	if left := dev.InUse(); left != "" {
		t.Errorf("left behind: %s", left)
	}
	closeAll(t, dev)
	return reached
}

// faulty is a Host of which one call of one method fails. A failing Wait has
// waited; any other call has not been made.
type faulty struct {
	*pinned.Host
	method string
	at     int
}

func (d *faulty) fail(method string) error {
	if method == d.method {
		if d.at--; d.at == 0 {
			return stagetest.ErrInjected
		}
	}
	return nil
}

func (d *faulty) AllocHost(n int) ([]byte, error) {
	if err := d.fail("AllocHost"); err != nil {
		return nil, err
	}
	return d.Host.AllocHost(n)
}

func (d *faulty) FreeHost(b []byte) error {
	if err := d.fail("FreeHost"); err != nil {
		return err
	}
	return d.Host.FreeHost(b)
}

func (d *faulty) Alloc(n int) (pinned.Mem, error) {
	if err := d.fail("Alloc"); err != nil {
		return pinned.Mem{}, err
	}
	return d.Host.Alloc(n)
}

func (d *faulty) Free(m pinned.Mem) error {
	if err := d.fail("Free"); err != nil {
		return err
	}
	return d.Host.Free(m)
}

func (d *faulty) Hold() error {
	if err := d.fail("Hold"); err != nil {
		return err
	}
	return d.Host.Hold()
}

func (d *faulty) Copy(dst pinned.Mem, src []byte) (pinned.Fence, error) {
	if err := d.fail("Copy"); err != nil {
		return nil, err
	}
	f, err := d.Host.Copy(dst, src)
	return faultyFence{f, d}, err
}

type faultyFence struct {
	pinned.Fence
	dev *faulty
}

func (f faultyFence) Join() error {
	if err := f.dev.fail("Join"); err != nil {
		return err
	}
	return f.Fence.Join()
}

func (f faultyFence) Wait(ctx context.Context) error {
	return errors.Join(f.Fence.Wait(ctx), f.dev.fail("Wait"))
}

func TestFeederBatchTooLarge(t *testing.T) {
	h := pinned.NewHost()
	f, err := pinned.NewFeeder(source(nil, 3), h, pinned.FeederConfig{Bytes: bytesOf(3)})
	if err != nil {
		t.Fatal(err)
	}
	for b, err := range f.Epoch(t.Context(), 7, 1) {
		for _, want := range []string{"epoch 7, step 1", "1024", "384", "FeederConfig.Bytes"} {
			if b != nil || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v, want %q in it", err, want)
			}
		}
	}
	closeAll(t, f, h)
}

// What cannot be: two loops at once, a loop after Close, a Close inside a loop.
func TestFeederMisuse(t *testing.T) {
	r := newRig(t, 4, 0, nil)
	only := func(seq iter.Seq2[*pinned.Batch, error]) error {
		t.Helper()
		var all []error
		for b, err := range seq {
			if b != nil {
				t.Errorf("a batch: step %d", b.Index)
			}
			all = append(all, err)
		}
		if len(all) != 1 {
			t.Fatalf("%d items, want an error", len(all))
		}
		return all[0]
	}
	n := 0
	for _, err := range r.feeder.Epoch(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if err := only(r.feeder.Epoch(t.Context(), 1, 0)); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("two loops at once: %v", err)
		}
		if err := r.feeder.Close(); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("Close inside a loop: %v", err)
		}
		n++
	}
	if n != 4 {
		t.Errorf("%d batches, want 4", n)
	}
	closeAll(t, r, r.feeder, r.feeder)
	if err := only(r.feeder.Epoch(t.Context(), 0, 0)); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a loop after Close: %v", err)
	}
	for _, cfg := range []pinned.FeederConfig{{}, {Bytes: -1}, {Bytes: 1, Depth: -1}} {
		if _, err := pinned.NewFeeder(source(nil, 1), r.host, cfg); err == nil {
			t.Errorf("NewFeeder(%+v) is no error", cfg)
		}
	}
}

// A source that panics where it cleans up, after a break, is Close's error.
func TestFeederSourcePanicsAfterBreak(t *testing.T) {
	r := newRig(t, 4, 0, func(src pinned.Source) pinned.Source {
		return func(ctx context.Context, epoch, skip int) iter.Seq2[*batch.Batch, error] {
			return func(yield func(*batch.Batch, error) bool) {
				defer panic("while cleaning up")
				src(ctx, epoch, skip)(yield)
			}
		}
	})
	for range r.feeder.Epoch(t.Context(), 0, 0) {
		break
	}
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "while cleaning up") {
		t.Errorf("Close: %v", err)
	}
	closeAll(t, r)
}

// A body that panics with an error in its hand panics as any other.
func TestFeederBodyPanicsOnError(t *testing.T) {
	r := newRig(t, 4, 0, func(src pinned.Source) pinned.Source {
		return failing(src, func(item int) error {
			if item == 2 {
				return stagetest.ErrInjected
			}
			return nil
		})
	})
	defer closeAll(t, r)
	defer func() {
		if p := recover(); p != error(stagetest.ErrInjected) {
			t.Errorf("the loop panics with %v", p)
		}
	}()
	for _, err := range r.feeder.Epoch(t.Context(), 0, 0) {
		if err != nil {
			panic(err)
		}
	}
}

func TestFeederStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, 2, func(src pinned.Source) pinned.Source {
			return failing(src, func(int) error { time.Sleep(time.Second); return nil })
		})
		for b := range r.feeder.Epoch(t.Context(), 0, 0) {
			r.host.Run(func() { time.Sleep(3 * time.Second) })
			if b.Index == 2 {
				break
			}
		}
		// Before step 0 the loop waits for two batches, before 1 and 2 for one each.
		want := pinned.FeederStats{Steps: 3, Bytes: 3 * 1024, Wait: 4 * time.Second, Work: 9 * time.Second}
		if got := r.feeder.Stats(); got != want {
			t.Errorf("Stats = %+v, want %+v", got, want)
		}
		closeAll(t, r)
	})
}

func TestBatchColumnUnreachable(t *testing.T) {
	b := &pinned.Batch{Mem: pinned.Mem{Addr: 4096, Len: 64}}
	defer func() {
		if p := recover(); !strings.Contains(fmt.Sprint(p), "cannot reach") {
			t.Errorf("Column panics with %v", p)
		}
	}()
	b.Column("x")
}
