//go:build !race

package weights

// race says that the race detector is on.
const race = false
