package rail

import (
	"errors"
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
	b.breaksFor(p, i, provider.StatusPeerDown)
}

// breaksFor is breaks with what the network says.
func (b *bench) breaksFor(p *Peer, i int, why provider.Status) {
	b.Helper()
	l := p.links[i]
	d := b.doms[l.rail.index]
	for k := len(d.posted) - 1; k >= 0; k-- {
		if d.posted[k].Peer == l.handle {
			d.finish(k, provider.StatusFlushed)
		}
	}
	d.tell(provider.KindPeerDown, l.handle, why)
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

// ends the session and checks that no account is left open.
func (b *bench) endsAtZero(p *Peer) {
	b.Helper()
	b.call(func(g *Group) { g.Fence(p) })
	for _, d := range b.doms {
		for len(d.posted) > 0 {
			d.finish(0, provider.StatusFlushed)
		}
	}
	b.settle()
	if err := b.g.audit(p); err != nil {
		b.Fatal(err)
	}
}

// A set-up that fails after one of its rails died has its proof: a rail that is closed is silent. Without it, the peer could never
// connect again.
func TestFenceAfterARailDiedDuringTheSetUp(t *testing.T) {
	x, y := newFake(4), newFake(4)
	b := newBench(t, x, y)
	p := b.peer()
	h := p.links[1].handle
	x.pollErr = errors.New("device removed")
	b.settle()
	b.call(func(g *Group) { g.Fence(p) })
	y.tell(provider.KindFenced, h, provider.StatusOK)
	b.settle()
	b.fences(true)
}

// A session that fails at the moment at which it is up is not looked after any more.
func TestSessionThatEndedDoesNotLive(t *testing.T) {
	b := newBench(t, newFake(4))
	p := b.peer()
	h := p.links[0].handle
	b.call(func(g *Group) { g.Fence(p); g.Live(p, true, []Slot{{Remote: []uint16{0}}}) })
	b.doms[0].tell(provider.KindFenced, h, provider.StatusOK)
	b.settle()
	for range 2 * settleTime {
		b.g.Tick()
		b.settle()
	}
	if len(b.g.live) != 0 || len(b.sink.breaches) != 0 || len(b.sink.told) != 0 {
		t.Fatalf("%d sessions are looked after, given up: %v, told: %v", len(b.g.live), b.sink.breaches, b.sink.told)
	}
	b.fences(true)
}

// A connection that comes up after its session has failed carries nothing.
func TestLinkComesUpAfterTheEnd(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.live(false)
	b.breaks(p, 0)
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1})
	b.call(func(g *Group) {
		g.Notice(p, &wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")})
		g.Fence(p)
	})
	if p.links[0].epoch != 2 || len(d.posted) != 0 || p.ready != 0 {
		t.Fatalf("connection %d, %d requests, %d links in service", p.links[0].epoch, len(d.posted), p.ready)
	}
	d.tell(provider.KindFenced, p.links[0].handle, provider.StatusOK)
	b.settle()
	b.fences(true)
}

// A connection whose proof comes after its session has failed carries nothing, and its fence has one outcome.
func TestLinkIsProvedAfterTheEnd(t *testing.T) {
	for _, st := range []provider.Status{provider.StatusOK, provider.StatusFlushed} {
		d, other := newFake(4), newFake(4)
		b := newBench(t, d, other)
		p := b.live(false)
		b.breaks(p, 0)
		b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1})
		d.accept = 0 // the proof waits
		b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")})
		h := p.links[0].handle
		b.call(func(g *Group) { g.Fence(p) })
		d.tell(provider.KindFenced, h, provider.StatusOK)
		b.settle()
		d.accept = 1
		b.settle()
		ups := len(b.sink.ups)
		d.finish(0, st)
		b.settle()
		if p.ready != 1 || len(b.sink.ups) != ups {
			t.Fatalf("%v: %d links in service, told %v", st, p.ready, b.sink.ups[ups:])
		}
		b.fences()
		other.tell(provider.KindFenced, p.links[1].handle, provider.StatusOK)
		b.settle()
		b.fences(true)
	}
}

