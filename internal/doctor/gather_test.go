package doctor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// folder makes files: their content by path.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGatherReadsACapturedMachine(t *testing.T) {
	dir := folder(t, map[string]string{
		"proc/sys/kernel/osrelease":                                          "6.8.0-45-generic\n",
		"proc/sys/kernel/numa_balancing":                                     "1\n",
		"proc/sys/kernel/yama/ptrace_scope":                                  "1\n",
		"proc/sys/net/ipv4/tcp_congestion_control":                           "bbr\n",
		"proc/sys/net/ipv4/tcp_allowed_congestion_control":                   "bbr reno\n",
		"proc/sys/net/ipv4/conf/all/rp_filter":                               "2\n",
		"proc/driver/nvidia/version":                                         "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: 12\n",
		"sys/devices/system/node/node0/x":                                    "",
		"sys/devices/system/node/node1/x":                                    "",
		"sys/devices/system/node/possible":                                   "0-1",
		"sys/devices/system/cpu/cpu0/x":                                      "",
		"sys/devices/system/cpu/cpu1/x":                                      "",
		"sys/devices/system/cpu/cpufreq/x":                                   "",
		"sys/devices/system/clocksource/clocksource0/current_clocksource":    "hpet\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":              "5128\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":            "5000\n",
		"sys/kernel/mm/transparent_hugepage/shmem_enabled":                   "always within_size advise [never] deny force\n",
		"sys/class/infiniband/rxe0/ports/1/state":                            "4: ACTIVE\n",
		"sys/bus/pci/devices/0000:17:00.0/vendor":                            "0x15b3\n",
		"sys/bus/pci/devices/0000:17:00.0/device":                            "0x1021\n",
		"sys/bus/pci/devices/0000:17:00.0/class":                             "0x020700\n",
		"sys/bus/pci/devices/0000:18:00.0/vendor":                            "0x15b3\n",
		"sys/bus/pci/devices/0000:18:00.0/device":                            "0x1003\n",
		"sys/bus/pci/devices/0000:18:00.0/class":                             "0x020000\n",
		"sys/bus/pci/devices/0000:19:00.0/vendor":                            "0x1d0f\n",
		"sys/bus/pci/devices/0000:19:00.0/device":                            "0xefa2\n",
		"sys/bus/pci/devices/0000:1a:00.0/vendor":                            "0x15b3\n",
		"sys/bus/pci/devices/0000:1a:00.0/class":                             "0x060400\n",
		"sys/class/net/eth0/operstate":                                       "up\n",
		"sys/class/net/eth1/operstate":                                       "down\n",
		"proc/sys/net/ipv4/conf/eth0/arp_ignore":                             "1\n",
		"sys/devices/system/clocksource/clocksource0/available_clocksource":  "tsc hpet\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages":           "0\n",
		"proc/sys/net/ipv4/tcp_available_congestion_control":                 "bbr reno\n",
		"sys/devices/system/clocksource/clocksource0/power/runtime_status":   "unsupported\n",
		"sys/devices/system/clocksource/clocksource0/power/autosuspend_x_ms": "\n",
	})
	f, err := Gather(dir, 5)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Captured || f.Need != 5 || f.Kernel != "6.8.0-45-generic" || f.Clock != "hpet" || f.Nodes != 2 || f.Cores != 2 || *f.NUMABalancing != 1 || *f.Ptrace != 1 {
		t.Errorf("%+v", f)
	}
	if f.Huge != (HugePool{5128, 5000}) || f.ShmemHuge != "never" || f.TCP.Congestion != "bbr" || !slices.Equal(f.TCP.Allowed, []string{"bbr", "reno"}) {
		t.Errorf("%+v", f)
	}
	if f.NVIDIA == nil || *f.NVIDIA != (NVIDIA{"550.54.15", true}) {
		t.Errorf("NVIDIA: %+v", f.NVIDIA)
	}
	if want := []Card{{"0000:17:00.0", "mlx5_ib"}, {"0000:18:00.0", "mlx4_ib"}, {"0000:19:00.0", "efa"}}; !slices.Equal(f.Cards, want) {
		t.Errorf("cards %v, want %v", f.Cards, want)
	}
	if len(f.Net.Interfaces) != 1 || f.Net.Known || f.Net.Interfaces[0].Name != "eth0" || f.Net.Interfaces[0].Conf.ARPIgnore != 1 || f.Net.All.RPFilter != 2 {
		t.Errorf("net %+v", f.Net)
	}
	if len(f.Host.NICs) != 1 || f.Process.Memlock != nil || f.Libraries != nil {
		t.Errorf("%+v", f)
	}
}

