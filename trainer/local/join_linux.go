package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/rendezvous"
)

func joinProcesses(ctx context.Context, w rendezvous.World) (*Group, error) {
	store, err := rendezvous.Join(ctx, w)
	if err != nil {
		return nil, err
	}
	s, err := share(ctx, store, w.Rank, w.Size)
	if err != nil {
		err = fmt.Errorf("local: rank %d: %w", w.Rank, err)
		store.Fail(err)
		store.Close()
		return nil, err
	}
	g := newGroup(w.Rank, w.Size, s.board, s)
	g.process = true
	s.watch.Go(func() {
		select {
		case <-store.Failed():
			g.fail(store.Err())
		case <-s.closing:
		}
	})
	// When all have met, all have mapped the memory, and its file may go.
	err = g.exchange(call{ctx: ctx, all: new([][]byte)}, 0)
	if closing := s.file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		g.Fail(err)
		g.Close()
		return nil, err
	}
	return g, nil
}

// segment is memory that the processes of a group share: the board, then an
// arena a rank. It is a memfd, a file without a name, that ends with the last
// process that has mapped it.
type segment struct {
	board
	rank   int
	file   *os.File
	mem    []byte
	arenas uint64 // the offset of the first
	each   uint64 // bytes of an arena
	used   uint64 // bytes of this rank's arena

	store   *rendezvous.Store
	closing chan struct{}
	watch   sync.WaitGroup
}

// where says where a process finds the segment. It goes through the store.
type where struct {
	Layout int    // layoutVersion
	PID    int    // of rank 0
	FD     int    // in rank 0
	Check  string // the head's, in hex
	Arena  uint64 // bytes
}

// layoutVersion changes with the layout of the segment.
const layoutVersion = 1

// huge is the size of a huge page, at a multiple of which arenas begin.
const huge = 2 << 20

const segmentKey = "local/segment"

// share maps the group's segment, which rank 0 makes.
func share(ctx context.Context, store *rendezvous.Store, rank, size int) (*segment, error) {
	s := &segment{rank: rank, store: store, closing: make(chan struct{}), arenas: (uint64(boardBytes(size)) + huge - 1) &^ (huge - 1)}
	if rank == 0 {
		check, err := s.create(size)
		if err != nil {
			return nil, fmt.Errorf("making shared memory: %w", err)
		}
		text, err := json.Marshal(where{layoutVersion, os.Getpid(), int(s.file.Fd()), check, s.each})
		if err == nil {
			err = store.Set(ctx, segmentKey, text)
		}
		if err != nil {
			return nil, errors.Join(err, s.unmap(), s.file.Close())
		}
		return s, nil
	}
	text, err := store.Get(ctx, segmentKey)
	if err != nil {
		return nil, err
	}
	var w where
	if err := json.Unmarshal(text, &w); err != nil || w.Layout != layoutVersion {
		return nil, fmt.Errorf("rank 0 describes shared memory by %q, which this program does not understand: run the same program on every rank", text)
	}
	return s, s.open(w, size)
}

// create makes a segment of arenas as large as the system lets it have.
func (s *segment) create(size int) (check string, err error) {
	fd, err := unix.MemfdCreate("shardfeed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", fmt.Errorf("memfd_create: %w", err)
	}
	s.file = os.NewFile(uintptr(fd), "memfd:shardfeed")
	for s.each = arenaBytes; ; s.each /= 2 {
		total := s.arenas + uint64(size)*s.each
		if err = unix.Ftruncate(fd, int64(total)); err == nil {
			err = s.mmap(total, size)
		}
		if err == nil || s.each <= 1<<20 {
			break
		}
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return "", errors.Join(err, s.unmap(), s.file.Close())
	}
	rand.Read(s.check[:])
	return hex.EncodeToString(s.check[:]), nil
}

// open maps the segment of another process.
func (s *segment) open(w where, size int) (err error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", w.PID, w.FD)
	s.each = w.Arena
	if s.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return fmt.Errorf("the shared memory of rank 0: %w: run all ranks as one user and in one container, or as goroutines", err)
	}
	total := s.arenas + uint64(size)*s.each
	if info, e := s.file.Stat(); e != nil || uint64(info.Size()) != total {
		err = fmt.Errorf("%s is not the shared memory of rank 0: run all ranks in one container", path)
	} else if err = s.mmap(total, size); err == nil && hex.EncodeToString(s.check[:]) != w.Check {
		err = fmt.Errorf("%s is not the shared memory of rank 0: run all ranks in one container", path)
	}
	if err != nil {
		return errors.Join(err, s.unmap(), s.file.Close())
	}
	return nil
}

