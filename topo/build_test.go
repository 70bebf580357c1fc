package topo

import (
	"fmt"
	"path"
	"strings"
)

// builder makes the tree of a machine that is described in machines_test.go, as Linux would show it.
type builder struct {
	m     *memory
	verbs int
}

func newBuilder() *builder { return &builder{m: newMemory()} }

func (b *builder) file(name, text string) { b.m.addFile(name, []byte(text+"\n")) }

// link makes a symbolic link that leads to target, both from the root.
func (b *builder) link(name, target string) {
	up := strings.Repeat("../", strings.Count(name, "/"))
	b.m.addLink(name, up+target)
}

// nodes describes NUMA nodes by their processors; distance is that between two of them.
func (b *builder) nodes(distance int, cpus ...string) {
	for i, list := range cpus {
		dir := fmt.Sprintf("sys/devices/system/node/node%d", i)
		b.file(dir+"/cpulist", list)
		var d []string
		for j := range cpus {
			if i == j {
				d = append(d, "10")
			} else {
				d = append(d, fmt.Sprint(distance))
			}
		}
		b.file(dir+"/distance", strings.Join(d, " "))
	}
}

// pciDevice is a function on the PCI bus.
type pciDevice struct {
	at             string // "0000:16:01.0/0000:17:00.0" below its root complex, with the device at the end
	vendor, device int
	class          int
	numa           int
	speed          string // "32.0"
	lanes          int
	maxSpeed       string // "" as speed
	driver         string
}

// pci adds a device and returns its folder. The root complex has domain and bus of the first bridge.
func (b *builder) pci(d pciDevice) string {
	root := "pci" + strings.Join(strings.Split(d.at, ":")[:2], ":")
	dir := "sys/devices/" + root + "/" + d.at
	addr := path.Base(dir)
	b.link("sys/bus/pci/devices/"+addr, dir)
	b.file(dir+"/vendor", fmt.Sprintf("0x%04x", d.vendor))
	b.file(dir+"/device", fmt.Sprintf("0x%04x", d.device))
	b.file(dir+"/class", fmt.Sprintf("0x%06x", d.class))
	b.file(dir+"/numa_node", fmt.Sprint(d.numa))
	if d.speed != "" {
		if d.maxSpeed == "" {
			d.maxSpeed = d.speed
		}
		b.file(dir+"/current_link_speed", d.speed+" GT/s PCIe")
		b.file(dir+"/current_link_width", fmt.Sprint(d.lanes))
		b.file(dir+"/max_link_speed", d.maxSpeed+" GT/s PCIe")
		b.file(dir+"/max_link_width", fmt.Sprint(d.lanes))
	}
	if d.driver != "" {
		b.link(dir+"/driver", "sys/bus/pci/drivers/"+d.driver)
		b.m.addDir("sys/module/" + d.driver)
	}
	return dir
}

const bridgeClass = 0x060400

// bridge adds a bridge of a root complex (Intel) or a switch (Broadcom).
func (b *builder) bridge(at, speed string, numa int) {
	vendor, device := 0x1000, 0xc030 // Broadcom PEX890xx
	if !strings.Contains(at, "/") {
		vendor, device = 0x8086, 0x352a
	}
	b.pci(pciDevice{at: at, vendor: vendor, device: device, class: bridgeClass, numa: numa, speed: speed, lanes: 16, driver: "pcieport"})
}

// nicDevice is an RDMA device over a PCI function, or over an interface.
type nicDevice struct {
	name     string
	dir      string // folder of its card
	layer    string // of the link; "Ethernet"
	state    string // "" is "4: ACTIVE"
	physical string // "" is "5: LinkUp"
	rate     string
	lid      string
	netdev   string
	mtu      int
	parent   string // of rxe
	firmware string
	board    string
	guid     uint64
	gids     []gidEntry
	nodeType string
}