// The first link that the leader offers anew may be any of those that stand by: it has no rail left for the others.
func TestFollowerTakesLinksInAnyOrder(t *testing.T) {
	b := newBench(t, newFake(4))
	p := b.live(false)
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Link: 3, Epoch: 1, Class: 2, Addr: []byte("x")})
	if len(b.sink.breaches) != 0 || len(p.links) != 4 || p.links[3].class != 2 || p.links[3].state != probing {
		t.Fatalf("given up: %v, %d links", b.sink.breaches, len(p.links))
	}
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Link: 2, Epoch: 1, Class: 1, Addr: []byte("x")})
	if len(b.sink.breaches) != 0 || p.links[2].class != 1 || p.links[2].state != probing {
		t.Fatalf("given up: %v", b.sink.breaches)
	}
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Link: maxLinkCount, Epoch: 1, Addr: []byte("x")})
	if len(b.sink.breaches) != 1 {
		t.Fatal("a link beyond the limit is taken")
	}
}

// A link that fails once joins the same rails again, so that each rail keeps its share; only after that others are tried.
func TestLinkComesBackOverItsOwnRails(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.live(true, Slot{Remote: []uint16{5, 6, 7}})
	for i, want := range []uint16{5, 6, 7, 5} {
		b.breaks(p, 0)
		b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: uint32(i + 1)})
		for range 2 * lastRetry {
			if p.links[0].state != idle {
				break
			}
			b.g.Tick()
			b.settle()
		}
		last := b.sink.told[len(b.sink.told)-1]
		if last.Step != wire.LinkOffer || last.Epoch != uint32(i+2) || last.Rail != want {
			t.Fatalf("told %+v, want an offer for rail %d", last, want)
		}
	}
}

// A leader takes the refusal of what it offered, and of nothing else: it says that nothing has arrived.
func TestRefusalOfALinkInService(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.live(true, Slot{Remote: []uint16{0}})
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	b.hears(p, wire.LinkNotice{Step: wire.LinkAnswer, Epoch: 1, Fault: "no"})
	if len(b.sink.breaches) != 1 {
		t.Fatal("not noticed")
	}
	b.endsAtZero(p)
	if e.n != 1 {
		t.Fatalf("ended %d times", e.n)
	}
}

// A remote that can be written to over one link is not closed because the key for another one does not come.
func TestRemoteStaysOpenWhileOneLinkWillDo(t *testing.T) {
	d := newFake(64)
	b := newBench(t, d, newFake(64))
	p := b.live(false)
	r := b.remote(p)
	r.keys = r.keys[:1]
	for range 3 * keyTime {
		idx := make([]uint32, 100)
		e := &ended{}
		b.g.Submit(&Op{Kind: Pages, Len: 8, Parts: len(idx), SrcIdx: idx, DstIdx: idx, Peer: p, Owner: e, Src: b.memory(), Dst: r})
		b.settle()
		b.g.Tick()
		if b.finishAll(); e.n != 1 || e.status != provider.StatusOK {
			t.Fatalf("ended %d times with %v", e.n, e.status)
		}
	}
	e := &ended{}
	b.g.Submit(&Op{Kind: Write, Len: 8, Parts: 1, Rail: 2, Peer: p, Owner: e, Src: b.memory(), Dst: r})
	for range keyTime + 2 {
		b.settle()
		b.g.Tick()
	}
	if b.settle(); e.n != 1 || e.status != provider.StatusAccess {
		t.Fatalf("for the link without a key: ended %d times with %v", e.n, e.status)
	}
}

