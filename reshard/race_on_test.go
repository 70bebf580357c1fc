//go:build race

package reshard

// Race says that the race detector is on.
const Race = true
