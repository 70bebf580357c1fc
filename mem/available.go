package mem

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// parseAvailable finds "MemAvailable:  N kB" in /proc/meminfo.
func parseAvailable(meminfo []byte) (uint64, error) {
	for line := range bytes.Lines(meminfo) {
		rest, ok := bytes.CutPrefix(line, []byte("MemAvailable:"))
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 54)
		return kib << 10, err
	}
	return 0, errors.New("meminfo has no MemAvailable line")
}

// cgroupRoom is what the process's cgroup v2 and its parents still allow, MaxUint64 without a limit.
func cgroupRoom() uint64 {
	room := uint64(math.MaxUint64)
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return room
	}
	const root = "/sys/fs/cgroup"
	for line := range strings.Lines(string(self)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := filepath.Join(root, path); strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
			room = min(room, groupRoom(dir))
		}
	}
	return room
}

// groupRoom is what one control group still allows. Pages of files that were not used lately count as used, but the kernel gives
// them up before it refuses memory.
func groupRoom(dir string) uint64 {
	limit, ok1 := readUint(filepath.Join(dir, "memory.max"))
	used, ok2 := readUint(filepath.Join(dir, "memory.current"))
	if !ok1 || !ok2 {
		return math.MaxUint64
	}
	stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat")) // without it nothing is known to be given up
	for line := range strings.Lines(string(stat)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "inactive_file "); ok {
			n, _ := strconv.ParseUint(v, 10, 64)
			used -= min(n, used)
		}
	}
	return limit - min(used, limit)
}

func readUint(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64) // "max" is no limit
	return n, err == nil
}
