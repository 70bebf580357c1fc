package doctor

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/topo"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

// roce is a host with two cards of RoCE in which nothing is wrong.
func roce() *Facts {
	return &Facts{
		Need: 64 << 30,
		Host: &topo.Host{
			NICs:    []topo.NIC{card(0, "10.0.0.1"), card(1, "10.0.1.1")},
			Modules: []string{"ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib"},
		},
		Kernel: "6.8.0-45-generic", Cores: 96, Nodes: 2, NUMABalancing: new(0), Clock: "tsc", Ptrace: new(0), Shm: 1 << 40,
		Huge: HugePool{Total: 1024, Free: 1024}, ShmemHuge: "advise",
		Process: Process{
			UID: 1000, Memlock: &Limit{Infinite, Infinite}, Files: &Limit{1024, 1 << 20},
			Bounding: 1 << 30,
		},
		TCP: TCP{Congestion: "cubic", Allowed: []string{"reno", "cubic"}},
		Net: Net{
			Known: true, All: Conf{RPFilter: 0},
			Interfaces: []Interface{
				{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fe80::1/64")}},
				{Name: "eth1", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24")}},
			},
		},
		Cards:     []Card{{"0000:17:00.0", "mlx5_ib"}, {"0000:ca:00.0", "mlx5_ib"}},
		Files:     []Verbs{{Name: "uverbs0"}, {Name: "uverbs1"}},
		Resources: []InUse{{NIC: "mlx5_0", Contexts: 1, PDs: 4, CQs: 20, QPs: 12, MRs: 3}},
		Libraries: []Library{
			{Network: "verbs", Name: "libibverbs.so.1", Path: "/lib/x86_64-linux-gnu/libibverbs.so.1", Version: "1.14.50.0"},
			{Network: "ofi", Name: "libfabric.so.1", Reason: "libfabric.so.1: cannot open shared object file"},
		},
		Drivers: []string{"mlx4", "mlx5", "rxe"},
	}
}

// card is card n, with one port on interface eth<n>, whose address is ip.
func card(n int, ip string) topo.NIC {
	index := string(rune('0' + n))
	gid := func(i int, addr string, of topo.GIDType) topo.GID {
		return topo.GID{Index: i, Addr: netip.AddrFrom16(netip.MustParseAddr(addr).As16()), Type: of, NetDev: "eth" + index}
	}
	return topo.NIC{
		Name: "mlx5_" + index, Place: topo.Place{Link: topo.PCIeLink{GTs: 32, Lanes: 16}, MaxLink: topo.PCIeLink{GTs: 32, Lanes: 16}}, Driver: "mlx5_core", Verbs: "uverbs" + index, Board: "MT_0000000838", Firmware: "28.39.1002",
		Ports: []topo.Port{{
			Number: 1, Kind: topo.RoCE, State: "ACTIVE", Physical: "LinkUp", Rate: "400 Gb/sec (4X NDR)", LinkBits: 400e9,
			NetDev: "eth" + index, MTU: 9000, PathMTU: 4096,
			GIDs: []topo.GID{gid(0, "fe80::1", topo.GIDRoCEv1), gid(1, "fe80::1", topo.GIDRoCEv2), gid(2, ip, topo.GIDRoCEv1), gid(3, ip, topo.GIDRoCEv2)},
		}},
	}
}

func TestNothingIsWrongWithAGoodHost(t *testing.T) {
	for _, l := range Check(roce()) {
		if l.Status != OK && l.Status != Skip || l.Remedy != "" {
			t.Errorf("%+v", l)
		}
	}
}

// port is the first port of the first card.
func port(f *Facts) *topo.Port { return &f.Host.NICs[0].Ports[0] }

// troubles are what users of such engines meet, by what spoils a good host.
var troubles = []struct {
	name   string
	spoil  func(*Facts)
	check  string
	about  string
	status Status
	found  string // in what is found
	remedy string // in the remedy
}{
	{
		"memlock of a container", func(f *Facts) { f.Process.Memlock = &Limit{8 << 20, 8 << 20} },
		"memlock", "", Fail, "8 MiB may be pinned, 64 GiB is needed", "docker --ulimit memlock=-1",
	},
	{
		"IPC_LOCK that is not in effect", func(f *Facts) {
			f.Process.Memlock, f.Process.Bounding = &Limit{8 << 20, 8 << 20}, 1<<capIPCLock
		},
		"memlock", "", Fail, "user 1000) was given CAP_IPC_LOCK, but not in effect", "setcap cap_ipc_lock+ep",
	},
	{
		"a soft limit", func(f *Facts) { f.Process.Memlock = &Limit{8 << 20, 128 << 30} },
		"memlock", "", Fail, "8 MiB", "ulimit -l 134217728",
	},
	{
		"memory of a GPU, closed driver", func(f *Facts) { f.NVIDIA = &NVIDIA{Version: "535.104.05"} },
		"gpu memory", "", Warn, "bad address", "modprobe nvidia_peermem",
	},
	{
		"memory of a GPU, old kernel", func(f *Facts) { f.NVIDIA, f.Kernel = &NVIDIA{Version: "550.54", Open: true}, "5.4.0-150-generic" },
		"gpu memory", "", Warn, "registers no dma-bufs", "5.12",
	},
	{
		"leaked registrations", func(f *Facts) { f.Resources[0].MRs = 2_000_000 },
		"resources", "mlx5_0", Warn, "2000000 memory regions", "rdma resource show mr",
	},
	{
		"a GID that is link-local only", func(f *Facts) { port(f).GIDs = port(f).GIDs[:2] },
		"gid", "mlx5_0/1", Fail, "only link-local GIDs (1 (fe80::1))", "ip addr add 10.0.0.1/24 dev eth0",
	},
	{
		"no GID of RoCE v2", func(f *Facts) { port(f).GIDs = port(f).GIDs[2:3] },
		"gid", "mlx5_0/1", Fail, "no GID of RoCE v2", "firmware",
	},
	{
		"no GID", func(f *Facts) { port(f).GIDs = nil },
		"gid", "mlx5_0/1", Fail, "empty", "network namespace",
	},
	{
		"a GID of an address that is gone", func(f *Facts) { f.Net.Interfaces[0].Addrs[0] = netip.MustParsePrefix("10.0.0.9/24") },
		"gid", "mlx5_0/1", Warn, "eth0 has no such address, so that packets from there are dropped: 3 (10.0.0.1)", "ip link set eth0",
	},
	{
		"a GID of an interface elsewhere", func(f *Facts) { f.Net.Interfaces = f.Net.Interfaces[1:] },
		"gid", "mlx5_0/1", Warn, "eth0 is not in this network namespace", "--network host",
	},
	{
		"two cards in one subnet", func(f *Facts) {
			f.Net.Interfaces[1].Addrs[0], f.Net.All.RPFilter = netip.MustParsePrefix("10.0.0.2/24"), 1
		},
		"subnets", "10.0.0.0/24", Warn, "eth0, eth1 are in it", "net.ipv4.conf.eth0.arp_announce=2 net.ipv4.conf.eth0.arp_ignore=1 net.ipv4.conf.eth0.rp_filter=2",
	},
	{
		"one card that cannot be opened", func(f *Facts) { f.Files[0].Reason = "permission denied" },
		"device", "mlx5_0", Warn, "permission denied: it is left out", "docker --device /dev/infiniband",
	},
	{
		"no card that the container was given", func(f *Facts) { f.Host.NICs[0].Hidden, f.Host.NICs[1].Hidden = true, true },
		"device", "mlx5_1", Fail, "its file in /dev/infiniband is not there, and no other NIC can be used", "device plugin",
	},
	{
		"no card that can be opened", func(f *Facts) { f.Files[0].Reason, f.Files[1].Reason = "permission denied", "permission denied" },
		"device", "mlx5_1", Fail, "no other NIC can be used", "0666",
	},
	{
		"a card without its module", func(f *Facts) { f.Host.NICs, f.Host.Modules = nil, []string{"mlx5_core"} },
		"module", "0000:17:00.0", Fail, "mlx5_ib is not loaded", "modprobe mlx5_ib",
	},
	{
		"no files for processes", func(f *Facts) { f.Host.NICs[0].Verbs, f.Host.NICs[1].Verbs = "", "" },
		"module", "", Fail, "ib_uverbs", "modprobe ib_uverbs",
	},
	{
		"no library", func(f *Facts) {
			f.Libraries[0] = Library{Network: "verbs", Name: "libibverbs.so.1", Reason: "cannot open"}
		},
		"library", "libibverbs.so.1", Fail, "cannot open", "apt-get install libibverbs1",
	},
	{
		"a binary that loads nothing", func(f *Facts) {
			f.Libraries[0] = Library{Network: "verbs", Name: "libibverbs.so.1", Reason: "built without cgo"}
			f.Static = true
		},
		"library", "libibverbs.so.1", Fail, "built without cgo", "C compiler",
	},
	{
		"no driver for the card in libibverbs", func(f *Facts) { f.Drivers = []string{"rxe"} },
		"driver", "mlx5", Fail, "libmlx5-rdmav*.so", "ibverbs-providers",
	},
	{
		"a slot that is too narrow", func(f *Facts) { f.Host.NICs[0].Place.Link.Lanes = 8 },
		"pcie", "mlx5_0", Warn, "carries 252 Gbit/s, its ports 400: the link of the card is 32 GT/s x8, it could do 32 GT/s x16", "slot",
	},
	{
		"a port that is down", func(f *Facts) { port(f).State, port(f).Physical = "DOWN", "Polling" },
		"port", "mlx5_0/1", Warn, "DOWN, Polling: it is left out", "ip link set eth0 up",
	},
	{
		"all ports down", func(f *Facts) { port(f).State, f.Host.NICs[1].Ports[0].State = "DOWN", "DOWN" },
		"port", "mlx5_1/1", Fail, "no other port is up", "cable",
	},
	{
		"no subnet manager", func(f *Facts) { port(f).Kind, port(f).State = topo.InfiniBand, "INIT" },
		"port", "mlx5_0/1", Warn, "no subnet manager", "opensm",
	},
	{
		"small packets", func(f *Facts) { port(f).MTU, port(f).PathMTU = 1500, 1024 },
		"mtu", "mlx5_0/1", Warn, "RDMA packets carry 1024 bytes", "ip link set eth0 mtu 9000",
	},
	{
		"EFA without huge pages", func(f *Facts) { f.Host.NICs[0].Driver, f.Huge.Free = "efa", 0 },
		"efa", "huge pages", Warn, "none is free", "vm.nr_hugepages",
	},
	{
		"EFA without its library", func(f *Facts) { f.Host.NICs[0].Driver = "efa" },
		"library", "libfabric.so.1", Fail, "cannot open", "EFA installer",
	},
	{
		"an old kernel", func(f *Facts) { f.Kernel = "4.18.0-553.el8_10.x86_64" },
		"kernel", "", Fail, "older than 5.14", "5.14",
	},
	{
		"a quota", func(f *Facts) { f.Quota = 3.5 },
		"cores", "", Warn, "96 processors, but time of 3.5", "cpuset",
	},
	{
		"two cores", func(f *Facts) { f.Cores = 2 },
		"cores", "", Warn, "do not spin", "4 or more",
	},
	{
		"a slow clock", func(f *Facts) { f.Clock = "hpet" },
		"clock", "", Warn, "system call", "tsc",
	},
	{
		"NUMA balancing", func(f *Facts) { f.NUMABalancing = new(1) },
		"numa", "", Warn, "balancing is on", "sysctl kernel.numa_balancing=0",
	},
	{
		"a small control group", func(f *Facts) { f.MemoryMax = 32 << 30 },
		"memory", "", Fail, "32 GiB, less than the 64 GiB", "docker --memory",
	},
	{
		"/dev/shm of docker", func(f *Facts) { f.Shm = 64 << 20 },
		"/dev/shm", "", Warn, "64 MiB", "--shm-size",
	},
	{
		"few descriptors", func(f *Facts) { f.Process.Files = &Limit{1024, 1024} },
		"open files", "", Warn, "1024 descriptors", "LimitNOFILE",
	},
	{
		"ptrace of children only", func(f *Facts) { f.Ptrace = new(1) },
		"ptrace", "", Warn, "go over TCP", "kernel.yama.ptrace_scope=0",
	},
	{
		"no ptrace at all", func(f *Facts) { f.Ptrace, f.Process.Effective = new(3), 1<<capSysPtrace },
		"ptrace", "", Warn, "is 3", "memory of Alloc",
	},
	{
		"bbr and nothing else", func(f *Facts) { f.TCP = TCP{Congestion: "bbr", Allowed: []string{"bbr"}} },
		"tcp", "", Warn, "half of the speed", "tcp_allowed_congestion_control",
	},
}

func TestTroublesNameThemselvesAndTheirRemedy(t *testing.T) {
	for _, tc := range troubles {
		t.Run(tc.name, func(t *testing.T) {
			f := roce()
			tc.spoil(f)
			lines := Check(f)
			found := false
			for _, l := range lines {
				if l.Check == tc.check && l.About == tc.about && l.Status == tc.status && strings.Contains(l.Found, tc.found) && strings.Contains(l.Remedy, tc.remedy) {
					found = true
				}
			}
			if !found || Worst(lines) == OK {
				t.Errorf("no line of %s, %s, with %q and remedy %q; there are:\n%s", tc.check, tc.status, tc.found, tc.remedy, Text(lines))
			}
		})
	}
}

// TestEveryCheckHasATrouble: a check that never warns nor fails is none.
func TestEveryCheckHasATrouble(t *testing.T) {
	has := map[string]bool{"huge pages": true} // it informs: they are taken only by who asks for them
	for _, tc := range troubles {
		has[tc.check] = true
	}
	for _, c := range checks {
		if !has[c.name] {
			t.Errorf("no trouble shows that %q sees one", c.name)
		}
	}
}

// TestWhatIsNoTrouble is what is well although it looks like a trouble.
func TestWhatIsNoTrouble(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*Facts)
		check string
		found string
	}{
		{"a limit that does not count", func(f *Facts) { f.Process.Memlock, f.Process.Effective = &Limit{1, 1}, 1<<capIPCLock }, "memlock", "no limit counts"},
		{"a module for GPUs", func(f *Facts) {
			f.NVIDIA, f.Host.Modules = &NVIDIA{Version: "535.1"}, append(f.Host.Modules, "nvidia_peermem")
		}, "gpu memory", "reach memory of GPUs"},
		{"open modules", func(f *Facts) { f.NVIDIA = &NVIDIA{Version: "570.1", Open: true} }, "gpu memory", "dma-bufs"},
		{"an IPv6 address alone", func(f *Facts) {
			port(f).GIDs[3].Addr = netip.MustParseAddr("fd00:1::5")
			f.Net.Interfaces[0].Addrs = []netip.Prefix{netip.MustParsePrefix("fd00:1::5/64")}
		}, "gid", "RoCE v2: 3 (fd00:1::5)"},
		{"CAP_SYS_PTRACE", func(f *Facts) { f.Ptrace, f.Process.Effective = new(2), 1<<capSysPtrace }, "ptrace", "does not hold this process up"},
		{"bbr and cubic", func(f *Facts) { f.TCP.Congestion = "bbr" }, "tcp", "Hawser takes cubic or reno"},
		{"a card that is another container's", func(f *Facts) { f.Host.NICs[1].Hidden = true }, "device", "it is left to others"},
		{"a quota of all", func(f *Facts) { f.Quota = 96 }, "cores", "96 processors"},
		{"one subnet, each for itself", func(f *Facts) {
			f.Host.NICs[1] = card(1, "10.0.0.2")
			f.Net.Interfaces[1].Addrs[0], f.Net.All = netip.MustParsePrefix("10.0.0.2/24"), Conf{RPFilter: 2, ARPIgnore: 1, ARPAnnounce: 2}
		}, "subnets", "answers for itself"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := roce()
			tc.spoil(f)
			lines := Check(f)
			if Worst(lines) != OK || !strings.Contains(Text(lines), tc.found) {
				t.Errorf("want only ok, and %q:\n%s", tc.found, Text(lines))
			}
		})
	}
}

