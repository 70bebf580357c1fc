package rail

import (
	"testing"

	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/provider"
)

// What the links of peers that are gone have counted stays counted for their rail, and the links do not stay.
func TestRailsKeepCountsOfPeersThatAreGone(t *testing.T) {
	d := newFake(64)
	b := newBench(t, d)
	const peers = 100
	for range peers {
		p := b.peer()
		b.write(p, Op{Kind: Write, Len: 10, Parts: 1, HasImm: true})
		b.write(p, Op{Kind: Send, Data: []byte("abc")})
		d.ready = append(d.ready, provider.Completion{Kind: provider.KindImm, Peer: p.links[0].handle, Len: 5})
		b.finishAll()
		b.g.Fence(p)
		d.ready = append(d.ready, provider.Completion{Kind: provider.KindFenced, Peer: p.links[0].handle})
		b.settle()
	}
	in := b.g.Info(0)
	want := Counts{TxBytes: 13 * peers, TxWrites: 2 * peers, TxImms: peers, TxMessages: peers, RxImms: peers, RxImmBytes: 5 * peers}
	if in.Counts != want {
		t.Errorf("%+v, want %+v", in.Counts, want)
	}
	if n := len(b.g.rails[0].members); n > peers/2 {
		t.Errorf("%d links of %d peers that are gone", n, peers)
	}
}

// A link counts as long as something is under way over it.
func TestRailsCountWhatEndsLate(t *testing.T) {
	d := newFake(64)
	b := newBench(t, d)
	p := b.peer()
	b.write(p, Op{Kind: Write, Len: 10, Parts: 1, HasImm: true})
	b.g.Fence(p)
	d.ready = append(d.ready, provider.Completion{Kind: provider.KindFenced, Peer: p.links[0].handle})
	b.settle()
	for range 40 {
		b.peer()
	}
	d.finish(0, provider.StatusOK)
	b.settle()
	if c := b.g.Info(0).Counts; c.TxBytes != 10 || c.TxImms != 1 {
		t.Errorf("%+v", c)
	}
}

// A link that moves to another rail leaves its counts there.
func TestLinkMovesToAnotherRail(t *testing.T) {
	b := newBench(t, newFake(64), newFake(64))
	p := b.peer()
	b.write(p, Op{Kind: Write, Len: 10, Parts: 1, HasImm: true, Rail: 1})
	b.finishAll()
	l := p.links[0]
	l.rail, l.state = b.g.rails[1], idle
	if _, err := b.g.offer(l); err != nil {
		t.Fatal(err)
	}
	l.counts.TxBytes += 7
	if x, y := b.g.Info(0).Counts, b.g.Info(1).Counts; x != (Counts{TxBytes: 10, TxWrites: 1, TxImms: 1}) || y != (Counts{TxBytes: 7}) {
		t.Errorf("rails %+v and %+v", x, y)
	}
	if c := b.g.Links(p)[0].Counts; c != (Counts{TxBytes: 17, TxWrites: 1, TxImms: 1}) {
		t.Errorf("link %+v", c)
	}
}

// An operation that is stamped is followed from there to its completion, once, also when its batch is taken bit by bit and when its
// connection fails; more of them than there is room for are not.
func TestSamplesAreFollowed(t *testing.T) {
	d := newFake(1000)
	d.accept = 3
	b := newBench(t, d)
	p := b.peer()
	stamped := func() Op { return Op{Kind: Write, Len: 10, Parts: 2, HasImm: true, Stamp: record.Now()} }
	for range 10 { // in one batch of 20, so that some are taken later
		op := stamped()
		op.Peer, op.Owner, op.Src, op.Dst = p, &ended{}, b.memory(), b.remote(p)
		b.g.Submit(&op)
	}
	b.settle()
	b.finishAll()
	in, queue := b.g.Info(0), b.g.Queue()
	if queue.Count != 10 || in.Wire.Count != 10 || in.Post.Count < 4 || in.Short == 0 {
		t.Fatalf("queue %d, wire %d, post %d, short %d", queue.Count, in.Wire.Count, in.Post.Count, in.Short)
	}
	if s := &b.g.rails[0].samples; s.held != 0 || ^s.free != 0 {
		t.Fatalf("held %b, free %b", s.held, s.free)
	}
	d.accept = 1000
	for range 20 {
		b.write(p, stamped())
	}
	if b.finishAll(); b.g.Queue().Count != 26 { // as many as there is room for
		t.Fatalf("%d, want 10 and 16", b.g.Queue().Count)
	}
	b.write(p, stamped())
	d.finish(0, provider.StatusFlushed)
	b.settle()
	if in := b.g.Info(0); in.Wire.Count != 26 || in.Failed[provider.StatusFlushed] != 1 || ^b.g.rails[0].samples.free != 0 {
		t.Fatalf("%+v", in)
	}
}

// What waits and what is under way can be told.
func TestDepthsAreTold(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.peer()
	for range 10 {
		b.write(p, Op{Kind: Write, Len: 10, Parts: 1, HasImm: true})
	}
	if in := b.g.Info(0); in.Outstanding != 4 || in.Held != 0 || b.g.Waiting(p) != 6 || b.g.Links(p)[0].Load != 4 {
		t.Fatalf("%d outstanding, %d held, %d waiting", in.Outstanding, in.Held, b.g.Waiting(p))
	}
	b.finishAll()
	if in := b.g.Info(0); in.Outstanding != 0 || b.g.Waiting(p) != 0 {
		t.Fatalf("%d outstanding, %d waiting at the end", in.Outstanding, b.g.Waiting(p))
	}
}