// TestTreeIsNotLeft: a captured tree may come from anybody.
func TestTreeIsNotLeft(t *testing.T) {
	dir := folder(t, map[string]string{"proc/sys/kernel/x": ""})
	secret := filepath.Join(folder(t, map[string]string{"secret": "5.0 secret"}), "secret")
	if err := os.Symlink(secret, filepath.Join(dir, "proc/sys/kernel/osrelease")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "proc/sys/kernel/numa_balancing"), 0o600); err != nil { // whose open would block
		t.Fatal(err)
	}
	f, err := Gather(dir, 0)
	if err != nil || f.Kernel != "" || f.NUMABalancing != nil {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := Gather(filepath.Join(dir, "gone"), 0); err == nil {
		t.Error("a folder that is not there is no error")
	}
}

func TestGatherReadsThisMachine(t *testing.T) {
	f, err := Gather("", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if want := unix.ByteSliceToString(name.Release[:]); f.Kernel != want {
		t.Errorf("kernel %q, want %q", f.Kernel, want)
	}
	if f.Captured || f.Cores < 1 || f.Process.Memlock == nil || f.Process.Files == nil || len(f.Libraries) != len(libraries) || !f.Net.Known {
		t.Errorf("%+v", f)
	}
	if os.Geteuid() == 0 && f.Process.Effective == 0 {
		t.Error("root has no capability in effect")
	}
	for _, l := range f.Libraries {
		if (l.Path == "") == (l.Reason == "") {
			t.Errorf("library %+v has both, or neither, of path and reason", l)
		}
		var major, minor int
		if n, err := fmt.Sscanf(l.Version+"\n", "%d.%d\n", &major, &minor); l.Network == "ofi" && l.Path != "" && (n != 2 || err != nil) {
			t.Errorf("version of libfabric %q, want that of the release: two numbers, not those of the file %s", l.Version, l.Path)
		}
	}
}

func TestLimitsOfControlGroups(t *testing.T) {
	for _, tc := range []struct {
		name   string
		files  map[string]string
		quota  float64
		memory uint64
	}{
		{"version 2, the parent's is less", map[string]string{
			"proc/self/cgroup":                       "0::/a/b\n",
			"sys/fs/cgroup/a/cpu.max":                "150000 100000\n",
			"sys/fs/cgroup/a/b/cpu.max":              "400000 100000\n",
			"sys/fs/cgroup/a/b/memory.max":           "1073741824\n",
			"sys/fs/cgroup/a/memory.max":             "max\n",
			"sys/fs/cgroup/cpu.max":                  "max 100000\n",
			"sys/fs/cgroup/elsewhere/b/cpu.max":      "1 100000\n",
			"sys/fs/cgroup/a/b/c/memory.max":         "1\n",
			"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "1\n",
		}, 1.5, 1 << 30},
		{"version 1", map[string]string{
			"proc/self/cgroup":                              "4:memory:/m\n3:cpu,cpuacct:/c\n0::/\n",
			"sys/fs/cgroup/cpu/c/cpu.cfs_quota_us":          "200000\n",
			"sys/fs/cgroup/cpu/c/cpu.cfs_period_us":         "100000\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":            "-1\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us":           "100000\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes":  "4096\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":    "9223372036854771712\n",
			"sys/fs/cgroup/memory/m2/memory.limit_in_bytes": "1\n",
		}, 2, 4096},
		{"none", map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "max 100000"}, 0, 0},
		{"not to be read", map[string]string{"proc/self/cgroup": "nonsense"}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files, closer := open(folder(t, tc.files))
			defer closer()
			g := newGroup(files)
			if q, m := g.quota(), g.memory(); q != tc.quota || m != tc.memory {
				t.Errorf("%g processors, %d bytes, want %g, %d", q, m, tc.quota, tc.memory)
			}
		})
	}
}