func TestWhatIsNotKnownIsSkipped(t *testing.T) {
	for _, f := range []*Facts{{}, {Captured: true}, {Host: &topo.Host{NICs: []topo.NIC{{Name: "mlx5_0", Verbs: "uverbs0", Ports: []topo.Port{{Number: 1}}}}}, Captured: true}} {
		lines := Check(f)
		if Worst(lines) != OK || len(lines) < len(checks) {
			t.Errorf("%+v: %s", f, Text(lines))
		}
	}
}

// TestCapturedMachines compares what is said of the machines that package topo keeps.
func TestCapturedMachines(t *testing.T) {
	for _, name := range []string{"amd-mi300x", "arm-gh200", "aws-p5", "aws-p5en", "container", "hgx-h100", "roce-server", "rxe-captured", "soft-roce-vm"} {
		f, err := Gather("../../topo/testdata/"+name+".tar.gz", 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		lines := slices.DeleteFunc(Check(f), func(l Line) bool { return strings.HasSuffix(l.Found, "not known of a captured machine") })
		compare(t, "captured-"+name, Text(lines))
	}
}

// compare compares with a golden file.
func compare(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name+".txt")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", golden, got, want)
	}
}

// TestText compares whole reports: a host that is well, and a pod in which everything is as its runtime made it.
func TestText(t *testing.T) {
	pod := roce()
	pod.Need = 1 << 30
	pod.Cores, pod.Quota, pod.Shm, pod.MemoryMax = 96, 8, 64<<20, 16<<30
	pod.Process = Process{UID: 1000, Memlock: &Limit{8 << 20, 8 << 20}, Files: &Limit{1 << 20, 1 << 20}, Bounding: 1 << capIPCLock}
	pod.Ptrace = new(1)
	pod.Host.NICs[1].Hidden = true
	pod.Net.Interfaces = []Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.244.1.7/24")}}}
	pod.NVIDIA = &NVIDIA{Version: "550.54.15"}
	pod.Libraries[0] = Library{Network: "verbs", Name: "libibverbs.so.1", Reason: "dlopen: unavailable: libibverbs.so.1: cannot open shared object file: No such file or directory"}
	pod.Drivers, pod.Resources = nil, nil
	for name, f := range map[string]*Facts{"roce": roce(), "pod": pod} {
		compare(t, name, Text(Check(f)))
	}
}

// TestPageShowsWhatIsPrinted keeps the example of the documentation equal to what is printed.
func TestPageShowsWhatIsPrinted(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := os.ReadFile("testdata/pod.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```\n"+string(pod)+"```\n") {
		t.Error("docs/doctor.md does not show testdata/pod.txt: copy it there")
	}
	for _, c := range append([]string{"loopback"}, names()...) {
		if !strings.Contains(string(page), "\n| `"+c+"` |") {
			t.Errorf("docs/doctor.md has no row of the check %q", c)
		}
	}
}

func names() (all []string) {
	for _, c := range checks {
		all = append(all, c.name)
	}
	return all
}
