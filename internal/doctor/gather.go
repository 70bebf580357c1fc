package doctor

import (
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/dl"
	"github.com/hawser-project/hawser/topo"
)

// Gather reads the facts of this machine when from is "" or "/", else of a copy in a folder or archive that topo.Capture has made: what
// that lacks is unknown. need is how many bytes are meant to be registered. An error means that there is no such folder or archive.
func Gather(from string, need uint64) (*Facts, error) {
	host, err := topo.Read(from)
	if err != nil {
		return nil, err
	}
	f := &Facts{Captured: from != "" && from != "/", Need: need, Host: host}
	if from == "" {
		from = "/"
	}
	files, closer := open(from)
	defer closer()
	f.machine(files)
	f.network(files)
	f.cards(files)
	if !f.Captured {
		f.alive(files)
	}
	return f, nil
}

// tree is what is below a folder; links do not lead out of it. The zero value is empty.
type tree struct{ root fs.FS }

// open opens a folder; anything else is empty.
func open(from string) (tree, func()) {
	root, err := os.OpenRoot(from)
	if err != nil {
		return tree{}, func() {}
	}
	return tree{root.FS()}, func() { _ = root.Close() }
}

// maxFile is above any file that is read here, bytes.
const maxFile = 64 << 10

// text is the content of a file without the space around it, "" without one.
func (t tree) text(name string) string {
	if t.root == nil {
		return ""
	}
	// A tree may come from anybody: what is not a plain file may block.
	if info, err := fs.Stat(t.root, name); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	file, err := t.root.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number is the number in a file, nil without one.
func (t tree) number(name string) *int {
	n, err := strconv.Atoi(t.text(name))
	if err != nil {
		return nil
	}
	return &n
}

func (t tree) uint(name string) uint64 {
	n, _ := strconv.ParseUint(t.text(name), 10, 64) // 0 is unknown
	return n
}

func (t tree) names(dir string) []string {
	if t.root == nil {
		return nil
	}
	entries, err := fs.ReadDir(t.root, dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

var (
	nodeName   = regexp.MustCompile(`^node[0-9]+$`)
	inBrackets = regexp.MustCompile(`\[([a-z_+]+)\]`)
	cpuName    = regexp.MustCompile(`^cpu[0-9]+$`)
)

func (f *Facts) machine(t tree) {
	f.Kernel = t.text("proc/sys/kernel/osrelease")
	f.Clock = t.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
	f.Nodes = count(t.names("sys/devices/system/node"), nodeName)
	f.Cores = count(t.names("sys/devices/system/cpu"), cpuName)
	f.NUMABalancing = t.number("proc/sys/kernel/numa_balancing")
	f.Ptrace = t.number("proc/sys/kernel/yama/ptrace_scope")
	const huge = "sys/kernel/mm/hugepages/hugepages-2048kB/"
	f.Huge = HugePool{Total: t.uint(huge + "nr_hugepages"), Free: t.uint(huge + "free_hugepages")}
	if m := inBrackets.FindStringSubmatch(t.text("sys/kernel/mm/transparent_hugepage/shmem_enabled")); m != nil {
		f.ShmemHuge = m[1]
	}
	f.TCP = TCP{
		Congestion: t.text("proc/sys/net/ipv4/tcp_congestion_control"),
		Allowed:    strings.Fields(t.text("proc/sys/net/ipv4/tcp_allowed_congestion_control")),
	}
	if version := t.text("proc/driver/nvidia/version"); version != "" {
		first, _, _ := strings.Cut(version, "\n")
		f.NVIDIA = &NVIDIA{Version: nvidiaVersion.FindString(first), Open: strings.Contains(first, "Open Kernel Module")}
	} else if f.Host.Module("nvidia") {
		f.NVIDIA = &NVIDIA{}
	}
}

var nvidiaVersion = regexp.MustCompile(`\b[0-9]+\.[0-9]+(\.[0-9]+)?\b`)

func count(names []string, like *regexp.Regexp) int {
	n := 0
	for _, name := range names {
		if like.MatchString(name) {
			n++
		}
	}
	return n
}

// network reads the settings of the interfaces that a sysfs lists.
func (f *Facts) network(t tree) {
	f.Net.All = conf(t, "all")
	for _, name := range t.names("sys/class/net") {
		if state := t.text("sys/class/net/" + name + "/operstate"); name != "lo" && (state == "up" || state == "unknown") {
			f.Net.Interfaces = append(f.Net.Interfaces, Interface{Name: name, Conf: conf(t, name)})
		}
	}
}

func conf(t tree, of string) Conf {
	get := func(name string) int {
		if n := t.number("proc/sys/net/ipv4/conf/" + of + "/" + name); n != nil {
			return *n
		}
		return 0
	}
	return Conf{RPFilter: get("rp_filter"), ARPIgnore: get("arp_ignore"), ARPAnnounce: get("arp_announce"), ARPFilter: get("arp_filter")}
}

// Vendors on PCI whose cards are of no use here without their driver of RDMA.
const (
	pciMellanox = "0x15b3"
	pciAmazon   = "0x1d0f"
)

// cards finds those that speak RDMA.
func (f *Facts) cards(t tree) {
	const dir = "sys/bus/pci/devices/"
	for _, slot := range t.names(dir[:len(dir)-1]) {
		vendor, device := t.text(dir+slot+"/vendor"), t.text(dir+slot+"/device")
		switch class := t.text(dir + slot + "/class"); {
		case vendor == pciMellanox && strings.HasPrefix(class, "0x02"): // network; the others are of BlueField's inside
			module := "mlx5_ib"
			if strings.HasPrefix(device, "0x100") { // ConnectX-3, with 1003 and 1007; ConnectX-4 begins at 1013
				module = "mlx4_ib"
			}
			f.Cards = append(f.Cards, Card{Slot: slot, Module: module})
		case vendor == pciAmazon && strings.HasPrefix(device, "0xefa"):
			f.Cards = append(f.Cards, Card{Slot: slot, Module: "efa"})
		}
	}
}

// alive adds what is of this process, and what only a running kernel tells.
func (f *Facts) alive(t tree) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		f.Cores = set.Count()
	}
	group := newGroup(t)
	f.Quota, f.MemoryMax = group.quota(), group.memory()
	f.Process = process(t)
	var shm unix.Statfs_t
	if unix.Statfs("/dev/shm", &shm) == nil {
		f.Shm = shm.Blocks * uint64(shm.Bsize)
	}
	f.addresses()
	for _, n := range f.Host.NICs {
		if n.Verbs != "" && !n.Hidden {
			f.Files = append(f.Files, Verbs{Name: n.Verbs, Reason: openable("/dev/infiniband/" + n.Verbs)})
		}
	}
	if len(f.Host.NICs) > 0 {
		f.Resources, _ = resources() // a kernel or container that does not tell: unknown
	}
	f.Libraries, f.Static = Libraries(), !dl.Available
	f.Drivers = drivers(f.Libraries)
}

// openable says why a file cannot be opened for reading and writing. Opening alone makes no context on the NIC.
func openable(name string) string {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	_ = file.Close()
	return ""
}

var driverFile = regexp.MustCompile(`^lib([a-z0-9_]+)-rdmav[0-9]+\.so$`)

// drivers are those in the folder beside libibverbs, where it looks for them.
func drivers(all []Library) []string {
	i := slices.IndexFunc(all, func(l Library) bool { return l.Network == "verbs" })
	if i < 0 || all[i].Path == "" {
		return nil
	}
	file, err := filepath.EvalSymlinks(all[i].Path)
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir(path.Join(path.Dir(file), "libibverbs"))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if m := driverFile.FindStringSubmatch(e.Name()); m != nil {
			names = append(names, m[1])
		}
	}
	return names
}
