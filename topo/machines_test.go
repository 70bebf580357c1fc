package topo

import (
	"fmt"
	"strings"
)

// machine is one that the golden files describe.
type machine struct {
	name    string
	about   string // what is known from where
	build   func(*builder)
	partial func(*memory) // takes away what cannot be seen
}

// machines are reconstructed from public documentation and from what users have published of theirs; none of these trees was captured
// on hardware. Addresses of networks, GUIDs and UUIDs are made up.
var machines = []machine{
	{
		name: "hgx-h100",
		about: `8 GPUs H100 and 8 ConnectX-7 (RoCE, 400 Gbit/s), one pair below each PCIe switch, two processors of 56 cores.
Layout: github.com/NVIDIA/nccl-tests issue 256 (switch, GPU and NIC addresses of the first socket of such a server, PCIe 32 GT/s x16,
mlx5 over Ethernet at 400 Gbit/s); processors: github.com/NVIDIA/nccl issue 1264; GPU id 10de:2330: github.com/aliyun/SimAI issue 128. The
addresses of the second socket and those of the downstream ports are made up.`,
		build: hgxH100,
	},
	{
		name: "aws-p5",
		about: `p5.48xlarge: 8 GPUs H100 and 32 EFA of 100 Gbit/s, 4 below the switch of each GPU.
Layout: docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html (32 network cards);
github.com/aws/aws-ofi-nccl topology/p5.48xl-topo.xml (groups of one GPU and 4 NICs, link speeds, names of NICs, two sockets). The way
of one GPU is published as pci0000:44/0000:44:00.0/0000:45:00.0/0000:46:01.4/0000:53:00.0; the others repeat it, 0x11 buses apart.
The port's attributes are those of github.com/linux-rdma/rdma-core pull request 884.`,
		build: awsP5,
	},
	{
		name: "aws-p5en",
		about: `p5en.48xlarge: 8 GPUs H200 and 16 EFA of 200 Gbit/s, in 4 groups of 2 GPUs and 4 NICs below one switch each.
Layout: docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html; addresses of GPUs and names of NICs as users have published
them (nvidia-smi, ibv_devinfo, lscpu of p5en.48xlarge); the buses of bridges and the speeds of PCIe are made up.`,
		build: awsP5en,
	},
	{
		name: "amd-mi300x",
		about: `8 GPUs MI300X and 8 ConnectX-7, one pair below each PCIe switch; each GPU is behind a switch of its own card.
Layout: ROCm/system-acceptance-docs docs/network/topology-mapping.md (lspci -PP of both).`,
		build: amdMI300X,
	},
	{
		name: "roce-server",
		about: `A server without GPUs: two ConnectX-6 Dx (RoCE, 100 Gbit/s), one at each of two NUMA nodes; the second port of the second card
has no cable. Made up after the documents of the kernel (Documentation/ABI/stable/sysfs-class-infiniband).`,
		build: roceServer,
	},
	{
		name: "arm-gh200",
		about: `Grace Hopper: one GPU and one ConnectX-7 (InfiniBand, 400 Gbit/s), each in a PCIe domain of its own; 9 NUMA nodes, of which one
has processors (github.com/hu-po/warp-ik docs/specs/arm-gh200.md). The addresses are made up.`,
		build: armGH200,
	},
	{
		name: "container",
		about: `hgx-h100 from within a container that was given GPUs 2 and 3 and NICs mlx5_2 and mlx5_3, has a network of its own, and does not
see NUMA nodes: all devices are in sysfs, but most files of /dev, the interfaces, and the other GPUs in /proc are not there.`,
		build:   hgxH100,
		partial: containerView,
	},
	{
		name: "soft-roce-vm",
		about: `A virtual machine with one virtio interface and rdma_rxe over it.
Made up after Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/sw/rxe of Linux 6.1.`,
		build: softRoCE,
	},
}

