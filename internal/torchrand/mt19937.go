// Package torchrand makes the random numbers and the permutations of
// PyTorch's CPU generator, bit for bit.
package torchrand

// MT19937 is a torch.Generator on the CPU: the 32-bit Mersenne Twister of
// Matsumoto and Nishimura (1998) with their init_genrand, as in ATen's
// MT19937RNGEngine.h. It is not safe for concurrent use.
type MT19937 struct {
	state [pairs]uint64 // two words each, the earlier one in the low half: both are handled at once
	block [words]uint32 // the state, tempered: the words to draw
	next  int           // in block
}

const (
	words = 624
	pairs = words / 2
	far   = 397 // a word is made of itself, the next one, and the one so far on
)

// New is the generator after manual_seed(seed). Only the low 32 bits of the
// seed matter: PyTorch drops the others.
func New(seed uint64) *MT19937 {
	m := &MT19937{next: words}
	follow := func(word uint32, j int) uint32 { return 1812433253*(word^word>>30) + uint32(j) }
	low := uint32(seed)
	for j := range m.state {
		high := follow(low, 2*j+1)
		m.state[j] = uint64(high)<<32 | uint64(low)
		low = follow(high, 2*j+2)
	}
	return m
}

// Uint32 is the next word: PyTorch's random().
func (m *MT19937) Uint32() uint32 { return m.take(1)[0] }

// Uint64 is made of the next two words, the first of which is the high half:
// PyTorch's random64().
func (m *MT19937) Uint64() uint64 {
	high := uint64(m.Uint32())
	return high<<32 | uint64(m.Uint32())
}

// take draws at least one word and at most limit. They stay as they are until
// the next draw.
func (m *MT19937) take(limit int) []uint32 {
	if m.next == words {
		m.renew()
		m.next = 0
	}
	first := m.next
	m.next += min(limit, words-first)
	return m.block[first:m.next]
}

// renew makes the next 624 words, in place and in order: where an index wraps
// round, the word there is new already.
func (m *MT19937) renew() {
	const far = far / 2 // the low half wants the high half of that pair, the high half the low half of the next
	s := &m.state
	for j := range pairs - far - 1 {
		s[j] = twist(s[j], s[j+1], s[j+far], s[j+far+1])
	}
	s[pairs-far-1] = twist(s[pairs-far-1], s[pairs-far], s[pairs-1], s[0])
	for j := pairs - far; j < pairs-1; j++ {
		s[j] = twist(s[j], s[j+1], s[j+far-pairs], s[j+far+1-pairs])
	}
	s[pairs-1] = twist(s[pairs-1], s[0], s[far-1], s[far])
	for j, y := range s {
		y ^= y >> 11 & (0x001fffff * both)
		y ^= y << 7 & (0x9d2c5680 * both)
		y ^= y << 15 & (0xefc60000 * both)
		y ^= y >> 18 & (0x00003fff * both)
		m.block[2*j], m.block[2*j+1] = uint32(y), uint32(y>>32)
	}
}

// both makes a word a pair of it: a mask for both halves.
const both = 1<<32 + 1

// twist is the pair that replaces u. Next follows u; f and g hold the words
// that are 397 on.
func twist(u, next, f, g uint64) uint64 {
	v := u>>32 | next<<32
	y := u&(0x80000000*both) | v&(0x7fffffff*both)
	return f>>32 ^ g<<32 ^ y>>1&(0x7fffffff*both) ^ v&both*0x9908b0df
}
