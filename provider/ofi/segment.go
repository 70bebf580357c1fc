//go:build cgo

package ofi

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// segmentName is that of an endpoint of libfabric's shm in /dev/shm: process, user, number.
var segmentName = regexp.MustCompile(`^(\d+):\d+:\d+$`)

// sweep removes the segments of libfabric's shm that processes of this user have left behind in dir when they died: 16 MiB each. One that
// any process maps is not removed.
func sweep(dir string) (removed int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // then libfabric's shm does not work either, and says so
	}
	for _, e := range entries {
		m := segmentName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		path := filepath.Join(dir, e.Name())
		pid, err := strconv.Atoi(m[1])
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil || int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if !errors.Is(unix.Kill(pid, 0), unix.ESRCH) || mapped(path) {
			continue
		}
		if os.Remove(path) == nil {
			removed++
		}
	}
	return removed
}

// mapped reports whether a process that can be seen maps a file: one in another namespace may have the number of one that died here.
func mapped(path string) bool {
	all, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		return true
	}
	for _, maps := range all {
		b, err := os.ReadFile(maps)
		if err == nil && bytes.Contains(b, []byte(path)) {
			return true
		}
	}
	return false
}
