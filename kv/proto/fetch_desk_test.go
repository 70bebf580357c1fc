package proto

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

// desk is a Decoder and the world around it, as far as a test wants one: hosts answer as a good prefiller does unless they are told
// otherwise, and write when the test says so. After each event it checks the machine's invariants, and that no page is lent while something
// may land on it.
type desk struct {
	t      tb
	d      *Decoder
	now    Time
	events []func()
	hosts  map[string]*deskHost
	peers  map[Peer]*deskHost // of each session that was ever made
	all    []*deskHost        // in the order in which they came
	last   Peer

	imms     int // that are free
	attempts map[uint64]*deskAttempt
	ready    map[Request]Result
	ended    map[Request]error
	quiet    map[Request]bool
	notes    []Note
	fast     bool // no checks: a benchmark
}

// deskHost is an address with a process that serves there.
type deskHost struct {
	desk     *desk
	addr     string
	peer     Peer
	down     bool          // Connect fails
	unproven bool          // its fence has no proof
	mute     map[Kind]bool // kinds that it does not answer
	reject   func(m *Dispatch) *Reject
	refuse   *HelloReject
	instance string
	member   int
	topology *layout.Topology
	granted  uint64
	epoch    uint64
	lowWater uint64
	got      []Body
	heads    []Head
}

// deskAttempt is what the world knows of an attempt that may be written.
type deskAttempt struct {
	seq      uint64
	landed   map[Peer]uint64
	expected map[Peer]uint64
	proof    map[Peer]string   // why nothing of the peer can land any more
	claims   map[Peer][]uint64 // what it said that it wrote, exactly, on a link that was up
	pages    []uint32
	tail     int64
	want     uint64 // total at which Counted is called; 0: none
	put      bool
}

func (a *deskAttempt) total() (n uint64) {
	for _, k := range a.landed {
		n += k
	}
	return n
}

// deskModel has 2 layers and 2 planes, so that a page is 4 writes.
func deskTopology(t tb, pages, tp, members int) *layout.Topology {
	m := layout.Model{Name: "desk", Layers: 2, Groups: []layout.Group{{PageTokens: 16, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2}}}
	topology := &layout.Topology{}
	for i := range members {
		g, _, err := layout.Build(layout.Spec{Model: m, TP: tp, First: i * tp / members, Ranks: tp / members, Pages: pages})
		if err != nil {
			t.Fatal(err)
		}
		topology.Members = append(topology.Members, g)
	}
	return topology
}

const deskPages = 64

// newDesk makes a decoder with a pool of 64 pages of 16 tokens, and hosts of one member each at the addresses.
func newDesk(t tb, change func(*DecoderConfig), addrs ...string) *desk {
	k := &desk{
		t: t, hosts: map[string]*deskHost{}, peers: map[Peer]*deskHost{}, imms: 1 << 20, attempts: map[uint64]*deskAttempt{},
		ready: map[Request]Result{}, ended: map[Request]error{}, quiet: map[Request]bool{}, now: time.Hour,
	}
	p, err := pool.New(deskPages, 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DecoderConfig{
		Instance: "d", Topology: deskTopology(t, deskPages, 1, 1), Options: layout.Options{AllowSmallWrites: true}, Pools: []*pool.Pool{p},
		TailSlots: 4, TailBytes: 64,
	}
	if change != nil {
		change(&cfg)
	}
	if k.d, err = NewDecoder(cfg, k); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		k.host(a, deskTopology(t, deskPages, 1, 1), 0)
	}
	return k
}

func (k *desk) host(addr string, topology *layout.Topology, member int) *deskHost {
	h := &deskHost{desk: k, addr: addr, mute: map[Kind]bool{}, instance: "p", member: member, topology: topology, granted: 1 << 30}
	k.hosts[addr] = h
	k.all = append(k.all, h)
	h.start()
	return h
}

// start gives a host a new identity, as a process that is started again.
func (h *deskHost) start() {
	h.desk.last++
	h.peer = h.desk.last
	h.desk.peers[h.peer] = h
	h.down = false
}

// Connect and the following are DecoderOut.
func (k *desk) Connect(l Link, addr string) {
	k.later(func() {
		h := k.hosts[addr]
		if h == nil || h.down {
			k.d.ConnectFailed(k.now, l, fmt.Errorf("%w: nobody at %s", hawser.ErrPeerDown, addr))
			return
		}
		k.d.Connected(k.now, l, h.peer)
	})
}

