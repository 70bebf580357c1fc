//go:build !race

package kvbench

const raced = false
