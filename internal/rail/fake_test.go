package rail

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// fakeDomain accepts WRs and completes them when the test says so.
type fakeDomain struct {
	caps     provider.Caps
	posted   []provider.WR // writes and sends that were accepted and not completed
	recvs    []provider.WR
	ready    []provider.Completion
	offers   int
	accept   int // WRs that Post accepts at once
	fenced   []provider.Peer
	closed   bool
	regs     int
	polls    int
	pollErr  error
	postErr  error
	closeErr error
	grantErr error
	next     provider.Peer // what Offer returns, unless 0
}

func newFake(depth int) *fakeDomain {
	return &fakeDomain{accept: 1 << 20, caps: provider.Caps{MaxMsg: 1 << 30, MaxSend: provider.MinMaxSend, PeerDepth: depth, RecvDepth: 4, LinkBits: 1e9}}
}

func (d *fakeDomain) Caps() provider.Caps { return d.caps }
func (d *fakeDomain) Register(provider.Memory, provider.Access) (provider.Key, error) {
	d.regs++
	return provider.Key{ID: uint64(d.regs), Base: 1000}, nil
}
func (d *fakeDomain) Deregister(provider.Key) error { d.regs--; return nil }
func (d *fakeDomain) Grant(provider.Key, provider.Peer, uint64, uint64) (provider.Key, error) {
	return provider.Key{ID: 77}, d.grantErr
}

func (d *fakeDomain) Offer() (provider.Peer, provider.Addr, error) {
	d.offers++
	if h := d.next; h != 0 {
		d.next = 0
		return h, provider.Addr("x"), nil
	}
	return provider.Peer(1<<provider.PeerIndexBits | d.offers), provider.Addr("x"), nil
}

func (d *fakeDomain) Connect(p provider.Peer, _ provider.Addr, _ bool) error {
	d.ready = append(d.ready, provider.Completion{Kind: provider.KindPeerUp, Peer: p})
	return nil
}
func (d *fakeDomain) Disconnect(provider.Peer) error { return nil }
func (d *fakeDomain) Fence(p provider.Peer) error    { d.fenced = append(d.fenced, p); return nil }

func (d *fakeDomain) Post(wrs []provider.WR) (int, error) {
	if d.postErr != nil {
		return 0, d.postErr
	}
	n := min(len(wrs), d.accept)
	for _, wr := range wrs[:n] {
		if wr.Op == provider.OpRecv {
			d.recvs = append(d.recvs, wr)
		} else {
			d.posted = append(d.posted, wr)
		}
	}
	return n, nil
}

func (d *fakeDomain) Poll(cs []provider.Completion) (int, error) {
	d.polls++
	n := copy(cs, d.ready)
	d.ready = d.ready[n:]
	return n, errors.Join(d.pollErr, d.postErr) // a dead domain stays dead
}
func (d *fakeDomain) Arm() bool    { return len(d.ready) > 0 }
func (d *fakeDomain) Close() error { d.closed = true; return d.closeErr }

// finish completes posted WR i.
func (d *fakeDomain) finish(i int, st provider.Status) {
	wr := d.posted[i]
	d.posted = append(d.posted[:i:i], d.posted[i+1:]...)
	kind := provider.KindWrite
	if wr.Op == provider.OpSend {
		kind = provider.KindSend
	}
	d.ready = append(d.ready, provider.Completion{Kind: kind, Token: wr.Token, Peer: wr.Peer, Status: st})
}

// fakeSink notes what it is told.
type fakeSink struct {
	imms     []uint32
	messages []*Message
	ups      []bool // of links
	told     []*wire.LinkNotice
	asked    []*Remote
	breaches []string
	fences   []bool
	dead     int
}

func (s *fakeSink) Imm(_ *Peer, imm uint32)     { s.imms = append(s.imms, imm) }
func (s *fakeSink) Message(_ *Peer, m *Message) { s.messages = append(s.messages, m) }
func (s *fakeSink) Dead(int, error)             { s.dead++ }
func (s *fakeSink) Settle()                     {}
func (s *fakeSink) Link(_ *Peer, _ int, up bool, _ string) {
	s.ups = append(s.ups, up)
}
func (s *fakeSink) Tell(_ *Peer, n *wire.LinkNotice)   { s.told = append(s.told, n) }
func (s *fakeSink) Keys(r *Remote)                     { s.asked = append(s.asked, r) }
func (s *fakeSink) GiveUp(_ *Peer, why string, _ bool) { s.breaches = append(s.breaches, why) }
func (s *fakeSink) Fenced(_ *Peer, proved bool)        { s.fences = append(s.fences, proved) }

