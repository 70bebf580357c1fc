package hawser

import (
	"slices"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/topo"
)

// preferred orders the cards of a provider that has more of them than are opened: as the host's plan has it, the fastest first and by
// turns from each NUMA node, so that those that are opened do not all hang on one processor.
func preferred(devs []provider.Device) []provider.Device {
	if len(devs) <= maxCards {
		return devs
	}
	h, err := topo.Read("")
	if err != nil {
		return devs
	}
	return spread(devs, h)
}

func spread(devs []provider.Device, h *topo.Host) []provider.Device {
	plan := h.Plan()
	rank := func(d provider.Device) int { return plan.Host.Rank(d.Name) }
	devs = slices.Clone(devs)
	slices.SortStableFunc(devs, func(a, b provider.Device) int { return rank(a) - rank(b) })
	return devs
}