func hgxH100(b *builder) {
	b.nodes(21, "0-55,112-167", "56-111,168-223")
	// Upstream port of the switch, GPU, NIC.
	for i, buses := range [][3]int{
		{0x16, 0x18, 0x19},
		{0x27, 0x2a, 0x29},
		{0x38, 0x3a, 0x3b},
		{0x5a, 0x5d, 0x5c},
		{0x97, 0x9a, 0x99},
		{0xa8, 0xab, 0xaa},
		{0xb8, 0xba, 0xbb},
		{0xd8, 0xdb, 0xda},
	} {
		numa := i / 4
		root := fmt.Sprintf("0000:%02x:01.0", buses[0]-1)
		up := fmt.Sprintf("%s/0000:%02x:00.0", root, buses[0])
		b.bridge(root, "32.0", numa)
		b.bridge(up, "32.0", numa)
		gpu := fmt.Sprintf("%s/0000:%02x:00.0", up, buses[0]+1)
		nic := fmt.Sprintf("%s/0000:%02x:01.0", up, buses[0]+1)
		b.bridge(gpu, "32.0", numa)
		b.bridge(nic, "32.0", numa)
		b.nvidia(fmt.Sprintf("%s/0000:%02x:00.0", gpu, buses[1]), 0x2330, numa, i, "NVIDIA H100 80GB HBM3")
		dir := b.pci(pciDevice{
			at: fmt.Sprintf("%s/0000:%02x:00.0", nic, buses[2]), vendor: vendorMellanox, device: 0x1021, class: 0x020000, numa: numa,
			speed: "32.0", lanes: 16, driver: "mlx5_core",
		})
		guid := uint64(0x58a2_e103_0040_0000) + uint64(i)
		name := fmt.Sprintf("enp%ds0np0", buses[2])
		b.nic(nicDevice{
			name: fmt.Sprintf("mlx5_%d", i), dir: dir, layer: "Ethernet", rate: "400 Gb/sec (4X NDR)", netdev: name, mtu: 9000,
			firmware: "28.39.1002", board: "MT_0000000838", guid: guid, gids: roce(name, gidLocal(guid|0x0200_00ff_fe00_0000), gid4(10, 100, i, 11)),
		})
	}
	for bus := 5; bus <= 8; bus++ { // NVSwitches are bridges, not GPUs
		at := fmt.Sprintf("0000:00:1c.%d", bus-5)
		b.bridge(at, "8.0", 0)
		b.pci(pciDevice{at: fmt.Sprintf("%s/0000:%02x:00.0", at, bus), vendor: vendorNVIDIA, device: 0x22a3, class: 0x068000, numa: 0, driver: "nvidia"})
	}
	// The graphics of the board's management is no GPU either.
	b.pci(pciDevice{at: "0000:00:1d.0", vendor: 0x1a03, device: 0x2000, class: 0x030000, numa: 0, driver: "ast"})
	for _, m := range []string{"mlx5_ib", "nvidia_uvm", "nvidia_peermem", "rdma_cm"} {
		b.m.addDir("sys/module/" + m)
	}
}

// efaGroup adds a switch with its GPUs and its EFA NICs on successive buses.
func efaGroup(b *builder, root, numa, group, gpus, nics, firstNIC, firstGPU int, rate, pcie, model string, device int) {
	port := fmt.Sprintf("0000:%02x:00.0", root)
	up := fmt.Sprintf("%s/0000:%02x:00.0", port, root+1)
	b.bridge(port, pcie, numa)
	b.bridge(up, pcie, numa)
	at := 0
	below := func(bus int) string {
		down := fmt.Sprintf("%s/0000:%02x:01.%d", up, root+2, at)
		at++
		b.bridge(down, pcie, numa)
		return fmt.Sprintf("%s/0000:%02x:00.0", down, bus)
	}
	for i := range nics {
		bus := firstNIC + i
		dir := b.pci(pciDevice{at: below(bus), vendor: vendorAmazon, device: 0xefa2, class: 0x020000, numa: numa, speed: pcie, lanes: 8, driver: "efa"})
		guid := uint64(bus) << 32
		b.nic(nicDevice{
			name: fmt.Sprintf("rdmap%ds0", bus), dir: dir, layer: "Unknown", rate: rate, firmware: "0.0.0.0", guid: guid, nodeType: "7: <unknown>",
			gids: []gidEntry{{gidLocal(0x04c0_00ff_fe00_0000 + uint64(bus)), "IB/RoCE v1", ""}},
		})
	}
	for i := range gpus {
		b.nvidia(below(firstGPU+i), device, numa, group*gpus+i, model)
	}
}

func awsP5(b *builder) {
	b.nodes(32, "0-47,96-143", "48-95,144-191")
	for i := range 8 {
		efaGroup(b, 0x44+0x11*i, i/4, i, 1, 4, 0x4f+0x11*i, 0x53+0x11*i, "100 Gb/sec (4X EDR)", "16.0", "NVIDIA H100 80GB HBM3", 0x2330)
	}
	b.m.addDir("sys/module/nvidia_uvm")
}