// A connection that its domain knows to be broken, and the group does not yet, is no reason to refuse a grant.
func TestGrantWhileALinkFails(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d, newFake(4))
	p := b.live(false)
	for fault, want := range map[error]int{provider.ErrStale: 1, provider.ErrInvalid: 1, provider.ErrUnsupported: 1, provider.ErrBusy: 0} {
		d.grantErr = fault
		keys, err := b.g.Grant(b.memory(), p, 0, 8)
		if len(keys) != want || (want == 0) != errors.Is(err, provider.ErrBusy) {
			t.Fatalf("%v for one of two links: %v, %v", fault, keys, err)
		}
	}
	d.tell(provider.KindPeerDown, p.links[0].handle, provider.StatusPeerDown)
	b.settle()
	if keys, err := b.g.Grant(b.memory(), p, 0, 8); err != nil || len(keys) != 1 {
		t.Fatalf("grant: %v, %v", keys, err)
	}
}

// Memory that its owner has taken back is not written to again after a link fails.
func TestClosedRemoteIsNotWrittenAgain(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.live(false)
	e := b.write(p, Op{Kind: Write, Len: 8, Parts: 1, HasImm: true})
	dst := b.g.rails[0].flights[0].op.Dst
	b.call(func(g *Group) { g.CloseRemote(dst) })
	b.breaks(p, 0)
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1})
	if e.n != 1 || e.status != provider.StatusAccess || len(d.posted) != 0 {
		t.Fatalf("ended %d times with %v", e.n, e.status)
	}
}

// However many writes are refused, the report about them can be sent.
func TestReportOfManyRefusals(t *testing.T) {
	d := newFake(3 * wire.MaxRefused)
	b := newBench(t, d)
	p := b.live(false)
	for range 3 * wire.MaxRefused {
		d.tell(provider.KindRefused, p.links[0].handle, provider.StatusOK)
	}
	b.breaks(p, 0)
	var m wire.LinkNotice
	if err := wire.Parse(wire.Append(nil, b.sink.told[0]), &m); err != nil {
		t.Fatal(err)
	}
	if n := len(m.Refused); m.Refusals != 3*wire.MaxRefused || n < wire.MaxRefused/2 || m.Refused[n-1] != m.Refusals-1 {
		t.Fatalf("%d refusals, the last %d of them are told", m.Refusals, n)
	}
}

// A domain gives the place of a handle away as soon as it has handed over the last completion that names it. Whoever makes a handle
// must have looked at all completions that were handed over.
func TestPlaceOfAHandleIsGivenAwayEarly(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := &Peer{}
	for i := range 2 {
		if _, err := b.g.Offer(p, 0); err != nil {
			t.Fatal(err)
		}
		if err := b.g.Connect(p, i, nil, true); err != nil {
			t.Fatal(err)
		}
	}
	b.settle()
	b.call(func(g *Group) { g.Live(p, true, []Slot{{Remote: []uint16{0}}, {Remote: []uint16{0}}}) })
	first, second := p.links[0].handle, p.links[1].handle
	for i := range uint16(2) {
		b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Link: i, Epoch: 1})
	}
	d.next = second + 1<<provider.PeerIndexBits // the place of the second one
	d.tell(provider.KindFenced, first, provider.StatusOK)
	d.tell(provider.KindFenced, second, provider.StatusOK)
	b.settle()
	for i, l := range p.links {
		if l.state != offered || l.epoch != 2 {
			t.Fatalf("link %d: state %d of connection %d", i, l.state, l.epoch)
		}
	}
}

// A side reports when its own requests have ended too: with both reports, the leader offers the next connection, and this side must be
// done with the one before.
func TestReportWaitsForOwnRequests(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.live(false)
	b.write(p, Op{Kind: Signal, HasImm: true})
	h := p.links[0].handle
	d.tell(provider.KindPeerDown, h, provider.StatusPeerDown)
	d.tell(provider.KindFenced, h, provider.StatusOK)
	b.settle()
	if len(b.sink.told) != 0 {
		t.Fatalf("told %+v while a request is out", b.sink.told[0])
	}
	d.finish(0, provider.StatusFlushed)
	b.settle()
	if len(b.sink.told) != 1 || b.sink.told[0].Step != wire.LinkReport {
		t.Fatalf("told %v", b.sink.told)
	}
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1})
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")})
	if len(b.sink.breaches) != 0 || p.links[0].epoch != 2 {
		t.Fatalf("given up: %v", b.sink.breaches)
	}
}

