package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/topo"
)

// noNIC is what checks of NICs say where there is none.
const noNIC = "no RDMA NIC"

// nics are those that were seen.
func (f *Facts) nics() []topo.NIC {
	if f.Host == nil {
		return nil
	}
	return f.Host.NICs
}

// efa says whether a NIC is reached through libfabric.
func efa(n topo.NIC) bool { return n.Driver == "efa" }

// any reports whether some NIC is of a kind.
func (f *Facts) any(kind func(topo.NIC) bool) bool { return slices.ContainsFunc(f.nics(), kind) }

func checkLibraries(f *Facts) []Line {
	if len(f.Libraries) == 0 {
		return f.unknown("libraries")
	}
	needed := map[string]bool{ // by network
		"verbs": f.any(func(n topo.NIC) bool { return !efa(n) }),
		"ofi":   f.any(efa),
	}
	var lines []Line
	for _, l := range f.Libraries {
		var of []Line
		switch {
		case l.Path != "" && l.Version != "":
			of = ok("%s, version %s", l.Path, l.Version)
		case l.Path != "":
			of = ok("%s", l.Path)
		case !needed[l.Network]:
			of = skip("%s; no NIC here needs it", l.Reason)
		case f.Static:
			of = fail("build with a C compiler (make build), or go install with CGO_ENABLED=1", "%s", l.Reason)
		default:
			of = fail(l.remedy(), "%s", l.Reason)
		}
		lines = append(lines, about(l.Name, of)...)
	}
	return lines
}

// remedy is how to install a library.
func (l Library) remedy() string {
	for _, known := range libraries {
		if known.Name == l.Name {
			return known.install
		}
	}
	return ""
}

func checkModules(f *Facts) []Line {
	var lines []Line
	for _, c := range f.Cards {
		if f.Host == nil || !f.Host.Module(c.Module) {
			lines = append(lines, about(c.Slot, fail("modprobe "+c.Module+"; if there is no such module, install the driver of the card",
				"this card speaks RDMA, and its module %s is not loaded", c.Module))...)
		}
	}
	if len(f.nics()) > 0 && !f.any(func(n topo.NIC) bool { return n.Verbs != "" }) {
		lines = append(lines, fail("modprobe ib_uverbs", "no NIC has a file for processes: ib_uverbs is not loaded")...)
	}
	switch {
	case len(lines) > 0:
		return lines
	case len(f.nics()) == 0:
		return skip("%s; one that is played over an interface: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0", noNIC)
	}
	return ok("loaded: %s", strings.Join(f.Host.Modules, ", "))
}

// trouble is why a NIC cannot be opened, "" if nothing is known against it.
func (f *Facts) trouble(n topo.NIC) string {
	for _, v := range f.Files {
		if v.Name == n.Verbs && v.Reason != "" {
			return v.Reason
		}
	}
	switch {
	case n.Verbs == "":
		return "it has no file in /dev/infiniband"
	case n.Hidden:
		return "its file in /dev/infiniband is not there"
	}
	return ""
}

// usable reports whether there is a NIC with nothing known against it.
func (f *Facts) usable() bool { return f.any(func(n topo.NIC) bool { return f.trouble(n) == "" }) }

func checkDevices(f *Facts) []Line {
	const remedy = "docker --device /dev/infiniband; a pod: the device plugin of the NIC; else read and write for the user: udev sets 0666"
	usable := f.usable()
	var lines []Line
	for _, n := range f.nics() {
		why := f.trouble(n)
		switch {
		case why == "":
			lines = append(lines, about(n.Name, ok("%s", describe(n)))...)
		case usable && n.Hidden:
			lines = append(lines, about(n.Name, skip("%s: it is left to others", why))...)
		case usable:
			lines = append(lines, about(n.Name, warn(remedy, "%s: it is left out", why))...)
		default:
			lines = append(lines, about(n.Name, fail(remedy, "%s, and no other NIC can be used", why))...)
		}
	}
	if len(lines) == 0 {
		return skip(noNIC)
	}
	return lines
}

// describe says what a NIC is.
func describe(n topo.NIC) string {
	text := n.Driver
	if n.Soft {
		text += ", no card"
	}
	for _, more := range []string{n.Board, n.Firmware} {
		if more != "" {
			text += ", " + more
		}
	}
	return text
}

