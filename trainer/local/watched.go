//go:build !race

package local

const watched = false
