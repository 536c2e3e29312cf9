//go:build race

package sum

// The race detector sees what Go code does to memory, not what assembly does.
const watched = true
