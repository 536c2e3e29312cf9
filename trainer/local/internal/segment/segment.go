// Package segment is the memory that the processes of a group share: the
// board, then an arena a rank.
package segment
