package doctor

import (
	"net"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is what the kernel allows this one.
func process(t tree) Process {
	p := Process{UID: os.Getuid(), Memlock: limit(unix.RLIMIT_MEMLOCK), Files: limit(unix.RLIMIT_NOFILE)}
	for line := range strings.Lines(t.text("proc/self/status")) {
		name, value, _ := strings.Cut(line, ":")
		bits, _ := strconv.ParseUint(strings.TrimSpace(value), 16, 64) // of other lines: not used
		switch name {
		case "CapEff":
			p.Effective = bits
		case "CapBnd":
			p.Bounding = bits
		}
	}
	return p
}

func limit(resource int) *Limit {
	var r unix.Rlimit
	if unix.Getrlimit(resource, &r) != nil {
		return nil
	}
	return &Limit{Soft: r.Cur, Hard: r.Max} // unlimited is all ones there too
}

// addresses adds the addresses of the interfaces that are up.
func (f *Facts) addresses() {
	interfaces, err := net.Interfaces()
	if err != nil {
		return
	}
	of := map[string]Conf{}
	for _, i := range f.Net.Interfaces {
		of[i.Name] = i.Conf
	}
	f.Net.Known, f.Net.Interfaces = true, nil
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue
		}
		at := Interface{Name: i.Name, Conf: of[i.Name]}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				addr, _ := netip.AddrFromSlice(n.IP) // of an IPNet, it is one
				bits, _ := n.Mask.Size()
				at.Addrs = append(at.Addrs, netip.PrefixFrom(addr.Unmap(), bits))
			}
		}
		f.Net.Interfaces = append(f.Net.Interfaces, at)
	}
}

// group is the control group of this process: in version 2 one folder, in version 1 one for each controller. What its parents allow counts
// too; those that a container hides are not seen.
type group struct {
	t       tree
	folders map[string]string // controller: folder; "" is version 2
}

const groupRoot = "sys/fs/cgroup"

func newGroup(t tree) group {
	g := group{t, map[string]string{}}
	for line := range strings.Lines(t.text("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for _, controller := range strings.Split(fields[1], ",") {
			g.folders[controller] = path.Clean("/" + fields[2])
		}
	}
	return g
}

// up calls look for the group's folder of a controller and for each of its parents.
func (g group) up(controller string, look func(dir string)) {
	dir, known := g.folders[controller]
	if !known {
		return
	}
	for {
		look(path.Join(groupRoot, controller, dir))
		if dir == "/" {
			return
		}
		dir = path.Dir(dir)
	}
}

// quota is the least number of processors' worth of time, 0 without a limit.
func (g group) quota() float64 {
	least := 0.0
	see := func(quota, period string) {
		q, err1 := strconv.ParseFloat(quota, 64)
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && q > 0 && p > 0 && (least == 0 || q/p < least) { // without a limit it is "max", or -1
			least = q / p
		}
	}
	g.up("", func(dir string) {
		quota, period, _ := strings.Cut(g.t.text(dir+"/cpu.max"), " ")
		see(quota, period)
	})
	g.up("cpu", func(dir string) { see(g.t.text(dir+"/cpu.cfs_quota_us"), g.t.text(dir+"/cpu.cfs_period_us")) })
	return least
}

// noMemoryLimit is from where version 1 means none: a number of pages that fills 63 bits.
const noMemoryLimit = 1 << 60

// memory is the least limit, bytes, 0 without one.
func (g group) memory() uint64 {
	least := uint64(0)
	see := func(text string) {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < noMemoryLimit && (least == 0 || n < least) {
			least = n
		}
	}
	g.up("", func(dir string) { see(g.t.text(dir + "/memory.max")) })
	g.up("memory", func(dir string) { see(g.t.text(dir + "/memory.limit_in_bytes")) })
	return least
}
