// Package peers holds the sources of the drivers of what Hawser is measured against: small programs of our own over the public
// interfaces of memcpy, libfabric, UCX, OpenMPI, NIXL and Mooncake. README.md says how each is measured, and the protocol in which
// package versus talks to them. None of them is needed to build or test anything else.
package peers

import "embed"

// Source is the C sources in c, and beside this file the Python programs and the packages that peers need.
//
//go:embed c *.py requirements-*.txt
var Source embed.FS
