package nn

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shardfeed/shardfeed/trainer"
)

// Score is what an evaluation has counted. Its zero value has counted nothing.
type Score struct {
	Classes []Tally // by the label's class
	Loss    float64 // the sum of the rows' cross-entropies
}

// Tally is rows, and how many of them the model told right.
type Tally struct{ Rows, Correct int }

// Accuracy is the share of the rows that are correct; 0 of no rows.
func (t Tally) Accuracy() float64 { return float64(t.Correct) / float64(max(t.Rows, 1)) }

// All is the tally of all classes.
func (s *Score) All() (all Tally) {
	for _, t := range s.Classes {
		all.Rows += t.Rows
		all.Correct += t.Correct
	}
	return all
}

// MeanLoss is the mean cross-entropy of a row; 0 of no rows.
func (s *Score) MeanLoss() float64 { return s.Loss / float64(max(s.All().Rows, 1)) }

// Sum adds up what the ranks of g have counted, in the order of the ranks, and
// gives every rank the same: exact where each sample is one rank's. Every rank
// calls it, one that has counted nothing, too.
func (s *Score) Sum(ctx context.Context, g trainer.Group[trainer.Host]) (Score, error) {
	mine := binary.LittleEndian.AppendUint64(nil, math.Float64bits(s.Loss))
	for _, t := range s.Classes {
		mine = binary.LittleEndian.AppendUint64(mine, uint64(t.Rows))
		mine = binary.LittleEndian.AppendUint64(mine, uint64(t.Correct))
	}
	all, err := g.Exchange(ctx, mine)
	if err != nil {
		return Score{}, err
	}
	var sum Score
	for rank, theirs := range all {
		if len(theirs)%16 != 8 {
			return Score{}, fmt.Errorf("nn: rank %d brought %d bytes that are no score: every rank calls Sum at the same place", rank, len(theirs))
		}
		sum.Loss += math.Float64frombits(binary.LittleEndian.Uint64(theirs))
		for class := range len(theirs) / 16 {
			t := sum.class(class)
			t.Rows += int(binary.LittleEndian.Uint64(theirs[8+16*class:]))
			t.Correct += int(binary.LittleEndian.Uint64(theirs[16+16*class:]))
		}
	}
	return sum, nil
}

// class is the tally of a class, with room made for it.
func (s *Score) class(class int) *Tally {
	for len(s.Classes) <= class {
		s.Classes = append(s.Classes, Tally{})
	}
	return &s.Classes[class]
}
