package proto

import (
	"testing"

	"github.com/hawser-project/hawser/kv/layout"
)

// TestPairingsAreUsed: what was worked out ahead of a Hello, and of its answer, is what the link then has, and so is that of the last peer
// for the next one with the same topology. That of another topology is not.
func TestPairingsAreUsed(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.decoder(1, "d", r.p.cfg.Topology, 0)
	hello := Encode(d.head, d.hello())
	x := r.p.Pair(hello)
	if x == nil || x.pair == nil || r.p.paired != nil {
		t.Fatalf("pairing %+v", x)
	}
	r.p.Paired(x)
	d.send(d.hello())
	if r.p.peers[1].link.pair != x.pair {
		t.Error("the work was done again")
	}
	e := r.decoder(2, "e", r.p.cfg.Topology, 0)
	e.send(e.hello())
	if r.p.peers[2].link.pair != x.pair {
		t.Error("the work was done again for a decoder with the same topology")
	}
	wide := shape(t, tiny, 1, layout.Spec{Pages: 64, TP: 2})
	f := r.decoder(3, "f", wide, 0)
	f.send(f.hello())
	if l := r.p.peers[3].link; l == nil || l.pair == x.pair {
		t.Error("the pairing of another topology was used")
	}
	if r.p.Pair(Encode(d.head, &Beat{})) != nil || r.p.Pair([]byte{1, 2}) != nil {
		t.Error("a pairing of what is no Hello")
	}
}
