//go:build cgo

package ofi

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/provider"
)

// software are the layers of libfabric that emulate a network; a name of a provider is a list of layers.
var software = []string{"tcp", "udp", "shm", "sm2", "sockets", "net", "lnx", "ofi_mrail", "mem"}

// device is an entry of fi_getinfo as the contract sees it.
type device struct {
	dev      provider.Device
	software bool
	lossy    bool // over datagrams
	acks     bool // see ack.go
	source   bool // see source.go
	ordered  bool // writes of a connection are placed in order; see ack.go
	noLen    bool // it reports every write with data as one of 0 bytes
}

func (n network) devices() ([]provider.Device, error) {
	all, about, err := n.list()
	if err != nil {
		return nil, err
	}
	freeInfos(all)
	devs := make([]provider.Device, len(about))
	for i := range about {
		devs[i] = about[i].dev
	}
	return devs, nil
}

// find is the entry of a device; the caller frees it.
func (n network) find(name string) (*info, device, error) {
	all, about, err := n.list()
	if err != nil {
		return nil, device{}, err
	}
	i := slices.IndexFunc(about, func(d device) bool { return d.dev.Name == name })
	if i < 0 {
		freeInfos(all)
		return nil, device{}, fmt.Errorf("%w: there is no such device", provider.ErrInvalid)
	}
	found := all[i]
	freeInfos(slices.Delete(all, i, i+1))
	return found, about[i], nil
}

// list is what can be opened: loopback first, each name once. The caller frees the entries.
func (n network) list() ([]*info, []device, error) {
	if n.Provider == "" {
		if err := checkHardware("/"); err != nil {
			return nil, nil, err
		}
	}
	lib, err := loadLibrary()
	if err != nil {
		return nil, nil, err
	}
	asked := n.Provider
	if asked == "shm" && lib.version() >= nativeTCP {
		return nil, nil, fmt.Errorf("%w: the provider shm of libfabric %d.%d crashes under writes in both directions (seen with 2.5.1; 1.17 does not): use Hawser's own shm",
			provider.ErrUnavailable, lib.version()>>16, lib.version()&0xFFFF)
	}
	if asked == "tcp" && lib.version() < nativeTCP {
		asked = "net" // what became tcp in 2.0
	}
	var all []*info
	hmem := !isSoftware(asked) // with the memory of devices, where there is any
	if hmem {
		all, err = lib.infos(asked, true, n.narrow)
	}
	if len(all) == 0 {
		hmem = false
		all, err = lib.infos(asked, false, n.narrow)
	}
	all = lib.withSources(all, asked, hmem)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s finds nothing that has reliable datagrams, messages and writes%s: %w", provider.ErrUnavailable,
			lib.path, n.hint(), err)
	}
	type pair struct {
		i *info
		d device
	}
	var pairs []pair
	lacks := ""
	for _, i := range all {
		d, ok := n.describe(i)
		if d.source && uint64(i.desc.caps)&capSource == 0 {
			lacks = fmt.Sprintf(": %s has %d bytes of data for a write and does not tell the source of one (FI_SOURCE)", text(&i.desc.provider), i.desc.data_size)
		}
		if !ok || slices.ContainsFunc(pairs, func(p pair) bool { return p.d.dev.Name == d.dev.Name }) {
			i.free()
			continue
		}
		pairs = append(pairs, pair{i, d})
	}
	if len(pairs) == 0 {
		return nil, nil, fmt.Errorf("%w: %s finds only networks that are emulated in software or lack what is needed%s%s", provider.ErrUnavailable, lib.path, lacks, n.hint())
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(order(a.d), order(b.d)) })
	infos, about := make([]*info, len(pairs)), make([]device, len(pairs))
	for k, p := range pairs {
		infos[k], about[k] = p.i, p.d
	}
	return infos, about, nil
}

// Bytes of data of a write: for an immediate, and for one beside its receiver's handle of the connection.
const (
	immData  = 4
	wideData = 8
)

// withSources has those entries tell the source of a completion whose data is too short to name it, where libfabric can do that. It costs
// time where it is not needed.
func (l *library) withSources(all []*info, asked string, hmem bool) []*info {
	short := func(i *info) bool { return i.desc.data_size < wideData }
	if !slices.ContainsFunc(all, short) {
		return all
	}
	more, err := l.infos(asked, hmem, true)
	if err != nil {
		return all // describe leaves them out
	}
	keep := func(is []*info, want func(*info) bool) []*info {
		return slices.DeleteFunc(is, func(i *info) bool {
			if !want(i) {
				i.free()
				return true
			}
			return false
		})
	}
	return append(keep(all, func(i *info) bool { return !short(i) }), keep(more, short)...)
}

