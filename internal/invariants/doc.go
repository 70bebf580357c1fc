// Package invariants panics where a rule that the code relies on is broken, in builds with the tag invariants or under the race
// detector. Other builds pay nothing. It is for mistakes of this program only, never for what a peer sends.
package invariants
