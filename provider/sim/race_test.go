//go:build race

package sim_test

// raceEnabled: the detector makes each run some ten times slower.
const raceEnabled = true
