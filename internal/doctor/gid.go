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
	own := slices.DeleteFunc(slices.Clone(routable), func(g topo.GID) bool { return f.place(g) != here })
	if len(own) > 0 {
		lines = ok("RoCE v2: %s", list(own))
	}
	if gone := slices.DeleteFunc(slices.Clone(routable), func(g topo.GID) bool { return f.place(g) != nowhere }); len(gone) > 0 {
		lines = append(lines, warn("ip addr shows what the interface has; a GID that stays behind goes with: ip link set "+gone[0].NetDev+" down, and up",
			"%s has no such address, so that packets from there are dropped: %s", gone[0].NetDev, list(gone))...)
	}
	if far := slices.DeleteFunc(slices.Clone(routable), func(g topo.GID) bool { return f.place(g) != elsewhere }); len(far) > 0 {
		lines = append(lines, warn("docker --network host; a pod: hostNetwork, or the NIC's interface given to it (SR-IOV or host-device CNI)",
			"%s is not in this network namespace, so that connections from there fail: %s", far[0].NetDev, list(far))...)
	}
	return lines
}

// place is where the address of a GID is.
type place int

const (
	here      place = iota // at its interface, or nobody knows
	nowhere                // its interface does not have it
	elsewhere              // its interface is in another network namespace
)

func (f *Facts) place(g topo.GID) place {
	if !f.Net.Known || g.NetDev == "" {
		return here
	}
	i := slices.IndexFunc(f.Net.Interfaces, func(i Interface) bool { return i.Name == g.NetDev })
	switch {
	case i < 0:
		return elsewhere
	case slices.ContainsFunc(f.Net.Interfaces[i].Addrs, func(a netip.Prefix) bool { return a.Addr() == g.IP() }):
		return here
	}
	return nowhere
}

// list is GIDs for people: their index and address.
func list(gids []topo.GID) string {
	var all []string
	for _, g := range gids {
		all = append(all, fmt.Sprintf("%d (%s)", g.Index, g.IP()))
	}
	return strings.Join(all, ", ")
}
