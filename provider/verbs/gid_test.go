package verbs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/topo"
)

func TestDefect19GIDIsChosenByItsAddress(t *testing.T) {
	const v1, v2 = topo.GIDType("IB/RoCE v1"), topo.GIDRoCEv2
	addr := netip.MustParseAddr
	has := map[string][]netip.Addr{
		"eth0": {addr("10.1.2.3"), addr("fe80::1"), addr("2001:db8::1"), addr("fd00::1")},
		"vlan": {addr("10.9.9.9")},
		"down": nil,
	}
	for _, tc := range []struct {
		name  string
		table []gid
		want  int    // index
		why   string // in the error, when there is no choice
	}{
		{"IPv4 before IPv6, never version 1, never index 0 by habit", []gid{
			{0, addr("fe80::1"), v1, "eth0"},
			{1, addr("fe80::1"), v2, "eth0"},
			{2, addr("2001:db8::1"), v2, "eth0"},
			{3, addr("10.1.2.3"), v1, "eth0"},
			{4, addr("10.1.2.3"), v2, "eth0"},
		}, 4, ""},
		{"global before unique local", []gid{{0, addr("fd00::1"), v2, "eth0"}, {1, addr("2001:db8::1"), v2, "eth0"}}, 1, ""},
		{"unique local alone", []gid{{0, addr("fe80::1"), v2, "eth0"}, {5, addr("fd00::1"), v2, "eth0"}}, 5, ""},
		{"the first of two as good", []gid{{7, addr("10.9.9.9"), v2, "vlan"}, {3, addr("10.1.2.3"), v2, "eth0"}}, 3, ""},
		{"an address that its interface has lost", []gid{{1, addr("10.1.2.4"), v2, "eth0"}, {9, addr("10.9.9.9"), v2, "vlan"}}, 9, ""},
		{"an address of another interface", []gid{{1, addr("10.1.2.3"), v2, "vlan"}}, 0, "does not have this address"},
		{"an interface that is down", []gid{{1, addr("10.1.2.3"), v2, "down"}}, 0, "is down"},
		{"link-local alone", []gid{{1, addr("fe80::1"), v2, "eth0"}}, 0, "link-local"},
		{"IPv4 link-local alone", []gid{{1, addr("169.254.3.4"), v2, "eth0"}}, 0, "link-local"},
		{"version 1 alone", []gid{{1, addr("10.1.2.3"), v1, "eth0"}}, 0, "cannot be routed"},
		{"nothing", nil, 0, "table is empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, err := chooseGID(tc.table, func(netdev string) []netip.Addr { return has[netdev] })
			if tc.why != "" {
				if err == nil || !strings.Contains(err.Error(), tc.why) {
					t.Fatalf("chose %+v, error %v, want an error that says %q", g, err, tc.why)
				}
				return
			}
			if err != nil || g.index != tc.want {
				t.Fatalf("chose %+v, error %v, want index %d", g, err, tc.want)
			}
		})
	}
}

func TestLinkBits(t *testing.T) {
	for _, tc := range []struct {
		width, speed uint8
		want         uint64
	}{{2, 128, 400e9}, {2, 64, 200e9}, {2, 32, 100e9}, {1, 32, 25e9}, {2, 16, 56e9}, {1, 1, 2e9}, {3, 128, 0}, {2, 3, 0}} {
		if got := linkBits(tc.width, tc.speed); got != tc.want {
			t.Errorf("width %d and speed %d: %d bits per second, want %d", tc.width, tc.speed, got, tc.want)
		}
	}
}
