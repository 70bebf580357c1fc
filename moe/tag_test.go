package moe

import (
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// TestTagVersusTake: no tag of a group has values that an engine lends to others, and both are used beside each other.
func TestTagVersusTake(t *testing.T) {
	c := tiny(2)
	c.Tag = proto.MaxTag
	all := engines(t, "sim", 2)
	var lent []*hawser.Counter
	take := func() {
		for _, e := range all {
			v, err := e.Imms().Take()
			if err != nil {
				t.Fatal(err)
			}
			lent = append(lent, v)
		}
	}
	take()
	x := teamOf(t, all, c)
	take()
	x.steps(3)
	for _, v := range lent {
		if v.Imm()>>26 <= proto.MaxTag || v.Load() != 0 {
			t.Errorf("immediate %#x was lent, %d arrived: it has the tag of a group", v.Imm(), v.Load())
		}
	}
}
