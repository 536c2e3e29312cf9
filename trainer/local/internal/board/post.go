package board

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Post is a call as the other ranks see it.
type Post struct {
	What   uint32
	Root   uint32 // of a broadcast
	Length uint64 // in values, of an exchange in bytes
	Offset uint64 // in the rank's arena, in bytes
}

// What is called.
const (
	Join uint32 = iota // an exchange
	Exchange
	Broadcast
	Reduce // plus a trainer.Op: sum, average
)

// String is, for instance, "broadcast of 7 values from rank 0".
func (p Post) String() string {
	switch p.What {
	case Join:
		return "join"
	case Exchange:
		return fmt.Sprintf("exchange of %d bytes", p.Length)
	case Broadcast:
		return fmt.Sprintf("broadcast of %d values from rank %d", p.Length, p.Root)
	case Reduce:
		return fmt.Sprintf("all-reduce (sum) of %d values", p.Length)
	default:
		return fmt.Sprintf("all-reduce (average) of %d values", p.Length)
	}
}

// key is what has to be the same on all ranks.
func (p Post) key() Post {
	if p.What == Exchange {
		p.Length = 0
	}
	return p
}

// Differ says what ranks called that did not call the same: "" where all did.
// The ranks that are fewer come first: it is likely them.
func (b Board) Differ(meeting uint64) string {
	type call struct {
		Post
		ranks []int
	}
	var calls []call
	places := false
	for rank := range b.slots {
		p := b.Post(rank, meeting)
		if len(calls) == 0 && p.key() == b.Post(0, meeting).key() {
			continue // as it should be: nothing is to be collected
		}
		if calls == nil {
			calls = []call{{Post: b.Post(0, meeting)}}
			for before := range rank {
				calls[0].ranks = append(calls[0].ranks, before)
			}
		}
		i := slices.IndexFunc(calls, func(c call) bool { return c.key() == p.key() })
		if i < 0 {
			i = len(calls)
			calls = append(calls, call{Post: p})
		}
		calls[i].ranks = append(calls[i].ranks, rank)
		p.Offset = calls[0].Offset
		places = places || i > 0 && p.key() == calls[0].key()
	}
	slices.SortFunc(calls, func(x, y call) int {
		return cmp.Or(len(x.ranks)-len(y.ranks), y.ranks[0]-x.ranks[0])
	})
	var words []string
	for _, c := range calls {
		text := fmt.Sprintf("%s called %v", Ranks(c.ranks), c.Post)
		if places {
			text += fmt.Sprintf(" at byte %d of its memory", c.Offset)
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}

// Ranks is "rank 1" or "ranks 1, 3".
func Ranks(ranks []int) string {
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]")
	if len(ranks) == 1 {
		return "rank " + list
	}
	return "ranks " + list
}