func checkPCIe(f *Facts) []Line {
	var lines []Line
	for _, n := range f.nics() {
		ports := uint64(0)
		for _, p := range n.Ports {
			if active(p) {
				ports += p.LinkBits
			}
		}
		way := n.Place.Bits()
		if ports == 0 || way == 0 || n.Soft {
			continue
		}
		of := ok("the way to the processor carries what the ports do")
		if way < ports {
			of = warn("seat the card in a wider or newer slot; lspci -vv (LnkSta, \"downgraded\") of the card and the bridges above it",
				"the way to the processor carries %d Gbit/s, its ports %d: the link of the card is %s, it could do %s", way/1e9, ports/1e9, n.Place.Link, n.Place.MaxLink)
		}
		lines = append(lines, about(n.Name, of)...)
	}
	if len(lines) == 0 && len(f.nics()) > 0 {
		return f.unknown("links")
	}
	if len(lines) == 0 {
		return skip(noNIC)
	}
	return lines
}

// driverOf is what rdma-core calls its half of a driver of the kernel.
var driverOf = map[string]string{
	"mlx4_core": "mlx4", "mlx4_ib": "mlx4", "mlx5_core": "mlx5", "mlx5_ib": "mlx5", "efa": "efa", "irdma": "irdma", "bnxt_en": "bnxt_re", "bnxt_re": "bnxt_re",
	"erdma": "erdma", "mana": "mana", "mana_ib": "mana", "hns3": "hns", "hns_roce_hw_v2": "hns", "qede": "qedr", "qedr": "qedr",
	"rdma_rxe": "rxe", "siw": "siw",
}

func checkDrivers(f *Facts) []Line {
	if len(f.nics()) == 0 {
		return skip(noNIC)
	}
	if len(f.Drivers) == 0 {
		return f.unknown("drivers of libibverbs")
	}
	var lines []Line
	seen := map[string]bool{}
	for _, n := range f.nics() {
		want := driverOf[n.Driver]
		if want == "" || seen[want] {
			continue
		}
		seen[want] = true
		l := ok("libibverbs has a driver for it")
		if !slices.Contains(f.Drivers, want) {
			l = fail("apt-get install ibverbs-providers (Debian, Ubuntu), dnf install libibverbs (Fedora, RHEL), as new as the card",
				"libibverbs has no driver for it (lib%s-rdmav*.so): the NIC exists, and no process can use it", want)
		}
		lines = append(lines, about(want, l)...)
	}
	if len(lines) == 0 {
		return skip("which drivers these NICs need is not known")
	}
	return lines
}

// ports calls do for every port and joins what it says; without ports the check does not apply. NICs that are left out have none.
func (f *Facts) ports(do func(topo.NIC, topo.Port) []Line) []Line {
	var lines []Line
	usable := f.usable()
	for _, n := range f.nics() {
		if usable && f.trouble(n) != "" {
			continue
		}
		for _, p := range n.Ports {
			lines = append(lines, about(portName(n, p), do(n, p))...)
		}
	}
	if len(lines) == 0 && len(f.nics()) == 0 {
		return skip(noNIC)
	}
	if len(lines) == 0 {
		return skip("it does not apply to these ports")
	}
	return lines
}

func checkPorts(f *Facts) []Line {
	up := false
	_ = f.ports(func(_ topo.NIC, p topo.Port) []Line { up = up || active(p); return nil })
	down := func(remedy, format string, args ...any) []Line {
		if up {
			return warn(remedy, format+": it is left out", args...)
		}
		return fail(remedy, format+", and no other port is up", args...)
	}
	return f.ports(func(_ topo.NIC, p topo.Port) []Line {
		switch {
		case active(p):
			return ok("%s, %s", p.Kind, speed(p))
		case p.State == "":
			return f.unknown("state")
		case p.Kind == topo.InfiniBand && (p.State == "INIT" || p.State == "ARMED"):
			return down("start a subnet manager in the fabric (opensm)", "%s: the link is up, and no subnet manager has set it up", p.State)
		case p.NetDev != "":
			return down(fmt.Sprintf("ip link set %s up; then the cable, the switch and the module in the port", p.NetDev), "%s, %s", p.State, p.Physical)
		}
		return down("the cable, the switch and the module in the port", "%s, %s", p.State, p.Physical)
	})
}

func active(p topo.Port) bool { return p.State == "ACTIVE" }

func speed(p topo.Port) string {
	if p.Rate == "" {
		return "of unknown speed"
	}
	return p.Rate
}

// goodMTU is the path MTU from which headers and the cards' packet rates do not matter.
const goodMTU = 4096

func checkMTU(f *Facts) []Line {
	return f.ports(func(_ topo.NIC, p topo.Port) []Line {
		if p.Kind != topo.RoCE || !active(p) || p.NetDev == "" || p.MTU == 0 {
			return nil
		}
		if p.PathMTU < goodMTU {
			return warn(fmt.Sprintf("ip link set %s mtu 9000 (4200 is enough), on all hosts and switches", p.NetDev),
				"%s has MTU %d: RDMA packets carry %d bytes, not 4096", p.NetDev, p.MTU, p.PathMTU)
		}
		return ok("%s has MTU %d: RDMA packets carry %d bytes", p.NetDev, p.MTU, p.PathMTU)
	})
}

