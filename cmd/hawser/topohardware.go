package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/topo"
)

// hardware is what package topo says of a machine.
type hardware struct {
	Host      *topo.Host     `json:"host"`
	Distances []gpuDistances `json:"distances"`
	Plan      topo.Plan      `json:"plan"`
}

// gpuDistances are how far a GPU is from each NIC, by the NIC's name.
type gpuDistances struct {
	GPU  string                   `json:"gpu"`
	NICs map[string]topo.Distance `json:"nics"`
}

func readHardware(sysfs string) (hardware, error) {
	h, err := topo.Read(sysfs)
	if err != nil {
		return hardware{}, err
	}
	hw := hardware{Host: h, Distances: []gpuDistances{}, Plan: h.Plan()}
	for _, g := range h.GPUs {
		d := gpuDistances{g.Name, map[string]topo.Distance{}}
		for _, n := range h.NICs {
			d.NICs[n.Name] = h.Distance(g.Place, n.Place)
		}
		hw.Distances = append(hw.Distances, d)
	}
	return hw, nil
}

// print prints the tables that have rows.
func (hw *hardware) print(u *ui, gids bool) {
	hw.printNICs(u)
	if gids {
		hw.printGIDs(u)
	}
	hw.printGPUs(u)
	hw.printDistances(u)
	hw.printPlan(u)
	for _, n := range hw.Host.Notes {
		u.printf("note: %s\n", n)
	}
}

func (hw *hardware) printNICs(u *ui) {
	var rows [][]string
	for i := range hw.Host.NICs {
		n := &hw.Host.NICs[i]
		for j := range n.Ports {
			p := &n.Ports[j]
			note := n.Unusable(p)
			if pcie := n.Place.Bits(); note == "" && pcie > 0 && p.LinkBits > pcie {
				note = "PCIe carries less than the port: " + linkSpeed(pcie)
			}
			rows = append(rows, []string{
				n.Name + "/" + strconv.Itoa(p.Number), string(p.Kind), linkSpeed(p.LinkBits), orDash(p.NetDev), mtu(p),
				numaNode(n.Place.NUMA), way(n.Place), n.Place.Link.String(), orDash(n.Driver), note,
			})
		}
		if len(n.Ports) == 0 {
			rows = append(rows, []string{n.Name, "-", "-", "-", "-", numaNode(n.Place.NUMA), way(n.Place), n.Place.Link.String(), orDash(n.Driver), "no port can be seen"})
		}
	}
	if rows == nil {
		u.printf("no RDMA NIC\n")
		return
	}
	noted(u, []string{"NIC", "kind", "link", "interface", "MTU", "NUMA", "PCI way", "PCIe", "driver", ""}, rows)
}

// mtu is the MTU of the interface, and what RDMA makes of it.
func mtu(p *topo.Port) string {
	switch {
	case p.MTU == 0:
		return "-"
	case p.PathMTU == 0:
		return strconv.Itoa(p.MTU)
	}
	return fmt.Sprintf("%d (%d)", p.MTU, p.PathMTU)
}

// way is where a device is: its root complex, the upstream port of its switch if it is behind one, and its address.
func way(p topo.Place) string {
	if p.PCI == "" {
		return "-"
	}
	parts := []string{"pci" + short(strings.TrimPrefix(p.Root, "pci"))}
	if len(p.Bridges) >= 3 {
		parts = append(parts, short(p.Bridges[1].PCI))
	}
	return strings.Join(append(parts, short(p.PCI)), " > ")
}

// short leaves out the domain that nearly all addresses have.
func short(pci string) string { return strings.TrimPrefix(pci, "0000:") }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (hw *hardware) printGIDs(u *ui) {
	var rows [][]string
	for _, n := range hw.Host.NICs {
		for _, p := range n.Ports {
			for _, g := range p.GIDs {
				note := ""
				if p.Kind == topo.RoCE && !g.Routable() {
					note = "this link only"
				}
				rows = append(rows, []string{fmt.Sprintf("%s/%d", n.Name, p.Number), strconv.Itoa(g.Index), string(g.Type), g.IP().String(), orDash(g.NetDev), note})
			}
		}
	}
	if rows != nil {
		noted(u, []string{"NIC", "GID", "type", "address", "interface", ""}, rows)
	}
}

