package proto

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-project/hawser"
)

// TestNothingIsFreedWithoutProof lets callers, prefillers and the network do anything in any order: prefillers write too much, lie in
// every message, die, come back and cannot be fenced. Whatever happens, the machine's invariants hold, no page is lent while something
// may land on it, nobody is told twice, and when the prefillers can be fenced in the end nothing is left.
func TestNothingIsFreedWithoutProof(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		verify := rapid.Bool().Draw(rt, "verify")
		k := newDesk(rt, func(c *DecoderConfig) { c.Verify, c.Queue = verify, 20 }, "a", "b")
		two := deskTopology(rt, deskPages, 2, 2)
		k.host("c0", two, 0)
		k.host("c1", two, 1)
		p := &prank{desk: k, rt: rt}
		for range rapid.IntRange(10, 80).Draw(rt, "steps") {
			p.step()
			k.check()
			if rapid.IntRange(0, 9).Draw(rt, "run") > 0 {
				k.run()
			}
		}
		p.end()
	})
}

// prank is what a random test does.
type prank struct {
	*desk
	rt       *rapid.T
	requests []Request
}

func (p *prank) number(name string, low, high int) int {
	return rapid.IntRange(low, high).Draw(p.rt, name)
}

func (p *prank) anyHost() *deskHost { return p.all[p.number("host", 0, len(p.all)-1)] }

// anySeq is that of an attempt, mostly.
func (p *prank) anySeq() uint64 { return uint64(p.number("seq", 0, int(p.d.lastSeq)+1)) }

func (p *prank) anyCount() uint64 { return uint64(p.number("count", 0, 14)) }

func (p *prank) anyRequest() Request {
	if len(p.requests) == 0 {
		return 0
	}
	return p.requests[p.number("request", 0, len(p.requests)-1)]
}

func (p *prank) step() {
	k := p.desk
	switch h := p.anyHost(); p.number("what", 0, 19) {
	case 0, 1, 2:
		p.fetch()
	case 3:
		k.d.Cancel(k.now, p.anyRequest(), nil)
	case 4, 5:
		k.d.Release(k.now, p.anyRequest())
	case 6, 7, 8:
		seq := p.anySeq()
		if a := k.attempts[seq]; a != nil {
			if _, ok := a.expected[h.peer]; ok {
				h.write(seq, p.anyCount())
			}
		}
	case 9, 10:
		seq := p.anySeq()
		if a := k.attempts[seq]; a != nil && a.landed[h.peer] < a.expected[h.peer] {
			h.finish(seq)
		}
	case 11, 12, 13:
		h.sendAs(h.epoch-uint64(p.number("old", 0, 1)&p.number("older", 0, 1)), p.message())
	case 14:
		k.d.Message(k.now, h.peer, rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(p.rt, "bytes"))
	case 15:
		k.d.PeerDown(k.now, h.peer, nil)
		if h.down = rapid.Bool().Draw(p.rt, "dead"); h.down {
			k.later(h.start)
		}
	case 16:
		h.unproven = rapid.Bool().Draw(p.rt, "unproven")
	case 17:
		kind := Kind(p.number("kind", 1, int(kindEnd)-1))
		h.mute[kind] = !h.mute[kind]
	case 18:
		k.pass(time.Duration(p.number("ms", 0, 7000)) * time.Millisecond)
	case 19:
		p.nonsense(h)
	}
}

// nonsense is calls that mean nothing now.
func (p *prank) nonsense(h *deskHost) {
	k := p.desk
	seq := p.anySeq()
	k.d.Counted(k.now, seq)
	k.d.Verified(k.now, seq, h.peer, nil)
	k.d.ConnectFailed(k.now, Link(p.number("link", 0, 6)), errors.New("test"))
	k.d.Connected(k.now, Link(p.number("link", 0, 6)), h.peer)
	k.d.Room(k.now)
	k.d.Tick(k.now)
	k.d.Live(func(AttemptInfo) {})
}

func (p *prank) fetch() {
	k := p.desk
	pages := p.number("pages", 0, 30)
	f := Fetch{ID: fmt.Sprint("r", len(p.requests)), Prompt: Prompt{Tokens: 16*pages + p.number("rest", 1, 16)}, Tail: rapid.Bool().Draw(p.rt, "tail")}
	sources := []Source{{[]string{"a"}}, {[]string{"b"}}, {[]string{"c0", "c1"}}, {[]string{"c1", "c0"}}, {[]string{"nowhere"}}}
	for range p.number("sources", 1, 3) {
		f.From = append(f.From, sources[p.number("source", 0, len(sources)-1)])
	}
	if rapid.Bool().Draw(p.rt, "blocks") {
		f.Blocks = hashes(byte(p.number("name", 1, 3)), f.Prompt.Tokens/16)
	}
	f.Priority = int8(p.number("priority", -1, 1))
	if rapid.Bool().Draw(p.rt, "soon") {
		f.Deadline = k.now + time.Duration(p.number("deadline", 1, 9000))*time.Millisecond
	}
	if r, err := k.d.Fetch(k.now, f); err == nil {
		p.requests = append(p.requests, r)
	}
}

