package proto

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

// serveRig is a Prefiller with a network, memory and inference engine that do what a test says, and that judge everything the machine
// does: no write after the answer that promises none, none of a link that is gone, none from pages given back, none twice.
type serveRig struct {
	t   tb
	p   *Prefiller
	now Time

	sent     map[Peer][]sentMessage // since the last look
	imports  []LinkID
	helloOf  map[LinkID]*Hello
	forgot   map[LinkID]bool
	refuse   error // what posts answer
	open     []openPost
	ended    map[servedAs]bool // CancelAck, Failed or Reject was sent
	written  map[writtenAs]bool
	posted   map[servedAs]uint64
	admit    func(JobID, *JobInfo) Admission
	admitted map[JobID]JobInfo
	started  map[JobID]int
	stopped  map[JobID]int
	pinned   map[JobID]int
	notes    []ServeNote
	granted  map[LinkID]uint64
}

// tb is what a testing.TB and a rapid.T have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Error(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

type sentMessage struct {
	Head
	Body
}

type openPost struct {
	cookie uint64
	job    JobID
	peer   Peer
	link   LinkID
	seq    uint64
	writes int
	bytes  uint64
	tail   bool
}

type servedAs struct {
	link LinkID
	seq  uint64
}

type writtenAs struct {
	servedAs
	layer, plane, unit, rep, srcRank, dstRank int
}

// shape makes a topology of equal members, each with its share of the ranks.
func shape(t tb, m layout.Model, members int, s layout.Spec) *layout.Topology {
	t.Helper()
	s.Model = m
	if s.Pages == 0 {
		s.Pages = 64
	}
	ranks := max(1, s.TP) * max(1, s.PP)
	top := &layout.Topology{}
	for i := range members {
		s.First, s.Ranks = i*ranks/members, ranks/members
		g, _, err := layout.Build(s)
		if err != nil {
			t.Fatal(err)
		}
		top.Members = append(top.Members, g)
	}
	return top
}

// tiny has pages of 4 tokens.
var tiny = layout.Model{Name: "tiny", Layers: 3, Groups: []layout.Group{{PageTokens: 4, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2}}}

var anySize = layout.Options{AllowSmallWrites: true}