// nativeTCP is the release in which the provider "tcp" got reliable datagrams of its own. Before, a layer above it had them: ofi_rxm, which
// is not used over software, because in 1.17 it follows a null pointer when a connection ends while a write with data is arriving
// (rxm_handle_comp_error is handed the entry without a context that tcp writes for the write).
const nativeTCP = 2 << 16

// Of the EFA provider: the release in which it has RDMA writes, before it emulates them; and the device's code of a write that was refused,
// which comes with EINVAL (prov/efa/src/efa_errno.h).
const (
	efaName       = "efa"
	efaWrites     = 1<<16 | 18
	efaBadAddress = 7
)

func order(d device) int {
	if d.dev.Loopback {
		return 0
	}
	return 1
}

// hint says what a user may lack.
func (n network) hint() string {
	switch {
	case n.Provider == "efa" || n.Provider == "":
		return " (for EFA: an instance with EFA interfaces attached, their kernel driver, and rdma-core, see fi_info -p efa; see docs/efa.md)"
	default:
		return " (see fi_info -p '" + n.Provider + "')"
	}
}

func isSoftware(layers string) bool {
	return slices.ContainsFunc(strings.Split(layers, ";"), func(l string) bool { return slices.Contains(software, l) })
}

// describe reports false for an entry that Options exclude or that lacks what the package needs.
func (n network) describe(i *info) (d device, ok bool) {
	s := &i.desc
	prov, domain := text(&s.provider), text(&s.domain)
	d.software, d.lossy = isSoftware(prov), strings.Contains(prov, "ofi_rxd")
	d.noLen, d.acks, d.ordered = prov == "net", prov == "shm", prov == "net" || prov == "tcp"
	if n.Provider == "" && (d.software || s.has_nic == 0 || strings.HasPrefix(prov, "verbs")) || s.mr_mode&mrEndpoint != 0 {
		return d, false
	}
	if prov == efaName && text(&s.fabric) == "efa-direct" {
		return d, false // the same device once more, before "efa" since 2.1, without the wire protocols that acknowledge
	}
	if d.software && strings.Contains(prov, "ofi_rxm") {
		return d, false // see nativeTCP
	}
	if d.source = n.narrow || s.data_size < wideData; d.source && (uint64(s.caps)&capSource == 0 || s.data_size < immData || d.acks) {
		return d, false // nobody could tell whose an immediate is
	}
	name, ip := domain, address(s)
	fabric := text(&s.fabric)
	if ip.IsValid() {
		name += "/" + ip.String()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			return d, false // means another host on each link
		}
		fabric = "ip" // whoever has a route
	}
	d.dev = provider.Device{
		Provider: n.Name(), Name: name, Fabric: "ofi:" + prov + ":" + fabric,
		LinkBits: uint64(s.link_bits), NUMA: numa(s), Loopback: d.software && !ip.IsValid() || ip.IsLoopback(),
	}
	if d.dev.Loopback {
		d.dev.Fabric += ":" + bootID()
	}
	if ip.Is6() {
		d.dev.Fabric += ":6"
	}
	if d.dev.LinkBits == 0 && ip.IsValid() {
		d.dev.LinkBits = linkSpeed(domain)
	}
	return d, true
}

// address is the source address of an entry, when it is a socket's.
func address(s *deviceDesc) netip.Addr {
	b := make([]byte, s.addr_len)
	for i := range b {
		b[i] = byte(s.addr[i])
	}
	return socketName(b).Addr()
}

// numa is the node of the NIC, -1 when unknown.
func numa(s *deviceDesc) int {
	if s.has_pci == 0 {
		return -1
	}
	path := fmt.Sprintf("/sys/bus/pci/devices/%04x:%02x:%02x.%x/numa_node", s.pci_domain, s.pci_bus, s.pci_device, s.pci_function)
	b, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return node
}

// linkSpeed is that of a network interface, bits per second.
func linkSpeed(iface string) uint64 {
	b, err := os.ReadFile("/sys/class/net/" + iface + "/speed")
	if err != nil {
		return 0 // the loopback has none
	}
	mbit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return 0
	}
	return mbit * 1_000_000
}

// bootID names this start of this host, empty when the kernel does not tell.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
