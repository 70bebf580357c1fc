package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/topo"
)

// Kernels from which something works.
var (
	kernelHawser = [2]int{5, 14} // what Hawser is made for
	kernelDMABuf = [2]int{5, 12} // registration of dma-bufs (ibv_reg_dmabuf_mr)
)

// kernel is the major and minor number of a release such as 6.1.0-18-amd64; not ok: it has none.
func (f *Facts) kernel() (v [2]int, known bool) {
	n, err := fmt.Sscanf(f.Kernel, "%d.%d", &v[0], &v[1])
	return v, err == nil && n == 2
}

func atLeast(v, want [2]int) bool { return slices.Compare(v[:], want[:]) >= 0 }

func checkKernel(f *Facts) []Line {
	v, known := f.kernel()
	switch {
	case !known:
		return f.unknown("release")
	case !atLeast(v, kernelHawser):
		return fail("use a distribution with Linux 5.14 or later", "Linux %s is older than 5.14", f.Kernel)
	}
	return ok("Linux %s", f.Kernel)
}

// fewCores is where the engine stops to spin: below it, whoever spins takes the processor from whom it waits for.
const fewCores = 4

func checkCores(f *Facts) []Line {
	switch {
	case f.Cores == 0:
		return f.unknown("processors")
	case f.Quota > 0 && f.Quota < float64(f.Cores):
		return warn("raise the limit, or leave it out (docker --cpus, resources.limits.cpu of a pod), and give the process whole processors instead (cpuset)",
			"%d processors, but time of %.3g only: who has used it up is stopped for the rest of each period, 100 ms by default", f.Cores, f.Quota)
	case f.Cores < fewCores:
		return warn("give it 4 or more", "%d processors: workers share them with the application and do not spin, so latencies are those of the scheduler", f.Cores)
	}
	return ok("%d processors", f.Cores)
}

// slowClocks are the clock sources that cost a system call and a read of a device: about a microsecond, instead of 30 ns.
var slowClocks = []string{"acpi_pm", "hpet", "jiffies", "refined-jiffies", "xen"}

func checkClock(f *Facts) []Line {
	switch {
	case f.Clock == "":
		return f.unknown("clock source")
	case slices.Contains(slowClocks, f.Clock):
		return warn("echo tsc >/sys/devices/system/clocksource/clocksource0/current_clocksource, if available_clocksource there lists it",
			"%s: reading the time takes a system call", f.Clock)
	}
	return ok("%s", f.Clock)
}

func checkNUMA(f *Facts) []Line {
	switch {
	case f.Nodes == 0:
		return f.unknown("NUMA nodes")
	case f.Nodes == 1:
		return ok("one node")
	case f.NUMABalancing != nil && *f.NUMABalancing != 0:
		return warn("sysctl kernel.numa_balancing=0",
			"%d nodes, and automatic balancing is on: it unmaps pages to see who uses them, which stalls threads that copy", f.Nodes)
	}
	return ok("%d nodes, automatic balancing is off", f.Nodes)
}

func checkMemory(f *Facts) []Line {
	switch {
	case f.Captured:
		return f.unknown("limit of the control group")
	case f.MemoryMax == 0:
		return ok("the control group sets no limit")
	case f.MemoryMax < f.Need:
		return fail("raise it (docker --memory, resources.limits.memory of a pod), or use less (--memory says how much hawser doctor counts with)",
			"the control group allows %s, less than the %s to be registered, which count against it", amount(f.MemoryMax), amount(f.Need))
	}
	return ok("the control group allows %s", amount(f.MemoryMax))
}

func checkHuge(f *Facts) []Line {
	if f.ShmemHuge == "" {
		return f.unknown("huge pages")
	}
	return ok("%d of %d pages of 2 MiB are free; for shared memory without asking: %s", f.Huge.Free, f.Huge.Total, f.ShmemHuge)
}

// shmSmall is what docker gives a container.
const shmSmall = 64 << 20

func checkShm(f *Facts) []Line {
	switch {
	case f.Shm == 0:
		return f.unknown("size")
	case f.Shm <= shmSmall:
		return warn("docker --shm-size 1g; a pod: an emptyDir with medium Memory at /dev/shm",
			"%s: ofi:shm and libraries beside Hawser need more; Hawser itself does not use it", amount(f.Shm))
	}
	return ok("%s; Hawser itself does not use it", amount(f.Shm))
}

// filesLow leaves room for a few hundred peers.
const filesLow = 4096

