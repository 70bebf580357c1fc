package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The layout reaches a VM on its kernel's command line.
const (
	lineRank  = "hawser.rank="
	lineVMs   = "hawser.vms="
	linePairs = "hawser.pairs="
	lineLinks = "hawser.links="
	lineMTU   = "hawser.mtu="
	lineShare = "hawser.share="
)

func (l layout) line(rank int) string {
	return fmt.Sprintf("%s%d %s%d %s%d %s%d %s%d %s%s", lineRank, rank, lineVMs, l.vms, linePairs, l.pairsOf(rank), lineLinks, l.links, lineMTU, l.mtu, lineShare, l.path)
}

// pairsOf is the number of pairs in a VM: the second one is there for the links.
func (l layout) pairsOf(rank int) int {
	if rank > 0 {
		return 0
	}
	return l.pairs
}

func parseLine(line string) (l layout, rank int) {
	for _, word := range strings.Fields(line) {
		for prefix, n := range map[string]*int{lineRank: &rank, lineVMs: &l.vms, linePairs: &l.pairs, lineLinks: &l.links, lineMTU: &l.mtu} {
			if text, ok := strings.CutPrefix(word, prefix); ok {
				fmt.Sscan(text, n)
			}
		}
		if text, ok := strings.CutPrefix(word, lineShare); ok {
			l.path = text
		}
	}
	return l, rank
}

func guestLayout() (layout, int, error) {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return layout{}, 0, err
	}
	l, rank := parseLine(string(text))
	return l, rank, nil
}

// prepare mounts, loads modules, and makes the devices.
func prepare() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"},
		{"tmpfs", "/tmp"},
		{"tmpfs", "/run"},
		{"tmpfs", "/usr/local/bin"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	l, rank, err := guestLayout()
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := mountShare(l.path); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return fmt.Errorf("memlock: %w", err)
	}
	_ = unix.Sethostname(fmt.Appendf(nil, "vm%d", rank)) // for eyes only
	if out, err := exec.Command("busybox", "--install", "-s", "/usr/local/bin").CombinedOutput(); err != nil {
		return fmt.Errorf("busybox: %w: %s", err, out)
	}
	return network(l, rank)
}

func loadModules() error {
	files, err := filepath.Glob("/" + modulesFolder + "/*") // sorted
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func mountShare(at string) error {
	if at == "" {
		return nil
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(shareTag, at, "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=262144,cache=loose"); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return nil
}

// Device n lies on the ends of cables in order: a0, b0, a1, b1, ..., eth0, eth1, ...
func rxe(n int) string { return fmt.Sprintf("rxe%d", n) }

// network makes cables, addresses and devices. Both ends of a cable are in one network namespace, since rxe does not know others; it
// looks routes up by its own interface, so packets do cross the cable, and accept_local lets them in at the other end.
func network(l layout, rank int) error {
	for _, s := range []string{"accept_local=1", "rp_filter=0"} {
		name, value, _ := strings.Cut(s, "=")
		for _, of := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+of+"/"+name, []byte(value), 0o644); err != nil {
				return err
			}
		}
	}
	var ip, rdma strings.Builder
	fmt.Fprintln(&ip, "link set lo up")
	n := 0
	end := func(name, addr string) {
		fmt.Fprintf(&ip, "link set %s mtu %d up\naddr add %s/24 dev %s\n", name, l.mtu, addr, name)
		fmt.Fprintf(&rdma, "link add %s type rxe netdev %s\n", rxe(n), name)
		n++
	}
	for i := range l.pairs {
		fmt.Fprintf(&ip, "link add a%d mtu %d type veth peer name b%d mtu %d\n", i, l.mtu, i, l.mtu)
		end(fmt.Sprintf("a%d", i), fmt.Sprintf("10.77.%d.1", i))
		end(fmt.Sprintf("b%d", i), fmt.Sprintf("10.77.%d.2", i))
	}
	for i := range l.links {
		end(fmt.Sprintf("eth%d", i), linkAddr(i, rank))
	}
	if err := batch("ip", ip.String()); err != nil {
		return err
	}
	return batch("rdma", rdma.String())
}

func linkAddr(link, rank int) string { return fmt.Sprintf("10.78.%d.%d", link, rank+1) }

// batch runs many commands of ip or rdma in one process.
func batch(tool, lines string) error {
	if lines == "" {
		return nil
	}
	cmd := exec.Command(tool, "-b", "-")
	cmd.Stdin = strings.NewReader(lines)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", tool, err, out)
	}
	return nil
}

// guestEnv is what programs are told about this VM.
func guestEnv() []string {
	l, rank, err := guestLayout()
	if err != nil {
		return nil
	}
	var pairs, links []string
	for i := range l.pairs {
		pairs = append(pairs, rxe(2*i)+"="+rxe(2*i+1))
	}
	for i := range l.links {
		links = append(links, rxe(2*l.pairs+i)+"="+linkAddr(i, 1-rank))
	}
	return []string{
		fmt.Sprintf("HAWSER_VM_RANK=%d", rank), fmt.Sprintf("HAWSER_VM_COUNT=%d", l.vms),
		"HAWSER_VM_PAIRS=" + strings.Join(pairs, " "), "HAWSER_VM_LINKS=" + strings.Join(links, " "),
	}
}
