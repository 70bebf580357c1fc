package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-project/hawser/topo"
)

// sysfs is the root of the tree in which the kernel tells of devices; tests have trees of their own.
type sysfs string

const systemSysfs = sysfs("/")

// classIB is where the kernel lists RDMA devices.
const classIB = "sys/class/infiniband"

// bare reports whether the kernel lists no RDMA device. What cannot be seen is left to the library.
func (s sysfs) bare() bool {
	entries, err := os.ReadDir(filepath.Join(string(s), classIB))
	return err == nil && len(entries) == 0 || errors.Is(err, fs.ErrNotExist)
}

// numaNode of a device, -1 when it is not known.
func (s sysfs) numaNode(device string) int {
	p, err := topo.ReadPlace(string(s), device)
	if err != nil {
		return -1
	}
	return p.NUMA
}

// gid is an entry of a port's GID table.
type gid struct {
	index  int
	addr   netip.Addr // unmapped: an IPv4 address where the GID is one
	kind   topo.GIDType
	netdev string
}

// gids reads the table of a port, without its empty entries.
func (s sysfs) gids(device string, port int) ([]gid, error) {
	n, err := topo.ReadNIC(string(s), device)
	if err != nil {
		return nil, fmt.Errorf("gid table: %w", err)
	}
	p := n.Port(port)
	if p == nil {
		return nil, fmt.Errorf("gid table: sysfs shows no port %d of %s", port, device)
	}
	var table []gid
	for _, g := range p.GIDs {
		table = append(table, gid{g.Index, g.IP(), g.Type, g.NetDev})
	}
	return table, nil
}

// addressesOf lists the addresses of an interface that is up.
func addressesOf(netdev string) []netip.Addr {
	ifi, err := net.InterfaceByName(netdev)
	if err != nil || ifi.Flags&net.FlagUp == 0 {
		return nil
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil
	}
	var list []netip.Addr
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				list = append(list, ip.Unmap())
			}
		}
	}
	return list
}

// Ranks of GIDs, the lowest first.
const (
	rankIPv4 = iota
	rankGlobal
	rankUnique // fc00::/7
	rankNever
)

// rank says how good a GID is, and why not where it is not: it must be an address that its own interface has now, and one
// that means the same host to everybody.
func (g gid) rank(addresses func(netdev string) []netip.Addr) (int, string) {
	switch {
	case g.kind != topo.GIDRoCEv2:
		return rankNever, string(g.kind) + " cannot be routed"
	case g.addr.IsLinkLocalUnicast():
		return rankNever, "a link-local address means another host on each link"
	case g.addr.IsLoopback() || g.addr.IsMulticast():
		return rankNever, "not the address of one host"
	}
	has := false
	for _, a := range addresses(g.netdev) {
		has = has || a.WithZone("") == g.addr
	}
	switch {
	case !has:
		return rankNever, fmt.Sprintf("interface %q is down or does not have this address", g.netdev)
	case g.addr.Is4():
		return rankIPv4, ""
	case g.addr.IsPrivate():
		return rankUnique, ""
	}
	return rankGlobal, ""
}

// chooseGID picks the best of a table; the error says of each entry why not.
func chooseGID(table []gid, addresses func(netdev string) []netip.Addr) (gid, error) {
	best, at := rankNever, gid{}
	var why []string
	for _, g := range table {
		r, no := g.rank(addresses)
		if no != "" {
			why = append(why, fmt.Sprintf("%d %v: %s", g.index, g.addr, no))
		}
		if r < best || r == best && best != rankNever && g.index < at.index {
			best, at = r, g
		}
	}
	if best == rankNever {
		if len(why) == 0 {
			why = append(why, "the table is empty: the interface is down or has no address")
		}
		return gid{}, fmt.Errorf("no usable GID (%s)", strings.Join(why, "; "))
	}
	return at, nil
}

// linkBits is the speed of a port from its width and speed as the library tells them, 0 when it does not know the numbers. They are
// those of the InfiniBand specification: lanes, and the rate of one lane after encoding.
func linkBits(width, speed uint8) uint64 {
	lanes := map[uint8]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[uint8]uint64{1: 2_000, 2: 4_000, 4: 8_000, 8: 10_000, 16: 14_000, 32: 25_000, 64: 50_000, 128: 100_000}[speed]
	return lanes * lane * 1e6
}
