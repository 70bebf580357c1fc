package rail

import (
	"testing"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// strict is a network on which a refused write ends its connection, and which keeps order.
func strict(depth int) *fakeDomain {
	d := newFake(depth)
	d.caps.AccessEnds, d.caps.Ordered = true, true
	return d
}

// A refused write costs its connection, and nobody but itself: what went down with it goes over the next connection, and what is for the
// same memory is not tried again.
func TestRefusedWriteEndsItsConnection(t *testing.T) {
	d := strict(16)
	b := newBench(t, d)
	p := b.live(false)
	taken, good := b.remote(p), b.remote(p)
	submit := func(r *Remote, imm uint32) *ended {
		e := &ended{}
		b.g.Submit(&Op{Kind: Write, Len: 8, Parts: 1, HasImm: true, Imm: imm, Peer: p, Owner: e, Src: b.memory(), Dst: r})
		b.settle()
		return e
	}
	before, refused, sibling, after := submit(good, 1), submit(taken, 2), submit(taken, 3), submit(good, 4)
	d.finish(1, provider.StatusAccess)
	b.settle()
	if refused.n != 1 || refused.status != provider.StatusAccess {
		t.Fatalf("the refused write: ended %d times with %v", refused.n, refused.status)
	}
	if late := submit(taken, 5); late.n != 1 || late.status != provider.StatusAccess {
		t.Fatalf("a later write to the same memory: ended %d times with %v", late.n, late.status)
	}
	b.breaksFor(p, 0, provider.StatusAccess)
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Imms: 1, Ordered: 1, Buckets: make([]uint32, wire.LinkBuckets)})
	if before.n != 1 || before.status != provider.StatusOK {
		t.Fatalf("the write that was counted: ended %d times with %v", before.n, before.status)
	}
	if sibling.n != 1 || sibling.status != provider.StatusAccess {
		t.Fatalf("the sibling to the same memory: ended %d times with %v", sibling.n, sibling.status)
	}
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")})
	b.finishAll() // the probe
	b.call(func(g *Group) { g.SetKeys(good, []LinkKey{{0, 2, provider.Key{ID: 300}}}) })
	if n := b.finishAll(); n != 1 || after.n != 1 || after.status != provider.StatusOK {
		t.Fatalf("%d writes over the next connection; the sibling to other memory ended %d times with %v", n, after.n, after.status)
	}
	if in := b.g.Links(p)[0]; in.Denials != 1 || in.Losses != 1 || in.Resent != 2 || len(b.sink.breaches) != 0 || p.links[0].strikes != 1 {
		t.Fatalf("link: %+v; given up: %v; %d strikes", in, b.sink.breaches, p.links[0].strikes)
	}
	b.endsAtZero(p)
}

// A peer that goes on to write where it may not loses its session, however fast it makes connections. One that does so now and then does not.
func TestRepeatedRefusalsEndTheSession(t *testing.T) {
	for name, c := range map[string]struct {
		why   provider.Status
		rest  int // ticks in service, each time
		times int
		ends  bool
	}{
		"refused writes":                {provider.StatusAccess, 0, maxStrikes/(denialStrikes+1) + 1, true},
		"refused writes with pauses":    {provider.StatusAccess, lastRetry * 3 / 2, 2 * maxStrikes / denialStrikes, true},
		"refused writes now and then":   {provider.StatusAccess, (denialStrikes + 2) * steady, 100, false},
		"connections that break":        {provider.StatusPeerDown, 0, maxStrikes + 1, true},
		"connections that break seldom": {provider.StatusPeerDown, 2 * steady, 200, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := strict(16)
			b := newBench(t, d)
			p := b.live(false)
			for i := range c.times {
				if len(b.sink.breaches) != 0 && c.rest > 0 && c.ends {
					break // with what was forgiven
				}
				if len(b.sink.breaches) != 0 {
					t.Fatalf("the session has ended after %d: %v", i, b.sink.breaches)
				}
				for range c.rest {
					b.g.Tick()
					b.settle()
				}
				h := p.links[0].handle
				d.tell(provider.KindPeerDown, h, c.why)
				b.settle()
				d.tell(provider.KindFenced, h, provider.StatusOK)
				b.settle()
				n := uint32(i) + 1
				b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: n})
				b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Epoch: n + 1, Addr: []byte("x")})
				b.finishAll()
			}
			if ended := len(b.sink.breaches) != 0; ended != c.ends {
				t.Fatalf("the session has ended: %v", b.sink.breaches)
			}
		})
	}
}

// A link that flaps for hours does not end the session, alone or beside a healthy one: not if each connection fails at once, nor if some last
// for long enough that those after them are begun at once.
func TestFlappingLinkKeepsItsSession(t *testing.T) {
	const hour = 3600 * TicksPerSecond
	for name, c := range map[string]struct {
		links int
		lasts func(i int) uint64 // ticks in service
	}{
		"one of two, at once":      {2, func(int) uint64 { return 0 }},
		"one of two, within 5 s":   {2, func(int) uint64 { return steady - 1 }},
		"one of two, now and then": {2, func(i int) uint64 { return uint64(i%4/3) * (steady + 1) }},
		"the only one, at once":    {1, func(int) uint64 { return 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			doms, slots := []*fakeDomain{newFake(16), newFake(16)}[:c.links], []Slot{{Local: 0, Remote: []uint16{0}}, {Local: 1, Remote: []uint16{1}}}[:c.links]
			b := newBench(t, doms...)
			p := b.live(true, slots...)
			l, most := p.links[0], 0
			for range 2 * hour {
				if l.state == ready && b.g.ticks-l.since >= c.lasts(int(l.epoch)) {
					epoch := l.epoch
					b.breaks(p, 0)
					b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: epoch})
				}
				b.g.Tick()
				b.settle()
				if l.state == offered {
					b.hears(p, wire.LinkNotice{Step: wire.LinkAnswer, Epoch: l.epoch, Addr: []byte("x")})
				}
				b.finishAll() // the probe
				if most = max(most, l.strikes); len(b.sink.breaches) != 0 {
					t.Fatalf("the session has ended after %d losses: %v", l.counts.Losses, b.sink.breaches)
				}
			}
			if l.counts.Losses < 10*maxStrikes || most > maxStrikes/8 {
				t.Fatalf("%d losses, at most %d strikes at a time", l.counts.Losses, most)
			}
			b.endsAtZero(p)
		})
	}
}

// Links that stand by do not wait for a tick when the last one of a better class fails.
func TestStandbyIsConnectedAtOnce(t *testing.T) {
	b := newBench(t, newFake(4), newFake(4))
	p := &Peer{}
	if _, err := b.g.Offer(p, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.g.Connect(p, 0, nil, true); err != nil {
		t.Fatal(err)
	}
	b.settle()
	b.call(func(g *Group) {
		g.Live(p, true, []Slot{{Local: 0, Remote: []uint16{0}}, {Local: 1, Remote: []uint16{1}, Class: 1}})
	})
	if len(b.sink.told) != 0 {
		t.Fatalf("told: %+v", b.sink.told)
	}
	b.breaks(p, 0)
	for _, n := range b.sink.told {
		if n.Step == wire.LinkOffer && n.Link == 1 {
			return
		}
	}
	t.Fatalf("no offer of the link that stands by: %+v", b.sink.told)
}