// ended is a Completer.
type ended struct {
	n      int
	status provider.Status
}

func (e *ended) Complete(op *Op) { e.n++; e.status = op.Status }

type bench struct {
	*testing.T
	g    *Group
	doms []*fakeDomain
	sink *fakeSink
}

func newBench(t *testing.T, doms ...*fakeDomain) *bench {
	t.Helper()
	b := &bench{T: t, doms: doms, sink: &fakeSink{}}
	var ds []provider.Domain
	for _, d := range doms {
		ds = append(ds, d)
	}
	g, err := New(ds, b.sink, func() {})
	if err != nil {
		t.Fatal(err)
	}
	b.g = g
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// peer makes a peer with one link per rail, all up.
func (b *bench) peer() *Peer {
	b.Helper()
	p := &Peer{}
	for i := range b.doms {
		if _, err := b.g.Offer(p, i); err != nil {
			b.Fatal(err)
		}
		if err := b.g.Connect(p, i, nil, true); err != nil {
			b.Fatal(err)
		}
	}
	b.settle()
	return p
}

func (b *bench) settle() {
	for range 100 {
		if b.g.Step() == 0 {
			return
		}
	}
	b.Fatal("the group does not come to rest")
}

func (b *bench) memory() *Memory {
	m := &Memory{}
	for i := range b.doms {
		m.Keys = append(m.Keys, provider.Key{ID: uint64(100 + i), Base: uint64(1000 * (i + 1))})
	}
	return m
}

func (b *bench) remote(p *Peer) *Remote {
	r := &Remote{Peer: p}
	for i := range p.links {
		r.keys = append(r.keys, LinkKey{i, p.links[i].epoch, provider.Key{ID: uint64(200 + i), Base: uint64(5000 * (i + 1))}})
	}
	return r
}

func (b *bench) write(p *Peer, op Op) *ended {
	b.Helper()
	e := &ended{}
	op.Peer, op.Owner = p, e
	if op.Kind == Write || op.Kind == Pages {
		op.Src, op.Dst = b.memory(), b.remote(p)
	}
	if !b.g.Submit(&op) {
		b.Fatal("submit refused")
	}
	b.settle()
	return e
}

// finishAll completes everything, in reverse order, until nothing new is posted.
func (b *bench) finishAll() (writes int) {
	for again := true; again; {
		again = false
		for _, d := range b.doms {
			for len(d.posted) > 0 {
				again = true
				writes++
				d.finish(len(d.posted)-1, provider.StatusOK)
			}
		}
		b.settle()
	}
	return writes
}

// audit looks for accounts of a peer that are not closed, after everything has ended.
func (g *Group) audit(p *Peer) error {
	if p.sends != 0 || p.ops.head != nil || p.ops.tail != nil || p.messages.head != nil || p.messages.tail != nil {
		return fmt.Errorf("%d messages in flight, lists %v %v", p.sends, p.ops, p.messages)
	}
	for _, l := range p.links {
		if l.outstanding != 0 || l.load != 0 || l.sends != 0 || len(l.lost) != 0 {
			return fmt.Errorf("link %d: outstanding %d, load %d, sends %d, lost %d", l.index, l.outstanding, l.load, l.sends, len(l.lost))
		}
	}
	for _, r := range g.rails {
		free := 0
		for i := r.free; i >= 0; i = r.flights[i].next {
			free++
		}
		if free != len(r.flights) || len(r.batch) != 0 && !r.dead || r.load != 0 {
			return fmt.Errorf("rail %d: %d of %d flights are free, %d requests wait", r.index, free, len(r.flights), len(r.batch))
		}
	}
	free := 0
	for i := g.sendFree; i >= 0; i = g.sends[i].next {
		free++
	}
	if free != len(g.sends) {
		return fmt.Errorf("%d of %d message buffers are free", free, len(g.sends))
	}
	return nil
}