func TestDriversAreThoseBesideLibibverbs(t *testing.T) {
	dir := folder(t, map[string]string{
		"lib/libibverbs.so.1.14.44.0":             "",
		"lib/libibverbs/libmlx5-rdmav34.so":       "",
		"lib/libibverbs/libbnxt_re-rdmav34.so":    "",
		"lib/libibverbs/README":                   "",
		"lib/libibverbs/libmlx5-rdmav34.so.debug": "",
	})
	link := filepath.Join(dir, "libibverbs.so.1")
	if err := os.Symlink("lib/libibverbs.so.1.14.44.0", link); err != nil {
		t.Fatal(err)
	}
	got := drivers([]Library{{Network: "ofi"}, {Network: "verbs", Path: link}})
	if want := []string{"bnxt_re", "mlx5"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := drivers([]Library{{Network: "verbs"}}); got != nil {
		t.Errorf("without the library: %v", got)
	}
}

// attribute is one of netlink, padded.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// message is one of netlink.
func message(kind uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(append(b, make([]byte, 10)...), body...)
}

// answer is what the kernel says of one NIC.
func answer(nic string, counts map[string]uint64) []byte {
	var entries []byte
	for name, n := range counts {
		entry := append(attribute(attrEntryName, append([]byte(name), 0)), attribute(attrEntryCurrent, binary.NativeEndian.AppendUint64(nil, n))...)
		entries = append(entries, attribute(16|1<<15, entry)...)
	}
	body := append(attribute(1, []byte{0, 0, 0, 0}), attribute(attrDevName, append([]byte(nic), 0))...)
	return message(cmdResGet, append(body, attribute(attrSummary|1<<15, entries)...))
}

func TestCountsOfTheKernelAreRead(t *testing.T) {
	dump := append(answer("mlx5_0", map[string]uint64{"pd": 1, "cq": 2, "qp": 3, "cm_id": 9, "mr": 4, "ctx": 5, "srq": 9}), answer("rxe0", nil)...)
	var all []InUse
	if done, err := parseDump(dump, &all); done || err != nil {
		t.Fatal(done, err)
	}
	if done, err := parseDump(message(unix.NLMSG_DONE, []byte{0, 0, 0, 0}), &all); !done || err != nil {
		t.Fatal(done, err)
	}
	if want := []InUse{{"mlx5_0", 5, 1, 2, 3, 4}, {NIC: "rxe0"}}; !slices.Equal(all, want) {
		t.Errorf("got %+v, want %+v", all, want)
	}
	eperm := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EPERM)+1)
	if done, err := parseDump(message(unix.NLMSG_ERROR, eperm), &all); !done || err == nil || !strings.Contains(err.Error(), "operation not permitted") {
		t.Errorf("done %v, error %v", done, err)
	}
	attrs([]byte{200, 0, 1, 0, 0, 0, 0, 0}, func(uint16, []byte) { t.Error("an attribute longer than what holds it was seen") })
	for n := range dump { // cut off anywhere: an error, or less
		var some []InUse
		if _, err := parseDump(dump[:n], &some); err == nil && len(some) > 1 {
			t.Errorf("%d of %d bytes are %+v", n, len(dump), some)
		}
	}
}
