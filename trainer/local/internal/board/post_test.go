package board

import "testing"

// Where ranks do not call the same, those that are fewer come first; an
// exchange may have another length on each.
func TestDiffer(t *testing.T) {
	sum, mean := Post{What: Reduce, Length: 10, Offset: 64}, Post{What: Reduce + 1, Length: 10, Offset: 64}
	elsewhere := sum
	elsewhere.Offset = 128
	for _, test := range []struct {
		posts []Post
		want  string
	}{
		{posts: []Post{sum}},
		{posts: []Post{sum, sum, sum}},
		{posts: []Post{{What: Exchange, Length: 7}, {What: Exchange}, {What: Exchange, Length: 9}}},
		{[]Post{sum, mean}, "rank 1 called all-reduce (average) of 10 values, rank 0 called all-reduce (sum) of 10 values"},
		{[]Post{mean, sum, sum}, "rank 0 called all-reduce (average) of 10 values, ranks 1, 2 called all-reduce (sum) of 10 values"},
		{[]Post{sum, sum, mean}, "rank 2 called all-reduce (average) of 10 values, ranks 0, 1 called all-reduce (sum) of 10 values"},
		{[]Post{sum, elsewhere}, "rank 1 called all-reduce (sum) of 10 values at byte 128 of its memory, rank 0 called all-reduce (sum) of 10 values at byte 64 of its memory"},
		{
			[]Post{sum, {What: Broadcast, Length: 5, Root: 2}, sum, {What: Exchange, Length: 3}, sum},
			"rank 3 called exchange of 3 bytes, rank 1 called broadcast of 5 values from rank 2, ranks 0, 2, 4 called all-reduce (sum) of 10 values",
		},
		{[]Post{{What: Join, Length: 8}, {What: Broadcast, Root: 1}}, "rank 1 called broadcast of 0 values from rank 1, rank 0 called join"},
	} {
		b := New(len(test.posts))
		for rank, p := range test.posts {
			b.Arrive(rank, 3, p)
		}
		if got := b.Differ(3); got != test.want {
			t.Errorf("%v\n differ by %q,\n     want %q", test.posts, got, test.want)
		}
	}
}
