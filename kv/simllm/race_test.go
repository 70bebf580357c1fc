//go:build race

package simllm

// raced: the race detector makes content many times slower.
const raced = true
