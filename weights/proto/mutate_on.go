//go:build weightmutate

package proto

import "fmt"

var mutationNames = [...]string{
	mutNone: "none", mutAllFlip: "all-flip", mutEarlyPut: "early-put", mutFence: "fence", mutAlone: "alone", mutTermReuse: "term-reuse",
	mutTermID: "term-id", mutStart: "start", mutStopped: "stopped", mutQuiet: "quiet", mutLog: "log", mutEpoch: "epoch",
	mutUnknown: "unknown", mutPrepared: "prepared", mutLease: "lease", mutOut: "out", mutUnquiet: "unquiet", mutStuck: "stuck",
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
