package bucket

import (
	"slices"
	"testing"
	"time"
)

// Buckets close in reverse order of use, before the parameter that would make
// them too large; a parameter larger than a bucket has one for itself. What is
// not trained is in none.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		values      []int // of the trained parameters, 4 bytes each
		first, rest int   // bytes
		want        [][2]int
	}{
		{nil, 8, 8, nil},
		{[]int{1}, 8, 8, [][2]int{{0, 0}}},
		{[]int{1, 1, 1, 1, 1}, 8, 12, [][2]int{{3, 4}, {0, 2}}},
		{[]int{100, 1, 1}, 8, 12, [][2]int{{1, 2}, {0, 0}}},
		{[]int{1, 100, 1}, 8, 12, [][2]int{{2, 2}, {1, 1}, {0, 0}}},
		{[]int{784 * 512, 512, 512 * 10, 10}, 1 << 20, 25 << 20, [][2]int{{1, 3}, {0, 0}}},
		{[]int{0, 0, 3}, 4, 4, [][2]int{{2, 2}, {0, 1}}},
	} {
		var params []Param
		at := 0
		for _, n := range c.values {
			params = append(params, Param{Trained: true, From: at, To: at + n}, Param{From: 1000, To: 1007})
			at += n
		}
		var got [][2]int
		for _, b := range plan(params, c.first, c.rest) {
			got = append(got, [2]int{b.params[0] / 2, b.params[len(b.params)-1] / 2})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

type span []float32

func (s span) Slice(i, j int) span { return s[i:j] }

// Buckets go one after the other, so one is on its way from when it was
// started, or the one before it has ended, until it has ended.
func TestTimes(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for _, c := range []struct {
		name       string
		buckets    [][2]int // started and ended
		computed   int
		all, after int
	}{
		{"hidden", [][2]int{{0, 10}}, 10, 10, 0},
		{"exposed", [][2]int{{5, 15}}, 5, 10, 10},
		{"half", [][2]int{{0, 10}}, 5, 10, 5},
		{"two, with a gap", [][2]int{{0, 10}, {20, 30}}, 22, 20, 8},
		{"two, the second waits for the first", [][2]int{{0, 10}, {2, 20}}, 12, 20, 8},
	} {
		var r Reduction[span]
		for _, b := range c.buckets {
			r.buckets = append(r.buckets, bucket{started: at(b[0]), ended: at(b[1])})
		}
		all, after := r.Times(at(c.computed))
		if all.Milliseconds() != int64(c.all) || after.Milliseconds() != int64(c.after) {
			t.Errorf("%s: %v on their way, %v of it after", c.name, all, after)
		}
	}
}

func TestList(t *testing.T) {
	if got := List([]string{"a", "b"}); got != "a, b" {
		t.Errorf("%q", got)
	}
	if got := List(make([]string, 10)); got != ", , , , , , ,  and 2 more" {
		t.Errorf("%q", got)
	}
}
