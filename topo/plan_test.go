package topo

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// hosts draws machines of any shape, sensible or not.
func hosts() *rapid.Generator[*Host] {
	return rapid.Custom(func(t *rapid.T) *Host {
		h := &Host{}
		for i := range rapid.IntRange(0, 3).Draw(t, "nodes") {
			h.Nodes = append(h.Nodes, Node{ID: i, CPUs: rapid.SampledFrom([]string{"0-3", ""}).Draw(t, "cpus")})
		}
		for i := range rapid.IntRange(0, 9).Draw(t, "gpus") {
			h.GPUs = append(h.GPUs, GPU{
				Name: fmt.Sprintf("gpu%d", i), Place: places().Draw(t, "place"),
				Hidden: rapid.SampledFrom([]string{"", "", "", "no driver"}).Draw(t, "hidden"),
			})
		}
		for i := range rapid.IntRange(0, 9).Draw(t, "nics") {
			n := NIC{Name: fmt.Sprintf("mlx5_%d", i), Place: places().Draw(t, "place"), Hidden: rapid.IntRange(0, 9).Draw(t, "hidden") == 0}
			for j := range rapid.IntRange(0, 2).Draw(t, "ports") {
				n.Ports = append(n.Ports, Port{
					Number: j + 1, Kind: rapid.SampledFrom([]Kind{RoCE, EFA, InfiniBand, IWARP}).Draw(t, "kind"),
					State:    rapid.SampledFrom([]string{"ACTIVE", "ACTIVE", "ACTIVE", "DOWN", ""}).Draw(t, "state"),
					LinkBits: rapid.SampledFrom([]uint64{0, 25e9, 100e9, 400e9}).Draw(t, "link"),
					LID:      uint32(rapid.IntRange(0, 1).Draw(t, "lid")),
					GIDs:     make([]GID, rapid.IntRange(0, 1).Draw(t, "gids")),
				})
			}
			h.NICs = append(h.NICs, n)
		}
		return h
	})
}

// places draws where a device is: of few root complexes, ports and switches, so that devices have something in common.
func places() *rapid.Generator[Place] {
	return rapid.Custom(func(t *rapid.T) Place {
		p := Place{NUMA: rapid.IntRange(-1, 2).Draw(t, "numa")}
		if rapid.IntRange(0, 5).Draw(t, "pci") == 0 {
			return p
		}
		root := rapid.IntRange(0, 2).Draw(t, "root")
		p.Root, p.PCI = fmt.Sprintf("pci0000:%02x", root), fmt.Sprintf("0000:%02x:00.0", rapid.IntRange(64, 255).Draw(t, "address"))
		at := fmt.Sprint(root)
		for range rapid.IntRange(0, 5).Draw(t, "bridges") {
			at += fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "branch"))
			p.Bridges = append(p.Bridges, Bridge{PCI: at})
		}
		return p
	})
}

// devices are the names in a list of choices.
func devices(list []Choice) (names []string) {
	for _, c := range list {
		names = append(names, c.Device())
	}
	return names
}

// usable splits the ports of a host by whether they can be used.
func usable(h *Host) (yes, no []string) {
	for i := range h.NICs {
		for j := range h.NICs[i].Ports {
			p := &h.NICs[i].Ports[j]
			name := fmt.Sprintf("%s/%d", h.NICs[i].Name, p.Number)
			if h.NICs[i].Unusable(p) == "" {
				yes = append(yes, name)
			} else {
				no = append(no, name)
			}
		}
	}
	return yes, no
}

