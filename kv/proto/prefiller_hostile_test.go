package proto

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHostileDecoder says anything, well-formed or not, in any order; the machine neither breaks nor posts where it must not, and serves
// others as if nothing were.
func TestHostileDecoder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newServeRig(t, PrefillerConfig{Jobs: 4, JoinWait: time.Second})
		good := r.link(9, "good", nil, 0)
		foe := r.decoder(1, rapid.SampledFrom([]string{"foe", "good"}).Draw(t, "instance"), nil, 0)
		h := hostile{t, r, foe}
		for range rapid.IntRange(1, 60).Draw(t, "messages") {
			h.act()
			r.check()
			r.complete(rapid.IntRange(0, 3).Draw(t, "completions"))
			r.imported(nil)
		}
		if len(good.take(9)) > 0 && r.p.findLink(LinkID(good.head.Ticket)) == nil {
			t.Fatal("the link of another decoder has gone")
		}
		r.p.PeerDown(r.now, 1)
		r.complete(-1)
		r.advance(time.Minute)
		m := good.dispatch("wanted", 0, 9)
		last[*Accept](good)
		r.finish(9, r.p.lastJob)
		if s := good.phase(m.Seq); s.Phase != PhaseTomb || s.Posted != m.Expected {
			t.Fatalf("%+v", s)
		}
	})
}

type hostile struct {
	t   *rapid.T
	r   *serveRig
	foe *rigLink
}

func (h hostile) num(label string) uint64 {
	return rapid.OneOf(rapid.Uint64Range(0, 8), rapid.SampledFrom([]uint64{63, 64, 65, 1 << 16, 1<<16 + 1, math.MaxInt32, 1 << 32, math.MaxInt64, math.MaxUint64})).Draw(h.t, label)
}

func (h hostile) int(label string) int { return int(h.num(label) & math.MaxInt32) }

func (h hostile) bool(label string) bool { return rapid.Bool().Draw(h.t, label) }

// act sends one message, mostly with a head that the link has, and lets the engine do a little of its work.
func (h hostile) act() {
	d := h.foe
	for _, m := range d.take(1) {
		if _, ok := m.Body.(*HelloAck); ok {
			d.head = Head{Epoch: m.Epoch, Ticket: m.Ticket, LowWater: d.head.LowWater, Next: d.head.Next}
		}
	}
	head := d.head
	if h.bool("grow") {
		d.head.Next += h.num("by") % 8
	}
	switch rapid.IntRange(0, 19).Draw(h.t, "head") {
	case 0:
		head.Epoch = h.num("epoch")
	case 1:
		head.Ticket = h.num("ticket")
	case 2:
		head.LowWater, head.Next = h.num("low"), h.num("next")
	}
	h.r.p.Message(h.r.now, 1, Encode(head, h.body()))
	for j := range h.r.p.lastJob {
		if h.r.p.jobs[j+1] != nil && h.r.pinned[j+1] > 0 {
			h.r.p.Tail(h.r.now, j+1)
			h.r.check()
		}
	}
	if h.bool("pass") {
		if j := h.r.p.jobs[h.r.p.lastJob]; j != nil && j.pinned && !j.pausing {
			h.r.compute(0, j.prompt.Tokens, j.id)
		}
	}
	h.r.advance(time.Duration(rapid.IntRange(0, 400).Draw(h.t, "ms")) * time.Millisecond)
}

func (h hostile) body() Body {
	d := h.foe
	switch rapid.IntRange(0, 9).Draw(h.t, "kind") {
	case 0:
		m := d.hello()
		d.head.Epoch++
		switch rapid.IntRange(0, 5).Draw(h.t, "hello") {
		case 0:
			m.Member = h.int("member")
		case 1:
			m.TailSlots, m.TailBytes = h.int("slots"), h.int("bytes")
		case 2:
			m.Topology = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(h.t, "topology")
		case 3:
			m.Topology[rapid.IntRange(0, len(m.Topology)-1).Draw(h.t, "at")]++
		}
		return m
	case 1, 2, 3, 4:
		return h.dispatch()
	case 5:
		return &Cancel{Seq: h.num("seq"), Request: h.request(), Cost: h.num("cost")}
	case 6:
		return &Query{Seqs: []uint64{h.num("seq"), h.num("seq")}}
	case 7:
		return &Beat{Wants: h.num("wants"), Granted: h.num("granted")}
	}
	return rapid.SampledFrom(bodies()).Draw(h.t, "body")
}

func (h hostile) request() string {
	return rapid.SampledFrom([]string{"a", "b", "wanted", ""}).Draw(h.t, "request")
}

// dispatch is one that could be, with one thing changed.
func (h hostile) dispatch() Body {
	d := h.foe
	m := d.ask(rapid.SampledFrom([]string{"a", "b", "wanted"}).Draw(h.t, "request"), 0, rapid.IntRange(1, 30).Draw(h.t, "tokens"))
	if h.bool("cheap") {
		m.Cost = 0
	}
	g := &m.Groups[0]
	switch rapid.IntRange(0, 14).Draw(h.t, "change") {
	case 0:
		m.Seq = h.num("seq")
	case 1:
		m.Expected = h.num("expected")
	case 2:
		g.Span = Span{First: h.int("first"), N: h.int("n")}
	case 3:
		g.Pages[0] = Extent{uint32(h.num("logical")), uint32(h.num("physical")), uint32(h.num("length"))}
	case 4:
		m.Tail, m.TailSlot = true, uint32(h.num("slot"))
	case 5:
		m.Tail, m.Expected = true, m.Expected+1
	case 6:
		m.Prompt.Tokens = h.int("prompt")
	case 7:
		m.Cost = h.num("cost")
	case 8:
		m.Remaining = time.Duration(h.num("remaining"))
	case 9:
		m.Try, m.Priority = h.int("try"), int8(h.num("priority"))
	case 10:
		g.Pages = g.Pages[:len(g.Pages)-1]
	}
	return m
}