// Acknowledgements come in any order, also on a network that keeps the order of writes. An immediate that was acknowledged says that all
// before it has arrived: to write a page of it again would change memory that the receiver has counted.
func TestPagesBeforeAnAcknowledgedImmediate(t *testing.T) {
	d := newFake(8)
	d.caps.Ordered = true
	b := newBench(t, d)
	p := b.live(false)
	idx := []uint32{0, 2, 4}
	e := b.write(p, Op{Kind: Pages, Len: 8, Parts: 3, SrcIdx: idx, DstIdx: idx, SrcStride: 8, DstStride: 8, HasImm: true, ImmLast: true})
	if len(d.posted) != 3 || d.posted[2].Op != provider.OpWriteImm {
		t.Fatalf("posted %+v", d.posted)
	}
	d.finish(2, provider.StatusOK)
	b.settle()
	b.breaks(p, 0)
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Ordered: 1, Imms: 1})
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")})
	if n := b.finishAll(); e.n != 1 || e.status != provider.StatusOK || n != 1 { // the probe
		t.Fatalf("ended %d times with %v, %d writes over the second connection", e.n, e.status, n)
	}
}

// What goes down before the session is up all around, when an operation may answer a peer that was quicker, is divided as any other.
func TestLinkFailsBeforeTheSessionIsLive(t *testing.T) {
	d := newFake(8)
	d.caps.Ordered = true
	b := newBench(t, d)
	p := b.peer()
	counted, lost := b.write(p, Op{Kind: Signal, HasImm: true, Imm: 1}), b.write(p, Op{Kind: Signal, HasImm: true, Imm: 2})
	h := p.links[0].handle
	d.finish(0, provider.StatusFlushed)
	d.finish(0, provider.StatusFlushed)
	d.tell(provider.KindPeerDown, h, provider.StatusPeerDown)
	b.settle()
	b.call(func(g *Group) { g.Live(p, false, nil) })
	d.tell(provider.KindFenced, h, provider.StatusOK)
	b.settle()
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Ordered: 1, Imms: 1})
	b.hears(p, wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")})
	b.finishAll()
	for i, e := range []*ended{counted, lost} {
		if len(b.sink.breaches) != 0 || e.n != 1 || e.status != provider.StatusOK {
			t.Fatalf("given up: %v, operation %d ended %d times with %v", b.sink.breaches, i, e.n, e.status)
		}
	}
}

// What went down with a link of a session that is still being set up ends with the group.
func TestCloseEndsWhatWasLostInTheSetUp(t *testing.T) {
	d := newFake(8)
	b := newBench(t, d)
	p := b.peer()
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	d.finish(0, provider.StatusFlushed)
	d.tell(provider.KindPeerDown, p.links[0].handle, provider.StatusPeerDown)
	b.settle()
	if err := b.g.Close(); err != nil || e.n != 1 || e.status != provider.StatusFlushed {
		t.Fatalf("close: %v; ended %d times with %v", err, e.n, e.status)
	}
}

// A page is not written again behind its immediate when the other side cannot say how they came.
func TestPagesBeforeAnImmediateWithoutOrder(t *testing.T) {
	d := newFake(8)
	d.caps.Ordered = true
	b := newBench(t, d)
	p := b.live(false)
	idx := []uint32{0, 2, 4}
	e := b.write(p, Op{Kind: Pages, Len: 8, Parts: 3, SrcIdx: idx, DstIdx: idx, SrcStride: 8, DstStride: 8, HasImm: true, ImmLast: true})
	d.finish(2, provider.StatusOK)
	b.settle()
	b.breaks(p, 0)
	buckets := make([]uint32, wire.LinkBuckets)
	buckets[bucket(0)] = 1
	b.hears(p, wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Imms: 1, Buckets: buckets})
	if e.n != 1 || e.status != provider.StatusFlushed || len(d.posted) != 0 || len(b.sink.breaches) != 0 {
		t.Fatalf("ended %d times with %v, given up: %v", e.n, e.status, b.sink.breaches)
	}
}