func (hw *hardware) printGPUs(u *ui) {
	var rows [][]string
	for _, g := range hw.Host.GPUs {
		model := g.Model
		if model == "" {
			model = g.Vendor + " " + g.ID
		}
		note := ""
		if g.Hidden != "" {
			note = "not usable here: " + g.Hidden
		}
		rows = append(rows, []string{g.Name, model, orDash(g.Device), numaNode(g.Place.NUMA), way(g.Place), ability(g.Place).String(), note})
	}
	if rows != nil {
		noted(u, []string{"GPU", "model", "device", "NUMA", "PCI way", "PCIe", ""}, rows)
	}
}

// ability is what the link of a device can do, which many GPUs do not do while they idle.
func ability(p topo.Place) topo.PCIeLink {
	if p.MaxLink == (topo.PCIeLink{}) {
		return p.Link
	}
	return topo.PCIeLink{GTs: p.MaxLink.GTs, Lanes: p.Link.Lanes}
}

// cells are distances as the matrix shows them.
var cells = map[topo.Distance]string{
	topo.SameSwitch: "switch", topo.SameRootPort: "port", topo.SameRootComplex: "complex", topo.SameNUMA: "node", topo.Across: "-", topo.Unknown: "?",
}

// printDistances prints a row for each NIC, of which there may be 32, and a column for each GPU.
func (hw *hardware) printDistances(u *ui) {
	if len(hw.Host.GPUs) == 0 || len(hw.Host.NICs) == 0 {
		return
	}
	header := []string{"NIC"}
	for _, d := range hw.Distances {
		header = append(header, d.GPU)
	}
	var rows [][]string
	for _, n := range hw.Host.NICs {
		row := []string{n.Name}
		for _, d := range hw.Distances {
			row = append(row, cells[d.NICs[n.Name]])
		}
		rows = append(rows, row)
	}
	u.table("", header, rows)
	u.printf("in common: switch > (root) port > (root) complex > (NUMA) node > - nothing; ? unknown\n")
}

func (hw *hardware) printPlan(u *ui) {
	var rows [][]string
	add := func(a topo.Assignment) {
		who := a.For
		for _, c := range a.Rails {
			rows = append(rows, []string{who, c.Device(), linkSpeed(c.LinkBits), c.Why})
			who = ""
		}
		if len(a.Spares) > 0 {
			rows = append(rows, []string{who, "spares", "", few(a.Spares)})
		}
	}
	for _, a := range hw.Plan.GPUs {
		add(a)
	}
	for _, a := range append(hw.Plan.Nodes, hw.Plan.Host) {
		var names []string
		for _, c := range a.Rails {
			names = append(names, c.Device())
		}
		if names != nil {
			rows = append(rows, []string{a.For, many(len(names), "rail"), "", few(names)})
		}
	}
	for _, c := range hw.Plan.Unused {
		rows = append(rows, []string{"nothing", c.Device(), linkSpeed(c.LinkBits), c.Why})
	}
	if rows != nil {
		u.table("", []string{"memory of", "rails", "link", "why"}, rows)
	}
}

// shownRails is how many names of a list are shown; all are in the JSON.
const shownRails = 4

func few(names []string) string {
	if len(names) <= shownRails {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shownRails], ", "), len(names)-shownRails)
}

// many is "1 rail" or "2 rails".
func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// noted prints a table whose last column is for notes; without any it is left out.
func noted(u *ui, header []string, rows [][]string) {
	last := len(header) - 1
	for _, r := range rows {
		if r[last] != "" {
			u.table("", header, rows)
			return
		}
	}
	for i := range rows {
		rows[i] = rows[i][:last]
	}
	u.table("", header[:last], rows)
}
