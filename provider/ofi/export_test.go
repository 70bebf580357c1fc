package ofi

import "github.com/hawser-project/hawser/provider"

// BySource is p with 4 bytes of data for a write, as EFA has; with shared also with one endpoint of a Domain for everything.
func BySource(p provider.Provider, shared bool) provider.Provider {
	n := p.(network)
	n.narrow, n.shared = true, shared
	return n
}
