package rail

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// span is a range of bytes that a WR writes, as offsets of the operation.
type span struct{ from, to uint64 }

// The parts of a span cover it exactly, whatever the length and the number of parts.
func TestCutCoversExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 10000 {
		length, n := rng.Uint64()>>rng.IntN(64), 1+rng.IntN(100)
		if rng.IntN(10) == 0 {
			length = math.MaxUint64 - rng.Uint64N(5)
		}
		at := uint64(0)
		for i := range n {
			from, to := cut(length, i, n), cut(length, i+1, n)
			if from != at || to < from {
				t.Fatalf("length %d, part %d of %d: [%d, %d), the one before ended at %d", length, i, n, from, to, at)
			}
			at = to
		}
		if at != length {
			t.Fatalf("length %d in %d parts: ends at %d", length, n, at)
		}
	}
}

// 16,385 bytes over 2 rails: another engine lost the last byte. Here every byte is written once, with the keys of the rail that
// carries it, for any length and number of rails.
func TestEveryByteOnceWithKeysOfItsRail(t *testing.T) {
	for _, rails := range []int{1, 2, 3, 5} {
		for _, length := range []uint64{0, 1, 16385, 64<<10 - 1, 1 << 20, 3<<20 + 1, 100<<20 + 7} {
			for _, parts := range []int{0, 1, 3, 64} {
				t.Run(fmt.Sprintf("rails=%d length=%d parts=%d", rails, length, parts), func(t *testing.T) {
					var doms []*fakeDomain
					for range rails {
						doms = append(doms, newFake(1000))
					}
					b := newBench(t, doms...)
					p := b.peer()
					e := b.write(p, Op{Kind: Write, Len: length, SrcOff: 10, DstOff: 20, Parts: parts, HasImm: parts > 0, Imm: 9})
					var spans []span
					imms := 0
					for i, d := range doms {
						for _, wr := range d.posted {
							if wr.Op == provider.OpWriteImm {
								imms++
							}
							if wr.Len == 0 {
								continue
							}
							if wr.LocalKey != uint64(100+i) || wr.RemoteKey != uint64(200+i) {
								t.Fatalf("rail %d carries keys %d and %d", i, wr.LocalKey, wr.RemoteKey)
							}
							from := wr.LocalAddr - uint64(1000*(i+1)) - 10
							if to := wr.RemoteAddr - uint64(5000*(i+1)) - 20; to != from {
								t.Fatalf("source offset %d goes to %d", from, to)
							}
							spans = append(spans, span{from, from + wr.Len})
						}
					}
					sort.Slice(spans, func(i, j int) bool { return spans[i].from < spans[j].from })
					at := uint64(0)
					for _, s := range spans {
						if s.from != at {
							t.Fatalf("hole or overlap at %d: next is %v", at, s)
						}
						at = s.to
					}
					if at != length || imms != parts {
						t.Fatalf("%d bytes of %d, %d immediates of %d", at, length, imms, parts)
					}
					if b.finishAll(); e.n != 1 || e.status != provider.StatusOK {
						t.Fatalf("ended %d times with %v", e.n, e.status)
					}
				})
			}
		}
	}
}

func TestLargePlainWriteUsesAllRails(t *testing.T) {
	a, c := newFake(1000), newFake(1000)
	c.caps.LinkBits *= 3
	b := newBench(t, a, c)
	b.write(b.peer(), Op{Kind: Write, Len: 64 << 20})
	var bytes [2]uint64
	for i, d := range b.doms {
		for _, wr := range d.posted {
			bytes[i] += wr.Len
		}
	}
	if share := float64(bytes[1]) / float64(64<<20); share < 0.6 || share > 0.9 {
		t.Fatalf("the rail with three quarters of the speed carries %.0f%%", share*100)
	}
}

func TestZeroPagesComplete(t *testing.T) {
	b := newBench(t, newFake(4))
	if e := b.write(b.peer(), Op{Kind: Pages, Len: 4096, HasImm: true}); e.n != 1 {
		t.Fatal("an operation without pages never ends")
	}
}