func (k *desk) Describe(Peer) ([][]byte, error) { return [][]byte{{1}, {2}}, nil }

func (k *desk) Send(p Peer, data []byte) {
	h, body, err := Decode(data)
	if err != nil {
		k.t.Fatalf("sent a message that cannot be read: %v", err)
	}
	host := k.peers[p]
	if m, ok := body.(*Dispatch); ok {
		k.dispatched(m)
	}
	k.later(func() {
		if !host.down && host.peer == p {
			host.take(h, body)
		}
	})
}

// dispatched: from now on the pages may be written.
func (k *desk) dispatched(m *Dispatch) {
	a := k.attempts[m.Seq]
	if len(a.pages) > 0 || k.fast {
		return
	}
	a.tail = -1
	if m.Tail {
		a.tail = int64(m.TailSlot)
	}
	for _, e := range m.Groups[0].Pages {
		for i := range e.Length {
			a.pages = append(a.pages, e.Physical+i)
		}
	}
	for _, b := range k.attempts {
		if b == a || b.put {
			continue
		}
		for _, p := range a.pages {
			if slices.Contains(b.pages, p) {
				k.t.Errorf("page %d of attempt %d is lent to attempt %d, and may still be written", p, b.seq, a.seq)
			}
		}
		if a.tail >= 0 && a.tail == b.tail {
			k.t.Errorf("tail slot %d of attempt %d is lent to attempt %d, and may still be written", a.tail, b.seq, a.seq)
		}
	}
}

func (k *desk) Fence(p Peer) {
	k.later(func() {
		if k.peers[p].unproven {
			k.d.Unfenced(k.now, p, fmt.Errorf("%w: it is in mid-copy", hawser.ErrUnfenced))
			return
		}
		k.prove(p)
		k.d.Fenced(k.now, p)
	})
}

// prove: nothing of the peer can land any more.
func (k *desk) prove(p Peer) {
	for _, a := range k.attempts {
		if _, ok := a.expected[p]; ok && !a.put {
			a.proof[p] = "fenced"
		}
	}
}

func (k *desk) Take(seq uint64) (uint32, error) {
	if k.imms == 0 {
		return 0, fmt.Errorf("take: %w: no immediate is free", hawser.ErrLimit)
	}
	k.imms--
	k.attempts[seq] = &deskAttempt{seq: seq, landed: map[Peer]uint64{}, expected: map[Peer]uint64{}, proof: map[Peer]string{}, claims: map[Peer][]uint64{}}
	return uint32(seq), nil
}

func (k *desk) Expect(seq uint64, p Peer, writes uint64) { k.attempts[seq].expected[p] = writes }

func (k *desk) Await(seq uint64, more uint64) {
	a := k.attempts[seq]
	a.want = 0
	if more > 0 {
		a.want = a.total() + more
	}
}

func (k *desk) Landed(seq uint64, p Peer) uint64 { return k.attempts[seq].landed[p] }

func (k *desk) Put(seq uint64) {
	a := k.attempts[seq]
	if a.put {
		k.t.Errorf("immediate of attempt %d is given back twice", seq)
	}
	for p, n := range a.expected {
		if a.landed[p] != n && a.proof[p] == "" && !k.fast {
			k.t.Errorf("attempt %d is quiet: of peer %d %d of %d writes have landed, and there is no proof that no more will", seq, p, a.landed[p], n)
		}
	}
	a.put = true
	k.imms++
	if k.fast {
		delete(k.attempts, seq)
	}
}

func (k *desk) Verify(seq uint64, p Peer, sums []uint64) {
	k.later(func() {
		var err error
		if slices.Contains(sums, 0) {
			err = errors.New("sums differ")
		}
		k.d.Verified(k.now, seq, p, err)
	})
}

func (k *desk) Ready(r Request, res Result) {
	if _, again := k.ready[r]; again || k.ended[r] != nil {
		k.t.Errorf("request %d is ready, and was told before", r)
	}
	if a := k.attempts[res.Seq]; a != nil && !k.fast {
		for p, n := range a.expected {
			if a.landed[p] != n {
				k.t.Errorf("request %d is ready, and peer %d owes %d of %d writes", r, p, n-a.landed[p], n)
			}
		}
	}
	k.ready[r] = res
}