// message is any message that can be encoded.
func (p *prank) message() Body {
	exact, code := rapid.Bool().Draw(p.rt, "exact"), Code(p.number("code", 1, int(codeEnd)))
	ack := CancelAck{p.anySeq(), p.anyCount(), exact, p.anyCount()}
	sums := []uint64{p.anyCount()}
	all := []Body{
		&HelloAck{Instance: "x", Topology: []byte{1}, Granted: 1 << 40}, &HelloReject{Code: code, Field: "f"},
		&Accept{Seq: ack.Seq, Granted: 9}, &Reject{Seq: ack.Seq, Code: code, RetryAfter: 1 << 60}, &ack, &Failed{ack, code, "x"}, &Digest{ack.Seq, sums},
		&Timing{Seq: ack.Seq}, &Beat{Granted: 1, Draining: exact},
		&State{[]AttemptState{{Seq: ack.Seq, Phase: Phase(p.number("phase", 0, int(phaseEnd)-1)), Posted: ack.Posted, Exact: exact, Sums: sums}, {Seq: p.anySeq(), Phase: PhaseTomb, Exact: true}}},
		&Drain{}, &Bye{"x"}, &Query{[]uint64{1}}, &Cancel{Seq: ack.Seq}, &Accept{Seq: ack.Seq}, &ack, &Failed{ack, code, "x"},
	}
	return all[p.number("message", 0, len(all)-1)]
}

// end makes everybody well-behaved, and looks what is left.
func (p *prank) end() {
	k := p.desk
	for _, h := range k.all {
		h.unproven, h.mute, h.down = false, map[Kind]bool{}, false
	}
	for _, r := range p.requests {
		k.d.Cancel(k.now, r, nil)
	}
	k.pass(30 * time.Second)
	for _, r := range p.requests {
		k.d.Release(k.now, r)
	}
	k.pass(30 * time.Second)
	k.idle()
}

// FuzzMessages has a decoder with live attempts get any sequence of messages: the bytes are cut into messages, whose epoch is
// put right, as nothing else would come far.
func FuzzMessages(f *testing.F) {
	for _, b := range bodies() {
		data := Encode(Head{Epoch: 1}, b)
		f.Add(append([]byte{byte(len(data)), byte(len(data) >> 8)}, data...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		k := newDesk(t, nil, "a")
		h := k.hosts["a"]
		r := k.fetch("r1", 3, func(f *Fetch) { f.Tail = true }, "a")
		k.fetch("r2", 2, nil, "a")
		h.write(1, 3)
		for len(data) > 2 {
			n := min(len(data)-2, int(data[0])|int(data[1])<<8)
			m := append([]byte(nil), data[2:2+n]...)
			data = data[2+n:]
			if n >= headBytes {
				copy(m[8:16], []byte{byte(h.epoch), 0, 0, 0, 0, 0, 0, 0})
			}
			if _, b, err := Decode(m); err == nil && k.d.peers[h.peer] != nil {
				k.claim(h.peer, b)
			}
			k.d.Message(k.now, h.peer, m)
			k.check()
			k.run()
		}
		k.d.Cancel(k.now, r, nil)
		k.pass(20 * time.Second)
	})
}

// TestCallersPagesAreLentOnce: a caller who gives the pages of a request that it has cancelled to the next one, before the first is quiet,
// would find one's cache in the other.
func TestCallersPagesAreLentOnce(t *testing.T) {
	k := newDesk(t, nil, "a")
	ask := func(pages ...uint32) error {
		_, err := k.d.Fetch(k.now, Fetch{
			ID: "other", Prompt: Prompt{Tokens: 16*len(pages) + 1}, Pages: [][]uint32{pages}, From: []Source{{[]string{"a"}}},
		})
		k.run()
		return err
	}
	if err := ask(3, 4, 3); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("a page that is there twice: %v", err)
	}
	r := k.fetch("first", 2, func(f *Fetch) { f.Pages = [][]uint32{{3, 4}} }, "a") // of those none was kept
	k.hosts["a"].mute = map[Kind]bool{KindCancel: true}
	k.d.Cancel(k.now, r, nil)
	k.run()
	if k.ended[r] == nil || k.quiet[r] {
		t.Fatalf("ended: %v, quiet: %v; want a request that has ended and is not quiet", k.ended[r], k.quiet[r])
	}
	if err := ask(5, 4); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("a page of a request that is not quiet: %v", err)
	}
	if err := ask(5, 6); err != nil {
		t.Error(err)
	}
	k.hosts["a"].mute = nil
	for range 20 {
		k.pass(100 * time.Millisecond)
	}
	if !k.quiet[r] {
		t.Fatal("the request does not become quiet")
	}
	if err := ask(3, 4); err != nil {
		t.Error(err)
	}
}