func TestPagesGoWhereIndicesSay(t *testing.T) {
	b := newBench(t, newFake(100))
	e := b.write(b.peer(), Op{
		Kind: Pages, Len: 8, Parts: 3, SrcIdx: []uint32{5, 0, 2}, DstIdx: []uint32{1, 1, 7},
		SrcStride: 100, DstStride: 16, SrcOff: 3, DstOff: 4, HasImm: true, Imm: 42,
	})
	want := [][2]uint64{{503, 20}, {3, 20}, {203, 116}}
	for i, wr := range b.doms[0].posted {
		if got := [2]uint64{wr.LocalAddr - 1000, wr.RemoteAddr - 5000}; got != want[i] || wr.Len != 8 || wr.Imm != 42 {
			t.Fatalf("page %d: %v, %d bytes, imm %d, want %v", i, got, wr.Len, wr.Imm, want[i])
		}
	}
	if b.finishAll() != 3 || e.n != 1 {
		t.Fatal("three pages, three writes, one end")
	}
}

// A write longer than the network's limit goes in fragments; the immediate leaves only when all others have landed.
func TestLongPartWaitsForItsFragments(t *testing.T) {
	d := newFake(100)
	d.caps.MaxMsg = 100
	b := newBench(t, d)
	e := b.write(b.peer(), Op{Kind: Write, Len: 250, Parts: 1, HasImm: true, Imm: 1})
	if len(d.posted) != 2 || d.posted[0].Op != provider.OpWrite || d.posted[1].Op != provider.OpWrite {
		t.Fatalf("posted %v before anything landed", d.posted)
	}
	d.finish(0, provider.StatusOK)
	b.settle()
	if len(d.posted) != 1 {
		t.Fatal("the immediate left while a fragment was under way")
	}
	d.finish(0, provider.StatusOK)
	b.settle()
	if len(d.posted) != 1 || d.posted[0].Op != provider.OpWriteImm || d.posted[0].Len != 50 || d.posted[0].RemoteAddr != 5200 {
		t.Fatalf("last fragment: %+v", d.posted)
	}
	if b.finishAll(); e.n != 1 {
		t.Fatalf("ended %d times", e.n)
	}
}

// An error is reported only when no sibling is in flight any more, and nothing is posted after it.
func TestErrorWaitsForSiblings(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	p := b.peer()
	idx := make([]uint32, 10)
	e := b.write(p, Op{Kind: Pages, Len: 8, Parts: 10, SrcIdx: idx, DstIdx: idx})
	next := b.write(p, Op{Kind: Signal, HasImm: true})
	d.finish(1, provider.StatusAccess)
	b.settle()
	if e.n != 0 {
		t.Fatal("the error came while siblings were in flight")
	}
	for range 3 {
		d.finish(0, provider.StatusOK)
	}
	b.settle()
	if e.n != 1 || e.status != provider.StatusAccess {
		t.Fatalf("ended %d times with %v", e.n, e.status)
	}
	if len(d.posted) != 1 || d.posted[0].Op != provider.OpWriteImm {
		t.Fatalf("after the failed operation the next one must go on: %+v", d.posted)
	}
	if b.finishAll(); next.n != 1 || next.status != provider.StatusOK {
		t.Fatal("the next operation must not be hurt")
	}
}

func TestPeerDepthIsRespectedAndOthersGoOn(t *testing.T) {
	d := newFake(4)
	b := newBench(t, d)
	slow, fast := b.peer(), b.peer()
	idx := make([]uint32, 100)
	b.write(slow, Op{Kind: Pages, Len: 8, Parts: 100, SrcIdx: idx, DstIdx: idx})
	if len(d.posted) != 4 {
		t.Fatalf("%d outstanding to one peer, depth is 4", len(d.posted))
	}
	b.write(fast, Op{Kind: Signal, HasImm: true})
	if len(d.posted) != 5 || d.posted[4].Peer == d.posted[0].Peer {
		t.Fatal("a peer that is full holds up another")
	}
	if n := b.finishAll(); n != 101 {
		t.Fatalf("%d writes, want 101", n)
	}
}

