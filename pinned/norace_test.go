//go:build !race

package pinned_test

const raceBuild = false
