//go:build race

package main

// raced: the race detector makes content many times slower.
const raced = true
