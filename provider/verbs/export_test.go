//go:build cgo

package verbs

import (
	"net/netip"

	"github.com/hawser-project/hawser/provider"
)

// NewOn is New with another sysfs and other addresses of interfaces.
func NewOn(o Options, sys string, addresses func(netdev string) []netip.Addr) provider.Provider {
	v := New(o).(*verbs)
	v.sys, v.addresses = sysfs(sys), addresses
	return v
}

// MostImms is the largest window of a peer's immediates: the first peer's.
const MostImms = immMost
