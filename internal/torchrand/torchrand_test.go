package torchrand

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"
)

var huge = flag.Bool("huge", false, "check permutations of 214 million, too: a minute and 2 GB")

// golden is testdata/torch.json: what PyTorch 2.6.0 printed.
var golden struct {
	MT []struct {
		Seed  uint64   `json:"seed_u64"`
		First []uint32 `json:"u32_first"`
		Sum   string   `json:"u32_sha256_1400_as_int64"`
		Wide  []string `json:"random64_first"`
	} `json:"mt19937"`
	Perm        []perm `json:"randperm"`
	Huge        []perm `json:"randperm_huge"`
	Consecutive []struct {
		Seed   uint64
		N      int
		Values [][]int64
	} `json:"randperm_consecutive"`
}

type perm struct {
	N      int
	Seed   uint64
	Values []int64 // of the short ones
	Sum    string  `json:"sha256"`
	Next   string  `json:"next_random64"`
}

func TestMain(m *testing.M) {
	flag.Parse()
	text, err := os.ReadFile("testdata/torch.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// sum is the SHA-256 of the numbers as little-endian int64.
func sum[T uint32 | int32 | int64](numbers []T) string {
	h := sha256.New()
	var buf []byte
	for part := range slices.Chunk(numbers, 1<<16) {
		buf = buf[:0]
		for _, v := range part {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(v))
		}
		h.Write(buf)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestWords(t *testing.T) {
	for _, g := range golden.MT {
		m := New(g.Seed)
		var words []uint32
		for range 1400 {
			words = append(words, m.Uint32())
		}
		if !slices.Equal(words[:len(g.First)], g.First) || sum(words) != g.Sum {
			t.Errorf("seed %d: words %v…, want %v…, and the sum of 1,400", g.Seed, words[:4], g.First[:4])
		}
		m = New(g.Seed)
		for i, want := range g.Wide {
			if got := strconv.FormatUint(m.Uint64(), 10); got != want {
				t.Errorf("seed %d: Uint64 %d is %s, want %s", g.Seed, i, got, want)
			}
		}
	}
	if len(golden.MT) < 17 {
		t.Errorf("only %d golden seeds", len(golden.MT))
	}
}

func TestPerm(t *testing.T) {
	for _, g := range golden.Perm {
		checkPerm[int32](t, g)
		checkPerm[int64](t, g)
	}
	if len(golden.Perm) < 142 {
		t.Errorf("only %d golden permutations", len(golden.Perm))
	}
}

// Both sides of the length at which PyTorch changes its algorithm.
func TestHugePerm(t *testing.T) {
	if !*huge {
		t.Skip("a minute and 2 GB: go test -huge ./internal/torchrand")
	}
	for _, g := range golden.Huge {
		checkPerm[int32](t, g)
	}
}

func checkPerm[T int32 | int64](t *testing.T, g perm) {
	t.Helper()
	m := New(g.Seed)
	p := Perm[T](m, g.N)
	if sum(p) != g.Sum {
		t.Errorf("Perm[%T](%d) of seed %d is %v…, want %v", T(0), g.N, g.Seed, p[:min(8, len(p))], g.Values)
	}
	if next := strconv.FormatUint(m.Uint64(), 10); next != g.Next {
		t.Errorf("after Perm[%T](%d) of seed %d comes %s, want %s: it drew another number of words", T(0), g.N, g.Seed, next, g.Next)
	}
}

func TestConsecutivePerms(t *testing.T) {
	for _, g := range golden.Consecutive {
		m := New(g.Seed)
		for i, want := range g.Values {
			if got := Perm[int64](m, g.N); !slices.Equal(got, want) {
				t.Errorf("permutation %d of one generator is %v, want %v", i, got, want)
			}
		}
	}
}

// The branch for n ≥ 214748364, at a length that can be read. The numbers are
// those of a C++ program made of PyTorch's loop and std::mt19937.
func TestInsideOut(t *testing.T) {
	p := identity[int64](10)
	insideOut(New(42), p)
	if want := []int64{6, 0, 5, 8, 7, 2, 3, 1, 9, 4}; !slices.Equal(p, want) {
		t.Errorf("got %v, want %v", p, want)
	}
}

func TestPermPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"negative":   func() { Perm[int64](New(0), -1) },
		"too narrow": func() { n := math.MaxInt32; Perm[int32](New(0), n+2) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

// twin is mt19937 as its authors wrote it, a word at a time.
type twin struct {
	state [words]uint32
	next  int
}

func newTwin(seed uint64) *twin {
	w := &twin{next: words}
	w.state[0] = uint32(seed)
	for j := uint32(1); j < words; j++ {
		w.state[j] = 1812433253*(w.state[j-1]^w.state[j-1]>>30) + j
	}
	return w
}

func (w *twin) uint32() uint32 {
	if w.next == words {
		for k := range w.state {
			y := w.state[k]&0x80000000 | w.state[(k+1)%words]&0x7fffffff
			w.state[k] = w.state[(k+far)%words] ^ y>>1
			if y%2 == 1 {
				w.state[k] ^= 0x9908b0df
			}
		}
		w.next = 0
	}
	y := w.state[w.next]
	w.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (w *twin) uint64() uint64 {
	high := uint64(w.uint32())
	return high<<32 | uint64(w.uint32())
}

func identity[T int32 | int64](n int) []T {
	p := make([]T, n)
	for i := range p {
		p[i] = T(i)
	}
	return p
}

// The two loops of PyTorch's randperm_cpu.
func (w *twin) swap(p []int64) {
	for i := 0; i < len(p)-1; i++ {
		z := int(w.uint32()) % (len(p) - i)
		p[i], p[i+z] = p[i+z], p[i]
	}
}

func (w *twin) insideOut(p []int64) {
	for i := range p {
		z := w.uint64() % uint64(i+1)
		p[i] = p[z]
		p[z] = int64(i)
	}
}

func FuzzPerm(f *testing.F) {
	for _, n := range []uint16{0, 1, 2, 311, 312, 313, 623, 624, 625, 626, 1248, 5000} {
		f.Add(uint64(n), n, uint16(n/2))
	}
	f.Add(uint64(math.MaxUint64), uint16(7), uint16(623))
	f.Fuzz(func(t *testing.T, seed uint64, n, before uint16) {
		m, w := New(seed), newTwin(seed)
		for range before { // the permutation begins anywhere in a block
			if got, want := m.Uint32(), w.uint32(); got != want {
				t.Fatalf("seed %d: %d, want %d", seed, got, want)
			}
		}
		got, want := identity[int64](int(n)), identity[int64](int(n))
		swap(m, got)
		w.swap(want)
		if !slices.Equal(got, want) {
			t.Fatalf("swap: seed %d, length %d, after %d words: %v, want %v", seed, n, before, got, want)
		}
		got, want = identity[int64](int(n)), make([]int64, n)
		insideOut(m, got)
		w.insideOut(want)
		if !slices.Equal(got, want) {
			t.Fatalf("inside out: seed %d, length %d, after %d words: %v, want %v", seed, n, before, got, want)
		}
		if got, want := m.Uint64(), w.uint64(); got != want {
			t.Fatalf("seed %d: after both comes %d, want %d", seed, got, want)
		}
	})
}

// Beside ours, PyTorch's way: eight bytes a position, one position at a time.
func BenchmarkPerm(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000, 10_000_000} {
		for _, way := range []struct {
			name string
			perm func()
		}{
			{"ours", func() { Perm[int32](New(1), n) }},
			{"torch", func() {
				m, p := New(1), identity[int64](n)
				for i := range n - 1 {
					z := i + int(m.Uint32())%(n-i)
					p[i], p[z] = p[z], p[i]
				}
			}},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, way.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					way.perm()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/position")
			})
		}
	}
}

func BenchmarkWords(b *testing.B) {
	m := New(1)
	b.SetBytes(4 * words)
	b.ReportAllocs()
	for b.Loop() {
		m.renew()
	}
}
