package pinned_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/shardfeed/shardfeed/batch"
	"github.com/shardfeed/shardfeed/pinned"
)

func get(t testing.TB, p *pinned.Pool, n int) []byte {
	t.Helper()
	b, err := p.Get(n)
	if err != nil || len(b) != n || cap(b) != n {
		t.Fatalf("Get(%d) = %d bytes, cap %d, %v", n, len(b), cap(b), err)
	}
	return b
}

func closeAll(t testing.TB, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Errorf("%T.Close: %v", c, err)
		}
	}
}

func TestPoolReuses(t *testing.T) {
	h := pinned.NewHost()
	p := pinned.NewPool(h, pinned.PoolConfig{})
	defer closeAll(t, p, h)
	a, b := get(t, p, 1000), get(t, p, 1000)
	if want := (pinned.PoolStats{Slabs: 2, InUse: 2, SlabBytes: 2048, InUseBytes: 2048}); p.Stats() != want {
		t.Errorf("Stats = %+v, want %+v", p.Stats(), want)
	}
	p.Put(a)
	c := get(t, p, 1020)
	if &c[0] != &a[0] {
		t.Error("a slab that came back is not used again")
	}
	p.Put(b)
	if want := (pinned.PoolStats{Slabs: 2, InUse: 1, SlabBytes: 2048, InUseBytes: 1024}); p.Stats() != want {
		t.Errorf("Stats = %+v, want %+v", p.Stats(), want)
	}
	p.Put(c)
	p.Put(get(t, p, 0))
}

func TestPoolSizes(t *testing.T) {
	last := 0
	for n := range 100_000 {
		size := pinned.SizeClass(n)
		if size < n || size < last || size%batch.Align != 0 || pinned.SizeClass(size) != size {
			t.Fatalf("sizeClass(%d) = %d after %d", n, size, last)
		}
		if waste := size - n; waste > max(n/4, batch.Align) {
			t.Fatalf("sizeClass(%d) = %d wastes %d", n, size, waste)
		}
		last = size
	}
}

func FuzzSizeClass(f *testing.F) {
	for _, n := range []int{0, 1, 64, 65, 256, 257, 1 << 20, math.MaxInt/4 + 1, math.MaxInt / 2} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int) {
		if n < 0 || n > math.MaxInt/2 {
			return
		}
		size := pinned.SizeClass(n)
		if size < n || size%batch.Align != 0 || size-n > max(n/4, batch.Align) || pinned.SizeClass(size) != size {
			t.Errorf("sizeClass(%d) = %d", n, size)
		}
	})
}

func TestPoolLimit(t *testing.T) {
	h := pinned.NewHost()
	p := pinned.NewPool(h, pinned.PoolConfig{Limit: 3000})
	defer closeAll(t, p, h)
	a, b := get(t, p, 1024), get(t, p, 1024)
	_, err := p.Get(1024)
	for _, want := range []string{"1024", "3000", "2048", "raise the limit"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s in it", err, want)
		}
	}
	// The short last batch of an epoch needs no memory of its own at the limit.
	c := get(t, p, 700)
	p.Put(a)
	p.Put(c)
	d := get(t, p, 200)
	if &d[0] != &c[0] {
		t.Error("at the limit the least slab that is free and large enough is not used")
	}
	p.Put(d)
	p.Put(b)
	for _, n := range []int{-1, math.MinInt, math.MaxInt, math.MaxInt / 2} {
		if _, err := p.Get(n); err == nil {
			t.Errorf("Get(%d) is no error", n)
		}
	}
}

func TestPoolMisuse(t *testing.T) {
	h := pinned.NewHost()
	p := pinned.NewPool(h, pinned.PoolConfig{})
	defer closeAll(t, p, h)
	b := get(t, p, 1000)
	for _, c := range []struct {
		name, want string
		put        func()
	}{
		{"foreign", "no slab of this pool", func() { p.Put(make([]byte, 1000)) }},
		{"nil", "no slab of this pool", func() { p.Put(nil) }},
		{"its second half", "no slab of this pool", func() { p.Put(b[500:]) }},
		{"its first half", "put back whole", func() { p.Put(b[:500]) }},
		{"twice", "put back before", func() { p.Put(b); p.Put(b) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if p := recover(); !strings.Contains(fmt.Sprint(p), c.want) {
					t.Errorf("Put panics with %v, want %q", p, c.want)
				}
			}()
			c.put()
		})
	}
}

