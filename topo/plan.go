package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Plan says which ports of NICs serve which memory. Every usable port serves at least one GPU, if there are any, and the host.
type Plan struct {
	GPUs   []Assignment `json:"gpus"`
	Nodes  []Assignment `json:"nodes"` // for memory of one NUMA node; only where there are several with NICs
	Host   Assignment   `json:"host"`  // for memory of the host, wherever it is
	Unused []Choice     `json:"unused"`
}

// Assignment is what serves one kind of memory.
type Assignment struct {
	For    string   `json:"for"` // "gpu0", "node0", "host"
	Rails  []Choice `json:"rails"`
	Spares []string `json:"spares,omitempty"` // Device of the others, nearest first, for when a rail fails
}

// Choice is one port, and why it stands where it does.
type Choice struct {
	NIC      string   `json:"nic"`
	Port     int      `json:"port"`
	LinkBits uint64   `json:"link_bits_per_s"`
	Distance Distance `json:"distance"`
	Why      string   `json:"why"`
}

// Device is the name by which provider verbs lists the port: "mlx5_0/1".
func (c Choice) Device() string { return fmt.Sprintf("%s/%d", c.NIC, c.Port) }

// Rank is where a device stands among the rails, by the name that provider verbs or ofi gives it: "mlx5_0/1", "rdmap79s0-rdm". That of
// other devices is len(a.Rails), so that they come last when devices are sorted by it.
func (a *Assignment) Rank(device string) int {
	i := slices.IndexFunc(a.Rails, func(c Choice) bool {
		return c.Device() == device || c.Port == 1 && strings.HasPrefix(device, c.NIC+"-") // a domain of libfabric's: the NIC and a kind
	})
	if i < 0 {
		return len(a.Rails)
	}
	return i
}

// Unusable is why nothing can be sent through a port now, "" if something can.
func (n *NIC) Unusable(p *Port) string {
	switch {
	case n.Hidden:
		return "no /dev/infiniband/" + n.Verbs
	case p.State == "":
		return "its state cannot be read"
	case p.State != "ACTIVE":
		return strings.TrimSuffix(fmt.Sprintf("state %s, %s", p.State, p.Physical), ", ")
	case len(p.GIDs) == 0 && (p.Kind == RoCE || p.Kind == EFA):
		return "no GID: its interface has no address"
	case p.Kind == InfiniBand && p.LID == 0:
		return "no LID: no subnet manager has seen it"
	}
	return ""
}

// rail is a port while the plan is made.
type rail struct {
	nic  *NIC
	port *Port
	gpus int // that it serves
}

func (r *rail) choice(d Distance, why string) Choice {
	return Choice{NIC: r.nic.Name, Port: r.port.Number, LinkBits: r.port.LinkBits, Distance: d, Why: why}
}

// Plan plans. It depends on nothing but the Host, and equal hosts have equal plans.
//
// Each port goes to one GPU: to a nearest one, and among equally near ones to that which has the least so far. GPUs that this process
// cannot use count, too: those who can are to find their ports free. A GPU whose nearest ports all went to others shares that one of them
// which serves the fewest.
func (h *Host) Plan() Plan {
	p := Plan{Unused: []Choice{}}
	var rails []*rail
	for i := range h.NICs {
		n := &h.NICs[i]
		for j := range n.Ports {
			r := &rail{nic: n, port: &n.Ports[j]}
			if why := n.Unusable(r.port); why != "" {
				p.Unused = append(p.Unused, r.choice(Unknown, why))
				continue
			}
			rails = append(rails, r)
		}
	}
	p.GPUs = h.planGPUs(rails)
	p.Nodes = h.planNodes(rails)
	p.Host = h.planHost(rails)
	return p
}

// near is a port as one GPU sees it.
type near struct {
	*rail
	distance Distance
	hops     int
}

// seen are the ports in the order in which a GPU would like them.
func (h *Host) seen(at Place, rails []*rail) []near {
	all := make([]near, len(rails))
	for i, r := range rails {
		d, hops := h.distance(at, r.nic.Place)
		all[i] = near{r, d, hops}
	}
	slices.SortStableFunc(all, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.hops, b.hops), cmp.Compare(b.port.LinkBits, a.port.LinkBits))
	})
	return all
}

func (h *Host) planGPUs(rails []*rail) []Assignment {
	plans := make([]Assignment, len(h.GPUs))
	loads := make([]uint64, len(h.GPUs))
	for i := range h.GPUs {
		plans[i] = Assignment{For: h.GPUs[i].Name, Rails: []Choice{}}
	}
	if len(plans) == 0 {
		return plans
	}
	type pair struct {
		distance Distance
		hops     int
	}
	for tier := SameSwitch; tier <= Unknown; tier++ {
		for _, r := range rails {
			if r.gpus > 0 {
				continue
			}
			best, as, at := -1, 0, pair{}
			for i := range h.GPUs {
				d, hops := h.distance(h.GPUs[i].Place, r.nic.Place)
				if d != tier {
					continue
				}
				as++
				if best < 0 || loads[i] < loads[best] || loads[i] == loads[best] && hops < at.hops {
					best, at = i, pair{d, hops}
				}
			}
			if best < 0 {
				continue
			}
			r.gpus++
			plans[best].Rails = append(plans[best].Rails, r.choice(tier, h.why(tier, &h.GPUs[best], r.nic, as, loads[best])))
			loads[best] += max(1, r.port.LinkBits)
		}
	}
	h.share(plans, rails)
	h.spare(plans, rails)
	return plans
}

