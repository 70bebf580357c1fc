// Package host tells which processes can reach each other without a network.
package host

import (
	"fmt"
	"os"
	"strings"
)

// ID identifies this boot of the machine and the network namespace of the calling thread. Processes with equal IDs can reach
// each other's abstract unix sockets and loopback addresses; both are private to a network namespace.
func ID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("no boot id: %w", err)
	}
	ns, err := os.Readlink("/proc/thread-self/ns/net") // "net:[4026531840]"
	if err != nil {
		return "", fmt.Errorf("no network namespace: %w", err)
	}
	return strings.TrimSpace(string(boot)) + "+" + strings.Trim(strings.TrimPrefix(ns, "net:"), "[]"), nil
}