func checkFiles(f *Facts) []Line {
	l := f.Process.Files
	switch {
	case l == nil:
		return f.unknown("limit")
	case l.Hard < filesLow: // the Go runtime raises the soft limit to it
		return warn("raise the hard limit: LimitNOFILE=65536 in a systemd unit, docker --ulimit nofile=65536, nofile in /etc/security/limits.conf",
			"at most %d descriptors: each peer takes several", l.Hard)
	}
	if l.Hard == Infinite {
		return ok("no limit")
	}
	return ok("at most %d descriptors", l.Hard)
}

func checkPtrace(f *Facts) []Line {
	const remedy = "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the receiving process, or memory of Alloc on one of the sides"
	const cost = "shared memory cannot read memory that the writer's engine did not make; such transfers go over TCP"
	switch {
	case f.Captured:
		return f.unknown("kernel.yama.ptrace_scope")
	case f.Ptrace == nil:
		return ok("not restricted beyond the user")
	case *f.Ptrace == 0 || *f.Ptrace < 3 && f.Process.has(capSysPtrace):
		return ok("kernel.yama.ptrace_scope is %d, which does not hold this process up", *f.Ptrace)
	case *f.Ptrace < 3:
		return warn(remedy, "kernel.yama.ptrace_scope is %d: %s", *f.Ptrace, cost)
	}
	return warn("memory of Alloc on one of the sides; 3 stays until the machine boots again", "kernel.yama.ptrace_scope is 3: %s", cost)
}

func checkTCP(f *Facts) []Line {
	c := f.TCP
	switch {
	case c.Congestion == "":
		return f.unknown("congestion control")
	case c.Congestion != "bbr":
		return ok("congestion control is %s", c.Congestion)
	case slices.Contains(c.Allowed, "cubic") || slices.Contains(c.Allowed, "reno"):
		return ok("congestion control is bbr; on loopback, where its pacing costs half of the speed, Hawser takes cubic or reno")
	}
	return warn("sysctl net.ipv4.tcp_allowed_congestion_control='bbr cubic reno'",
		"congestion control is bbr, and no process may choose cubic or reno: its pacing costs half of the speed on loopback")
}

// checkSubnets looks at interfaces that answer for each other.
func checkSubnets(f *Facts) []Line {
	if !f.Net.Known {
		return f.unknown("addresses")
	}
	in := map[netip.Prefix][]Interface{}
	for _, i := range f.Net.Interfaces {
		for _, subnet := range subnets(i) {
			in[subnet] = append(in[subnet], i)
		}
	}
	var lines []Line
	for _, subnet := range slices.SortedFunc(maps.Keys(in), netip.Prefix.Compare) {
		if len(in[subnet]) > 1 {
			lines = append(lines, about(subnet.String(), f.checkSubnet(in[subnet]))...)
		}
	}
	if len(lines) == 0 {
		return ok("no two interfaces are in one IPv4 subnet")
	}
	return lines
}

// subnets are those of IPv4 that an interface reaches others in, each once.
func subnets(i Interface) []netip.Prefix {
	var all []netip.Prefix
	for _, a := range i.Addrs {
		if a.Addr().Is4() && !a.Addr().IsLoopback() && !a.IsSingleIP() && !slices.Contains(all, a.Masked()) {
			all = append(all, a.Masked())
		}
	}
	return all
}

func (f *Facts) checkSubnet(of []Interface) []Line {
	all := f.Net.All
	var names, wrong []string
	for _, x := range of {
		names = append(names, x.Name)
		want := func(bad bool, setting string) {
			if bad {
				wrong = append(wrong, "net.ipv4.conf."+x.Name+"."+setting)
			}
		}
		want(max(all.RPFilter, x.Conf.RPFilter) == 1, "rp_filter=2")
		want(all.ARPFilter|x.Conf.ARPFilter == 0 && max(all.ARPIgnore, x.Conf.ARPIgnore) == 0, "arp_ignore=1")
		want(max(all.ARPAnnounce, x.Conf.ARPAnnounce) < 2, "arp_announce=2")
	}
	slices.Sort(names)
	who := strings.Join(names, ", ")
	if len(wrong) == 0 {
		return ok("%s are in it, and each answers for itself", who)
	}
	slices.Sort(wrong)
	return warn("sysctl "+strings.Join(wrong, " ")+"; and a table of routes for each address (ip rule)",
		"%s are in it: answers may name another one, or come from it, so that a rail works in one direction, or not at all", who)
}

// amount is a size for people.
func amount(n uint64) string {
	if n == Infinite {
		return "unlimited"
	}
	v, unit := float64(n), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, larger
	}
	return fmt.Sprintf("%.4g %s", v, unit)
}

// portName is how a port is told: "mlx5_0/1".
func portName(n topo.NIC, p topo.Port) string { return fmt.Sprintf("%s/%d", n.Name, p.Number) }
