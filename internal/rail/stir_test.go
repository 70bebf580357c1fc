package rail

import (
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// A peer is stirred while anything is under way to it, and by everything that came or went since the Tick before.
func TestWhatMovesStirsAPeer(t *testing.T) {
	d := newFake(1)
	b := newBench(t, d)
	p, other := b.peer(), b.peer()
	for _, q := range []*Peer{p, other} {
		b.g.Live(q, true, nil)
	}
	tick := func() bool {
		b.g.Tick()
		b.settle()
		if other.Stirred() {
			t.Error("traffic of one peer stirs another")
		}
		return p.Stirred()
	}
	b.g.Tick() // the set-up has moved both
	b.settle()
	p.Stirred()
	other.Stirred()
	for range 3 {
		if tick() {
			t.Fatal("stirred by nothing")
		}
	}
	for range 2 { // the second has to wait for the depth of the first
		b.write(p, Op{Kind: Write, Len: 8})
		for range 3 {
			if !tick() {
				t.Fatal("what is under way stirs nothing")
			}
		}
	}
	b.finishAll()
	if !tick() || tick() {
		t.Fatal("what has ended stirs once")
	}
	if b.write(p, Op{Kind: Write, Len: 8}); b.finishAll() != 1 {
		t.Fatal("not written")
	}
	if !tick() || tick() {
		t.Fatal("what began and ended between two ticks stirs once")
	}
	for name, c := range map[string]provider.Completion{
		"an immediate":        {Kind: provider.KindImm, Imm: 1},
		"a refused immediate": {Kind: provider.KindRefused, Imm: 1, Status: provider.StatusAccess},
		"a message":           {Kind: provider.KindRecv, Token: d.recvs[0].Token},
	} {
		c.Peer = p.links[0].handle
		d.ready = append(d.ready, c)
		b.settle()
		if !tick() || tick() {
			t.Errorf("%s stirs once", name)
		}
	}
}