func (s *segment) mmap(total uint64, size int) (err error) {
	s.mem, err = unix.Mmap(int(s.file.Fd()), 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of address space: %w: ulimit -v may be too low", total, err)
	}
	s.board = boardOn(s.mem[:boardBytes(size)], size)
	return nil
}

func (s *segment) unmap() error {
	if s.mem == nil {
		return nil
	}
	mem := s.mem
	s.mem = nil
	return unix.Munmap(mem)
}

func (s *segment) arena(rank int) []byte {
	at := s.arenas + uint64(rank)*s.each
	return s.mem[at : at+s.each : at+s.each]
}

// alloc has the memory backed at once: running out of it is an error here,
// and would be a fault in the middle of a step.
func (s *segment) alloc(n int) (trainer.Host, error) {
	bytes := 4 * uint64(n)
	if bytes > s.each-s.used {
		return nil, fmt.Errorf("%d of the %d bytes of address space that a rank can have are left", s.each-s.used, s.each)
	}
	mem := s.arena(s.rank)[s.used:][:bytes:bytes]
	if err := back(mem); err != nil {
		return nil, err
	}
	v := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
	s.used = min(place(s.used+bytes), s.each)
	return v, nil
}

// back makes the pages of mem present.
func back(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	page := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(&mem[0]))
	skip := start % page
	whole := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&mem[0]), -int(skip))), len(mem)+int(skip))
	unix.Madvise(whole, unix.MADV_HUGEPAGE)                                                     // where the system has them for shared memory
	if err := unix.Madvise(whole, unix.MADV_POPULATE_WRITE); err != nil && err != unix.EINVAL { // EINVAL: before Linux 5.14
		return fmt.Errorf("the system has no %d bytes of shared memory left: %w", len(mem), err)
	}
	return nil
}

func (s *segment) offset(v trainer.Host) (uint64, bool) {
	off := address(v) - uintptr(unsafe.Pointer(unsafe.SliceData(s.arena(s.rank))))
	return uint64(off), off%4 == 0 && uint64(off) <= s.used && 4*uint64(len(v)) <= s.used-uint64(off)
}

func (s *segment) span(rank int, off, n uint64) trainer.Host {
	mem := s.arena(rank)[off : off+4*n]
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
}

// spins is how often a rank looks before it sleeps: about 10 µs, what it costs
// to be woken.
const spins = 30000

// nap bounds a sleep, after which a rank looks whether its context has ended.
const nap = 50 * time.Millisecond

func (s *segment) listen() uint32 { return s.bell.Load() }

func (s *segment) sleep(ctx context.Context, heard uint32) {
	for range spins {
		if s.bell.Load() != heard {
			return
		}
	}
	d := nap
	if deadline, ok := ctx.Deadline(); ok {
		d = max(0, min(d, time.Until(deadline)))
	}
	s.doze(heard, d)
}

// doze sleeps until the bell rings, for at most d.
func (s *segment) doze(heard uint32, d time.Duration) {
	timeout := unix.NsecToTimespec(int64(d))
	s.sleepers.Add(1)
	futex(&s.bell, futexWait, heard, &timeout)
	s.sleepers.Add(^uint32(0))
}

func (s *segment) ring() {
	s.bell.Add(1)
	if s.sleepers.Load() != 0 {
		futex(&s.bell, futexWake, maxRanks, nil)
	}
}

// The operations of futex(2), between processes.
const (
	futexWait = 0
	futexWake = 1
)

// futex sleeps while word is val, or wakes val sleepers. It may end for no
// reason, so it has no error that matters.
func futex(word *atomic.Uint32, op int, val uint32, timeout *unix.Timespec) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), uintptr(op), uintptr(val), uintptr(unsafe.Pointer(timeout)), 0, 0)
}

func (s *segment) tell(err error) { s.store.Fail(err) }

func (s *segment) close() error {
	close(s.closing)
	s.watch.Wait()
	return errors.Join(s.unmap(), s.store.Close())
}