// share gives GPUs a part of a port that serves another one, where all that are nearest went to others.
func (h *Host) share(plans []Assignment, rails []*rail) {
	for i := range h.GPUs {
		seen := h.seen(h.GPUs[i].Place, rails)
		if len(seen) == 0 {
			return
		}
		if h.GPUs[i].Hidden != "" {
			continue
		}
		nearest := seen[0].distance
		if slices.ContainsFunc(plans[i].Rails, func(c Choice) bool { return c.Distance == nearest }) {
			continue
		}
		best := seen[0]
		for _, n := range seen {
			if n.distance == nearest && n.gpus < best.gpus {
				best = n
			}
		}
		best.gpus++
		why := fmt.Sprintf("%s; shared with %s: there are more GPUs than ports this near", h.where(nearest, &h.GPUs[i], best.nic), many(best.gpus-1, "GPU"))
		plans[i].Rails = slices.Insert(plans[i].Rails, 0, best.choice(nearest, why))
	}
}

// spare appends what else a GPU could use.
func (h *Host) spare(plans []Assignment, rails []*rail) {
	for i := range h.GPUs {
		if h.GPUs[i].Hidden != "" {
			continue
		}
		for _, n := range h.seen(h.GPUs[i].Place, rails) {
			name := n.choice(n.distance, "").Device()
			if !slices.ContainsFunc(plans[i].Rails, func(r Choice) bool { return r.Device() == name }) {
				plans[i].Spares = append(plans[i].Spares, name)
			}
		}
	}
}

// why says why a port went to a GPU.
func (h *Host) why(d Distance, g *GPU, n *NIC, as int, load uint64) string {
	where := h.where(d, g, n)
	switch {
	case as == 1:
		return where + "; no other GPU is as near"
	case load == 0:
		return fmt.Sprintf("%s; of %s as near, it had nothing yet", where, many(as, "GPU"))
	}
	return fmt.Sprintf("%s; of %s as near, it had the least", where, many(as, "GPU"))
}

// where says how far apart a GPU and a NIC are, and names what they have in common.
func (h *Host) where(d Distance, g *GPU, n *NIC) string {
	switch d {
	case SameSwitch, SameRootPort:
		return fmt.Sprintf("%s %s", d, common(g.Place, n.Place))
	case SameRootComplex:
		return fmt.Sprintf("%s %s", d, g.Place.Root)
	case SameNUMA:
		return fmt.Sprintf("%s %d", d, max(0, g.Place.NUMA))
	case Across:
		return fmt.Sprintf("NUMA node %d to %d", g.Place.NUMA, n.Place.NUMA)
	}
	return "distance unknown"
}

// planNodes orders the ports for memory of each NUMA node that has processors: the rails are at the node, the spares at others.
func (h *Host) planNodes(rails []*rail) []Assignment {
	plans := []Assignment{}
	with := 0
	for _, node := range h.Nodes {
		if node.CPUs == "" {
			continue
		}
		a := Assignment{For: fmt.Sprintf("node%d", node.ID), Rails: []Choice{}}
		for _, r := range rails {
			if r.nic.Place.NUMA == node.ID {
				a.Rails = append(a.Rails, r.choice(SameNUMA, "at this node"))
			} else {
				a.Spares = append(a.Spares, r.choice(Unknown, "").Device())
			}
		}
		if len(a.Rails) > 0 {
			with++
		}
		plans = append(plans, a)
	}
	if with < 2 {
		return []Assignment{}
	}
	return plans
}

// planHost orders all ports, the fastest first, and of equally fast ones those of each NUMA node by turns, so that the first few use the
// memory of all nodes.
func (h *Host) planHost(rails []*rail) Assignment {
	a := Assignment{For: "host", Rails: []Choice{}}
	turn := map[*rail]int{} // how many of the same speed and node come before
	count := map[[2]uint64]int{}
	for _, r := range rails {
		key := [2]uint64{r.port.LinkBits, uint64(r.nic.Place.NUMA + 1)}
		turn[r] = count[key]
		count[key]++
	}
	order := slices.Clone(rails)
	slices.SortStableFunc(order, func(x, y *rail) int {
		return cmp.Or(cmp.Compare(y.port.LinkBits, x.port.LinkBits), cmp.Compare(turn[x], turn[y]), cmp.Compare(x.nic.Place.NUMA, y.nic.Place.NUMA))
	})
	for _, r := range order {
		why, d := "its NUMA node is unknown", Unknown
		if n := r.nic.Place.NUMA; n >= 0 || len(h.Nodes) == 1 {
			why, d = fmt.Sprintf("NUMA node %d", max(0, n)), SameNUMA
		}
		a.Rails = append(a.Rails, r.choice(d, why))
	}
	return a
}

// many is "1 GPU" or "2 GPUs".
func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
