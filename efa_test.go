package hawser_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
)

// strictEFA puts the limits and modes of an Elastic Fabric Adapter over a network; the test fails when something would break there.
func strictEFA(t testing.TB, p provider.Provider) provider.Provider {
	seed := rand.Uint64()
	t.Logf("strict EFA, seed %d", seed)
	return providertest.Decorate(p, func(d provider.Domain) provider.Domain {
		seed++
		return providertest.EFA(d, seed, func(err error) { t.Error(err) })
	})
}

// The same over a software network of libfabric, which stands for all that package ofi drives; -worlds ofi:tcp runs everything over it.
func TestSameOperationsOverLibfabric(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 13))
	steps, src := draw(rng), make([]byte, fieldSize)
	fill(src, rng.Uint64())
	want := naive(steps, src)
	for _, rails := range [][2]int{{1, 1}, {2, 3}} {
		c := course{network: "ofi:tcp", railsA: rails[0], railsB: rails[1], batch: fieldOps, prepared: rails[0] > 1}
		t.Run(fmt.Sprintf("%dx%d", rails[0], rails[1]), func(t *testing.T) {
			got, err := c.run(t, steps, src)
			if err == nil {
				err = got.differs(want)
			}
			if err != nil {
				t.Fatalf("%v: %v", c, err)
			}
		})
	}
}

// Four rails a side, as on a p5, against four, two (p5en) and one: the same list of operations leaves the same memory, counts and
// messages, and nothing that the engine does would break on an adapter.
func TestSameOperationsUnderStrictEFA(t *testing.T) {
	seed := *metamorphicSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-metamorphic.seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 12))
	steps, src := draw(rng), make([]byte, fieldSize)
	fill(src, rng.Uint64())
	want := naive(steps, src)
	networks := []string{"efa", "efa over tcp"}
	if _, err := ofi.New(ofi.Options{Provider: "tcp"}).Devices(t.Context()); err == nil { // without it its own tests say so
		networks = append(networks, "efa over ofi")
	}
	for i, network := range networks {
		for j, rails := range [][2]int{{4, 4}, {4, 2}, {4, 1}, {2, 4}, {1, 4}, {2, 2}, {2, 1}} {
			c := course{network: network, railsA: rails[0], railsB: rails[1], batch: []int{1, 7, fieldOps}[(i+j)%3], prepared: (i+j)%2 == 1}
			t.Run(fmt.Sprintf("%s/%dx%d", network, rails[0], rails[1]), func(t *testing.T) {
				got, err := c.run(t, steps, src)
				if err == nil {
					err = got.differs(want)
				}
				if err != nil {
					t.Fatalf("%v: %v", c, err)
				}
			})
		}
	}
}
