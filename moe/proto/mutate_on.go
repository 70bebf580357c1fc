//go:build moemutate

package proto

import "fmt"

var mutationNames = [...]string{
	mutNone: "none", mutGate: "gate", mutSource: "source", mutY: "y", mutBusy: "busy", mutUnpacked: "unpacked", mutWindow: "window",
	mutCounted: "counted", mutResults: "results", mutEmpty: "empty", mutLost: "lost", mutLater: "later", mutTell: "tell", mutRefuse: "refuse",
	mutQuiet: "quiet", mutRound1: "round1", mutListed: "listed", mutGone: "gone", mutNext: "next", mutFresh: "fresh",
	mutResend: "resend", mutUnsent: "unsent", mutRound2: "round2",
}

var mutated mutation

// broken reports whether a guard is taken away.
func broken(m mutation) bool { return mutated == m }

// Mutate takes one guard away, of all machines, until the next call; "none" takes none. Not for concurrent use.
func Mutate(name string) {
	for m, n := range mutationNames {
		if n == name {
			mutated = mutation(m)
			return
		}
	}
	panic(fmt.Sprintf("no mutation %q", name))
}

// Mutations are the names of all guards.
func Mutations() []string { return mutationNames[1:] }
