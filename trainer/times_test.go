package trainer

import (
	"testing"
	"time"
)

// Buckets go one after the other, so one is on its way from when it was
// started, or the one before it has ended, until it has ended. What is before
// the end of the backward pass is hidden.
func TestTimes(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for _, c := range []struct {
		name            string
		buckets         [][2]int // started and ended
		computed        int
		all, exposed    int
		overlapInTenths int
	}{
		{"hidden", [][2]int{{0, 10}}, 10, 10, 0, 10},
		{"exposed", [][2]int{{5, 15}}, 5, 10, 10, 0},
		{"half", [][2]int{{0, 10}}, 5, 10, 5, 5},
		{"two, with a gap", [][2]int{{0, 10}, {20, 30}}, 22, 20, 8, 6},
		{"two, the second waits for the first", [][2]int{{0, 10}, {2, 20}}, 12, 20, 8, 6},
	} {
		var r reduction[Host]
		for _, b := range c.buckets {
			r.buckets = append(r.buckets, bucket[Host]{started: at(b[0]), ended: at(b[1])})
		}
		all, exposed := r.times(at(c.computed))
		s := Stats{AllReduce: all, Exposed: exposed}
		if all.Milliseconds() != int64(c.all) || exposed.Milliseconds() != int64(c.exposed) || int(s.Overlap()*10+0.5) != c.overlapInTenths {
			t.Errorf("%s: %v on their way, %v exposed, overlap %v", c.name, all, exposed, s.Overlap())
		}
	}
	if got := (Stats{}).Overlap(); got != 0 {
		t.Errorf("the overlap of nothing is %v", got)
	}
}
