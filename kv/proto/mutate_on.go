//go:build kvmutate

package proto

import "fmt"

var mutationNames = [...]string{
	mutNone: "none", mutTombOnCancel: "tomb-on-cancel", mutTombOnReject: "tomb-on-reject", mutGate: "gate", mutNextKept: "next-kept",
	mutSettle: "settle", mutFence: "fence", mutRecheck: "recheck", mutBye: "bye", mutEpoch: "epoch", mutLowWater: "low-water",
	mutCreditMax: "credit-max", mutSecondHolder: "second-holder", mutPublish: "publish",
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
