package kv_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// The two machines without engines, for tests of what must not happen even once in a certain order: the test is the network, the memory
// and the other side.

// said is a message that a machine sent.
type said struct {
	to proto.Peer
	proto.Head
	proto.Body
}

// sayings collects messages. heard returns those of a kind to a peer that came since the last look at that kind.
type sayings struct {
	t   testing.TB
	all []said
}

func (s *sayings) Send(to proto.Peer, data []byte) {
	h, b, err := proto.Decode(data)
	if err != nil {
		s.t.Fatalf("a message that cannot be read: %v", err)
	}
	s.all = append(s.all, said{to, h, b})
}

func heard[B proto.Body](s *sayings, from proto.Peer) (found []B) {
	s.all = slices.DeleteFunc(s.all, func(m said) bool {
		b, ok := m.Body.(B)
		if ok = ok && m.to == from; ok {
			found = append(found, b)
		}
		return ok
	})
	return found
}

// one is the only message of a kind.
func one[B proto.Body](s *sayings, from proto.Peer) B {
	s.t.Helper()
	all := heard[B](s, from)
	if len(all) != 1 {
		s.t.Fatalf("%d messages %T to %d, want one; others: %v", len(all), *new(B), from, s.all)
	}
	return all[0]
}

// machine is what the rigs need of both machines.
type machine interface {
	Tick(proto.Time)
	Next() (proto.Time, bool)
	Check() error
}

// rig is a machine, what it says, and its time.
type rig[M machine] struct {
	sayings
	m   M
	now proto.Time
}

func newRig[M machine](t testing.TB) rig[M] { return rig[M]{sayings: sayings{t: t}, now: time.Hour} }

func (r *rig[M]) check() {
	r.t.Helper()
	if err := r.m.Check(); err != nil {
		r.t.Fatal(err)
	}
}

// pass lets time pass.
func (r *rig[M]) pass(d time.Duration) {
	r.t.Helper()
	for end := r.now + d; ; {
		at, ok := r.m.Next()
		if !ok || at > end {
			r.now = end
			return
		}
		r.now = max(r.now, at)
		r.m.Tick(r.now)
		r.check()
	}
}

// tiny has 2 layers and 2 planes, so that a page of 4 tokens is 4 writes.
var tiny = layout.Model{Name: "tiny", Layers: 2, Groups: []layout.Group{{PageTokens: 4, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2}}}

const tinyWrites = 4

func topologyOf(t testing.TB, s layout.Spec, members int) *layout.Topology {
	t.Helper()
	top := &layout.Topology{}
	for i := range members {
		if members > 1 {
			s.First, s.Ranks = i*s.TP/members, s.TP/members
		}
		g, _, err := layout.Build(s)
		if err != nil {
			t.Fatal(err)
		}
		top.Members = append(top.Members, g)
	}
	return top
}

// decodeRig is a proto.Decoder. Prefillers are peers that the test speaks for.
type decodeRig struct {
	rig[*proto.Decoder]
	pool *pool.Pool

	connects []proto.Link
	fences   []proto.Peer
	epochs   map[proto.Peer]uint64
	landed   map[uint64]map[proto.Peer]uint64
	taken    map[uint64]bool // immediates, by attempt
	ready    map[proto.Request]proto.Result
	ended    map[proto.Request]error
	quiet    map[proto.Request]bool
}

