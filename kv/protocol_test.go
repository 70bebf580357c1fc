package kv

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
)

// raw is an engine that speaks the protocol by hand: as a decoder or a prefiller that does what it should not.
type raw struct {
	t    *testing.T
	eng  *hawser.Engine
	mem  *memory
	peer *hawser.Peer
	head head
}

func newRaw(t *testing.T, network string, pages int) *raw {
	t.Helper()
	r := &raw{t: t, eng: openEngine(t, "raw", network), head: head{epoch: 1, lowWater: 1, next: 1000}}
	r.mem = newMemory(t, r.eng, small, pages, 9)
	return r
}

// dial connects to a prefiller and agrees with it, as a decoder does.
func (r *raw) dial(addr string) {
	r.t.Helper()
	var err error
	if r.peer, err = r.eng.Connect(limit(r.t), addr); err != nil {
		r.t.Fatal(err)
	}
	r.send(r.hello())
	get[*helloAck](r)
}

// hello is what a decoder with r's memory says.
func (r *raw) hello() *hello {
	r.t.Helper()
	d := newDecoder(onEngine{r.eng}, DecoderConfig{Geometry: small, Views: r.mem.views})
	d.stop()
	m, err := d.describe()
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *raw) send(b body) {
	r.t.Helper()
	r.sendBytes(encode(r.head, b))
}

