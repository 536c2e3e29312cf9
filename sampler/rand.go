package sampler

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

// Rand is the source of randomness for one sample in one epoch: for cropping,
// flipping, masking. It depends on its arguments alone, and so results do not
// depend on the number of ranks and workers, or on where a run was resumed.
// Not for secrets.
func Rand(seed uint64, epoch, sample int) *rand.Rand {
	pcg := stream("rand/1", seed, uint64(epoch), uint64(sample))
	return rand.New(&pcg)
}

// stream is a stream of random numbers for a purpose. Its state is a SHA-256:
// other values, however near, have nothing to do with it. Adding them up
// instead would make epoch 1 of seed 0 the same as epoch 0 of seed 1.
func stream(purpose string, a, b, c uint64) (pcg rand.PCG) {
	text := make([]byte, 0, 64)
	text = append(text, purpose...)
	for _, v := range [...]uint64{a, b, c} {
		text = binary.BigEndian.AppendUint64(text, v)
	}
	sum := sha256.Sum256(text)
	pcg.Seed(binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:]))
	return pcg
}
