package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/topo"
)

// checkGIDs looks whether peers on other hosts can reach a port of RoCE, and under which addresses.
func checkGIDs(f *Facts) []Line {
	return f.ports(func(_ topo.NIC, p topo.Port) []Line {
		if p.Kind != topo.RoCE || !active(p) {
			return nil
		}
		return f.gids(p)
	})
}

func (f *Facts) gids(p topo.Port) []Line {
	give := "give the port's interface an address, which becomes a GID"
	if p.NetDev != "" {
		give = fmt.Sprintf("give it an address, which becomes a GID: ip addr add 10.0.0.1/24 dev %s (any, IPv4 or IPv6)", p.NetDev)
	}
	second := slices.DeleteFunc(slices.Clone(p.GIDs), func(g topo.GID) bool { return g.Type != topo.GIDRoCEv2 })
	routable := slices.DeleteFunc(slices.Clone(second), func(g topo.GID) bool { return !g.Routable() })
	switch {
	case len(p.GIDs) == 0:
		return fail(give+"; in a container: the interface must be in its network namespace", "the GID table is empty")
	case len(second) == 0:
		return fail("newer firmware and driver of the card; the network verbs does not use version 1", "no GID of RoCE v2, only of v1, which does not pass routers")
	case len(routable) == 0:
		return fail(give, "only link-local GIDs (%s): they mean another host on each link", list(second))
	}
	var lines []Line
	if strange := slices.DeleteFunc(slices.Clone(routable), f.own); len(strange) > 0 {
		lines = warn("ip addr shows what the interface has; a GID that stays behind goes with: ip link set "+p.NetDev+" down, and up",
			"not of an address of the interface, so that packets from there are dropped: %s", list(strange))
		routable = slices.DeleteFunc(routable, func(g topo.GID) bool { return slices.Contains(strange, g) })
	}
	if len(routable) > 0 {
		lines = append(lines, ok("RoCE v2: %s", list(routable))...)
	}
	return lines
}

// own reports whether a GID stands for an address of its interface, or that this is not known.
func (f *Facts) own(g topo.GID) bool {
	if !f.Net.Known || g.NetDev == "" {
		return true
	}
	for _, i := range f.Net.Interfaces {
		if i.Name == g.NetDev {
			return slices.ContainsFunc(i.Addrs, func(a netip.Prefix) bool { return a.Addr() == g.IP() })
		}
	}
	return false // an interface that is not in this network namespace
}

// list is GIDs for people: their index and address.
func list(gids []topo.GID) string {
	var all []string
	for _, g := range gids {
		all = append(all, fmt.Sprintf("%d (%s)", g.Index, g.IP()))
	}
	return strings.Join(all, ", ")
}
