package doctor

import (
	"fmt"

	"github.com/hawser-project/hawser/internal/dl"
)

// Library is a shared library that a network needs and the machine need not have.
type Library struct {
	Network string `json:"network"` // that needs it
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"` // empty: it cannot be loaded
	Version string `json:"version,omitempty"`
	Reason  string `json:"reason,omitempty"` // why it cannot be loaded

	install string // how
	release string // function that returns the release, major and minor in 16 bits each, where the file's name says another number
}

// libraries by network, with the packages that they are in.
var libraries = []Library{
	{Network: "verbs", Name: "libibverbs.so.1", install: "apt-get install libibverbs1 ibverbs-providers (Debian, Ubuntu), dnf install libibverbs (Fedora, RHEL)"},
	{Network: "ofi", Name: "libfabric.so.1", install: "apt-get install libfabric1 (Debian, Ubuntu), dnf install libfabric (Fedora, RHEL); on AWS the EFA installer", release: "fi_version"},
}

// Libraries loads each of them, which is what a network does that needs it.
func Libraries() []Library {
	all := append([]Library(nil), libraries...)
	for i := range all {
		l := &all[i]
		found, err := dl.Load(nil, nil, l.Name)
		if err != nil {
			l.Reason = err.Error()
			continue
		}
		l.Path, l.Version = found.Path, found.Version()
		if l.release == "" {
			continue
		}
		if v, ok := found.Call(l.release); ok {
			l.Version = fmt.Sprintf("%d.%d", v>>16, v&0xFFFF)
		}
	}
	return all
}