func (k *desk) Ended(r Request, err error) {
	if _, ready := k.ready[r]; ready || k.ended[r] != nil || err == nil {
		k.t.Errorf("request %d ends with %v, and was told before", r, err)
	}
	k.ended[r] = err
}

func (k *desk) Quiet(r Request) {
	if _, ready := k.ready[r]; k.quiet[r] || !ready && k.ended[r] == nil {
		k.t.Errorf("request %d is quiet too often or too early", r)
	}
	k.quiet[r] = true
}

func (k *desk) Note(n Note) {
	if !k.fast {
		k.notes = append(k.notes, n)
	}
}

// later does something after the present event of the machine.
func (k *desk) later(f func()) { k.events = append(k.events, f) }

// run lets everything happen that needs no time.
func (k *desk) run() {
	k.t.Helper()
	for n := 0; len(k.events) > 0; n++ {
		f := k.events[0]
		k.events = k.events[1:]
		f()
		k.check()
		if n > 1e6 {
			k.t.Fatal("it never ends")
		}
	}
}

func (k *desk) check() {
	k.t.Helper()
	if k.fast {
		return
	}
	if err := k.d.Check(); err != nil {
		k.t.Fatalf("at %v: %v", k.now-time.Hour, err)
	}
}

// pass lets time pass.
func (k *desk) pass(dt Time) {
	k.t.Helper()
	k.run()
	for end := k.now + dt; ; {
		at, ok := k.d.Next()
		if !ok || at > end {
			k.now = end
			return
		}
		if at < k.now {
			at = k.now // it was due before, and nobody called
		}
		k.now = at
		k.d.Tick(k.now)
		k.check()
		if at2, ok := k.d.Next(); ok && at2 <= k.now && len(k.events) == 0 {
			k.t.Fatalf("Tick at %v is due again at %v", k.now, at2)
		}
		k.run()
	}
}

// fetch asks for a prompt that fills so many pages, whose end the decoder computes itself.
func (k *desk) fetch(id string, pages int, change func(*Fetch), from ...string) Request {
	k.t.Helper()
	f := Fetch{ID: id, Prompt: Prompt{Tokens: 16*pages + 1, Key: id}}
	for _, a := range from {
		f.From = append(f.From, Source{[]string{a}})
	}
	if change != nil {
		change(&f)
	}
	r, err := k.d.Fetch(k.now, f)
	if err != nil {
		k.t.Fatal(err)
	}
	k.check()
	k.run()
	return r
}

// take is what a good prefiller does with a message.
func (h *deskHost) take(head Head, b Body) {
	k := h.desk
	if _, hello := b.(*Hello); hello && head.Epoch > h.epoch {
		h.epoch, h.lowWater = head.Epoch, head.LowWater
	}
	if head.Epoch != h.epoch {
		return
	}
	h.lowWater = max(h.lowWater, head.LowWater)
	h.got, h.heads = append(h.got, b), append(h.heads, head)
	if k.fast {
		h.got, h.heads = h.got[:0], h.heads[:0]
	}
	if h.mute[b.Kind()] {
		return
	}
	switch m := b.(type) {
	case *Hello:
		if h.refuse != nil {
			h.send(h.refuse)
			return
		}
		h.send(&HelloAck{Instance: h.instance, Member: h.member, Topology: h.topology.AppendBinary(nil), Granted: h.granted})
	case *Dispatch:
		if h.reject != nil {
			if no := h.reject(m); no != nil {
				no.Granted = h.granted
				h.send(no)
				return
			}
		}
		h.send(&Accept{Seq: m.Seq, Granted: h.granted})
	case *Cancel:
		n := uint64(0)
		if a := k.attempts[m.Seq]; a != nil {
			n = a.landed[h.peer]
		}
		h.send(&CancelAck{Seq: m.Seq, Posted: n, Exact: true, Granted: h.granted})
	case *Query:
		s := &State{}
		for _, seq := range m.Seqs {
			s.Of = append(s.Of, AttemptState{Seq: seq, Phase: PhaseRunning})
		}
		h.send(s)
	}
}

// send has the decoder get a message from the host.
func (h *deskHost) send(b Body) { h.sendAs(h.epoch, b) }

