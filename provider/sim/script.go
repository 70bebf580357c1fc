package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// FaultKind is what a Fault does; the methods of Fabric with these names say it in full.
type FaultKind uint8

const (
	FaultKill      FaultKind = iota + 1 // Kill Places[0]
	FaultFail                           // Fail Places[0]
	FaultCut                            // Cut Places[0] and Places[1]; healed after For
	FaultPartition                      // Partition Places; rejoined after For
	FaultStall                          // Stall Places[0] for For
)

func (k FaultKind) String() string {
	names := [...]string{"", "kill", "fail", "cut", "partition", "stall"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Fault is something that goes wrong. Places are those of the package's documentation; one that is missing is "".
type Fault struct {
	At     uint64 // just before the event with this index is played; see Fabric.Events
	Kind   FaultKind
	Places []string
	For    time.Duration // until it is undone, of FaultCut, FaultPartition and FaultStall; 0 is never (a stall: no time). Real time in auto mode
}

// String is the fault as it stands in a failure's report.
func (x Fault) String() string {
	s := fmt.Sprintf("at %d %v %s", x.At, x.Kind, strings.Join(x.Places, " "))
	if x.For > 0 {
		s += " for " + x.For.String()
	}
	return s
}

func byEvent(a, b Fault) int { return cmp.Compare(a.At, b.At) }

func (x *Fault) place(i int) string {
	if i < len(x.Places) {
		return x.Places[i]
	}
	return ""
}

// Script has faults happen later, each before the event of its index, or at once when that has been played. It adds to what is
// scheduled already. Places is retained.
func (f *Fabric) Script(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = append(f.script, faults...)
	slices.SortStableFunc(f.script, byEvent)
}

// Inject has a fault happen now; At is ignored.
func (f *Fabric) Inject(x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inject(x)
}

// playScript injects what is due. Guarded by the mutex.
func (f *Fabric) playScript() {
	for len(f.script) > 0 && f.script[0].At <= f.played {
		x := f.script[0]
		f.script = f.script[1:]
		f.inject(x)
	}
}

func (f *Fabric) inject(x Fault) {
	f.stats.Faults++
	f.hashText(x.Kind.String())
	f.hashText(x.Places...)
	a, b := x.place(0), x.place(1)
	switch x.Kind {
	case FaultKill, FaultFail:
		f.vanishAt(a, x.Kind == FaultFail)
	case FaultCut:
		f.cuts[between(a, b)] = true
		f.limitCuts()
		f.undo(x.For, func() { delete(f.cuts, between(a, b)) })
	case FaultPartition:
		group := &island{x.Places}
		f.islands = append(f.islands, group)
		f.limitCuts()
		f.undo(x.For, func() { f.islands = slices.DeleteFunc(f.islands, func(g *island) bool { return g == group }) })
	case FaultStall:
		f.stall(a, x.For)
	default:
		panic(fmt.Sprintf("sim: unknown fault kind %d", x.Kind))
	}
}

// undo lets a cut end after a time, if it does.
func (f *Fabric) undo(after time.Duration, heal func()) {
	if after > 0 {
		f.after(after, func() { heal(); f.mend() })
	}
}

// RandomFaults makes a script of n faults before the event number events, of the given kinds, at random places and for
// random times up to longest. Equal arguments give equal scripts. A cut is between any two of the places, or of one and all others.
func RandomFaults(seed uint64, n int, events uint64, longest time.Duration, places []string, kinds ...FaultKind) []Fault {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	faults := make([]Fault, n)
	for i := range faults {
		x := Fault{At: rng.Uint64N(events + 1), Kind: kinds[rng.IntN(len(kinds))], Places: []string{places[rng.IntN(len(places))]}}
		switch x.Kind {
		case FaultCut:
			if other := places[rng.IntN(len(places))]; other != x.Places[0] {
				x.Places = append(x.Places, other)
			}
			x.For = 1 + time.Duration(rng.Int64N(int64(longest)))
		case FaultPartition, FaultStall:
			x.For = 1 + time.Duration(rng.Int64N(int64(longest)))
		}
		faults[i] = x
	}
	slices.SortStableFunc(faults, byEvent)
	return faults
}

// Shrink returns a part of a script that still fails, from which no fault can be left out. fails plays a script, on a new fabric of
// the same seed; it is called about len(faults)² times at most.
func Shrink(faults []Fault, fails func([]Fault) bool) []Fault {
	for size := (len(faults) + 1) / 2; size > 0; {
		smaller := false
		for i := 0; i+size <= len(faults); {
			rest := slices.Concat(faults[:i], faults[i+size:])
			if fails(rest) {
				faults, smaller = rest, true
			} else {
				i += size
			}
		}
		if size = min(size, len(faults)); !smaller || size > 1 {
			size /= 2
		}
	}
	return faults
}
