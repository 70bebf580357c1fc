//go:build !race

package simllm

const raced = false
