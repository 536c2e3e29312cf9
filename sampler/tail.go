package sampler

import "fmt"

// Tail says what happens to the last samples of an epoch where the ranks
// cannot all get the same number.
type Tail int

const (
	Pad    Tail = iota // samples from the start of the order follow again, as in PyTorch
	Drop               // they are left out
	Uneven             // every sample once: ranks differ by one at most
)

var tails = [...]string{"pad", "drop", "uneven"}

func (t Tail) valid() bool { return t >= 0 && int(t) < len(tails) }

// String is pad, drop or uneven.
func (t Tail) String() string {
	if !t.valid() {
		return fmt.Sprintf("Tail(%d)", int(t))
	}
	return tails[t]
}

// ParseTail is the inverse of String.
func ParseTail(name string) (Tail, error) {
	for t, s := range tails {
		if s == name {
			return Tail(t), nil
		}
	}
	return 0, fmt.Errorf("sampler: no tail is called %q: use pad, drop or uneven", name)
}

// MarshalText is String; it fails for a Tail that is none of the three.
func (t Tail) MarshalText() ([]byte, error) {
	if !t.valid() {
		return nil, fmt.Errorf("sampler: %v is none of Pad, Drop and Uneven", t)
	}
	return []byte(tails[t]), nil
}

// UnmarshalText is ParseTail.
func (t *Tail) UnmarshalText(name []byte) (err error) {
	*t, err = ParseTail(string(name))
	return err
}