func awsP5en(b *builder) {
	b.nodes(21, "0-47,96-143", "48-95,144-191")
	for i := range 4 {
		efaGroup(b, 0x4a+0x19*i, i/2, i, 2, 4, 0x55+0x19*i, 0x59+0x19*i, "200 Gb/sec (4X HDR)", "32.0", "NVIDIA H200", 0x2335)
	}
	b.m.addDir("sys/module/nvidia_uvm")
}

func amdMI300X(b *builder) {
	b.nodes(32, "0-95,192-287", "96-191,288-383")
	for i, ways := range [][2]string{
		{"00:01.1/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0", "00:01.1/01:00.0/02:01.0/09:00.0"},
		{"18:01.1/19:00.0/1a:04.0/29:00.0/2a:00.0/2b:00.0", "18:01.1/19:00.0/1a:03.0/23:00.0"},
		{"48:01.1/49:00.0/4a:04.0/59:00.0/5a:00.0/5b:00.0", "48:01.1/49:00.0/4a:03.0/53:00.0"},
		{"60:01.1/61:00.0/62:00.0/63:00.0/64:00.0/65:00.0", "60:01.1/61:00.0/62:01.0/69:00.0"},
		{"78:01.1/79:00.0/7a:00.0/7b:00.0/7c:00.0/7d:00.0", "78:01.1/79:00.0/7a:05.0/8f:00.0"},
		{"98:01.1/99:00.0/9a:03.0/a3:00.0/a4:00.0/a5:00.0", "98:01.1/99:00.0/9a:01.0/9c:00.0"},
		{"c8:01.1/c9:00.0/ca:03.0/d3:00.0/d4:00.0/d5:00.0", "c8:01.1/c9:00.0/ca:02.0/cd:00.0"},
		{"e0:01.1/e1:00.0/e2:02.0/e5:00.0/e6:00.0/e7:00.0", "e0:01.1/e1:00.0/e2:04.0/f1:00.0"},
	} {
		numa := i / 4
		gpu, nic := strings.Split(ways[0], "/"), strings.Split(ways[1], "/")
		for _, way := range [][]string{gpu, nic} {
			for j := range way {
				way[j] = "0000:" + way[j]
			}
		}
		for j := range 3 {
			b.bridge(strings.Join(gpu[:j+1], "/"), "32.0", numa)
		}
		b.bridge(strings.Join(nic[:3], "/"), "32.0", numa)
		for j := 3; j < 5; j++ { // the switch on the GPU's card
			b.pci(pciDevice{at: strings.Join(gpu[:j+1], "/"), vendor: vendorAMD, device: 0x1500 + j - 3, class: bridgeClass, numa: numa, speed: "32.0", lanes: 16, driver: "pcieport"})
		}
		dir := b.pci(pciDevice{at: strings.Join(gpu, "/"), vendor: vendorAMD, device: 0x74a1, class: 0x120000, numa: numa, speed: "32.0", lanes: 16, driver: "amdgpu"})
		render := fmt.Sprintf("renderD%d", 128+8*i)
		b.m.addDir(dir + "/drm/" + render)
		b.file("dev/dri/"+render, "")
		dir = b.pci(pciDevice{at: strings.Join(nic, "/"), vendor: vendorMellanox, device: 0x1021, class: 0x020000, numa: numa, speed: "32.0", lanes: 16, driver: "mlx5_core"})
		guid := uint64(0x58a2_e103_0050_0000) + uint64(i)
		var bus int
		fmt.Sscanf(nic[3], "0000:%x:", &bus)
		name := fmt.Sprintf("enp%ds0np0", bus)
		b.nic(nicDevice{
			name: fmt.Sprintf("mlx5_%d", i), dir: dir, layer: "Ethernet", rate: "400 Gb/sec (4X NDR)", netdev: name, mtu: 9000,
			firmware: "28.39.1002", board: "MT_0000000838", guid: guid, gids: roce(name, gidLocal(guid|0x0200_00ff_fe00_0000), gid4(10, 101, i, 11)),
		})
	}
	b.m.addDir("sys/module/mlx5_ib")
}

