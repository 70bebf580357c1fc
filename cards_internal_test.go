package hawser

import (
	"testing"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/topo"
)

// TestCardsThatAreOpenedAreOfAllNodes has a machine with 32 cards, of which the first 16 are at one NUMA node.
func TestCardsThatAreOpenedAreOfAllNodes(t *testing.T) {
	h, err := topo.Read("topo/testdata/aws-p5.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	devs := []provider.Device{{Name: "no card"}}
	for _, n := range h.NICs {
		devs = append(devs, provider.Device{Name: n.Name + "-rdm", NUMA: n.Place.NUMA})
	}
	nodes := map[int]int{}
	for _, d := range spread(devs, h)[:maxCards] {
		nodes[d.NUMA]++
	}
	if nodes[0] != maxCards/2 || nodes[1] != maxCards/2 {
		t.Errorf("of %d cards, %v are at each node: want half and half", maxCards, nodes)
	}
	if last := spread(devs, h)[len(h.NICs)]; last.Name != "no card" {
		t.Errorf("%s is last, want what is no card", last.Name)
	}
}
