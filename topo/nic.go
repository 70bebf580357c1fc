package topo

import (
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// NIC is an RDMA device: a card, one function of it, or a driver that plays one over a network interface.
type NIC struct {
	Name     string `json:"name"`             // "mlx5_0"
	Driver   string `json:"driver"`           // kernel module: "mlx5_core", "efa"; "rdma_rxe" and "siw" have no card
	Soft     bool   `json:"soft,omitempty"`   // no card: a driver over NetDev
	Verbs    string `json:"verbs,omitempty"`  // "uverbs0", of /dev/infiniband
	Hidden   bool   `json:"hidden,omitempty"` // /dev/infiniband/uverbs0 is not there, as in a container that was not given it
	Board    string `json:"board,omitempty"`  // what the vendor calls it
	Firmware string `json:"firmware,omitempty"`
	NodeGUID string `json:"node_guid,omitempty"`
	Place    Place  `json:"place"` // of the card; of a soft one, that of the interface's card
	Ports    []Port `json:"ports"`
}

// Kind is what a port speaks.
type Kind string

// Kinds of ports.
const (
	InfiniBand Kind = "infiniband"
	RoCE       Kind = "roce"
	IWARP      Kind = "iwarp"
	EFA        Kind = "efa"
	OtherKind  Kind = "other"
)

// Port is one port of a NIC.
type Port struct {
	Number   int    `json:"number"` // from 1
	Kind     Kind   `json:"kind"`
	State    string `json:"state"`           // "ACTIVE", "DOWN", "INIT", "ARMED"; "" when it cannot be read
	Physical string `json:"physical"`        // "LinkUp", "Polling", "Disabled"
	LinkBits uint64 `json:"link_bits_per_s"` // 0 when unknown
	Rate     string `json:"rate,omitempty"`  // as the kernel says it: "400 Gb/sec (4X NDR)"
	LID      uint32 `json:"lid,omitempty"`   // of InfiniBand
	NetDev   string `json:"netdev,omitempty"`
	MTU      int    `json:"mtu,omitempty"`      // bytes, of NetDev
	PathMTU  int    `json:"path_mtu,omitempty"` // bytes, the largest of RDMA that fits into MTU; 0 where NetDev does not limit it
	GIDs     []GID  `json:"gids"`               // those that are not empty, up to index 255
}

// GIDType says how packets to a GID look.
type GIDType string

// Types of GIDs.
const (
	GIDInfiniBand GIDType = "IB"      // addresses of InfiniBand, and of EFA
	GIDRoCEv1     GIDType = "RoCE v1" // Ethernet frames, which routers do not forward
	GIDRoCEv2     GIDType = "RoCE v2" // UDP over IP
)

// GID is an entry of a port's table.
type GID struct {
	Index  int        `json:"index"`
	Addr   netip.Addr `json:"addr"` // 16 bytes; IPv4-mapped for an IPv4 address
	Type   GIDType    `json:"type"`
	NetDev string     `json:"netdev,omitempty"`
}

// IP is the address that the GID stands for, an IPv4 one unmapped.
func (g GID) IP() netip.Addr { return g.Addr.Unmap() }

// Routable says whether the GID means the same port beyond its own link. A link-local one does not, which matters for RoCE v2 alone:
// InfiniBand and EFA have them for all ports.
func (g GID) Routable() bool { return g.Addr.IsValid() && !g.Addr.IsLinkLocalUnicast() }

// ReadNICs reads the NICs alone, from where Read does.
func ReadNICs(path string) ([]NIC, error) {
	src, closer, err := open(path)
	if err != nil {
		return nil, err
	}
	defer closer()
	return newTree(src).nics(), nil
}

// ReadNIC reads one NIC, from where Read does. The error is fs.ErrNotExist when there is none of this name.
func ReadNIC(path, name string) (*NIC, error) {
	src, closer, err := open(path)
	if err != nil {
		return nil, err
	}
	defer closer()
	t := newTree(src)
	if !slices.Contains(t.list(classIB), name) {
		return nil, fmt.Errorf("NIC %s: /%s: %w", name, classIB, fs.ErrNotExist)
	}
	n := t.nic(name, t.verbs())
	return &n, nil
}

// ReadPlace reads where a NIC is, which is much less than ReadNIC reads.
func ReadPlace(path, name string) (Place, error) {
	src, closer, err := open(path)
	if err != nil {
		return Place{}, err
	}
	defer closer()
	return newTree(src).place(classIB + "/" + name + "/device"), nil
}

const classIB = "sys/class/infiniband"

func (t *tree) nics() []NIC {
	nics := []NIC{}
	verbs := t.verbs()
	for _, name := range t.list(classIB) {
		nics = append(nics, t.nic(name, verbs))
	}
	return nics
}

func (t *tree) nic(name string, verbs map[string]string) NIC {
	dir := path.Join(classIB, name)
	n := NIC{
		Name:     name,
		Driver:   t.base(path.Join(dir, "device/driver")),
		Verbs:    verbs[name],
		Board:    t.line(path.Join(dir, "board_id")),
		Firmware: t.line(path.Join(dir, "fw_ver")),
		NodeGUID: t.line(path.Join(dir, "node_guid")),
		Place:    t.place(path.Join(dir, "device")),
		Ports:    []Port{},
	}
	n.Hidden = n.Verbs != "" && !t.has("dev/infiniband/"+n.Verbs)
	parent := t.line(path.Join(dir, "parent")) // of rxe
	if r, err := t.real(dir); err == nil && strings.Contains("/"+r, "/devices/virtual/") {
		n.Soft = true
		n.Driver = softDriver(name, parent)
		n.Place = t.place(path.Join("sys/class/net", parent, "device"))
	}
	rnic := strings.HasPrefix(t.line(path.Join(dir, "node_type")), "4:") // RDMA_NODE_RNIC of the kernel: iWARP
	for _, number := range t.list(path.Join(dir, "ports")) {
		if i, err := strconv.Atoi(number); err == nil && i > 0 {
			n.Ports = append(n.Ports, t.port(dir, i, n.Driver, rnic, parent))
		}
	}
	return n
}

// Port is the one with a number, nil if there is none.
func (n *NIC) Port(number int) *Port {
	i := slices.IndexFunc(n.Ports, func(p Port) bool { return p.Number == number })
	if i < 0 {
		return nil
	}
	return &n.Ports[i]
}

// softDriver names the driver of a device that has no card.
func softDriver(name, parent string) string {
	if strings.HasPrefix(name, "siw") {
		return "siw"
	}
	if strings.HasPrefix(name, "rxe") || parent != "" { // siw has no file that names its interface
		return "rdma_rxe"
	}
	return ""
}

// verbs maps the name of each NIC to that of its file in /dev/infiniband.
func (t *tree) verbs() map[string]string {
	of := map[string]string{}
	for _, v := range t.list("sys/class/infiniband_verbs") {
		if nic := t.line(path.Join("sys/class/infiniband_verbs", v, "ibdev")); nic != "" {
			of[nic] = v
		}
	}
	return of
}

func (t *tree) port(nic string, number int, driver string, rnic bool, parent string) Port {
	dir := path.Join(nic, "ports", strconv.Itoa(number))
	p := Port{
		Number:   number,
		Kind:     kind(driver, t.line(path.Join(dir, "link_layer")), rnic),
		State:    afterColon(t.line(path.Join(dir, "state"))),
		Physical: afterColon(t.line(path.Join(dir, "phys_state"))),
		Rate:     t.line(path.Join(dir, "rate")),
	}
	p.LinkBits = rate(p.Rate)
	if p.Kind == InfiniBand {
		p.LID = uint32(max(0, min(t.number(path.Join(dir, "lid"), 0), math.MaxUint16)))
	}
	p.GIDs = t.gids(dir, p.Kind)
	p.NetDev = t.netdev(nic, p, parent)
	if p.NetDev != "" {
		p.MTU = int(max(0, min(t.number(path.Join("sys/class/net", p.NetDev, "mtu"), 0), math.MaxInt32)))
	}
	if p.Kind == RoCE {
		p.PathMTU = PathMTU(p.MTU)
	}
	return p
}

func kind(driver, layer string, rnic bool) Kind {
	switch {
	case driver == "efa":
		return EFA
	case layer == "InfiniBand":
		return InfiniBand
	case rnic:
		return IWARP
	case layer == "Ethernet":
		return RoCE
	}
	return OtherKind
}

// netdev is the network interface of a port: the one that most of its GIDs name, else the only one of its card.
func (t *tree) netdev(nic string, p Port, parent string) string {
	count := map[string]int{}
	best := ""
	for _, g := range p.GIDs {
		if g.NetDev == "" {
			continue
		}
		count[g.NetDev]++
		if best == "" || count[g.NetDev] > count[best] {
			best = g.NetDev
		}
	}
	if best != "" {
		return best
	}
	if parent != "" {
		return parent
	}
	if ifs := t.list(path.Join(nic, "device/net")); len(ifs) == 1 {
		return ifs[0]
	}
	return ""
}

// maxGID is the last entry of a table that a queue pair can name (ibv_global_route.sgid_index has 8 bits). soft-RoCE has 1024 entries.
const maxGID = 255

func (t *tree) gids(port string, kind Kind) []GID {
	gids := []GID{}
	for _, name := range t.list(path.Join(port, "gids")) {
		index, err := strconv.Atoi(name)
		if err != nil || index < 0 || index > maxGID {
			continue
		}
		addr, err := ParseGID(t.line(path.Join(port, "gids", name)))
		if err != nil || addr.IsUnspecified() {
			continue // an empty entry
		}
		// An entry without an interface has no ndevs file that can be read (EINVAL): that is no news.
		typ := t.quiet(path.Join(port, "gid_attrs/types", name))
		dev := t.quiet(path.Join(port, "gid_attrs/ndevs", name))
		gids = append(gids, GID{Index: index, Addr: addr, Type: gidType(typ, kind), NetDev: dev})
	}
	slices.SortFunc(gids, func(a, b GID) int { return a.Index - b.Index })
	return gids
}

// ParseGID reads a GID as sysfs writes it: eight groups of four hex digits.
func ParseGID(text string) (netip.Addr, error) { return netip.ParseAddr(text) }

// gidType reads a type as sysfs writes it: "IB/RoCE v1" is one or the other, by what the port speaks.
func gidType(text string, kind Kind) GIDType {
	switch {
	case text == "RoCE v2":
		return GIDRoCEv2
	case kind == RoCE:
		return GIDRoCEv1
	}
	return GIDInfiniBand
}

// afterColon is "ACTIVE" of "4: ACTIVE".
func afterColon(s string) string {
	_, name, found := strings.Cut(s, ":")
	if !found {
		return strings.TrimSpace(s)
	}
	return strings.TrimSpace(name)
}

// rate is the bits per second of "400 Gb/sec (4X NDR)" or "2.5 Gb/sec (1X SDR)".
func rate(s string) uint64 {
	number, unit, _ := strings.Cut(s, " ")
	gbit, err := strconv.ParseFloat(number, 64)
	const most = 1e6 // Gbit/s: a petabit is no port
	if err != nil || !strings.HasPrefix(unit, "Gb/sec") || !(gbit > 0 && gbit < most) {
		return 0
	}
	return uint64(gbit * 1e9)
}

// roceHeaders is what the kernel subtracts from the MTU of an interface for the headers of RoCE (iboe_get_mtu): GRH 40, UDP 8, BTH 12,
// XRC 4, atomics 28, checksum 4.
const roceHeaders = 96

// PathMTU is the largest MTU of RoCE, in bytes, for an interface with this MTU: 1024 for 1500, 4096 from 4192 on, 0 below 352.
func PathMTU(mtu int) int {
	for _, m := range []int{4096, 2048, 1024, 512, 256} {
		if mtu-roceHeaders >= m {
			return m
		}
	}
	return 0
}