func newServeRig(t tb, cfg PrefillerConfig) *serveRig {
	t.Helper()
	if cfg.Topology == nil {
		cfg.Topology = shape(t, tiny, 1, layout.Spec{})
	}
	if cfg.Pages == 0 {
		cfg.Pages = 64
	}
	cfg.Instance, cfg.Options = "p", anySize
	r := &serveRig{
		t: t, now: time.Second, sent: map[Peer][]sentMessage{}, helloOf: map[LinkID]*Hello{}, forgot: map[LinkID]bool{},
		ended: map[servedAs]bool{}, written: map[writtenAs]bool{}, posted: map[servedAs]uint64{}, admitted: map[JobID]JobInfo{},
		started: map[JobID]int{}, stopped: map[JobID]int{}, pinned: map[JobID]int{}, granted: map[LinkID]uint64{},
	}
	r.admit = func(_ JobID, info *JobInfo) Admission { return r.admitNow(info.Prompt.Tokens, 0) }
	var err error
	if r.p, err = NewPrefiller(cfg, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// admitNow is an Admission with pages in an order of their own.
func (r *serveRig) admitNow(tokens, cached int) Admission {
	return Admission{Verdict: AdmitReady, Source: r.source(tokens, cached)}
}

func (r *serveRig) source(tokens, cached int) SourcePages {
	s := SourcePages{Cached: cached}
	for _, g := range r.p.own.Groups {
		var index []uint32
		for i := range pagesFor(tokens, g.PageTokens) {
			index = append(index, uint32(r.p.cfg.Pages-1-i))
		}
		s.Pages = append(s.Pages, layout.Pages{Index: index})
	}
	return s
}

// give gives a job its pages.
func (r *serveRig) give(j JobID, tokens, cached int) {
	r.t.Helper()
	r.pinned[j]++ // posting may begin in the call
	if err := r.p.Sourced(r.now, j, r.source(tokens, cached)); err != nil {
		r.fatalf("%v", err)
	}
	r.check()
}

func (r *serveRig) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("at %v: %s", r.now, fmt.Sprintf(format, args...))
}

// Send is PrefillerOut's, as all up to Note.
func (r *serveRig) Send(to Peer, data []byte) {
	h, b, err := Decode(data)
	if err != nil {
		r.fatalf("message to %d cannot be read: %v", to, err)
	}
	r.sent[to] = append(r.sent[to], sentMessage{h, b})
	l := r.p.findLink(LinkID(h.Ticket))
	as := func(seq uint64) servedAs { return servedAs{LinkID(h.Ticket), seq} }
	quiet := func(seq, posted uint64) {
		for _, o := range r.open {
			if o.link == LinkID(h.Ticket) && o.seq == seq {
				r.fatalf("%v of attempt %d sent with %d writes outstanding", b.Kind(), seq, o.writes)
			}
		}
		if got := r.posted[as(seq)]; got != posted {
			r.fatalf("%v of attempt %d says that %d were posted, it is %d", b.Kind(), seq, posted, got)
		}
		r.ended[as(seq)] = true
	}
	switch m := b.(type) {
	case *CancelAck:
		quiet(m.Seq, m.Posted)
	case *Failed:
		quiet(m.Seq, m.Posted)
	case *Reject:
		quiet(m.Seq, 0)
	case *Bye:
		if l != nil && l.up && len(l.live) > 0 && h.Ticket != 0 {
			r.fatalf("goodbye with %d live attempts", len(l.live))
		}
	}
}

func (r *serveRig) Import(l LinkID, _ Peer, h *Hello) {
	r.imports = append(r.imports, l)
	r.helloOf[l] = h
}

func (r *serveRig) Forget(l LinkID) {
	if r.forgot[l] || r.helloOf[l] == nil || slices.Contains(r.imports, l) {
		r.fatalf("link %d forgotten twice, or while it is imported", l)
	}
	for _, o := range r.open {
		if o.link == l {
			r.fatalf("link %d forgotten with writes outstanding", l)
		}
	}
	r.forgot[l] = true
}

func (r *serveRig) post(cookie uint64, w *Posting, writes int, bytes uint64, tail bool) (uint64, error) {
	as := servedAs{w.Link, w.Seq}
	l := r.p.findLink(w.Link)
	switch {
	case r.refuse != nil:
		return 0, r.refuse
	case r.ended[as]:
		r.fatalf("attempt %d of link %d: write after the answer", w.Seq, w.Link)
	case r.forgot[w.Link] || l == nil || l.ended || !l.up:
		r.fatalf("attempt %d: write on a link that is not up", w.Seq)
	case r.pinned[w.Job] == 0 || r.stopped[w.Job] > 0 || r.p.jobs[w.Job] == nil:
		r.fatalf("attempt %d: write from pages of job %d, which holds none", w.Seq, w.Job)
	}
	r.open = append(r.open, openPost{cookie, w.Job, w.Peer, w.Link, w.Seq, writes, bytes, tail})
	sum, total := 0, uint64(0)
	for _, o := range r.open {
		if o.peer == w.Peer {
			sum += o.writes
			total += o.bytes
		}
	}
	if win := r.p.cfg.Window; sum > win.Writes || total > max(win.Bytes, bytes) {
		r.fatalf("%d writes of %d bytes outstanding to peer %d", sum, total, w.Peer)
	}
	return uint64(writes), nil
}

func (r *serveRig) Post(cookie uint64, w *Posting) (uint64, error) {
	sum, err := r.post(cookie, w, w.Batch.N, uint64(w.Batch.N)*uint64(w.Batch.Len), false)
	if err != nil {
		return 0, err
	}
	src, dst := make([]uint32, w.Batch.N), make([]uint32, w.Batch.N)
	w.Batch.Fill(w.Src, w.Dst, src, dst)
	for i := range w.Batch.N {
		x := w.Batch.Write(i)
		key := writtenAs{servedAs{w.Link, w.Seq}, x.Layer, x.Plane, x.Unit, x.Rep, x.SrcRank, x.DstRank}
		if r.written[key] {
			r.fatalf("written twice: %+v", key)
		}
		r.written[key] = true
	}
	return sum, nil
}

func (r *serveRig) PostTail(cookie uint64, w *Posting) (uint64, error) {
	return r.post(cookie, w, 1, 0, true)
}

func (r *serveRig) Admit(j JobID, info *JobInfo) Admission {
	r.admitted[j] = *info
	a := r.admit(j, info)
	if a.Verdict == AdmitReady {
		r.pinned[j]++
	}
	return a
}

func (r *serveRig) Start(j JobID) { r.started[j]++ }

func (r *serveRig) Stop(j JobID) {
	if r.stopped[j]++; r.stopped[j] > 1 {
		r.fatalf("job %d stopped twice", j)
	}
}

func (r *serveRig) Unpin(j JobID) {
	if r.pinned[j]--; r.pinned[j] < 0 {
		r.fatalf("job %d unpinned twice", j)
	}
	for _, o := range r.open {
		if o.job == j {
			r.fatalf("job %d unpinned with writes outstanding", j)
		}
	}
}

func (r *serveRig) Note(n ServeNote) { r.notes = append(r.notes, n) }

// check looks at the machine.
func (r *serveRig) check() {
	r.t.Helper()
	if err := r.p.Check(); err != nil {
		r.fatalf("%v", err)
	}
}

// complete ends the first n open operations, all for n < 0, and what is posted meanwhile.
func (r *serveRig) complete(n int) (done int) {
	r.t.Helper()
	for ; len(r.open) > 0 && n != 0; n-- {
		r.completeOne(0, nil)
		done++
	}
	return done
}

func (r *serveRig) completeOne(i int, err error) {
	r.t.Helper()
	o := r.open[i]
	r.open = slices.Delete(r.open, i, i+1)
	if err == nil {
		r.posted[servedAs{o.link, o.seq}] += uint64(o.writes)
	}
	r.p.Completed(r.now, o.cookie, err)
	r.check()
}

// advance lets time go by, with all that is due on the way.
func (r *serveRig) advance(d time.Duration) {
	r.t.Helper()
	end := r.now + d
	for {
		at, ok := r.p.Next()
		if !ok || at > end {
			break
		}
		if at < r.now {
			at = r.now
		}
		r.now = at
		r.p.Tick(r.now)
		r.check()
		if again, ok := r.p.Next(); ok && again <= r.now {
			r.fatalf("an alarm that was due at %v is still due", again)
		}
	}
	r.now = end
}

// imported answers all imports.
func (r *serveRig) imported(err error) {
	r.t.Helper()
	for _, l := range r.imports {
		r.imports = r.imports[1:]
		r.p.Imported(r.now, l, err)
		r.check()
	}
}

// take returns the messages to a peer since the last time.
func (r *serveRig) take(to Peer) []sentMessage {
	m := r.sent[to]
	delete(r.sent, to)
	return m
}

// rigLink is a decoder's side of a link.
type rigLink struct {
	*serveRig
	peer     Peer
	head     Head
	top      *layout.Topology
	member   int
	instance string
	pair     *layout.Pair
	granted  uint64
	used     uint64
}

func (r *serveRig) decoder(peer Peer, instance string, top *layout.Topology, member int) *rigLink {
	r.t.Helper()
	if top == nil {
		top = shape(r.t, tiny, 1, layout.Spec{Pages: 48})
	}
	pair, err := layout.NewPair(r.p.cfg.Topology, &layout.Topology{Members: top.Members[member : member+1]}, anySize)
	if err != nil {
		r.t.Fatal(err)
	}
	return &rigLink{serveRig: r, peer: peer, head: Head{Epoch: 1, LowWater: 1, Next: 1}, top: top, member: member, instance: instance, pair: pair}
}

// link is decoder, and Hello until it is up.
func (r *serveRig) link(peer Peer, instance string, top *layout.Topology, member int) *rigLink {
	r.t.Helper()
	d := r.decoder(peer, instance, top, member)
	d.connect()
	return d
}

func (d *rigLink) hello() *Hello {
	h := &Hello{Instance: d.instance, Member: d.member, Topology: d.top.AppendBinary(nil), TailSlots: 4, TailBytes: 64}
	for range len(d.top.Members[d.member].RegionBytes()) + 1 {
		h.Descriptors = append(h.Descriptors, []byte{1})
	}
	return h
}

func (d *rigLink) connect() {
	d.t.Helper()
	d.send(d.hello())
	d.imported(nil)
	ack := last[*HelloAck](d)
	d.granted = ack.Granted
}

func (d *rigLink) send(b Body) {
	d.t.Helper()
	d.p.Message(d.now, d.peer, Encode(d.head, b))
	d.check()
}

// last returns the last message of a kind to d, and drops all others.
func last[B Body](d *rigLink) B {
	d.t.Helper()
	var found B
	ok := false
	for _, m := range d.take(d.peer) {
		if b, is := m.Body.(B); is {
			found, ok = b, true
			if m.Ticket != 0 {
				d.head.Ticket = m.Ticket
			}
		}
	}
	if !ok {
		d.fatalf("no %T came", found)
	}
	return found
}

// none fails if a message of a kind came to d, and drops all others.
func none[B Body](d *rigLink) {
	d.t.Helper()
	for _, m := range d.take(d.peer) {
		if _, is := m.Body.(B); is {
			d.fatalf("%T came: %+v", m.Body, m.Body)
		}
	}
}

// ask makes a Dispatch with the next seq. It is not sent.
func (d *rigLink) ask(request string, first, tokens int, change ...func(*Dispatch)) *Dispatch {
	d.t.Helper()
	seq := d.head.Next
	d.head.Next++
	m := &Dispatch{
		Seq: seq, Try: 1, Request: request, Imm: uint32(seq), Prompt: Prompt{Tokens: tokens, Key: "k"}, Remaining: time.Minute,
	}
	if d.member == 0 {
		m.Cost = uint64(pagesFor(tokens, d.p.own.Groups[0].PageTokens))
	}
	for _, f := range change {
		f(m)
	}
	plan, err := d.pair.Plan(d.pair.Spans(first, tokens), seq)
	if err != nil {
		d.t.Fatal(err)
	}
	for g := range d.top.Members[0].Groups {
		s := plan.Span(g)
		from, end := plan.DstPages(g)
		group := Group{Span: Span(s)}
		for i := from; i < end; i++ {
			group.Pages = append(group.Pages, Extent{uint32(i), uint32((7 * i) % d.top.Members[d.member].PoolPages(g)), 1})
		}
		m.Groups = append(m.Groups, group)
	}
	m.Plan, m.Expected = plan.Digest(), plan.Expected(d.p.cfg.Member)
	if m.Tail && d.p.tails {
		m.Expected++
	}
	d.used += m.Cost
	return m
}

// dispatch sends an ask and returns it.
func (d *rigLink) dispatch(request string, first, tokens int, change ...func(*Dispatch)) *Dispatch {
	d.t.Helper()
	m := d.ask(request, first, tokens, change...)
	d.send(m)
	return m
}

// compute runs a pass over tokens [first, n) of jobs.
func (r *serveRig) compute(first, n int, jobs ...JobID) {
	r.t.Helper()
	pass := r.begin(first, n, jobs...)
	for rank := range r.p.own.Ranks {
		for layer := range r.p.own.Ranks[rank].Layers {
			r.p.LayerReady(r.now, pass, rank, layer)
			r.check()
		}
	}
	r.p.PassEnd(r.now, pass)
	r.check()
}

func (r *serveRig) begin(first, n int, jobs ...JobID) PassID {
	r.t.Helper()
	var spans []PassSpan
	for _, j := range jobs {
		spans = append(spans, PassSpan{j, Span{First: first, N: n}})
	}
	pass, base, err := r.p.Begin(r.now, spans)
	if err != nil || base != uint64(pass)<<16 {
		r.fatalf("begin: base %#x of pass %d, %v", base, pass, err)
	}
	r.check()
	return pass
}

// phase asks what P says of an attempt.
func (d *rigLink) phase(seq uint64) AttemptState {
	d.t.Helper()
	d.send(&Query{[]uint64{seq}})
	return last[*State](d).Of[0]
}

var errInjected = errors.New("injected")
