package hawser

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
	"github.com/hawser-project/hawser/provider/verbs"
)

var worldNames = flag.String("worlds", "sim,shm,tcp", "networks of the tests that run over each of them: also verbs, ofi:tcp, ofi:shm, ...")

// WorldNames are the networks of the tests that run over each of them.
func WorldNames() []string { return strings.Split(*worldNames, ",") }

// Network is a built-in network by name, and the names of so many devices of it that reach each other; one device may be there several
// times. It skips the test where there is none.
func Network(t testing.TB, name string, rails int) (provider.Provider, []string) {
	t.Helper()
	var p provider.Provider
	family, of, _ := strings.Cut(name, ":")
	switch family {
	case "shm":
		p = shm.New()
	case "tcp":
		p = tcp.New()
	case "verbs":
		p = verbs.New(verbs.Options{})
	case "ofi":
		p = ofi.New(ofi.Options{Provider: of})
	default:
		t.Fatalf("no network is called %s", name)
	}
	devs, err := p.Devices(t.Context())
	if err != nil {
		t.Skipf("%s: %v", name, err)
	}
	var names []string
	for i := 0; len(names) < rails; i++ {
		if d := devs[i%len(devs)]; d.Fabric == devs[0].Fabric {
			names = append(names, d.Name)
		}
	}
	return p, names
}

// SetRevokeTime changes how long a peer may take to give a region back. For tests on machines that are busy with others.
func (e *Engine) SetRevokeTime(d time.Duration) { e.revokeTime = d }