// A peer with much to do gets its turn in each Step, and no more, however its operations come.
func TestPeersTakeTurns(t *testing.T) {
	for name, op := range map[string]Op{
		"many signals":        {Kind: Signal, HasImm: true},
		"one after the other": {Kind: Write, Len: 8, Parts: 3},
	} {
		d := newFake(1000)
		b := newBench(t, d)
		busy, other := b.peer(), b.peer()
		ends := &ended{}
		submit := func(p *Peer) {
			o := op
			o.Peer, o.Owner = p, ends
			if o.Kind == Write {
				o.Src, o.Dst = b.memory(), b.remote(p)
			}
			b.g.Submit(&o)
		}
		for range 3 * turn {
			submit(busy)
		}
		submit(other)
		b.g.Step()
		posted := map[provider.Peer]int{}
		for _, wr := range d.posted {
			posted[wr.Peer]++
		}
		if n := posted[d.posted[0].Peer]; n != turn || len(posted) != 2 {
			t.Errorf("%s: %d writes of the busy peer in one turn of %d, %d peers had theirs", name, n, turn, len(posted))
		}
		b.finishAll()
		if ends.n != 3*turn+1 {
			t.Errorf("%s: %d operations ended", name, ends.n)
		}
	}
}

func TestRefusedBatchIsPostedLater(t *testing.T) {
	d := newFake(100)
	b := newBench(t, d)
	p := b.peer()
	d.accept = 2
	idx := make([]uint32, 9)
	for i := range idx {
		idx[i] = uint32(i)
	}
	b.write(p, Op{Kind: Pages, Len: 8, Parts: 9, SrcIdx: idx, DstIdx: idx, SrcStride: 8})
	seen := map[uint64]bool{}
	for _, wr := range d.posted {
		seen[wr.LocalAddr] = true
	}
	if len(seen) != 9 || len(d.posted) != 9 {
		t.Fatalf("%d different pages in %d writes, want 9", len(seen), len(d.posted))
	}
}

func TestFailedPeerEndsEverything(t *testing.T) {
	d := newFake(2)
	b := newBench(t, d)
	p := b.peer()
	idx := make([]uint32, 5)
	running := b.write(p, Op{Kind: Pages, Len: 8, Parts: 5, SrcIdx: idx, DstIdx: idx})
	queued := b.write(p, Op{Kind: Signal, HasImm: true})
	b.g.Call(func(g *Group) { g.Fence(p) })
	b.settle()
	if queued.n != 1 || queued.status != provider.StatusFlushed || running.n != 0 {
		t.Fatalf("queued ended %d times, running %d", queued.n, running.n)
	}
	d.finish(0, provider.StatusFlushed)
	d.finish(0, provider.StatusFlushed)
	b.settle()
	if running.n != 1 || running.status != provider.StatusFlushed || len(d.fenced) != 1 {
		t.Fatalf("running ended %d times with %v, %d fences", running.n, running.status, len(d.fenced))
	}
	if late := b.write(p, Op{Kind: Signal, HasImm: true}); late.n != 1 || late.status != provider.StatusFlushed {
		t.Fatal("an operation after the end of the peer must end at once")
	}
}

func TestDeadRailEndsItsFlightsAndLinks(t *testing.T) {
	d := newFake(8)
	b := newBench(t, d)
	p := b.peer()
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	d.pollErr = errors.New("device removed")
	b.settle()
	b.call(func(g *Group) { g.FailPeer(p) })
	if e.n != 1 || e.status != provider.StatusFlushed || b.sink.dead != 1 {
		t.Fatalf("ended %d times, rail reported dead %d times", e.n, b.sink.dead)
	}
	if last := b.sink.ups[len(b.sink.ups)-1]; last {
		t.Fatal("its link is reported up")
	}
}

func TestCloseEndsEverything(t *testing.T) {
	d := newFake(1)
	b := newBench(t, d)
	p := b.peer()
	running, queued := b.write(p, Op{Kind: Signal, HasImm: true}), b.write(p, Op{Kind: Signal, HasImm: true})
	late := &ended{}
	b.g.Submit(&Op{Kind: Signal, Peer: p, Owner: late})
	if err := b.g.Close(); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*ended{running, queued, late} {
		if e.n != 1 || e.status != provider.StatusFlushed {
			t.Fatalf("ended %d times with %v", e.n, e.status)
		}
	}
	if b.g.Call(func(*Group) {}) {
		t.Fatal("a closed group takes calls")
	}
}

