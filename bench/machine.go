package bench

import (
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where a result was measured.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryGiB int    `json:"memory_gib"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	Arch      string `json:"arch"`
}

// Schema is the version of Report. It changes when a field goes, or means something else; fields may be added.
const Schema = 2

// Report is what the tool writes as JSON; docs/bench.md describes it.
type Report struct {
	Schema   int       `json:"schema"`
	Machine  Machine   `json:"machine"`
	Revision string    `json:"revision"` // of the source, "-dirty" when it had changes; "unknown" outside make
	Command  []string  `json:"command"`
	Began    time.Time `json:"began"`
	Rows     []Row     `json:"rows"`
}

// ThisMachine describes the machine.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version(), Arch: runtime.GOARCH}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = cpuModel(string(info))
	}
	var sys unix.Sysinfo_t
	if unix.Sysinfo(&sys) == nil {
		m.MemoryGiB = int(sys.Totalram * uint64(sys.Unit) >> 30)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// cpuModel finds the model in /proc/cpuinfo, whose fields differ between architectures.
func cpuModel(info string) string {
	for _, field := range []string{"model name", "Hardware", "CPU part"} {
		for line := range strings.Lines(info) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == field {
				return strings.TrimSpace(value)
			}
		}
	}
	return "unknown"
}

// cpuTime is the user and system time that this process has used, in seconds.
func cpuTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// LoadAverage is the mean number of processes of the host that wanted to run in the last minute, 0 when nobody knows.
func LoadAverage() float64 {
	var sys unix.Sysinfo_t
	if unix.Sysinfo(&sys) != nil {
		return 0
	}
	const fixed = 1 << 16 // of the kernel's numbers
	return float64(sys.Loads[0]) / fixed
}
