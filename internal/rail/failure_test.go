package rail

import (
	"errors"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

func (d *fakeDomain) tell(kind provider.Kind, h provider.Peer, st provider.Status) {
	d.ready = append(d.ready, provider.Completion{Kind: kind, Peer: h, Status: st})
}

// call runs f on the group and lets everything settle.
func (b *bench) call(f func(*Group)) {
	b.Helper()
	if !b.g.Call(f) {
		b.Fatal("the group is closed")
	}
	b.settle()
}

// fences checks the outcomes that were told so far.
func (b *bench) fences(want ...bool) {
	b.Helper()
	if len(b.sink.fences) != len(want) {
		b.Fatalf("%d outcomes of fences, want %d", len(b.sink.fences), len(want))
	}
	for i := range want {
		if b.sink.fences[i] != want[i] {
			b.Fatalf("fence %d: proved %v", i, b.sink.fences[i])
		}
	}
}

// A fence has one outcome, when those of all links are there, and a second attempt asks only for what is missing.
func TestFenceIsProvedWhenAllLinksAre(t *testing.T) {
	x, y := newFake(4), newFake(4)
	b := newBench(t, x, y)
	p := b.peer()
	hx, hy := p.links[0].handle, p.links[1].handle
	b.call(func(g *Group) { g.Fence(p) })
	b.fences()
	x.tell(provider.KindFenced, hx, provider.StatusOK)
	b.settle()
	b.fences()
	y.tell(provider.KindFenced, hy, provider.StatusUnfenced)
	b.settle()
	b.fences(false)
	b.call(func(g *Group) { g.Fence(p) })
	y.tell(provider.KindFenced, hy, provider.StatusOK)
	b.settle()
	b.fences(false, true)
	if len(x.fenced) != 1 || len(y.fenced) != 2 {
		t.Fatalf("fenced %d and %d times, want 1 and 2", len(x.fenced), len(y.fenced))
	}
	b.call(func(g *Group) { g.Fence(p) })
	b.fences(false, true, true) // nothing is left to ask for
}

// A peer without links has nothing that could land, and gets none after its fence: nobody would fence them.
func TestNoLinkIsMadeAfterTheFence(t *testing.T) {
	b := newBench(t, newFake(4))
	p := &Peer{}
	b.call(func(g *Group) { g.Fence(p) })
	b.fences(true)
	if _, err := b.g.Offer(p, 0); !errors.Is(err, provider.ErrClosed) || len(p.links) != 0 {
		t.Fatalf("offer: %v, %d links", err, len(p.links))
	}
}

// A rail that dies is closed, and that is a proof that nothing lands over it any more, unless it could not be closed in order, or peers
// copy by themselves.
func TestDeadRailEndsFences(t *testing.T) {
	for _, why := range []string{"proved", "not closed", "peers copy"} {
		proved := why == "proved"
		x, y := newFake(4), newFake(4)
		x.caps.PeerCopies = why == "peers copy"
		b := newBench(t, x, y)
		p := b.peer()
		b.call(func(g *Group) { g.Fence(p) })
		y.tell(provider.KindFenced, p.links[1].handle, provider.StatusOK)
		b.settle()
		b.fences()
		x.pollErr = errors.New("device removed")
		if why == "not closed" {
			x.closeErr = errors.New("still in use")
		}
		b.settle()
		b.fences(proved)
		b.call(func(g *Group) { g.Fence(p) })
		b.fences(proved, proved)
		x.closeErr = nil
	}
}

// A rail that fails in Post is dead once, and its domain is left alone.
func TestRailThatFailsInPostIsDeadOnce(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.peer()
	d.postErr = errors.New("device removed")
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	b.call(func(g *Group) { g.FailPeer(p) })
	if e.n != 1 || e.status != provider.StatusFlushed || b.sink.dead != 1 {
		t.Fatalf("ended %d times with %v, rail reported dead %d times", e.n, e.status, b.sink.dead)
	}
	polls := d.polls
	b.settle()
	if d.polls != polls {
		t.Fatal("a dead domain is polled")
	}
}

// The other rails go on when one is dead.
func TestOtherRailsCarryOn(t *testing.T) {
	x, y := newFake(4), newFake(4)
	b := newBench(t, x, y)
	p := b.peer()
	x.pollErr = errors.New("device removed")
	b.settle()
	idx := make([]uint32, 10)
	e := b.write(p, Op{Kind: Pages, Len: 8, Parts: 10, SrcIdx: idx, DstIdx: idx})
	if len(x.posted) != 0 {
		t.Fatalf("%d requests posted to a dead rail", len(x.posted))
	}
	if n := b.finishAll(); n != 10 || e.n != 1 || e.status != provider.StatusOK {
		t.Fatalf("%d writes, ended %d times with %v", n, e.n, e.status)
	}
}

// Messages that their receiver does not take hold up messages, not writes; and writes do not hold up messages.
func TestMessagesAndWritesDoNotWaitForEachOther(t *testing.T) {
	d := newFake(2 * sendsAPeer)
	b := newBench(t, d)
	p := b.peer()
	for range 3 * sendsAPeer {
		b.write(p, Op{Kind: Send, Data: []byte{1}})
	}
	if len(d.posted) != sendsAPeer {
		t.Fatalf("%d messages in flight, want %d", len(d.posted), sendsAPeer)
	}
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	if last := d.posted[len(d.posted)-1]; last.Op != provider.OpWriteImm {
		t.Fatal("a write waits for messages")
	}
	d.finish(len(d.posted)-1, provider.StatusOK)
	b.settle()
	if e.n != 1 {
		t.Fatalf("the write ended %d times", e.n)
	}
	idx := make([]uint32, 1000)
	b.write(p, Op{Kind: Pages, Len: 8, Parts: len(idx), SrcIdx: idx, DstIdx: idx})
	if len(d.posted) != 2*sendsAPeer {
		t.Fatalf("%d outstanding, want the whole depth of %d", len(d.posted), 2*sendsAPeer)
	}
	d.finish(0, provider.StatusOK) // a message
	b.settle()
	if last := d.posted[len(d.posted)-1]; last.Op != provider.OpSend {
		t.Fatal("a message waits for writes")
	}
}

// On a network that takes few requests, messages leave half of them to writes.
func TestMessagesLeaveRoomOnAShallowLink(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.peer()
	for range 10 {
		b.write(p, Op{Kind: Send, Data: []byte{1}})
	}
	if len(d.posted) != 2 {
		t.Fatalf("%d messages in flight on a link of depth 4, want 2", len(d.posted))
	}
}

// What fails while its requests wait in a batch that the domain refused ends once, when they have ended.
func TestPeerFailsInARefusedBatch(t *testing.T) {
	d := newFake(100)
	b := newBench(t, d)
	p, other := b.peer(), b.peer()
	d.accept = 0
	idx := make([]uint32, 5)
	e := b.write(p, Op{Kind: Pages, Len: 8, Parts: 5, SrcIdx: idx, DstIdx: idx})
	message := b.write(p, Op{Kind: Send, Data: []byte{1}})
	alive := b.write(other, Op{Kind: Signal, HasImm: true})
	b.call(func(g *Group) { g.Fence(p) })
	if e.n != 0 || message.n != 0 || len(d.posted) != 0 {
		t.Fatalf("ended %d times, %d requests posted", e.n, len(d.posted))
	}
	d.accept = 1 << 20
	b.settle()
	for range 6 {
		d.finish(0, provider.StatusFlushed)
	}
	b.settle()
	if e.n != 1 || e.status != provider.StatusFlushed || message.n != 1 {
		t.Fatalf("ended %d times with %v, the message %d times", e.n, e.status, message.n)
	}
	if b.finishAll(); alive.n != 1 || alive.status != provider.StatusOK {
		t.Fatalf("the other peer's signal ended %d times with %v", alive.n, alive.status)
	}
}

// A failed fragment ends the part: neither the other fragments nor the immediate follow.
func TestFailedFragmentEndsThePart(t *testing.T) {
	d := newFake(2)
	d.caps.MaxMsg = 100
	b := newBench(t, d)
	p := b.peer()
	e := b.write(p, Op{Kind: Write, Len: 950, Parts: 1, HasImm: true, Imm: 1})
	next := b.write(p, Op{Kind: Signal, HasImm: true, Imm: 2})
	d.finish(0, provider.StatusAccess)
	b.settle()
	if e.n != 0 {
		t.Fatal("ended while a fragment was in flight")
	}
	d.finish(0, provider.StatusOK)
	b.settle()
	if e.n != 1 || e.status != provider.StatusAccess {
		t.Fatalf("ended %d times with %v", e.n, e.status)
	}
	if len(d.posted) != 1 || d.posted[0].Imm != 2 {
		t.Fatalf("posted after the failure: %+v", d.posted)
	}
	if b.finishAll(); next.n != 1 || next.status != provider.StatusOK {
		t.Fatalf("the next operation ended %d times with %v", next.n, next.status)
	}
}

// An operation for memory of another peer is not sent anywhere.
func TestMemoryOfAnotherPeerIsRefused(t *testing.T) {
	d := newFake(8)
	b := newBench(t, d)
	p, other := b.peer(), b.peer()
	e := &ended{}
	b.g.Submit(&Op{Kind: Write, Peer: p, Owner: e, Src: b.memory(), Dst: b.remote(other), Len: 8})
	b.settle()
	if e.n != 1 || e.status != provider.StatusFlushed || len(d.posted) != 0 {
		t.Fatalf("ended %d times with %v, %d requests posted", e.n, e.status, len(d.posted))
	}
}

// A token of an operation that has ended means nothing, also when its place is in use again.
func TestTokenOfAnEarlierFlightIsIgnored(t *testing.T) {
	d := newFake(8)
	b := newBench(t, d)
	p := b.peer()
	b.write(p, Op{Kind: Signal, HasImm: true})
	old := d.posted[0].Token
	d.finish(0, provider.StatusOK)
	b.settle()
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	if uint32(d.posted[0].Token) != uint32(old) {
		t.Fatal("the place was not used again")
	}
	d.ready = append(d.ready, provider.Completion{Kind: provider.KindWrite, Token: old, Peer: p.links[0].handle})
	b.settle()
	if e.n != 0 {
		t.Fatal("an old token ended a new operation")
	}
	if b.finishAll(); e.n != 1 {
		t.Fatalf("ended %d times", e.n)
	}
}

// What is submitted after Close ends when the owner looks.
func TestSubmitAfterCloseIsFlushed(t *testing.T) {
	b := newBench(t, newFake(8))
	p := b.peer()
	if err := b.g.Close(); err != nil {
		t.Fatal(err)
	}
	e := &ended{}
	b.g.Submit(&Op{Kind: Signal, Peer: p, Owner: e})
	b.g.Flush()
	if e.n != 1 || e.status != provider.StatusFlushed {
		t.Fatalf("ended %d times with %v", e.n, e.status)
	}
}
