package topo

import "fmt"

// Distance is how far two devices are apart, nearest first.
type Distance int

// Distances. Those above SameRootComplex pass the processor; Across passes the link between processors.
const (
	SameSwitch      Distance = iota // below one switch, each at a port of its own
	SameRootPort                    // below one port of the root complex, with more than one switch between, or as parts of one card
	SameRootComplex                 // at different ports of it
	SameNUMA                        // at different root complexes of one NUMA node
	Across                          // at different NUMA nodes
	Unknown                         // where one of them is cannot be seen
)

var distanceText = [...]string{"same switch", "same root port", "same root complex", "same NUMA node", "across NUMA nodes", "unknown"}

func (d Distance) String() string {
	if d < 0 || int(d) >= len(distanceText) {
		return fmt.Sprintf("Distance(%d)", int(d))
	}
	return distanceText[d]
}

// MarshalText writes what String returns.
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Distance) UnmarshalText(text []byte) error {
	for i, s := range distanceText {
		if s == string(text) {
			*d = Distance(i)
			return nil
		}
	}
	return fmt.Errorf("distance %q: not known", text)
}

// Distance is how far two devices of this host are apart.
func (h *Host) Distance(a, b Place) Distance {
	d, _ := h.distance(a, b)
	return d
}

// distance also returns the number of bridges beyond the common one, which breaks ties.
func (h *Host) distance(a, b Place) (Distance, int) {
	if a.PCI != "" && b.PCI != "" && a.Root == b.Root {
		common := 0
		for common < len(a.Bridges) && common < len(b.Bridges) && a.Bridges[common].PCI == b.Bridges[common].PCI {
			common++
		}
		restA, restB := len(a.Bridges)-common, len(b.Bridges)-common
		hops := restA + restB
		switch {
		case common == 0:
			return SameRootComplex, hops
		case common >= 2 && restA <= 1 && restB <= 1: // a root port, and the upstream port of a switch
			return SameSwitch, hops
		}
		return SameRootPort, hops
	}
	hops := len(a.Bridges) + len(b.Bridges)
	switch {
	case a.PCI == "" || b.PCI == "":
		if a.NUMA < 0 || b.NUMA < 0 {
			return Unknown, hops
		}
	case len(h.Nodes) == 1 && a.NUMA <= 0 && b.NUMA <= 0: // machines with one node leave it out
		return SameNUMA, hops
	}
	switch {
	case a.NUMA < 0 || b.NUMA < 0:
		return Unknown, hops
	case a.NUMA == b.NUMA:
		return SameNUMA, hops
	}
	return Across, hops
}

// common is the lowest bridge that is above both devices, "" without one.
func common(a, b Place) string {
	at := ""
	for i := 0; a.Root == b.Root && i < len(a.Bridges) && i < len(b.Bridges) && a.Bridges[i].PCI == b.Bridges[i].PCI; i++ {
		at = a.Bridges[i].PCI
	}
	return at
}
