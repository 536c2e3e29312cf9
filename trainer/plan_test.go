package trainer

import (
	"slices"
	"testing"
)

// Buckets close in reverse order of use, before the parameter that would make
// them too large; a parameter larger than a bucket has one for itself.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		values        []int // of the parameters, 4 bytes each
		first, others int   // bytes
		want          [][2]int
	}{
		{nil, 8, 8, nil},
		{[]int{1}, 8, 8, [][2]int{{0, 0}}},
		{[]int{1, 1, 1, 1, 1}, 8, 12, [][2]int{{3, 4}, {0, 2}}},
		{[]int{100, 1, 1}, 8, 12, [][2]int{{1, 2}, {0, 0}}},
		{[]int{1, 100, 1}, 8, 12, [][2]int{{2, 2}, {1, 1}, {0, 0}}},
		{[]int{784 * 512, 512, 512 * 10, 10}, 1 << 20, 25 << 20, [][2]int{{1, 3}, {0, 0}}},
		{[]int{0, 0, 3}, 4, 4, [][2]int{{2, 2}, {0, 1}}},
	} {
		var params []*Param[Host]
		var trained []int
		for i, n := range c.values {
			params = append(params, &Param[Host]{Shape: []int{n}}, &Param[Host]{Shape: []int{7}, Role: Frozen})
			trained = append(trained, 2*i)
		}
		var got [][2]int
		for _, b := range plan(params, trained, Config{FirstBucket: c.first, Bucket: c.others}) {
			got = append(got, [2]int{b.params[0] / 2, b.params[len(b.params)-1] / 2})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
