//go:build soak

package soak

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// usage is what a process holds.
type usage struct {
	Descriptors int
	Routines    int
	Shared      int    // mappings of memory files
	Mappings    int    // all
	Resident    uint64 // bytes
}

// What a process may hold more than before without having leaked it. Mappings and memory are the runtime's: stacks of threads, arenas,
// what the collector keeps. Descriptors, goroutines and shared mappings are ours, and exact.
const (
	moreMappings = 64
	moreResident = 64 << 20
)

func measure() (usage, error) {
	debug.FreeOSMemory()
	var u usage
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return u, err
	}
	u.Descriptors = len(fds)
	u.Routines = runtime.NumGoroutine()
	m, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return u, err
	}
	u.Mappings = bytes.Count(m, []byte("\n"))
	u.Shared = strings.Count(string(m), "/memfd:")
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return u, err
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return u, fmt.Errorf("statm %q: %w", statm, err)
	}
	u.Resident = resident * uint64(os.Getpagesize())
	return u, nil
}

// more says what u holds more than it may when before is fine, empty when nothing.
func (u usage) more(before usage) string {
	var out []string
	exceeds := func(what string, n, limit int) {
		if n > limit {
			out = append(out, fmt.Sprintf("%d %s, at most %d", n, what, limit))
		}
	}
	exceeds("descriptors", u.Descriptors, before.Descriptors)
	exceeds("goroutines", u.Routines, before.Routines)
	exceeds("shared mappings", u.Shared, before.Shared)
	exceeds("mappings", u.Mappings, before.Mappings+moreMappings)
	exceeds("MiB", int(u.Resident>>20), int((before.Resident+moreResident)>>20))
	return strings.Join(out, "; ")
}

// stacks are those of all goroutines, for whoever looks for a leak.
func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}