func roceServer(b *builder) {
	b.nodes(21, "0-31,64-95", "32-63,96-127")
	for i, card := range []struct {
		at, function string
		numa         int
	}{{"0000:16:02.0", "0000:17:00.0", 0}, {"0000:97:02.0", "0000:98:00.0", 1}, {"0000:97:02.0", "0000:98:00.1", 1}} {
		b.bridge(card.at, "16.0", card.numa)
		dir := b.pci(pciDevice{at: card.at + "/" + card.function, vendor: vendorMellanox, device: 0x101d, class: 0x020000, numa: card.numa, speed: "16.0", lanes: 16, driver: "mlx5_core"})
		guid := uint64(0xb83f_d203_0060_0000) + uint64(i)
		n := nicDevice{
			name: fmt.Sprintf("mlx5_%d", i), dir: dir, layer: "Ethernet", rate: "100 Gb/sec (4X EDR)", netdev: fmt.Sprintf("ens%df%snp%s", min(i, 1)+1, card.function[11:], card.function[11:]),
			mtu: 1500, firmware: "22.36.1010", board: "MT_0000000359", guid: guid,
		}
		local := gidLocal(guid | 0x0200_00ff_fe00_0000)
		n.gids = roce(n.netdev, local, gid4(192, 168, 10+i, 7), fmt.Sprintf("fd00:0010:000%d:0000:0000:0000:0000:0007", i))
		if i == 2 {
			n.state, n.physical, n.rate = "1: DOWN", "3: Disabled", "40 Gb/sec (4X QDR)"
			n.gids = roce(n.netdev, local)
		}
		b.nic(n)
	}
	b.m.addDir("sys/module/mlx5_ib")
}

func armGH200(b *builder) {
	b.nodes(80, "0-71", "", "", "", "", "", "", "", "")
	b.bridge("0002:00:00.0", "32.0", 0)
	dir := b.pci(pciDevice{at: "0002:00:00.0/0002:01:00.0", vendor: vendorMellanox, device: 0x1021, class: 0x020700, numa: 0, speed: "32.0", lanes: 16, driver: "mlx5_core"})
	b.nic(nicDevice{
		name: "mlx5_0", dir: dir, layer: "InfiniBand", rate: "400 Gb/sec (4X NDR)", lid: "0x2a", netdev: "ibp1s0", mtu: 2044, firmware: "28.39.1002",
		board: "MT_0000000838", guid: 0x58a2_e103_0070_0001, gids: []gidEntry{{gidLocal(0x58a2_e103_0070_0001), "IB/RoCE v1", ""}},
	})
	b.bridge("0009:00:00.0", "32.0", 0)
	b.nvidia("0009:00:00.0/0009:01:00.0", 0x2342, 0, 0, "NVIDIA GH200 480GB")
	b.m.addDir("sys/module/mlx5_ib")
}

func softRoCE(b *builder) {
	b.nodes(10, "0-1")
	dir := b.pci(pciDevice{at: "0000:00:03.0", vendor: 0x1af4, device: 0x1041, class: 0x020000, numa: -1, driver: "virtio-pci"})
	b.netdev(dir+"/virtio0", "eth0", 1500)
	b.nic(nicDevice{
		name: "rxe0", dir: "sys/devices/virtual", layer: "Ethernet", rate: "2.5 Gb/sec (1X SDR)", parent: "eth0", guid: 0x5054_00ff_fe12_3456,
		gids: []gidEntry{{gidLocal(0x5054_00ff_fe12_3456), "RoCE v2", "eth0"}, {gid4(10, 0, 2, 15), "RoCE v2", "eth0"}},
	})
	b.m.addDir("sys/module/rdma_rxe")
}

// containerView takes away what a container does not get.
func containerView(m *memory) {
	m.remove("sys/devices/system")
	m.remove("sys/class/net")
	m.addDir("sys/class/net")
	for i := range 8 {
		if i != 2 && i != 3 {
			m.remove(fmt.Sprintf("dev/infiniband/uverbs%d", i))
			m.remove(fmt.Sprintf("dev/nvidia%d", i))
		}
	}
	for _, addr := range []string{"18", "2a", "9a", "ab", "ba", "db"} {
		m.remove(nvidiaGPUs + "/0000:" + addr + ":00.0")
	}
	for name := range m.files {
		if strings.Contains(name, "/gid_attrs/ndevs/") {
			m.remove(name)
		}
	}
	for name := range m.dirs {
		if strings.HasSuffix(name, "/net") && strings.HasPrefix(name, "sys/devices/pci") {
			m.remove(name)
		}
	}
}
