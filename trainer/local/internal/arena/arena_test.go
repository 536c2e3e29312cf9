package arena

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"
)

// mapped is an arena of 1 MiB as its rank and as another one sees it.
func mapped() (own, others *Mapped) {
	heap, _ := new(Heap).Alloc(1 << 18)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&heap[0])), 4*len(heap))
	return On(mem, func(i, j int) error { return nil }), On(mem, nil)
}

// A span is known by its offset, in both kinds of arena.
func TestOffset(t *testing.T) {
	heap := new(Heap)
	own, others := mapped()
	for name, a := range map[string][2]Arena{"heap": {heap, heap}, "mapped": {own, others}} {
		t.Run(name, func(t *testing.T) {
			for k, n := range []int{3, 0, 17, 1000} {
				v, err := a[0].Alloc(n)
				if err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					continue
				}
				if address(v)%64 != 0 {
					t.Errorf("%d values lie at %#x", n, address(v))
				}
				for i := range v {
					if v[i] != 0 {
						t.Fatalf("new memory holds %v", v[i])
					}
					v[i] = float32(1000*k + i)
				}
				part := v[n/2 : n-1]
				off, ok := a[0].Offset(part)
				if !ok {
					t.Fatal("the arena does not know its memory")
				}
				if got := a[1].Span(off, uint64(len(part))); fmt.Sprint(got) != fmt.Sprint(part) {
					t.Errorf("at offset %d lies %v, not %v", off, got, part)
				}
			}
			if _, ok := a[0].Offset(make([]float32, 10)); ok {
				t.Error("memory of nobody counts as given")
			}
		})
	}
	if _, ok := own.Offset(own.Span(uint64(own.used), 1)); ok {
		t.Error("memory behind what Alloc gave counts as given")
	}
	last := own.Span(uint64(own.used)-64, 17)
	if _, ok := own.Offset(last); ok {
		t.Error("a span that ends behind what Alloc gave counts as given")
	}
}

func TestFull(t *testing.T) {
	m, _ := mapped()
	for range 4 {
		if _, err := m.Alloc(1 << 16); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Alloc(0); err != nil {
		t.Error(err)
	}
	if _, err := m.Alloc(1); err == nil || !strings.Contains(err.Error(), "0 of the 1048576 bytes") {
		t.Errorf("the error is %v", err)
	}
	if _, err := new(Heap).Alloc(Bytes/4 + 1); err == nil {
		t.Error("more than an arena's address space is no error")
	}
}

// Without memory behind it, an arena gives nothing, and the next call begins
// at the same place.
func TestNoMemory(t *testing.T) {
	m, _ := mapped()
	none := errors.New("no memory")
	m.back = func(i, j int) error {
		if i != 0 || j != 400 {
			t.Errorf("asked for %d … %d", i, j)
		}
		return none
	}
	for range 2 {
		if _, err := m.Alloc(100); err != none {
			t.Errorf("the error is %v", err)
		}
	}
}