func TestMessagesAreBoundedPerPeerAndBuffersReused(t *testing.T) {
	d := newFake(1000)
	b := newBench(t, d)
	p := b.peer()
	var ends []*ended
	for i := range 3 * sendSlots {
		ends = append(ends, b.write(p, Op{Kind: Send, Data: []byte{byte(i)}}))
	}
	if len(d.posted) != sendsAPeer {
		t.Fatalf("%d messages in flight to one peer, want %d", len(d.posted), sendsAPeer)
	}
	if n := b.finishAll(); n != len(ends) {
		t.Fatalf("%d sends, want %d", n, len(ends))
	}
	for i, e := range ends {
		if e.n != 1 {
			t.Fatalf("message %d ended %d times", i, e.n)
		}
	}
	if len(b.g.sends) != sendSlots {
		t.Fatalf("%d buffers made, %d are enough", len(b.g.sends), sendSlots)
	}
}

func TestReceivedBufferComesBackAfterRelease(t *testing.T) {
	d := newFake(8)
	b := newBench(t, d)
	p := b.peer()
	if len(d.recvs) != 4 {
		t.Fatalf("%d receives posted, want 4", len(d.recvs))
	}
	d.ready = append(d.ready, provider.Completion{Kind: provider.KindRecv, Token: d.recvs[2].Token, Len: 5, Peer: p.links[0].handle})
	b.settle()
	if len(b.sink.messages) != 1 || len(b.sink.messages[0].Data) != 5 || len(d.recvs) != 4 {
		t.Fatalf("%d messages, %d receives", len(b.sink.messages), len(d.recvs))
	}
	b.g.Release(b.sink.messages[0])
	b.settle()
	if len(d.recvs) != 5 || d.recvs[4].Token != d.recvs[2].Token {
		t.Fatal("the buffer was not posted again")
	}
	d.ready = append(d.ready,
		provider.Completion{Kind: provider.KindRecv, Token: d.recvs[0].Token, Len: 99, Peer: p.links[0].handle, Status: provider.StatusTruncated},
		provider.Completion{Kind: provider.KindRecv, Token: 1 << 40, Peer: p.links[0].handle})
	b.settle()
	if len(b.sink.messages) != 1 || len(d.recvs) != 6 {
		t.Fatal("the buffer of a message that was too long is lost")
	}
}

func TestStaleHandlesAndTokensAreIgnored(t *testing.T) {
	d := newFake(8)
	b := newBench(t, d)
	p := b.peer()
	e := b.write(p, Op{Kind: Signal, HasImm: true})
	token := d.posted[0].Token
	d.finish(0, provider.StatusOK)
	b.settle()
	d.ready = append(d.ready,
		provider.Completion{Kind: provider.KindWrite, Token: token, Peer: p.links[0].handle},
		provider.Completion{Kind: provider.KindWrite, Token: 1 << 50},
		provider.Completion{Kind: provider.KindImm, Peer: 99, Imm: 1},
		provider.Completion{Kind: provider.KindImm, Peer: p.links[0].handle + 1<<provider.PeerIndexBits, Imm: 1}, // a later connection
		provider.Completion{Kind: provider.KindPeerDown, Peer: 7})
	b.settle()
	if e.n != 1 || len(b.sink.imms) != 0 {
		t.Fatalf("ended %d times, immediates %v", e.n, b.sink.imms)
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	d := newFake(64)
	b := newBench(t, d)
	p := b.peer()
	e := &ended{}
	op := &Op{}
	src, dst := b.memory(), b.remote(p)
	round := func() {
		op.Reset()
		op.Kind, op.Peer, op.Owner, op.Src, op.Dst, op.Len, op.HasImm, op.Parts = Write, p, e, src, dst, 64, true, 1
		b.g.Submit(op)
		b.g.Step()
		d.ready = d.ready[:0]
		d.ready = append(d.ready, provider.Completion{Kind: provider.KindWrite, Token: d.posted[0].Token})
		d.posted = d.posted[:0]
		b.g.Step()
		d.ready = d.ready[:0]
	}
	d.ready = make([]provider.Completion, 0, 16)
	round()
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Fatalf("%v allocations a write", n)
	}
	if e.n == 0 {
		t.Fatal("nothing completed")
	}
}
