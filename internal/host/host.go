// Package host tells which processes can reach each other without a network.
package host

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// ID identifies this boot of the machine and the network namespace of the process. Processes with equal IDs can reach each
// other's abstract unix sockets and loopback addresses; both are private to a network namespace.
var ID = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil { // no /proc: nobody is on the same host, for all we know
		boot = fmt.Appendf(nil, "unknown-%d", os.Getpid())
	}
	ns, err := os.Readlink("/proc/self/ns/net") // "net:[4026531840]"
	if err != nil {
		ns = "net:[unknown]"
	}
	return strings.TrimSpace(string(boot)) + "/" + ns
})
