package rail

import (
	"encoding/binary"
	"testing"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// FuzzNotices has a peer say anything about its links, while they fail, come back and carry operations. The session may end for it;
// each operation ends once, and only after nothing of it is in flight any more.
func FuzzNotices(f *testing.F) {
	reuseBuffers(f)
	seed := func(lead uint8, ns ...*wire.LinkNotice) {
		var b []byte
		for _, n := range ns {
			m := wire.Append(nil, n)
			b = append(binary.LittleEndian.AppendUint16(append(b, 1), uint16(len(m))), m...)
		}
		f.Add(lead, b)
	}
	report := &wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Ordered: 1, Imms: 1, Buckets: make([]uint32, wire.LinkBuckets)}
	report.Buckets[9] = 1
	offer := &wire.LinkNotice{Step: wire.LinkOffer, Epoch: 2, Addr: []byte("x")}
	seed(0, report, offer)
	seed(1, report, &wire.LinkNotice{Step: wire.LinkAnswer, Epoch: 1, Addr: []byte("x")})
	seed(1, report, &wire.LinkNotice{Step: wire.LinkAnswer, Epoch: 1, Fault: "no"})
	seed(0, &wire.LinkNotice{Step: wire.LinkOffer, Link: 2, Epoch: 1})
	seed(0, &wire.LinkNotice{Step: wire.LinkReport, Epoch: 1, Imms: 1 << 63, Refusals: 1 << 62, Refused: []uint64{9, 1, 1 << 63}, Messages: 1 << 61})
	f.Fuzz(func(t *testing.T, lead uint8, data []byte) {
		doms := []*fakeDomain{newFake(64), newFake(64)}
		b := newBench(t, doms...)
		p := b.peer()
		b.g.Live(p, lead&1 == 1, []Slot{{Local: 0, Remote: []uint16{0, 1}}, {Local: 1, Remote: []uint16{1, 0}}})
		var ends []*ended
		for len(data) >= 3 {
			step, n := data[0], int(binary.LittleEndian.Uint16(data[1:]))
			n = min(n, len(data)-3)
			body := data[3 : 3+n]
			data = data[3+n:]
			if !p.down {
				ends = append(ends,
					b.write(p, Op{Kind: Write, Len: 300, Parts: 3, HasImm: true, Imm: uint32(step)}),
					b.write(p, Op{Kind: Send, Data: body[:min(len(body), 64)]}))
			}
			d := doms[step>>1&1]
			if len(d.posted) > 0 && step&4 != 0 {
				d.finish(int(step>>3)%len(d.posted), provider.StatusOK)
			}
			if h := p.links[int(step>>1)%len(p.links)].handle; step&1 != 0 && h != 0 { // the link fails
				for len(d.posted) > 0 {
					d.finish(0, provider.StatusFlushed)
				}
				d.ready = append(d.ready, provider.Completion{Kind: provider.KindPeerDown, Peer: h, Status: provider.StatusPeerDown})
				b.settle()
				d.ready = append(d.ready, provider.Completion{Kind: provider.KindFenced, Peer: h})
			}
			var notice wire.LinkNotice
			if wire.Parse(body, &notice) == nil {
				b.g.Notice(p, &notice)
			}
			b.g.Tick()
			b.settle()
			if len(b.sink.breaches) > 0 && !p.down {
				b.g.Fence(p) // as a session does
				b.settle()
			}
		}
		b.g.FailPeer(p)
		for _, d := range doms {
			for len(d.posted) > 0 {
				d.finish(0, provider.StatusFlushed)
			}
		}
		b.settle()
		if err := b.g.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.g.audit(p); err != nil {
			t.Fatal(err)
		}
		for i, e := range ends {
			if e.n != 1 {
				t.Fatalf("operation %d ended %d times", i, e.n)
			}
		}
	})
}