func newDecodeRig(t testing.TB, pages int, change ...func(*proto.DecoderConfig)) *decodeRig {
	t.Helper()
	p, err := pool.New(pages, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := &decodeRig{
		rig: newRig[*proto.Decoder](t), pool: p, epochs: map[proto.Peer]uint64{}, landed: map[uint64]map[proto.Peer]uint64{},
		taken: map[uint64]bool{}, ready: map[proto.Request]proto.Result{}, ended: map[proto.Request]error{}, quiet: map[proto.Request]bool{},
	}
	cfg := proto.DecoderConfig{
		Instance: "d", Topology: topologyOf(t, layout.Spec{Model: tiny, Pages: pages}, 1), Options: anySize, Pools: []*pool.Pool{p},
		TailSlots: 2, TailBytes: 64,
	}
	for _, c := range change {
		c(&cfg)
	}
	if r.m, err = proto.NewDecoder(cfg, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *decodeRig) Connect(l proto.Link, _ string)          { r.connects = append(r.connects, l) }
func (r *decodeRig) Describe(proto.Peer) ([][]byte, error)   { return [][]byte{{1}, {2}}, nil }
func (r *decodeRig) Fence(p proto.Peer)                      { r.fences = append(r.fences, p) }
func (r *decodeRig) Expect(uint64, proto.Peer, uint64)       {}
func (r *decodeRig) Await(uint64, uint64)                    {}
func (r *decodeRig) Landed(seq uint64, p proto.Peer) uint64  { return r.landed[seq][p] }
func (r *decodeRig) Verify(uint64, proto.Peer, []uint64)     {}
func (r *decodeRig) Ready(q proto.Request, res proto.Result) { r.ready[q] = res }
func (r *decodeRig) Ended(q proto.Request, err error)        { r.ended[q] = err }
func (r *decodeRig) Quiet(q proto.Request)                   { r.quiet[q] = true }
func (r *decodeRig) Note(proto.Note)                         {}
func (r *decodeRig) Put(seq uint64)                          { delete(r.taken, seq) }

func (r *decodeRig) Take(seq uint64) (uint32, error) {
	r.taken[seq] = true
	r.landed[seq] = map[proto.Peer]uint64{}
	return uint32(seq), nil
}

// link answers the Connect and the Hello of the one link that is being made.
func (r *decodeRig) link(p proto.Peer) {
	r.t.Helper()
	r.linkAs(p, "p", 0, topologyOf(r.t, layout.Spec{Model: tiny, Pages: 64}, 1))
}

func (r *decodeRig) linkAs(p proto.Peer, instance string, member int, top *layout.Topology) {
	r.t.Helper()
	if len(r.connects) == 0 {
		r.t.Fatal("nobody wants to connect")
	}
	l := r.connects[0]
	r.connects = r.connects[1:]
	r.m.Connected(r.now, l, p)
	for _, m := range r.all {
		if m.Kind() == proto.KindHello && m.to == p {
			r.epochs[p] = m.Epoch
		}
	}
	heard[*proto.Hello](&r.sayings, p)
	r.say(p, &proto.HelloAck{Instance: instance, Member: member, Topology: top.AppendBinary(nil), Granted: 1 << 30})
}

// say has the decoder get a message on the present link.
func (r *decodeRig) say(p proto.Peer, b proto.Body) {
	r.t.Helper()
	r.m.Message(r.now, p, proto.Encode(proto.Head{Epoch: r.epochs[p], Ticket: 7}, b))
	r.check()
}

// land lets writes arrive.
func (r *decodeRig) land(seq uint64, p proto.Peer, n uint64) {
	r.t.Helper()
	r.landed[seq][p] += n
	r.m.Counted(r.now, seq)
	r.check()
}

// ask fetches a prompt of so many whole pages.
func (r *decodeRig) ask(id string, pages int, change func(*proto.Fetch), from ...string) proto.Request {
	r.t.Helper()
	f := proto.Fetch{ID: id, Prompt: proto.Prompt{Tokens: 4*pages + 1, Key: id}}
	for _, a := range from {
		f.From = append(f.From, proto.Source{Writers: []string{a}})
	}
	if change != nil {
		change(&f)
	}
	q, err := r.m.Fetch(r.now, f)
	if err != nil {
		r.t.Fatal(err)
	}
	r.check()
	return q
}

// allFree checks that nothing is held.
func (r *decodeRig) allFree() {
	r.t.Helper()
	if c := r.pool.Counts(); c.Free+c.Cached != r.pool.Pages() || len(r.taken) != 0 {
		r.t.Errorf("pages %+v, %d immediates are held at the end", c, len(r.taken))
	}
}

// prefillRig is a proto.Prefiller. Writes are outstanding until the test completes them.
type prefillRig struct {
	rig[*proto.Prefiller]

	admit   func(*proto.JobInfo) proto.Admission
	posts   []posted // outstanding
	writes  int      // of all posts ever
	ops     int
	most    int // writes outstanding at one time
	jobs    []proto.JobID
	started map[proto.JobID]bool
	stopped map[proto.JobID]bool
	pinned  map[proto.JobID]int
	ticket  map[proto.Peer]uint64
	next    map[proto.Peer]uint64 // numbers of attempts
	peers   []proto.Peer          // by link
	top     *layout.Topology
	pair    *layout.Pair
}

type posted struct {
	cookie uint64
	seq    uint64
	job    proto.JobID
	writes int
	tail   bool
}

func newPrefillRig(t testing.TB, s layout.Spec, change ...func(*proto.PrefillerConfig)) *prefillRig {
	t.Helper()
	top := topologyOf(t, s, 1)
	r := &prefillRig{
		rig: newRig[*proto.Prefiller](t), top: top, started: map[proto.JobID]bool{}, stopped: map[proto.JobID]bool{}, pinned: map[proto.JobID]int{},
		ticket: map[proto.Peer]uint64{}, next: map[proto.Peer]uint64{},
	}
	r.admit = func(info *proto.JobInfo) proto.Admission {
		return proto.Admission{Verdict: proto.AdmitReady, Source: r.source(info.Prompt.Tokens, 0)}
	}
	cfg := proto.PrefillerConfig{Instance: "p", Topology: top, Options: anySize, Pages: s.Pages}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if r.m, err = proto.NewPrefiller(cfg, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// source is pages for a prompt.
func (r *prefillRig) source(tokens, cached int) proto.SourcePages {
	index := make([]uint32, (tokens+3)/4)
	for i := range index {
		index[i] = uint32(i)
	}
	return proto.SourcePages{Pages: []layout.Pages{{Index: index}}, Cached: cached}
}

func (r *prefillRig) Import(l proto.LinkID, from proto.Peer, _ *proto.Hello) {
	r.peers = append(r.peers, from)
}
func (r *prefillRig) Forget(proto.LinkID)  {}
func (r *prefillRig) Start(j proto.JobID)  { r.started[j] = true }
func (r *prefillRig) Stop(j proto.JobID)   { r.stopped[j] = true }
func (r *prefillRig) Note(proto.ServeNote) {}
func (r *prefillRig) Unpin(j proto.JobID) {
	if r.pinned[j]--; r.pinned[j] < 0 {
		r.t.Errorf("job %d: pages are given back twice", j)
	}
	for _, o := range r.posts {
		if o.job == j {
			r.t.Errorf("job %d: pages are given back while %d writes read them", j, o.writes)
		}
	}
}

func (r *prefillRig) Admit(j proto.JobID, info *proto.JobInfo) proto.Admission {
	r.jobs = append(r.jobs, j)
	a := r.admit(info)
	if a.Verdict == proto.AdmitReady {
		r.pinned[j]++
	}
	return a
}

func (r *prefillRig) Post(cookie uint64, w *proto.Posting) (uint64, error) {
	return r.post(cookie, w, w.Batch.N, false)
}

func (r *prefillRig) PostTail(cookie uint64, w *proto.Posting) (uint64, error) {
	return r.post(cookie, w, 1, true)
}

func (r *prefillRig) post(cookie uint64, w *proto.Posting, writes int, tail bool) (uint64, error) {
	r.posts = append(r.posts, posted{cookie, w.Seq, w.Job, writes, tail})
	r.writes += writes
	r.ops++
	r.most = max(r.most, r.outstanding())
	return 0, nil
}

func (r *prefillRig) outstanding() (n int) {
	for _, o := range r.posts {
		n += o.writes
	}
	return n
}

// complete ends the oldest post.
func (r *prefillRig) complete(err error) {
	r.t.Helper()
	if len(r.posts) == 0 {
		r.t.Fatal("nothing is outstanding")
	}
	o := r.posts[0]
	r.posts = r.posts[1:]
	r.m.Completed(r.now, o.cookie, err)
	r.check()
}

func (r *prefillRig) completeAll() {
	r.t.Helper()
	for len(r.posts) > 0 {
		r.complete(nil)
	}
}

// link says Hello, of a decoder with so many pages.
func (r *prefillRig) link(p proto.Peer, instance string, s layout.Spec) {
	r.t.Helper()
	top := topologyOf(r.t, s, 1)
	h := &proto.Hello{Instance: instance, Topology: top.AppendBinary(nil), TailSlots: 4, TailBytes: 64}
	for range len(top.Members[0].RegionBytes()) + 1 {
		h.Descriptors = append(h.Descriptors, []byte{1})
	}
	r.next[p]++
	r.say(p, h)
	r.m.Imported(r.now, proto.LinkID(len(r.peers)), nil)
	for _, m := range r.all {
		if m.to == p && m.Kind() == proto.KindHelloAck {
			r.ticket[p] = m.Ticket
		}
	}
	one[*proto.HelloAck](&r.sayings, p)
	pair, err := layout.NewPair(r.top, top, anySize)
	if err != nil {
		r.t.Fatal(err)
	}
	r.pair = pair
}

// say has the prefiller get a message of a decoder that forgets nothing.
func (r *prefillRig) say(p proto.Peer, b proto.Body) {
	r.t.Helper()
	r.m.Message(r.now, p, proto.Encode(proto.Head{Epoch: 1, Ticket: r.ticket[p], LowWater: 1, Next: r.next[p]}, b))
	r.check()
}

// dispatch makes a Dispatch with the next number.
func (r *prefillRig) dispatch(p proto.Peer, id string, span proto.Span, change ...func(*proto.Dispatch)) *proto.Dispatch {
	r.t.Helper()
	seq := r.next[p]
	r.next[p]++
	m := &proto.Dispatch{
		Seq: seq, Try: 1, Request: id, Imm: uint32(seq), Prompt: proto.Prompt{Tokens: span.N, Key: "k"}, Remaining: time.Minute,
		Cost: uint64((span.N + 3) / 4),
	}
	for _, c := range change {
		c(m)
	}
	plan, err := r.pair.Plan([]layout.Span{span}, seq)
	if err != nil {
		r.t.Fatal(err)
	}
	g := proto.Group{Span: span}
	first, end := plan.DstPages(0)
	for i := first; i < end; i++ {
		g.Pages = append(g.Pages, proto.Extent{Logical: uint32(i), Physical: uint32(i - first), Length: 1})
	}
	m.Groups = []proto.Group{g}
	m.Plan, m.Expected = plan.Digest(), plan.Expected(0)
	if m.Tail {
		m.Expected++
	}
	return m
}

// asked sends a Dispatch that is accepted, and returns its number and its job.
func (r *prefillRig) asked(p proto.Peer, id string, span proto.Span, change ...func(*proto.Dispatch)) (uint64, proto.JobID) {
	r.t.Helper()
	m := r.dispatch(p, id, span, change...)
	r.say(p, m)
	one[*proto.Accept](&r.sayings, p)
	return m.Seq, r.jobs[len(r.jobs)-1]
}

// compute runs a pass over a prompt's first tokens.
func (r *prefillRig) compute(j proto.JobID, n int) {
	r.t.Helper()
	pass, _, err := r.m.Begin(r.now, []proto.PassSpan{{Job: j, Span: proto.Span{N: n}}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.m.PassEnd(r.now, pass)
	r.check()
}

// held checks that a job holds pages, or none.
func (r *prefillRig) held(j proto.JobID, want int) {
	r.t.Helper()
	if got := r.pinned[j]; got != want {
		r.t.Errorf("job %d holds %d sources, want %d", j, got, want)
	}
}

var errInjected = fmt.Errorf("injected: %w", hawser.ErrAccess)
