package kv_test

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// puppet is an engine that speaks the protocol as the test says, and not as a Decoder or a Prefiller does.
type puppet struct {
	t   testing.TB
	eng *hawser.Engine
	got chan heardFrom
}

type heardFrom struct {
	from *hawser.Peer
	proto.Head
	proto.Body
}

func newPuppet(t testing.TB, network string) *puppet {
	t.Helper()
	p := &puppet{t: t, eng: openEngine(t, hawser.Options{Name: "puppet", Require: network}), got: make(chan heardFrom, 1<<16)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := p.eng.Receive(ctx)
			if err != nil {
				return
			}
			if h, b, err := proto.Decode(m.Data); err == nil {
				p.got <- heardFrom{m.From, h, b}
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return p
}

// say sends a message.
func (p *puppet) say(to *hawser.Peer, h proto.Head, b proto.Body) { p.bytes(to, proto.Encode(h, b)) }

func (p *puppet) bytes(to *hawser.Peer, data []byte) {
	p.t.Helper()
	if _, err := p.eng.Send(to, data); err != nil {
		p.t.Fatal(err)
	}
}

// hear waits for a message of a kind, and drops others.
func hear[B proto.Body](p *puppet) (B, heardFrom) {
	p.t.Helper()
	guard := time.After(hang)
	for {
		select {
		case m := <-p.got:
			if b, ok := m.Body.(B); ok {
				return b, m
			}
		case <-guard:
			p.t.Fatalf("no message %T", *new(B))
		}
	}
}

// prefillFor answers the Hello of a decoder, as a prefiller with the same geometry as m would, and returns what messages to it begin with.
func (p *puppet) prefillFor(topology []byte) (from *hawser.Peer, head proto.Head, hello *proto.Hello) {
	p.t.Helper()
	hello, m := hear[*proto.Hello](p)
	head = proto.Head{Epoch: m.Epoch, Ticket: 1}
	p.say(m.from, head, &proto.HelloAck{Instance: "puppet", Topology: topology, Granted: 1 << 20})
	return m.from, head, hello
}

// decoding is a puppet that has said Hello to a prefiller as a decoder with the memory of a side.
type decoding struct {
	*puppet
	to   *hawser.Peer
	head proto.Head
	pair *layout.Pair
}

// puppetMemory is the memory of a decoder that is a puppet.
func puppetMemory(t testing.TB, p *puppet) *side {
	return newSideOn(t, p.eng, layout.Spec{Model: small, Pages: 64})
}

// helloOf is what a decoder with the memory of a side says.
func (p *puppet) helloOf(m *side) *proto.Hello {
	p.t.Helper()
	h := &proto.Hello{Instance: "puppet", Topology: (&layout.Topology{Members: []layout.Geometry{m.g}}).AppendBinary(nil)}
	for _, r := range m.regions {
		b, err := r.Descriptor(r.All(), hawser.RightWrite).MarshalBinary()
		if err != nil {
			p.t.Fatal(err)
		}
		h.Descriptors = append(h.Descriptors, b)
	}
	return h
}

// decodeFrom makes a link to a prefiller.
func (p *puppet) decodeFrom(e *llm, m *side) *decoding {
	p.t.Helper()
	to, err := p.eng.Connect(limit(p.t), e.eng.Addr())
	if err != nil {
		p.t.Fatal(err)
	}
	d := &decoding{puppet: p, to: to, head: proto.Head{Epoch: 1, LowWater: 1, Next: 1}}
	p.say(to, d.head, p.helloOf(m))
	_, ack := hear[*proto.HelloAck](p)
	d.head.Ticket = ack.Ticket
	src, dst := layout.Topology{Members: []layout.Geometry{e.g}}, layout.Topology{Members: []layout.Geometry{m.g}}
	if d.pair, err = layout.NewPair(&src, &dst, anySize); err != nil {
		p.t.Fatal(err)
	}
	return d
}

// dispatch makes a Dispatch with the next number into the first pages, and does not send it.
func (d *decoding) dispatch(id string, tokens int, remaining time.Duration) *proto.Dispatch {
	d.t.Helper()
	m := &proto.Dispatch{Seq: d.head.Next, Try: 1, Request: id, Imm: 1 << 30, Prompt: prompt(id, tokens), Remaining: remaining}
	d.head.Next++
	plan, err := d.pair.Plan(d.pair.Spans(0, tokens), m.Seq)
	if err != nil {
		d.t.Fatal(err)
	}
	first, end := plan.DstPages(0)
	m.Groups = []proto.Group{{Span: proto.Span{N: tokens}, Pages: []proto.Extent{{Length: uint32(end - first)}}}}
	m.Plan, m.Expected, m.Cost = plan.Digest(), plan.Expected(0), uint64(end-first)
	return m
}
