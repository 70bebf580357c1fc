package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// usage looks at this process.
func usage() (Usage, error) {
	rollup, err := kilobytes("/proc/self/smaps_rollup")
	if err != nil {
		return Usage{}, fmt.Errorf("bench: memory of this process: %w", err)
	}
	machine, err := kilobytes("/proc/meminfo")
	if err != nil {
		return Usage{}, fmt.Errorf("bench: memory of the machine: %w", err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return Usage{}, fmt.Errorf("bench: descriptors: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return Usage{}, fmt.Errorf("bench: mappings: %w", err)
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return Usage{
		RSS: rollup["Rss"], PSS: rollup["Pss"], Private: rollup["Private_Clean"] + rollup["Private_Dirty"],
		Shared: rollup["Shared_Clean"] + rollup["Shared_Dirty"],
		Heap:   ms.HeapAlloc, Stacks: ms.StackInuse, Goroutines: runtime.NumGoroutine(),
		FDs: len(fds) - 1 /* that of the folder */, Mappings: strings.Count(string(maps), "\n"),
		CPU: cpuTime(), Kernel: machine["SUnreclaim"] + machine["PageTables"] + machine["KernelStack"],
	}, nil
}

// kilobytes reads a file of lines "Name:   N kB", in bytes.
func kilobytes(path string) (map[string]uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54); err == nil {
			out[name] = n << 10
		}
	}
	return out, nil
}
