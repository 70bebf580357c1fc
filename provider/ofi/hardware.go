//go:build cgo

package ofi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-project/hawser/provider"
)

// Where Linux lists the cards that libfabric drives: EFA and others among those with a verbs driver, and Slingshot.
const (
	classIB  = "sys/class/infiniband"
	classCXI = "sys/class/cxi"
	userCXI  = "sys/class/cxi_user"
)

// checkHardware spares who wants hardware the loading of libfabric where there is none that it has to itself: it takes long, and brings along
// libraries that do things to the process. root is that of the tree, "/" but for tests.
func checkHardware(root string) error {
	verbs := 0
	for _, dir := range []string{classIB, classCXI, userCXI} {
		dir = filepath.Join(root, dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !strings.HasSuffix(dir, classIB) || !ofVerbs(filepath.Join(dir, e.Name())) {
				return nil
			}
			verbs++
		}
	}
	if verbs > 0 {
		return fmt.Errorf("%w: this machine has no card that libfabric drives, but %d of package verbs", provider.ErrUnavailable, verbs)
	}
	return fmt.Errorf("%w: this machine has no card that libfabric drives: there is nothing in /%s, /%s, /%s", provider.ErrUnavailable, classIB, classCXI, userCXI)
}

// ofVerbs reports whether of a device, a folder of classIB, libfabric has only what goes through libibverbs, which is left to package verbs: an
// adapter of InfiniBand or RoCE (node type 1), or of iWARP (4), but for Omni-Path, for which it has a driver of its own.
func ofVerbs(dir string) bool {
	node, err := os.ReadFile(filepath.Join(dir, "node_type"))
	if err != nil || !strings.HasPrefix(string(node), "1:") && !strings.HasPrefix(string(node), "4:") {
		return false
	}
	driver, _ := os.Readlink(filepath.Join(dir, "device/driver")) // without one it is a device in software: soft-RoCE
	return filepath.Base(driver) != "hfi1"
}