func (r *raw) sendBytes(b []byte) {
	r.t.Helper()
	tr, err := r.eng.Send(r.peer, b)
	if err == nil {
		err = tr.Wait(limit(r.t))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) next(ctx context.Context) (head, body, error) {
	m, err := r.eng.Receive(ctx)
	if err != nil {
		return head{}, nil, err
	}
	r.peer = m.From
	h, b, err := decode(m.Data)
	if err != nil {
		r.t.Errorf("undecodable message: %v", err)
	}
	return h, b, err
}

// get waits for the next message of a kind; timing messages are skipped, others are faults. A hello-ack brings the ticket.
func get[B body](r *raw) B {
	r.t.Helper()
	for {
		h, b, err := r.next(limit(r.t))
		if err != nil {
			r.t.Fatal(err)
		}
		if b.kind() == kindHelloAck {
			r.head.ticket = h.ticket
		}
		if m, ok := b.(B); ok {
			return m
		}
		if b.kind() == kindTiming {
			continue
		}
		var want B
		r.t.Fatalf("got %v %+v, want %v", b.kind(), b, want.kind())
	}
}

// quiet checks that everything sent so far has been answered: a Cancel of an attempt never mentioned is answered last.
func (r *raw) quiet() {
	r.t.Helper()
	r.head.next++
	seq := r.head.next - 1
	r.send(&cancel{seq, "test"})
	if m := get[*cancelAck](r); m.seq != seq {
		r.t.Fatalf("got an answer for attempt %d, want none but for %d", m.seq, seq)
	}
}

func (r *raw) dispatch(seq uint64, tokens int) *dispatch {
	pages := small.Pages(tokens)
	return &dispatch{
		seq: seq, id: fmt.Sprintf("raw%d", seq), imm: uint32(seq), tokens: tokens, expected: small.Writes(tokens),
		parts: 1, extents: []extent{{0, 0, uint32(pages)}},
	}
}

func TestDuplicatesAreAnsweredAndDoNothing(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	m := r.dispatch(1, 30)
	for range 3 {
		r.send(m)
	}
	for range 3 {
		if a := get[*accept](r); a.seq != 1 {
			t.Fatalf("accept of %d, want 1", a.seq)
		}
	}
	c := r.eng.Counter(1)
	if err := c.Wait(limit(t), m.expected); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := p.p.Stats(); s.Done != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.send(m) // the job has ended
	get[*accept](r)
	r.send(&cancel{1, "late"})
	if a := get[*cancelAck](r); *a != (cancelAck{1, m.expected, true}) {
		t.Fatalf("got %+v, want everything posted", a)
	}
	r.quiet()
	if n := c.Load(); n != m.expected {
		t.Errorf("%d writes, want %d", n, m.expected)
	}
	if s := p.p.Stats(); s.Accepted != 1 {
		t.Errorf("%d jobs, want 1", s.Accepted)
	}
	// Forgotten: dropped without an answer, whatever they say.
	r.head.lowWater = 2
	r.quiet()
	r.send(m)
	r.send(&cancel{1, "very late"})
	r.quiet()
}

// TestCancelOvertakesDispatch: the Dispatch that comes after its Cancel must not start anything.
func TestCancelOvertakesDispatch(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	for range 2 {
		r.send(&cancel{5, "first"})
		if a := get[*cancelAck](r); *a != (cancelAck{5, 0, true}) {
			t.Fatalf("got %+v, want nothing posted", a)
		}
	}
	r.send(r.dispatch(5, 30))
	r.quiet()
	if s := p.p.Stats(); s.Accepted != 0 {
		t.Errorf("%d jobs, want 0", s.Accepted)
	}
}

// TestRejectLeavesATombstone: a repetition of a refused Dispatch gets the same answer, even when there would be room now.
func TestRejectLeavesATombstone(t *testing.T) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	p := newPrefillSide(t, "shm", small, 40, func(h *toy, c *PrefillerConfig) {
		c.Jobs = 1
		h.step = func(*Job, int, int) { <-hold }
	})
	t.Cleanup(release)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	r.send(r.dispatch(1, 30))
	get[*accept](r)
	r.send(r.dispatch(2, 30))
	if m := get[*reject](r); m.seq != 2 || m.code != CodeBusy {
		t.Fatalf("got %+v, want busy", m)
	}
	release()
	if err := r.eng.Counter(1).Wait(limit(t), small.Writes(30)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := p.p.Stats(); s.Live != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.send(r.dispatch(2, 30))
	if m := get[*reject](r); m.seq != 2 || m.code != CodeBusy {
		t.Fatalf("got %+v, want the same answer", m)
	}
	r.send(&cancel{2, "give up"})
	if a := get[*cancelAck](r); *a != (cancelAck{2, 0, true}) {
		t.Fatalf("got %+v, want nothing posted", a)
	}
}

func TestDispatchPartsInAnyOrder(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	whole := r.dispatch(1, 39) // ten pages
	part := func(i int, e ...extent) *dispatch {
		m := *whole
		m.parts, m.part, m.extents = 3, i, e
		return &m
	}
	parts := []*dispatch{part(0, extent{4, 20, 2}), part(1, extent{0, 30, 4}), part(2, extent{6, 2, 3}, extent{9, 7, 1})}
	for _, i := range []int{2, 2, 0, 2, 0, 1} {
		r.send(parts[i])
	}
	get[*accept](r)
	if err := r.eng.Counter(1).Wait(limit(t), whole.expected); err != nil {
		t.Fatal(err)
	}
	if n := r.mem.corrupt("raw1", []uint32{30, 31, 32, 33, 20, 21, 2, 3, 4, 7}); n != 0 {
		t.Errorf("%d corrupt bytes", n)
	}
	for _, m := range parts { // a repetition is answered once, not for each part
		r.send(m)
	}
	get[*accept](r)
	r.quiet()
}

func TestInvalidDispatchIsRejected(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	seq := uint64(0)
	for _, c := range []struct {
		change func(*dispatch)
		want   string
	}{
		{func(m *dispatch) { m.expected++ }, "49 writes expected there for 30 tokens, 48 here"},
		{func(m *dispatch) { m.extents = nil }, "0 pages are listed, 30 tokens need 8"},
		{func(m *dispatch) { m.extents = []extent{{0, 0, 9}} }, "9 pages are listed, 30 tokens need 8"},
		{func(m *dispatch) { m.extents = []extent{{0, 0, 4}, {2, 4, 4}} }, "page 2 is listed twice"},
		{func(m *dispatch) { m.extents = []extent{{0, 33, 8}} }, "a view 40"},
	} {
		seq++
		m := r.dispatch(seq, 30)
		c.change(m)
		r.send(m)
		if a := get[*reject](r); a.seq != seq || a.code != CodeInvalid || !strings.Contains(a.text, c.want) {
			t.Errorf("got %+v, want invalid: %s", a, c.want)
		}
	}
	r.quiet()
}

// TestGarbageCostsOnlyItsSender: one clear error for the peer that sends garbage, and nothing for anybody else.
func TestGarbageCostsOnlyItsSender(t *testing.T) {
	garbage := map[string]func(r *raw) []byte{
		"no message":            func(*raw) []byte { return []byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n") },
		"empty":                 func(*raw) []byte { return []byte{} },
		"cut short":             func(r *raw) []byte { return encode(r.head, r.dispatch(1, 30))[:40] },
		"a prefiller's message": func(r *raw) []byte { return encode(r.head, &accept{1}) },
		"attempt of the future": func(r *raw) []byte { return encode(r.head, r.dispatch(r.head.next, 30)) },
		"far attempt":           func(r *raw) []byte { return encode(head{1, r.head.ticket, 1, 1 << 40}, r.dispatch(1<<39, 30)) },
		"cancel of the future":  func(r *raw) []byte { return encode(r.head, &cancel{r.head.next, ""}) },
		"parts that differ": func(r *raw) []byte {
			m := r.dispatch(9, 30)
			m.parts = 2
			r.send(m)
			m.tokens = 31
			return encode(r.head, m)
		},
	}
	hold := make(chan struct{}, 100)
	p := newPrefillSide(t, "tcp", small, 80, func(h *toy, _ *PrefillerConfig) {
		h.step = func(j *Job, first, _ int) {
			if first > 0 {
				<-hold
			}
		}
	})
	t.Cleanup(func() { close(hold) })
	d := newDecodeSide(t, "tcp", small, 80)
	victim, err := d.d.Fetch(limit(t), FetchRequest{ID: "victim", Tokens: 64, From: p.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range garbage {
		r := newRaw(t, "tcp", 40)
		r.dial(p.eng.Addr())
		r.sendBytes(f(r))
		m := get[*bye](r)
		if !strings.Contains(m.text, "protocol error") {
			t.Errorf("%s: got %q, want a protocol error", name, m.text)
		}
		t.Logf("%s: %s", name, m.text)
		for range 5 { // no second complaint
			r.sendBytes([]byte("more garbage"))
		}
		r.head.epoch++ // it may come to its senses
		r.dial(p.eng.Addr())
		r.send(r.dispatch(20, 10))
		get[*accept](r)
		r.send(&cancel{20, "enough"})
		get[*cancelAck](r)
	}
	for range small.Layers {
		hold <- struct{}{}
	}
	res, err := victim.Wait(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Release()
	if n := d.mem.corrupt("victim", res.Pages); n != 0 {
		t.Errorf("%d corrupt bytes", n)
	}
}
