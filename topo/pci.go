package topo

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// Place is where a device is in the machine.
type Place struct {
	PCI     string   `json:"pci,omitempty"`     // address: "0000:18:00.0"; "" for what is no PCI device
	Root    string   `json:"root,omitempty"`    // root complex: "pci0000:15"
	Bridges []Bridge `json:"bridges,omitempty"` // from the root port down: of a switch, its upstream port and one downstream port
	NUMA    int      `json:"numa"`              // -1 when unknown
	Link    PCIeLink `json:"link"`              // as it is; many GPUs slow down while they idle
	MaxLink PCIeLink `json:"max_link"`          // what the device could do
}

// Bridge is a port of a root complex or of a switch.
type Bridge struct {
	PCI  string   `json:"pci"`
	Link PCIeLink `json:"link"` // of a downstream port: that to the device below it
}

// PCIeLink is a PCI Express link. The zero value is unknown.
type PCIeLink struct {
	GTs   float64 `json:"gt_per_s"` // of each lane
	Lanes int     `json:"lanes"`
}

// String is "32 GT/s x16", or "unknown".
func (l PCIeLink) String() string {
	if l == (PCIeLink{}) {
		return "unknown"
	}
	return strconv.FormatFloat(l.GTs, 'g', -1, 64) + " GT/s x" + strconv.Itoa(l.Lanes)
}

// Bits is what the link carries per second in one direction, without the headers of packets; 0 when unknown.
func (l PCIeLink) Bits() uint64 {
	code := 128.0 / 130 // of the third generation and later; the sixth is a little worse
	if l.GTs < 8 {
		code = 8.0 / 10
	}
	return uint64(l.GTs * 1e9 * code * float64(l.Lanes))
}

// Bits is what the narrowest known link between the device and its root complex carries per second, 0 when none is known. Links that
// are slow because they idle count as what they could do.
func (p Place) Bits() uint64 {
	least := max(p.Link.Bits(), p.MaxLink.Bits())
	if p.MaxLink.Lanes > p.Link.Lanes && p.Link.Lanes > 0 { // a link never gains lanes when work comes
		least = PCIeLink{p.MaxLink.GTs, p.Link.Lanes}.Bits()
	}
	for _, b := range p.Bridges[:max(0, len(p.Bridges)-1)] { // the last one's link is the device's
		if n := b.Link.Bits(); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// Vendors of PCI devices (pci-ids.ucw.cz).
const (
	vendorAMD      = 0x1002
	vendorMellanox = 0x15b3
	vendorNVIDIA   = 0x10de
	vendorAmazon   = 0x1d0f
)

// place reads where the device is whose folder a path leads to.
func (t *tree) place(name string) Place {
	p := Place{NUMA: -1}
	dir, err := t.real(name)
	if err != nil {
		t.note(name, err)
		return p
	}
	// A soft device, or one on another bus, may still say its node.
	p.NUMA = int(max(-1, min(t.number(path.Join(dir, "numa_node"), -1), maxNode)))
	parts := strings.Split(dir, "/")
	root := slices.IndexFunc(parts, isRoot)
	last := len(parts) - 1
	for last > root && !isPCI(parts[last]) {
		last-- // a virtual device of a virtual machine is below its PCI device
	}
	if root < 0 || last == root {
		return p
	}
	if last < len(parts)-1 {
		parts = parts[:last+1]
		dir = strings.Join(parts, "/")
		p.NUMA = int(max(-1, min(t.number(path.Join(dir, "numa_node"), -1), maxNode)))
	}
	p.Root, p.PCI = parts[root], parts[last]
	p.Link, p.MaxLink = t.link(dir, "current"), t.link(dir, "max")
	vendor := t.number(path.Join(dir, "vendor"), 0)
	for i := root + 1; i < last; i++ {
		if isPCI(parts[i]) { // between them may be the root of another domain, as of a volume management device
			p.Bridges = append(p.Bridges, Bridge{PCI: parts[i], Link: t.link(strings.Join(parts[:i+1], "/"), "current")})
		}
	}
	p.Bridges = p.Bridges[:len(p.Bridges)-t.own(parts, last, vendor, len(p.Bridges))]
	return p
}

// maxNode is above all numbers of NUMA nodes: Linux has at most 1024 of them.
const maxNode = 1023

// own is how many of the bridges above a device belong to its own card: GPUs of AMD and network cards with processors of Mellanox are
// behind a switch of their own, which is on the way to everything and so no sign of nearness.
func (t *tree) own(parts []string, device int, vendor int64, bridges int) int {
	if vendor != vendorAMD && vendor != vendorMellanox {
		return 0
	}
	n := 0
	for i := device - 1; i > 0 && n < bridges-1 && isPCI(parts[i]); i-- {
		if t.number(path.Join(strings.Join(parts[:i+1], "/"), "vendor"), 0) != vendor {
			break
		}
		n++
	}
	return n
}

// link reads a link of PCI Express: "32.0 GT/s PCIe" and "16"; older kernels say "8 GT/s", and "Unknown" where there is none.
func (t *tree) link(dir, which string) PCIeLink {
	speed, _, _ := strings.Cut(t.line(path.Join(dir, which+"_link_speed")), " ")
	gts, err := strconv.ParseFloat(speed, 64)
	lanes := t.number(path.Join(dir, which+"_link_width"), 0)
	const mostGTs, mostLanes = 1024, 32 // 255 lanes mean that there is no link
	if err != nil || !(gts > 0 && gts <= mostGTs) || lanes < 1 || lanes > mostLanes {
		return PCIeLink{}
	}
	return PCIeLink{gts, int(lanes)}
}

// isRoot says whether a folder of /sys/devices is a root complex: "pci0000:15".
func isRoot(s string) bool {
	s, ok := strings.CutPrefix(s, "pci")
	domain, bus, found := strings.Cut(s, ":")
	return ok && found && hex(domain) && hex(bus)
}

// isPCI says whether a name is the address of a PCI function: "0000:18:00.0". Domains may have more than four digits.
func isPCI(s string) bool {
	domain, rest, _ := strings.Cut(s, ":")
	bus, rest, _ := strings.Cut(rest, ":")
	slot, function, found := strings.Cut(rest, ".")
	return found && hex(domain) && hex(bus) && hex(slot) && hex(function)
}

func hex(s string) bool {
	_, err := strconv.ParseUint(s, 16, 64)
	return err == nil
}
