package layer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/viterin/vek/vek32"
)

// Dropout puts 0 in the place of a share P of the values, in training, and
// multiplies the others by 1/(1-P). In evaluation it hands its input on.
//
// Which values of a row these are depends on the seed, the layer's place in
// the net, the epoch and the sample, and on nothing else: not on the number of
// ranks, on the row's place in the batch, or on where a run was resumed. So
// Examples must say Epoch and Samples, or a row has the same zeros in every
// step.
type Dropout struct {
	P float64 // 0 … 1

	bare
	mask  Matrix // what each value is multiplied by
	y, dx Matrix
	hash  [8 + 4*8]byte
}

// Forward is x with zeros. It fails where P is no share.
func (l *Dropout) Forward(p *Pass, x Matrix) (Matrix, error) {
	if !(l.P >= 0 && l.P <= 1) {
		return Matrix{}, fmt.Errorf("layer: Dropout of the share %v: it must be 0 to 1", l.P)
	}
	if !p.Train {
		return x, nil
	}
	l.mask, l.y = l.mask.Resize(x.Rows, x.Cols), l.y.Resize(x.Rows, x.Cols)
	for row := range x.Rows {
		l.draw(p, row)
	}
	vek32.Mul_Into(l.y.Data, x.Data, l.mask.Data)
	return l.y, nil
}

// draw makes the mask of a row.
func (l *Dropout) draw(p *Pass, row int) {
	sample := row
	if p.Samples != nil {
		sample = p.Samples[row]
	}
	copy(l.hash[:8], "dropout1")
	for i, v := range [...]uint64{p.Seed, uint64(p.Layer), uint64(p.Epoch), uint64(sample)} {
		binary.BigEndian.PutUint64(l.hash[8+8*i:], v)
	}
	sum := sha256.Sum256(l.hash[:])
	var bits rand.PCG
	bits.Seed(binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:]))
	limit, scale := uint64(l.P*(1<<32)), float32(1/(1-l.P)) // a value lives where 32 bits are limit or more
	mask := l.mask.Row(row)
	for i := range mask {
		mask[i] = 0
		if bits.Uint64()>>32 >= limit {
			mask[i] = scale
		}
	}
}

// Backward is dy with zeros in the same places.
func (l *Dropout) Backward(_ *Pass, dy Matrix) (Matrix, error) {
	l.dx = l.dx.Resize(dy.Rows, dy.Cols)
	vek32.Mul_Into(l.dx.Data, dy.Data, l.mask.Data)
	return l.dx, nil
}