func (h *deskHost) sendAs(epoch uint64, b Body) {
	p, data, k := h.peer, Encode(Head{Epoch: epoch, Ticket: 7}, b), h.desk
	k.later(func() {
		if l := k.d.peers[p]; l != nil && l.epoch == epoch && l.state == linkUp {
			k.claim(p, b)
		}
		k.d.Message(k.now, p, data)
	})
}

// prove: what has landed agrees with what the peer said once. What a liar writes after that nobody can know.
func (a *deskAttempt) prove(p Peer) {
	if slices.Contains(a.claims[p], a.landed[p]) && a.proof[p] == "" {
		a.proof[p] = "answer"
	}
}

// claim notes what a message says about the end of an attempt. The decoder has to believe it: it cannot know better.
func (k *desk) claim(p Peer, b Body) {
	say := func(seq, n uint64, exact bool) {
		if a := k.attempts[seq]; a != nil && exact && !a.put && !k.fast {
			a.claims[p] = append(a.claims[p], n)
			a.prove(p)
		}
	}
	switch m := b.(type) {
	case *Reject:
		say(m.Seq, 0, true)
	case *CancelAck:
		say(m.Seq, m.Posted, m.Exact)
	case *Failed:
		say(m.Seq, m.Posted, m.Exact)
	case *State:
		for _, a := range m.Of {
			say(a.Seq, a.Posted, a.Exact && a.Phase == PhaseTomb)
		}
	}
}

// fail says that an attempt has failed.
func (h *deskHost) fail(seq uint64, code Code, exact bool) {
	n := h.desk.attempts[seq].landed[h.peer]
	h.send(&Failed{CancelAck{seq, n, exact, h.granted}, code, "test"})
	h.desk.run()
}

// write lets writes of a host land. It does not when they no longer can.
func (h *deskHost) write(seq uint64, n uint64) {
	k := h.desk
	a := k.attempts[seq]
	if a == nil || a.put || a.proof[h.peer] == "fenced" {
		return
	}
	before := a.total()
	a.landed[h.peer] += n
	if !k.fast {
		a.prove(h.peer)
	}
	if a.want > before && a.total() >= a.want {
		a.want = 0
		k.later(func() { k.d.Counted(k.now, seq) })
	}
}

// finish writes everything that is owed to an attempt.
func (h *deskHost) finish(seq uint64) {
	a := h.desk.attempts[seq]
	h.write(seq, a.expected[h.peer]-a.landed[h.peer])
	h.desk.run()
}

// of are the messages of a type that a host got.
func of[B Body](h *deskHost) (all []B) {
	for _, b := range h.got {
		if m, ok := b.(B); ok {
			all = append(all, m)
		}
	}
	return all
}

// lastSeq is the number of the newest attempt that a host was asked for.
func (h *deskHost) lastSeq() uint64 {
	all := of[*Dispatch](h)
	if len(all) == 0 {
		h.desk.t.Fatalf("%s got no dispatch", h.addr)
	}
	return all[len(all)-1].Seq
}

// die breaks the session and tells the decoder.
func (h *deskHost) die() {
	h.down = true
	h.desk.d.PeerDown(h.desk.now, h.peer, nil)
	h.desk.check()
	h.desk.run()
}

// idle checks that nothing is held: every page, slot and immediate is free.
func (k *desk) idle() {
	k.t.Helper()
	k.check()
	s := k.d.Stats()
	if s.Live != 0 || s.Waiting != 0 || s.Held != 0 || s.Quarantined != 0 || s.Fencing != 0 || k.imms != 1<<20 || len(k.d.requests) != 0 || len(k.d.attempts) != 0 {
		k.t.Errorf("not idle: %+v, %d immediates taken, %d requests", s, 1<<20-k.imms, len(k.d.requests))
	}
	for _, p := range k.d.cfg.Pools {
		if c := p.Counts(); c.Free+c.Cached != p.Pages() {
			k.t.Errorf("not idle: pages %+v", c)
		}
	}
	if len(k.d.freeTails) != len(k.d.tails) {
		k.t.Errorf("not idle: %d of %d tail slots are free", len(k.d.freeTails), len(k.d.tails))
	}
	for id := range k.ended {
		if !k.quiet[id] {
			k.t.Errorf("request %d has ended and never became quiet", id)
		}
	}
}
