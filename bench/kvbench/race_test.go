//go:build race

package kvbench

// raced: the race detector makes everything many times slower.
const raced = true