func TestPoolClose(t *testing.T) {
	h := pinned.NewHost()
	p := pinned.NewPool(h, pinned.PoolConfig{})
	a, b := get(t, p, 1000), get(t, p, 5000)
	p.Put(a)
	err := p.Close()
	for _, want := range []string{"closed: 1 (5120 bytes)", "not put back"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Close with a slab out: %v, want %q in it", err, want)
		}
	}
	b[4999] = 1 // what is out stays valid
	if h.InUse() != "1 pieces of memory" {
		t.Errorf("Close left %s, want the slab that is out", h.InUse())
	}
	if _, err := p.Get(1); err == nil {
		t.Error("Get after Close is no error")
	}
	p.Put(b)
	closeAll(t, p, p, h)
	if s := p.Stats(); s != (pinned.PoolStats{}) {
		t.Errorf("Stats of an empty pool = %+v", s)
	}
}

// A batch that is used after its release is seen: its bytes are poison.
func TestPoolPoison(t *testing.T) {
	h := pinned.NewHost()
	p := pinned.NewPool(h, pinned.PoolConfig{Poison: true})
	var kept []batch.Column
	for b, err := range source(p, 3)(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, b.Column("x")) // without Retain
	}
	for k, c := range kept {
		if bytes.Count(c.Data, []byte{0xDB}) != len(c.Data) {
			t.Errorf("the column of batch %d, used after its release, looks right", k)
		}
	}
	kept[2].Data[7]++
	func() {
		defer func() {
			if p := recover(); !strings.Contains(fmt.Sprint(p), "written to after Put") {
				t.Errorf("Get of a slab that was written to panics with %v", p)
			}
		}()
		get(t, p, len(kept[2].Data))
	}()
	h.Close()
}

func TestPoolConcurrently(t *testing.T) {
	h := pinned.NewHost()
	p := pinned.NewPool(h, pinned.PoolConfig{Poison: true})
	defer closeAll(t, p, h)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for k := range 200 {
				b, err := p.Get(100*g + k)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range b {
					b[i] = byte(g)
				}
				if bytes.Count(b, []byte{byte(g)}) != len(b) {
					t.Error("two goroutines have one slab")
				}
				p.Put(b)
			}
		})
	}
	all.Wait()
}

// FuzzPool does what ops say, beside a twin that remembers all: an odd byte
// puts a slab back, an even one gets a slab.
func FuzzPool(f *testing.F) {
	f.Add([]byte{2, 4, 6, 1, 8, 3, 250, 250, 1, 1, 250}, 0)
	f.Add([]byte("any text at all is a program"), 5000)
	f.Fuzz(func(t *testing.T, ops []byte, limit int) {
		h := pinned.NewHost()
		p := pinned.NewPool(h, pinned.PoolConfig{Limit: max(limit, 0), Poison: true})
		out, inUse := [][]byte{}, 0
		put := func(k int) {
			b, tag := out[k], byte(len(out[k]))
			if bytes.Count(b, []byte{tag}) != len(b) {
				t.Error("a slab that is out was written to by others")
			}
			p.Put(b)
			inUse--
			out = append(out[:k], out[k+1:]...)
		}
		for _, op := range ops[:min(len(ops), 200)] {
			if op%2 == 1 && len(out) > 0 {
				put(int(op) % len(out))
			} else if b, err := p.Get(16 * int(op)); err == nil {
				for i := range b {
					b[i] = byte(len(b))
				}
				out = append(out, b)
				inUse++
			} else if limit <= 0 {
				t.Errorf("Get without a limit: %v", err)
			}
			s := p.Stats()
			if s.InUse != inUse || s.Slabs < inUse || s.SlabBytes < s.InUseBytes || limit > 0 && s.SlabBytes > limit {
				t.Errorf("%d slabs are out, the limit is %d, and Stats = %+v", inUse, limit, s)
			}
		}
		for len(out) > 0 {
			put(0)
		}
		if err := errors.Join(p.Close(), h.Close()); err != nil {
			t.Error(err)
		}
	})
}
