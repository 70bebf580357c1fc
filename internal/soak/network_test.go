//go:build soak

package soak

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// network is two hosts, network namespaces, with two cables between them.
type network struct {
	hosts [2]string
}

const cableCount = 2

// address is that of a host on a cable.
func address(host, cable int) string { return fmt.Sprintf("10.%d.0.%d", 77+cable, host+1) }

func cableName(cable int) string { return fmt.Sprintf("cable%d", cable) }

// newNetwork makes the hosts; reason says why that is not possible here.
func newNetwork(t *testing.T) (w *network, reason string) {
	if os.Geteuid() != 0 {
		return nil, "network namespaces need root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, "the ip command is missing: apt-get install iproute2"
	}
	sweep()
	w = &network{}
	for i := range w.hosts {
		w.hosts[i] = fmt.Sprintf("%s%d-%d", hostPrefix, i, os.Getpid())
		if err := ip("netns", "add", w.hosts[i]); err != nil {
			return nil, fmt.Sprintf("no network namespaces here: %v", err)
		}
		t.Cleanup(func() {
			if err := ip("netns", "del", w.hosts[i]); err != nil {
				t.Error(err)
			}
		})
		must(t, ip("-n", w.hosts[i], "link", "set", "lo", "up"))
	}
	for c := range cableCount {
		must(t, ip("-n", w.hosts[0], "link", "add", cableName(c), "type", "veth", "peer", "name", cableName(c), "netns", w.hosts[1]))
		for i := range w.hosts {
			must(t, ip("-n", w.hosts[i], "addr", "add", address(i, c)+"/24", "dev", cableName(c)))
			must(t, w.plug(i, c))
		}
	}
	return w, ""
}

const hostPrefix = "hawser-soak"

// sweep removes hosts of a test that was killed.
func sweep() {
	found, _ := filepath.Glob("/run/netns/" + hostPrefix + "*") // the pattern is well formed
	for _, path := range found {
		name := filepath.Base(path)
		_, pid, _ := strings.Cut(strings.TrimPrefix(name, hostPrefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			_ = ip("netns", "del", name) // another test may be at it
		}
	}
}

// cut ends a cable at one host. Packets to the other one are refused there, those that come from it vanish.
func (w *network) cut(host, cable int) error {
	return ip("-n", w.hosts[host], "link", "set", cableName(cable), "down")
}

func (w *network) plug(host, cable int) error {
	return ip("-n", w.hosts[host], "link", "set", cableName(cable), "up")
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
