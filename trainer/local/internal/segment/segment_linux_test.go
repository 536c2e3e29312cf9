package segment

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shardfeed/shardfeed/trainer/local/internal/shm"
)

// Every rank finds what the other one has allocated, at the same place, and
// knows its own.
func TestShared(t *testing.T) {
	mem, err := shm.Create(first(2) + 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	other, err := shm.Open(mem.Ticket())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ranks := [2]*Segment{on(mem, 2), on(other, 2)}
	for _, n := range []int{3, 0, 17, 1000} {
		var spans [2][]float32
		var offs [2]uint64
		for rank, s := range ranks {
			v, err := s.Arenas[rank].Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			for i := range v {
				v[i] = float32(10*i + rank)
			}
			off, ok := s.Arenas[rank].Offset(v)
			if !ok && n > 0 {
				t.Errorf("rank %d does not know its memory", rank)
			}
			if _, ok := ranks[1-rank].Arenas[1-rank].Offset(v); ok && n > 0 {
				t.Errorf("rank %d takes the other's memory for its own", 1-rank)
			}
			spans[rank], offs[rank] = v, off
		}
		if n == 0 {
			continue
		}
		if offs[0] != offs[1] || offs[0]%64 != 0 {
			t.Errorf("%d values lie at %d and at %d", n, offs[0], offs[1])
		}
		for rank, s := range ranks {
			theirs := s.Arenas[1-rank].Span(offs[rank], uint64(n))
			if theirs[n-1] != float32(10*(n-1)+1-rank) || spans[rank][n-1] != float32(10*(n-1)+rank) {
				t.Errorf("rank %d finds %v, and has %v", rank, theirs[n-1], spans[rank][n-1])
			}
		}
	}
}

// There is memory behind what an arena gives, before anything is written.
func TestBacked(t *testing.T) {
	mem, err := shm.Create(first(2) + 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	probe := on(mem, 2)
	for rank, a := range probe.Arenas {
		v, err := a.Alloc(4 << 20)
		if err != nil {
			t.Fatal(err)
		}
		there := make([]byte, 4*len(v)/os.Getpagesize())
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&v[0])), uintptr(4*len(v)), uintptr(unsafe.Pointer(&there[0])))
		if errno != 0 {
			t.Fatal(errno)
		}
		for page, x := range there {
			if x&1 == 0 && unix.Madvise(mem.Bytes[:1], unix.MADV_POPULATE_WRITE) != unix.EINVAL { // EINVAL: before Linux 5.14
				t.Fatalf("rank %d: page %d of %d is not there", rank, page, len(there))
			}
		}
	}
}
