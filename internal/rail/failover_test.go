package rail

import (
	"testing"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// live makes the session of a peer set up, and returns it.
func (b *bench) live(lead bool, slots ...Slot) *Peer {
	b.Helper()
	p := b.peer()
	b.call(func(g *Group) { g.Live(p, lead, slots) })
	return p
}

// breaks fails the connection of a link: everything of it that is under way is flushed, and the fence is proved.
func (b *bench) breaks(p *Peer, i int) {
	b.Helper()
	l := p.links[i]
	d := b.doms[l.rail.index]
	for k := len(d.posted) - 1; k >= 0; k-- {
		if d.posted[k].Peer == l.handle {
			d.finish(k, provider.StatusFlushed)
		}
	}
	d.tell(provider.KindPeerDown, l.handle, provider.StatusPeerDown)
	b.settle()
	d.tell(provider.KindFenced, l.handle, provider.StatusOK)
	b.settle()
}

// hears has the other side say something about a link.
func (b *bench) hears(p *Peer, n wire.LinkNotice) {
	b.Helper()
	b.call(func(g *Group) { g.Notice(p, &n) })
}

// A report that cannot be true ends the session, and with it what went down with the connection.
func TestFalseReportLosesNoOperation(t *testing.T) {
	for _, ordered := range []uint8{0, 1} {
		d := newFake(16)
		d.caps.Ordered = ordered != 0
		b := newBench(t, d)
		p := b.live(false)
		e := b.write(p, Op{Kind: Signal, HasImm: true, Imm: 1})
		b.breaks(p, 0)
		buckets := make([]uint32, wire.LinkBuckets)
		buckets[bucket(2)] = 1
		b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Ordered: ordered, Messages: 1, Imms: 1, Buckets: buckets})
		if len(b.sink.breaches) != 1 || e.n != 0 {
			t.Fatalf("breaches %v, ended %d times", b.sink.breaches, e.n)
		}
		b.call(func(g *Group) { g.Fence(p) })
		if e.n != 1 || e.status != provider.StatusFlushed {
			t.Fatalf("ended %d times with %v", e.n, e.status)
		}
	}
}
