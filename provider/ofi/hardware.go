//go:build cgo

package ofi

import (
	"fmt"
	"os"
	"strings"

	"github.com/hawser-project/hawser/provider"
)

// classes are where Linux lists the cards that libfabric drives: EFA and everything else with a verbs driver, and Slingshot.
var classes = []string{"/sys/class/infiniband", "/sys/class/cxi", "/sys/class/cxi_user"}

// checkHardware spares who wants hardware the loading of libfabric where there is none: it takes long, and brings along libraries that do
// things to the process.
func checkHardware() error {
	for _, dir := range classes {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: this machine has no card that libfabric drives: there is nothing in %s", provider.ErrUnavailable, strings.Join(classes, ", "))
}