func checkMemlock(f *Facts) []Line {
	const shell = "ulimit -l unlimited (shell), memlock in /etc/security/limits.conf (login), LimitMEMLOCK=infinity (systemd unit), " +
		"docker --ulimit memlock=-1, for pods LimitMEMLOCK=infinity of containerd or crio on the node"
	p := f.Process
	switch {
	case len(f.nics()) == 0:
		return skip("%s: nothing is pinned", noNIC)
	case p.Memlock == nil:
		return f.unknown("limit")
	case p.has(capIPCLock):
		return ok("CAP_IPC_LOCK is in effect: no limit counts")
	case p.Memlock.Soft >= f.Need:
		return ok("%s may be pinned, %s is needed", amount(p.Memlock.Soft), amount(f.Need))
	case p.Memlock.Hard >= f.Need:
		return fail("ulimit -l "+kilobytes(p.Memlock.Hard)+": the hard limit allows it", "%s may be pinned, %s is needed", amount(p.Memlock.Soft), amount(f.Need))
	case p.Bounding>>capIPCLock&1 == 1:
		return fail(shell+"; or make CAP_IPC_LOCK take effect: run as root in the container, or setcap cap_ipc_lock+ep on the binary",
			"%s may be pinned, %s is needed; this process (user %d) was given CAP_IPC_LOCK, but not in effect", amount(p.Memlock.Soft), amount(f.Need), p.UID)
	}
	return fail(shell+"; or CAP_IPC_LOCK in effect", "%s may be pinned, %s is needed", amount(p.Memlock.Soft), amount(f.Need))
}

// kilobytes is a limit as ulimit -l takes it.
func kilobytes(n uint64) string {
	if n == Infinite {
		return "unlimited"
	}
	return fmt.Sprint(n >> 10)
}

func checkGPU(f *Facts) []Line {
	if f.NVIDIA == nil {
		return skip("no driver of NVIDIA is loaded")
	}
	v, _ := f.kernel()
	switch {
	case f.Host != nil && (f.Host.Module("nvidia_peermem") || f.Host.Module("nv_peer_mem")):
		return ok("nvidia_peermem is loaded: NICs reach memory of GPUs")
	case f.NVIDIA.Version == "":
		return f.unknown("nvidia_peermem is not loaded; whether the driver exports dma-bufs")
	case f.NVIDIA.Open && atLeast(v, kernelDMABuf):
		return ok("the open kernel modules of NVIDIA (%s) export it as dma-bufs", f.NVIDIA.Version)
	case f.NVIDIA.Open:
		return warn("Linux 5.12 or later, or modprobe nvidia_peermem", "Linux %s registers no dma-bufs, and nvidia_peermem is not loaded: registration of memory of GPUs fails (bad address)", f.Kernel)
	}
	return warn("modprobe nvidia_peermem, or the open kernel modules of NVIDIA, which export dma-bufs",
		"nvidia_peermem is not loaded, and the driver (%s) is not the open one: registration of memory of GPUs fails (bad address)", f.NVIDIA.Version)
}

func checkEFA(f *Facts) []Line {
	if !f.any(efa) {
		return skip("no EFA")
	}
	// Pages of the host are what an EFA device has a limited number of; libfabric takes its own buffers from huge ones.
	lines := ok("%d of %d pages of 2 MiB are free", f.Huge.Free, f.Huge.Total)
	switch {
	case f.ShmemHuge == "": // none of these files was there
		lines = f.unknown("huge pages")
	case f.Huge.Free == 0:
		lines = warn("sysctl vm.nr_hugepages=5128, as the EFA installer does",
			"none is free: libfabric takes its buffers from them, and the device can register fewer bytes in small pages")
	}
	return append(about("huge pages", lines), about("security group", skip("not known here: it must allow all traffic from and to itself, in both directions"))...)
}

// manyMRs is far above what a few engines register, and below what a card has.
const manyMRs = 100_000

func checkResources(f *Facts) []Line {
	if len(f.nics()) == 0 {
		return skip(noNIC)
	}
	if len(f.Resources) == 0 {
		return f.unknown("counts")
	}
	var lines []Line
	for _, r := range f.Resources {
		found := fmt.Sprintf("%d contexts, %d protection domains, %d completion queues, %d queue pairs, %d memory regions", r.Contexts, r.PDs, r.CQs, r.QPs, r.MRs)
		of := ok("%s", found)
		if r.MRs >= manyMRs {
			of = warn("rdma resource show mr says whose they are; end those processes, or reload the driver of the card",
				"%s: that many are a leak, and registration will fail when the card has no more", found)
		}
		lines = append(lines, about(r.NIC, of)...)
	}
	return lines
}
