//go:build !race

package ofi_test

const raceEnabled = false
