package providertest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

var seedFlag = flag.Uint64("providertest.seed", 0, "seed of the random choices; 0 takes a new one")

// Factory describes a provider to Run.
type Factory struct {
	// Network makes what one test needs; it is called once for each test, so that tests share nothing.
	Network func(t *testing.T) Network

	// Memory is where registered memory comes from: mem.Heap where Caps say HeapMemory, so that the race detector
	// sees payload bytes.
	Memory mem.Kind

	// Except maps the name of a property that this network cannot give to the reason.
	Except map[string]string

	// MidCopy has the next copies that Post or Poll of a Domain make into a peer's memory call f in their middle. Nil where the
	// network, and not the writer, places bytes: then a writer cannot be stopped in the middle of a copy.
	MidCopy func(d provider.Domain, f func())

	// Tamper returns a changed copy of an Addr that still leads to the same place but carries another secret.
	// Nil inverts the last byte.
	Tamper func(provider.Addr) provider.Addr
}

// Network is where the hosts of one test live.
type Network struct {
	// Provider returns the provider of a host: "a", "b", ...; the same one for all where hosts make no difference.
	Provider func(host string) provider.Provider

	// Device chooses what a host opens. Nil takes the first.
	Device func(host string, devs []provider.Device) provider.Device

	// Pump is called between polls by a test that waits; nil does nothing.
	Pump func()
}

// groupName is the subtest that holds the properties.
const groupName = "Property"

type property struct {
	name     string
	test     func(w *world)
	parallel bool // spends its time waiting
}

// Run checks every property of the contract as a subtest of t.
func Run(t *testing.T, f Factory) {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		runChild(t, f)
		return
	}
	for name := range f.Except {
		if !slices.ContainsFunc(properties, func(p property) bool { return p.name == name }) {
			t.Errorf("Factory.Except has a row %q, which is no property", name)
		}
	}
	table := expectations{}
	// The group ends when its parallel subtests have ended, so that the count comes last.
	t.Run(groupName, func(t *testing.T) {
		for _, p := range properties {
			t.Run(p.name, func(t *testing.T) {
				if reason := f.Except[p.name]; reason != "" {
					table.add(excepted, p.name, reason)
					t.Skipf("this network cannot: %s", reason)
				}
				if p.parallel {
					t.Parallel()
				}
				w := newWorld(t, f)
				w.name, w.table = p.name, &table
				p.test(w)
			})
		}
	})
	t.Logf("providertest: %s", table.String())
}

// Why a property was not tested.
const (
	excepted   = "excepted"     // a row of Factory.Except
	unpromised = "not promised" // the network's Caps, or a power that it lacks
)

// expectations is what Run did not test, and why. Parallel properties add to it.
type expectations struct {
	mu   sync.Mutex
	rows []string // guarded by mu
	kind map[string]int
}

func (e *expectations) add(kind, name, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kind == nil {
		e.kind = map[string]int{}
	}
	e.kind[kind]++
	e.rows = append(e.rows, fmt.Sprintf("\n  %-12s  %-32s  %s", kind, name, reason))
}

// String is the table of expectations, with the counts in its first line.
func (e *expectations) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.Sort(e.rows)
	return fmt.Sprintf("%d properties, %d tested, %d excepted, %d not promised%s",
		len(properties), len(properties)-len(e.rows), e.kind[excepted], e.kind[unpromised], strings.Join(e.rows, ""))
}

func newRand(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-providertest.seed=%d", seed)
	return rand.New(rand.NewPCG(seed, seed>>32))
}