func (b *builder) nic(n nicDevice) {
	dir := n.dir + "/infiniband/" + n.name
	b.link("sys/class/infiniband/"+n.name, dir)
	if n.parent == "" {
		b.link(dir+"/device", n.dir)
	} else {
		b.file(dir+"/parent", n.parent)
	}
	if n.nodeType == "" {
		n.nodeType = "1: CA"
	}
	b.file(dir+"/node_type", n.nodeType)
	g := n.guid
	b.file(dir+"/node_guid", fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff))
	if n.firmware != "" {
		b.file(dir+"/fw_ver", n.firmware)
	}
	if n.board != "" {
		b.file(dir+"/board_id", n.board)
	}
	uverbs := fmt.Sprintf("uverbs%d", b.verbs)
	b.verbs++
	b.link("sys/class/infiniband_verbs/"+uverbs, n.dir+"/infiniband_verbs/"+uverbs)
	b.file(n.dir+"/infiniband_verbs/"+uverbs+"/ibdev", n.name)
	b.file("dev/infiniband/"+uverbs, "")
	b.m.addDir("sys/module/ib_core")
	b.m.addDir("sys/module/ib_uverbs")

	port := dir + "/ports/1"
	b.file(port+"/state", or(n.state, "4: ACTIVE"))
	b.file(port+"/phys_state", or(n.physical, "5: LinkUp"))
	b.file(port+"/rate", n.rate)
	b.file(port+"/link_layer", n.layer)
	b.file(port+"/lid", or(n.lid, "0x0"))
	for i := range len(n.gids) + 2 { // real tables have up to 255 entries; the empty ones say nothing
		b.file(fmt.Sprintf("%s/gids/%d", port, i), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
	for i, g := range n.gids {
		b.file(fmt.Sprintf("%s/gids/%d", port, i), g.addr)
		b.file(fmt.Sprintf("%s/gid_attrs/types/%d", port, i), g.typ)
		if g.netdev != "" {
			b.file(fmt.Sprintf("%s/gid_attrs/ndevs/%d", port, i), g.netdev)
		}
	}
	if n.netdev != "" && n.parent == "" {
		b.netdev(n.dir, n.netdev, n.mtu)
	}
}

func (b *builder) netdev(dir, name string, mtu int) {
	net := dir + "/net/" + name
	b.link("sys/class/net/"+name, net)
	b.link(net+"/device", dir)
	b.file(net+"/mtu", fmt.Sprint(mtu))
}

func or(s, without string) string {
	if s == "" {
		return without
	}
	return s
}

// nvidia adds a GPU of NVIDIA with what its driver says of it.
func (b *builder) nvidia(at string, device, numa, minor int, model string) {
	// An idle GPU runs its link slowly.
	dir := b.pci(pciDevice{
		at: at, vendor: vendorNVIDIA, device: device, class: 0x030200, numa: numa, speed: "2.5", lanes: 16, maxSpeed: "32.0",
		driver: "nvidia",
	})
	b.file(nvidiaGPUs+"/"+path.Base(dir)+"/information", fmt.Sprintf("Model: \t\t %s\nGPU UUID: \t GPU-%08x-0000-4000-8000-%012x\nBus Location: \t %s\nDevice Minor: \t %d",
		model, 0x10de0000+minor, minor, path.Base(dir), minor))
	b.file(fmt.Sprintf("dev/nvidia%d", minor), "")
}

// gidEntry is an entry of a GID table; its index is its place.
type gidEntry struct{ addr, typ, netdev string }

// roce are the GIDs that mlx5 makes for an interface with these addresses: each as RoCE v1 and as RoCE v2.
func roce(netdev string, addrs ...string) []gidEntry {
	var gids []gidEntry
	for _, a := range addrs {
		gids = append(gids, gidEntry{a, "IB/RoCE v1", netdev}, gidEntry{a, "RoCE v2", netdev})
	}
	return gids
}

func gid4(a, b, c, d int) string {
	return fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", a, b, c, d)
}

// gidLocal is the link-local GID of an identifier.
func gidLocal(id uint64) string {
	return fmt.Sprintf("fe80:0000:0000:0000:%04x:%04x:%04x:%04x", id>>48, id>>32&0xffff, id>>16&0xffff, id&0xffff)
}
