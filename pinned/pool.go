package pinned

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/shardfeed/shardfeed/batch"
)

// Pool keeps slabs of a Device's page-locked host memory. To page-lock memory
// is slow, so a slab that comes back is used again and none is freed before
// Close. Methods may be called from several goroutines.
type Pool struct {
	dev Device
	cfg PoolConfig

	mu     sync.Mutex
	closed bool
	slabs  map[*byte]*slab // by the first byte
	free   map[int][]*slab // by size, the last used last
	stats  PoolStats
}

// PoolConfig sets up a Pool; zero values do.
type PoolConfig struct {
	// Limit is how many bytes the pool allocates at most; 0: no limit.
	Limit int
	// Poison is for tests: Put fills slabs with 0xDB, so that a batch used
	// after its release is seen, and Get panics where a free slab was written to.
	Poison bool
}

// PoolStats is what a Pool holds.
type PoolStats struct {
	Slabs, InUse          int // how many there are, and how many of them are out
	SlabBytes, InUseBytes int // their sizes, which are up to a quarter larger than what Get was asked for
}

// slab is a piece of host memory in a pool.
type slab struct {
	mem []byte
	n   int // its length while it is out, -1 while it is free
}

var _ batch.Allocator = (*Pool)(nil)

const poison = 0xDB

// NewPool is an empty pool. The caller closes it after the last Put and before
// the device.
func NewPool(dev Device, cfg PoolConfig) *Pool {
	return &Pool{dev: dev, cfg: cfg, slabs: map[*byte]*slab{}, free: map[int][]*slab{}}
}

// Get is a slab of n bytes, at a multiple of batch.Align and of any content,
// owned by the caller until Put. It never waits for a slab to come back:
// where none is free it allocates one. Where that fails, by the limit or by
// the device, a larger slab that is free will do.
func (p *Pool) Get(n int) ([]byte, error) {
	if n < 0 || n > math.MaxInt/2 {
		return nil, fmt.Errorf("pinned: a slab of %d bytes", n)
	}
	size := sizeClass(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("pinned: Get after the pool's Close")
	}
	s := p.take(size)
	if s == nil {
		var err error
		if s, err = p.grow(size); err != nil {
			s = p.take(p.larger(size))
		}
		if s == nil {
			return nil, err
		}
	}
	if p.cfg.Poison && s.n < 0 && bytes.Count(s.mem, []byte{poison}) != len(s.mem) {
		panic(fmt.Sprintf("pinned: a slab of %d bytes was written to after Put", len(s.mem)))
	}
	s.n = n
	p.stats.InUse++
	p.stats.InUseBytes += len(s.mem)
	return s.mem[:n:n], nil
}

// Put takes back a slab from Get, with its length unchanged. It panics where
// the slice is anything else, or a slab that has been put back before. After
// Close a slab stays allocated until Close is called again.
func (p *Pool) Put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.slabs[unsafe.SliceData(b)]
	switch {
	case s == nil:
		panic(fmt.Sprintf("pinned: Put of %d bytes that are no slab of this pool", len(b)))
	case s.n < 0:
		panic(fmt.Sprintf("pinned: Put of a slab of %d bytes that has been put back before", len(b)))
	case s.n != len(b):
		panic(fmt.Sprintf("pinned: Put of %d bytes of a slab of %d: it is put back whole", len(b), s.n))
	}
	if p.cfg.Poison {
		for i := range s.mem {
			s.mem[i] = poison
		}
	}
	s.n = -1
	p.free[len(s.mem)] = append(p.free[len(s.mem)], s)
	p.stats.InUse--
	p.stats.InUseBytes -= len(s.mem)
}

// Stats may be called at any time.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close frees the slabs that have been put back and fails where others are
// still out, which is a leak; those stay valid. It may be called again for
// what it could not free.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for size, slabs := range p.free {
		p.free[size] = slices.DeleteFunc(slabs, func(s *slab) bool {
			if err := p.dev.FreeHost(s.mem); err != nil {
				errs = append(errs, fmt.Errorf("pinned: free a slab of %d bytes: %w", size, err))
				return false
			}
			delete(p.slabs, unsafe.SliceData(s.mem))
			p.stats.Slabs--
			p.stats.SlabBytes -= size
			return true
		})
	}
	if p.stats.InUse > 0 {
		errs = append(errs, fmt.Errorf("pinned: slabs not put back before the pool was closed: %d (%d bytes): a batch is still retained",
			p.stats.InUse, p.stats.InUseBytes))
	}
	return errors.Join(errs...)
}

// take is a free slab of that size, or nil.
func (p *Pool) take(size int) *slab {
	slabs := p.free[size]
	if len(slabs) == 0 {
		return nil
	}
	p.free[size] = slabs[:len(slabs)-1]
	return slabs[len(slabs)-1]
}

// larger is the least size of which a slab is free, above size; 0 where there is none.
func (p *Pool) larger(size int) (least int) {
	for k, slabs := range p.free {
		if k > size && len(slabs) > 0 && (least == 0 || k < least) {
			least = k
		}
	}
	return least
}

// grow allocates a slab.
func (p *Pool) grow(size int) (*slab, error) {
	if p.cfg.Limit > 0 && size > p.cfg.Limit-p.stats.SlabBytes {
		return nil, fmt.Errorf("pinned: a slab of %d bytes is over the pool's limit of %d bytes: its %d slabs have %d, %d of them are out; raise the limit, or read ahead and retain fewer batches",
			size, p.cfg.Limit, p.stats.Slabs, p.stats.SlabBytes, p.stats.InUse)
	}
	mem, err := p.dev.AllocHost(size)
	if err != nil {
		return nil, fmt.Errorf("pinned: a slab of %d bytes: %w", size, err)
	}
	s := &slab{mem: mem}
	p.slabs[unsafe.SliceData(mem)] = s
	p.stats.Slabs++
	p.stats.SlabBytes += size
	return s, nil
}

// sizeClass is the size of a slab for n bytes: n rounded up to a quarter of
// the power of two below it, and to a multiple of batch.Align. There are few
// sizes, so slabs find a new user, and none is more than a quarter larger
// than asked for (short of a column's alignment).
func sizeClass(n int) int {
	n = max(n, 1)
	step := max(batch.Align, 1<<bits.Len(uint(n-1))>>3)
	return (n + step - 1) / step * step
}