func TestEveryPlanCoversEveryUsablePort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := hosts().Draw(t, "host")
		plan := h.Plan()
		yes, no := usable(h)
		if got := slices.Sorted(slices.Values(devices(plan.Host.Rails))); !slices.Equal(got, slices.Sorted(slices.Values(yes))) {
			t.Fatalf("the host's rails are %v, of %v", got, yes)
		}
		if got := devices(plan.Unused); !slices.Equal(got, no) {
			t.Fatalf("unused are %v, not %v", got, no)
		}
		served := map[string]bool{}
		for i, a := range plan.GPUs {
			names := devices(a.Rails)
			for _, n := range names {
				served[n] = true
			}
			if h.GPUs[i].Hidden != "" {
				continue
			}
			if len(names) == 0 && len(yes) > 0 {
				t.Fatalf("%s has no rail of %v", a.For, yes)
			}
			all := slices.Sorted(slices.Values(append(names, a.Spares...)))
			if !slices.Equal(all, slices.Sorted(slices.Values(yes))) {
				t.Fatalf("%s has rails %v and spares %v, of %v", a.For, names, a.Spares, yes)
			}
		}
		if got := slices.Sorted(maps.Keys(served)); len(h.GPUs) > 0 && !slices.Equal(got, slices.Sorted(slices.Values(yes))) {
			t.Fatalf("GPUs are served by %v, of %v", got, yes)
		}
		for _, a := range plan.Nodes {
			if got := slices.Sorted(slices.Values(append(devices(a.Rails), a.Spares...))); !slices.Equal(got, slices.Sorted(slices.Values(yes))) {
				t.Fatalf("%s has %v, of %v", a.For, got, yes)
			}
		}
		for _, c := range slices.Concat(plan.Host.Rails, plan.Unused) {
			if c.Why == "" {
				t.Fatalf("%s is where it is without a reason", c.Device())
			}
		}
	})
}

func TestEveryPortServesANearestGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := hosts().Draw(t, "host")
		best := map[string]Distance{}
		for _, a := range h.Plan().GPUs {
			for _, c := range a.Rails {
				if d, ok := best[c.Device()]; !ok || c.Distance < d {
					best[c.Device()] = c.Distance
				}
			}
		}
		for name, got := range best {
			nic, _, _ := cutDevice(name)
			for _, g := range h.GPUs {
				if d := h.Distance(g.Place, h.NIC(nic).Place); d < got {
					t.Fatalf("%s serves GPUs at %q, but %s is at %q", name, got, g.Name, d)
				}
			}
		}
	})
}

func cutDevice(name string) (nic string, port int, err error) {
	_, err = fmt.Sscanf(name[len(name)-1:], "%d", &port)
	return name[:len(name)-2], port, err
}

func TestEqualHostsHaveEqualPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := hosts().Draw(t, "host")
		if a, b := h.Plan(), h.Plan(); !reflect.DeepEqual(a, b) {
			t.Fatalf("two plans for one host:\n%+v\n%+v", a, b)
		}
	})
}

// TestEquallyNearGPUsShareFairly has GPUs and NICs at one switch.
func TestEquallyNearGPUsShareFairly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &Host{}
		place := func(i int) Place {
			return Place{PCI: fmt.Sprint(i), Root: "pci0000:00", Bridges: []Bridge{{PCI: "a"}, {PCI: "b"}, {PCI: fmt.Sprint("c", i)}}}
		}
		gpus, nics := rapid.IntRange(1, 8).Draw(t, "gpus"), rapid.IntRange(1, 16).Draw(t, "nics")
		for i := range gpus {
			h.GPUs = append(h.GPUs, GPU{Name: fmt.Sprintf("gpu%d", i), Place: place(i)})
		}
		for i := range nics {
			h.NICs = append(h.NICs, NIC{Name: fmt.Sprintf("mlx5_%d", i), Place: place(100 + i), Ports: []Port{{Number: 1, Kind: OtherKind, State: "ACTIVE", LinkBits: 1e9}}})
		}
		rails, gpusOf := []int{}, map[string]int{}
		for _, a := range h.Plan().GPUs {
			rails = append(rails, len(a.Rails))
			for _, c := range a.Rails {
				gpusOf[c.Device()]++
			}
		}
		if slices.Max(rails)-slices.Min(rails) > 1 {
			t.Fatalf("%d NICs for %d GPUs: %v", nics, gpus, rails)
		}
		sharers := slices.Collect(maps.Values(gpusOf))
		if len(sharers) != nics || slices.Max(sharers)-slices.Min(sharers) > 1 {
			t.Fatalf("%d NICs for %d GPUs: they serve %v", nics, gpus, gpusOf)
		}
	})
}

func TestDistanceIsTheSameBothWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := hosts().Draw(t, "host")
		a, b := places().Draw(t, "a"), places().Draw(t, "b")
		if x, y := h.Distance(a, b), h.Distance(b, a); x != y {
			t.Fatalf("%q one way, %q the other", x, y)
		}
	})
}

// TestDistances has one case of each, of ways as they are in real machines.
func TestDistances(t *testing.T) {
	at := func(root string, numa int, bridges ...string) Place {
		p := Place{PCI: "x", Root: root, NUMA: numa}
		for _, b := range bridges {
			p.Bridges = append(p.Bridges, Bridge{PCI: b})
		}
		return p
	}
	gpu := at("pci0000:15", 0, "15:01.0", "16:00.0", "17:00.0")
	for _, tc := range []struct {
		name string
		nic  Place
		want Distance
	}{
		{"another port of the switch", at("pci0000:15", 0, "15:01.0", "16:00.0", "17:01.0"), SameSwitch},
		{"behind a second switch", at("pci0000:15", 0, "15:01.0", "16:00.0", "17:01.0", "20:00.0", "21:00.0"), SameRootPort},
		{"another function of one card", at("pci0000:15", 0, "15:01.0"), SameRootPort},
		{"another root port", at("pci0000:15", 0, "15:02.0"), SameRootComplex},
		{"another root complex", at("pci0000:26", 0, "26:01.0"), SameNUMA},
		{"the other processor", at("pci0000:96", 1, "96:01.0"), Across},
		{"an unknown node", at("pci0000:96", -1, "96:01.0"), Unknown},
		{"no PCI device, same node", Place{NUMA: 0}, SameNUMA},
		{"no PCI device, unknown node", Place{NUMA: -1}, Unknown},
	} {
		if got := (&Host{}).Distance(gpu, tc.nic); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	one := &Host{Nodes: []Node{{ID: 0}}}
	if got := one.Distance(at("pci0000:00", -1), at("pci0000:40", -1)); got != SameNUMA {
		t.Errorf("a machine with one node that devices do not name: %q, want %q", got, SameNUMA)
	}
}

// TestSlowNICDoesNotTakeAGPUFromItsSwitch has a fast NIC at the switch of two GPUs and a slow one elsewhere.
func TestSlowNICDoesNotTakeAGPUFromItsSwitch(t *testing.T) {
	way := func(root, at string) Place {
		return Place{PCI: at, Root: root, NUMA: 0, Bridges: []Bridge{{PCI: root + "a"}, {PCI: root + "b"}, {PCI: root + at}}}
	}
	port := func(bits uint64) []Port { return []Port{{Number: 1, State: "ACTIVE", Kind: OtherKind, LinkBits: bits}} }
	h := &Host{
		GPUs: []GPU{{Name: "gpu0", Place: way("pci1", "1")}, {Name: "gpu1", Place: way("pci1", "2")}},
		NICs: []NIC{{Name: "fast", Place: way("pci1", "3"), Ports: port(400e9)}, {Name: "slow", Place: way("pci2", "4"), Ports: port(25e9)}},
	}
	p := h.Plan()
	if got := [][]string{devices(p.GPUs[0].Rails), devices(p.GPUs[1].Rails)}; !reflect.DeepEqual(got, [][]string{{"fast/1"}, {"fast/1", "slow/1"}}) {
		t.Errorf("rails are %v: both GPUs are at the switch of the fast NIC, and the slow one is nobody else's", got)
	}
}
