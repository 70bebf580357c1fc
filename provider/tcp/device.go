package tcp

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/internal/host"
	"github.com/hawser-project/hawser/provider"
)

// devices lists the usable local addresses, those that only this host can reach first.
func devices() ([]provider.Device, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var loop, rest []provider.Device
	for _, ifi := range ifs {
		if ifi.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			continue // gone since it was listed
		}
		for _, a := range addrs {
			ip, ok := usable(a)
			if !ok {
				continue
			}
			dev := provider.Device{Provider: Name, Name: ip.String(), NUMA: -1}
			if dev.Fabric, err = fabric(ip); err != nil {
				return nil, err
			}
			if ip.IsLoopback() {
				dev.Loopback = true
				loop = append(loop, dev)
				continue
			}
			dev.LinkBits = linkBits(ifi.Name)
			dev.NUMA = numaNode(ifi.Name)
			rest = append(rest, dev)
		}
	}
	return append(loop, rest...), nil
}

// usable picks the addresses that a peer could be told: a link-local one means something else on each link.
func usable(a net.Addr) (netip.Addr, bool) {
	n, ok := a.(*net.IPNet)
	if !ok {
		return netip.Addr{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	ip = ip.Unmap()
	return ip, ok && !ip.IsUnspecified() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast()
}

// fabric is the fabric of an address. A socket of one family does not reach the other, and a loopback address means another
// host on each host and in each network namespace.
func fabric(ip netip.Addr) (string, error) {
	name := "tcp"
	if ip.Is6() {
		name = "tcp6"
	}
	if !ip.IsLoopback() {
		return name, nil
	}
	id, err := host.ID()
	if err != nil {
		return "", err
	}
	return name + ":lo:" + id, nil
}

// linkBits is the speed of an interface in bits per second, 0 when it does not say.
func linkBits(name string) uint64 {
	mbit, ok := readInt("/sys/class/net", name, "speed")
	if !ok || mbit <= 0 {
		return 0
	}
	return uint64(mbit) * 1e6
}

// numaNode is the NUMA node of an interface's card, -1 when it does not say.
func numaNode(name string) int {
	if node, ok := readInt("/sys/class/net", name, "device/numa_node"); ok && node >= 0 {
		return int(node)
	}
	return -1
}

func readInt(path ...string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
