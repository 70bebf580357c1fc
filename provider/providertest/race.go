//go:build race

package providertest

// raceEnabled: the detector looks at every byte that is copied, so tests move fewer.
const raceEnabled = true