// FuzzPrefiller feeds bytes as messages: each with a length before it, and the head of the link put in where the first byte says so.
func FuzzPrefiller(f *testing.F) {
	r := newServeRig(f, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	m := d.ask("r", 0, 9)
	var seed []byte
	for _, b := range append(bodies(), m, m, &Cancel{Seq: m.Seq, Request: "r", Cost: m.Cost}, d.hello()) {
		data := Encode(d.head, b)
		seed = append(seed, 1, byte(len(data)), byte(len(data)>>8))
		seed = append(seed, data...)
		f.Add(append([]byte{1, byte(len(data)), byte(len(data) >> 8)}, data...))
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newServeRig(t, PrefillerConfig{Jobs: 4})
		d := r.link(1, "d", nil, 0)
		d.head.Next = 100
		for len(data) > 3 {
			n := min(int(data[1])|int(data[2])<<8, len(data)-3)
			message := append([]byte(nil), data[3:3+n]...)
			if data[0]&1 != 0 && n > headBytes {
				copy(message, Encode(d.head, &Drain{})[:headBytes])
				message[3] = data[3+3] // the kind
			}
			data = data[3+n:]
			r.p.Message(r.now, 1, message)
			r.check()
			if j := r.p.jobs[r.p.lastJob]; j != nil && j.pinned {
				r.compute(0, j.prompt.Tokens, j.id)
			}
			r.complete(1)
			r.imported(nil)
		}
		r.complete(-1)
		r.p.Close(r.now)
		r.advance(time.Minute)
		if !r.p.Done() {
			t.Errorf("not done: %+v", r.p.Stats())
		}
	})
}

// TestRefusedTombsAreSmall: a Dispatch that is refused after its pages were read leaves none of them in the tomb.
func TestRefusedTombsAreSmall(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{Jobs: 1})
	d := r.link(1, "d", nil, 0)
	d.dispatch("first", 0, 9)
	m := d.dispatch("second", 0, 9)
	if c := last[*Reject](d).Code; c != CodeBusy {
		t.Fatalf("%v, want busy", c)
	}
	if s := r.p.findLink(LinkID(d.head.Ticket)).attempts[m.Seq]; s.dst != nil || s.plan != nil || s.spans != nil {
		t.Fatalf("the tomb of a refused attempt keeps %d groups of pages, plan %v", len(s.dst), s.plan != nil)
	}
	d.send(m)
	if c := last[*Reject](d); c.Code != CodeBusy || c.RetryAfter == 0 {
		t.Fatalf("%+v, want what was said before", c)
	}
}

// TestOneIDOnePrompt: an id that is used again while its job lives, for another prompt of the same length, does not get the cache of the first.
func TestOneIDOnePrompt(t *testing.T) {
	ids := func(first uint32) func(*Dispatch) {
		return func(m *Dispatch) { m.Prompt = Prompt{Tokens: 3, IDs: []uint32{first, 2, 3}} }
	}
	key := func(k string) func(*Dispatch) { return func(m *Dispatch) { m.Prompt.Key = k } }
	for _, c := range []struct{ first, same, other func(*Dispatch) }{{ids(1), ids(1), ids(9)}, {key("a"), key("a"), key("b")}} {
		r := newServeRig(t, PrefillerConfig{})
		d := r.link(1, "d", nil, 0)
		d.dispatch("id", 0, 3, c.first)
		last[*Accept](d)
		d.dispatch("id", 0, 3, c.same)
		last[*Accept](d)
		d.dispatch("id", 0, 3, c.other)
		if m := last[*Reject](d); m.Code != CodeInvalid {
			t.Fatalf("%+v, want invalid", m)
		}
	}
}

// TestSmallAttemptsAreBounded: attempts that attach to one job need no credits. A decoder that forgets them at once can still not have any
// number of them, however few pages each has.
func TestSmallAttemptsAreBounded(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	l := r.p.findLink(LinkID(d.head.Ticket))
	attach := func() {
		m := d.ask("id", 0, 1, func(m *Dispatch) { m.Cost = 0 })
		r.p.Message(r.now, 1, Encode(d.head, m)) // without the check: it counts words
		d.head.LowWater = d.head.Next
	}
	attach()
	last[*Accept](d)
	each := l.words
	if each < 256 { // about as many as its state has
		t.Fatalf("an attempt counts as %d words", each)
	}
	l.words = maxWords - each // as if there had been many
	attach()
	last[*Accept](d)
	attach()
	if m := last[*Reject](d); m.Code != CodeBusy {
		t.Fatalf("%+v, want busy", m)
	}
}

// TestHellosArePaced: a decoder that says hello in one epoch after the other does not take all of the prefiller's time.
func TestHellosArePaced(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.decoder(1, "d", nil, 0)
	wrong := d.hello()
	wrong.Member = 5
	answers := func(hellos int) (n int) {
		for range hellos {
			d.head.Epoch++
			d.send(wrong)
			n += len(d.take(1))
		}
		return n
	}
	if n := answers(100); n != helloBurst {
		t.Fatalf("%d of 100 hellos at once were answered, want %d", n, helloBurst)
	}
	r.advance(helloPause)
	if n := answers(10); n != 1 {
		t.Fatalf("%d of 10 hellos were answered, want 1", n)
	}
	r.advance(helloPause)
	d.head.Epoch++
	d.connect() // one in good order is
}
