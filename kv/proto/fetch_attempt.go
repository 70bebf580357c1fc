package proto

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/pool"
)

// fetchAttempt is one try to get the pages of a request.
type fetchAttempt struct {
	d       *Decoder
	r       *fetchRequest
	seq     uint64
	step    fetchStep
	writers []fetchWriter
	leases  []pool.Lease // by group; none when the caller brought the pages

	digest, bytes uint64 // of the plan
	cost          uint64 // of each Dispatch
	imm           uint32
	try           int
	tail          TailRef
	since, begun  Time
	cause         error

	requestHolds, writerHolds bool // of the leases
	touched                   bool // in Decoder.touched
	reawait                   bool
	counted                   bool // as quarantined
}

// fetchWriter is a prefill member that owes writes to an attempt.
type fetchWriter struct {
	step       writerStep
	at         *fetchAttempt
	link       *fetchLink
	peer       Peer
	epoch      uint64
	prev, next *fetchWriter // in fetchLink.first .. last, while linked
	sums       []uint64     // of its Digest

	since  Time          // of the state, or of the first Cancel
	life   Time          // last sign of life: an answer, or a write
	repeat Time          // when the message of this state goes out again
	pause  time.Duration // until the repetition after that
	probe  Time          // when silence is noticed
	seen   uint64        // count at the last look
	member int

	linked, queried, verifying, proved bool
}

// plan works out who owes what to a request's next attempt.
func (d *Decoder) plan(r *fetchRequest) (*fetchAttempt, error) {
	d.spans = d.spans[:0]
	first := r.prefixTokens()
	for i := range d.groups {
		d.spans = append(d.spans, d.spanOf(&r.f, i, first))
	}
	p, err := r.src.pair.Plan(d.spans, d.lastSeq+1)
	if err != nil {
		return nil, err
	}
	a := &fetchAttempt{d: d, r: r, digest: p.Digest(), bytes: p.Bytes()}
	tail := -1
	if r.f.Tail {
		tail = r.src.pair.Src().TailWriter()
	}
	n := 0
	for m := range r.src.links {
		if p.Expected(m) > 0 || m == tail {
			n++
		}
	}
	a.writers = make([]fetchWriter, 0, n)
	for m, l := range r.src.links {
		owes := p.Expected(m)
		if m == tail {
			owes++
		}
		if owes > 0 {
			a.writers = append(a.writers, fetchWriter{step: writerStep{expected: owes}, at: a, link: l, peer: l.peer, epoch: l.epoch, member: m})
		}
	}
	if d.cfg.Member == 0 || r.dispatched > 0 {
		a.cost = d.cost(r)
	}
	return a, nil
}

// cost is how many pages the prompt takes on the prefill side.
func (d *Decoder) cost(r *fetchRequest) (n uint64) {
	for i, g := range r.src.pair.Src().Members[0].Groups {
		s := d.spans[i]
		tokens := s.N
		if g.Window > 0 {
			tokens = s.N - s.First
		}
		n += uint64((tokens + g.PageTokens - 1) / g.PageTokens)
	}
	return n
}

// span is what the attempt moves of a group.
func (a *fetchAttempt) span(group int) Span { return a.d.spanOf(&a.r.f, group, a.r.prefixTokens()) }

// pages is the physical pages of the span of a group.
func (a *fetchAttempt) pages(group int) []uint32 {
	if a.r.f.Pages != nil {
		return a.r.f.Pages[group]
	}
	return a.leases[group].Pages
}

// pageCount is the number of pages that the attempt fills.
func (a *fetchAttempt) pageCount() (n int) {
	for i := range a.d.groups {
		n += len(a.pages(i))
	}
	return n
}

// held is the first link that has no credits or no numbers for the attempt.
func (a *fetchAttempt) held() (*fetchLink, string) {
	for i := range a.writers {
		l := a.writers[i].link
		if !l.takes(a.cost) {
			return l, l.lacks(a.cost)
		}
	}
	return nil, ""
}

// start dispatches an attempt that has everything.
func (d *Decoder) start(a *fetchAttempt, imm uint32) {
	r := a.r
	d.lastSeq++
	r.tries++
	r.dispatched++
	r.unquiet++
	r.at, r.blocked, r.notBefore = a, "", 0
	a.seq, a.imm, a.try = d.lastSeq, imm, r.dispatched
	a.since, a.begun = d.now, d.now
	a.requestHolds = len(a.leases) > 0
	if broken(mutPublish) {
		d.publish(a)
	}
	if a.requestHolds && !broken(mutSecondHolder) {
		for i, l := range a.leases {
			d.defect(d.cfg.Pools[i].Hold(l, pool.OwnerWriter))
		}
		a.writerHolds = true
	}
	if r.f.Tail {
		a.tail = d.takeTail(r, a.seq)
	}
	d.attempts[a.seq] = a
	d.live++
	d.note(Note{Kind: NoteReserve, Request: r.id, Seq: a.seq})
	total := uint64(0)
	for i := range a.writers {
		w := &a.writers[i]
		d.out.Expect(a.seq, w.peer, w.step.expected)
		total += w.step.expected
		w.since, w.life = d.now, d.now
		w.repeat, w.pause = d.now+repeatFirst, 2*repeatFirst
		w.link.append(w)
		w.link.used += a.cost
	}
	d.out.Await(a.seq, total)
	for i := range a.writers {
		d.sendDispatch(&a.writers[i])
	}
	if a.try == 1 && len(d.cfg.Topology.Members) > 1 {
		d.detachRest(a)
	}
	d.arm(r)
}

// detachRest tells the members of the source that owe this member nothing: what they compute for other members must not wait for it.
func (d *Decoder) detachRest(a *fetchAttempt) {
	n := 0
	for m, l := range a.r.src.links {
		if n < len(a.writers) && a.writers[n].member == m {
			n++
			continue
		}
		d.detachFrom(l, a.r, "no write is wanted from here")
	}
}

// sendDispatch sends or repeats a Dispatch.
func (d *Decoder) sendDispatch(w *fetchWriter) {
	a, r := w.at, w.at.r
	m := &d.dispatch
	*m = Dispatch{
		Seq: a.seq, Try: a.try, Request: r.f.ID, Imm: a.imm, Groups: d.parts[:len(d.groups)], Tail: r.f.Tail, TailSlot: a.tail.Slot,
		Prompt: r.f.Prompt, Remaining: max(0, r.deadline-d.now), Priority: r.f.Priority, Trace: r.f.Trace,
		Plan: a.digest, Expected: w.step.expected, Cost: a.cost,
	}
	for i := range d.groups {
		s := a.span(i)
		d.parts[i].Span = s
		d.parts[i].Pages = appendExtents(d.parts[i].Pages[:0], s.First/d.groups[i].PageTokens, a.pages(i))
	}
	d.send(w.link, m)
}

// appendExtents joins physical pages that follow each other.
func appendExtents(all []Extent, logical int, pages []uint32) []Extent {
	for i, page := range pages {
		if n := len(all); n > 0 && all[n-1].Physical+all[n-1].Length == page {
			all[n-1].Length++
			continue
		}
		all = append(all, Extent{Logical: uint32(logical + i), Physical: page, Length: 1})
	}
	return all
}

// writersAre says what holds for all writers.
func (a *fetchAttempt) writersAre() writersAre {
	are := allAccepted | allComplete | allProved | allSettled
	for i := range a.writers {
		w := &a.writers[i]
		if w.step.state == writerAsked {
			are &^= allAccepted
		}
		if w.step.state != writerComplete {
			are &^= allComplete
		}
		if !w.step.state.settled() {
			are &^= allSettled
		}
		if w.step.state == writerStuck {
			are |= someStuck
		}
		if !w.proved && a.d.cfg.Verify {
			are &^= allProved
		}
	}
	return are
}

// stepWriter feeds one event to a writer and carries the effects out.
func (d *Decoder) stepWriter(w *fetchWriter, e writerEvent) {
	a, before := w.at, w.step.state
	d.seen.writer[before][e.kind]++
	next, fx, ok := w.step.step(e)
	if !ok {
		d.unexpectedWriter[before][e.kind]++
		d.unexpected(before.String(), e.kind.String())
		return
	}
	if next.state == before && fx == 0 {
		return
	}
	w.step = next
	if next.state != before {
		d.note(Note{Kind: NoteWriter, Request: a.r.id, Seq: a.seq, Link: w.link.id, Peer: w.peer, From: before.String(), To: next.state.String()})
		if next.state != writerAccepted {
			w.since, a.reawait = d.now, true
		}
	}
	d.touch(a)
	if fx&fxOverrun != 0 {
		d.stats.Overruns++
	}
	if fx&fxFenceLink != 0 {
		d.fenceFor(w)
	}
	if fx&fxLost != 0 {
		d.lost(a, next.cause, fx&fxFenceLink != 0 || before == writerFencing || before == writerStuck)
	}
	if fx&fxChanged == 0 {
		return
	}
	switch next.state {
	case writerAccepted:
		d.note(Note{Kind: NoteAccept, Request: a.r.id, Seq: a.seq, Link: w.link.id, Peer: w.peer})
	case writerComplete:
		d.prove(w)
	case writerEnded:
		d.unlink(w)
	}
	if !a.step.state.quiet() {
		d.stepFetch(a, fetchEvent{kind: evWriters, writers: a.writersAre()})
	}
}

// lost: a writer will not complete.
func (d *Decoder) lost(a *fetchAttempt, cause error, byFence bool) {
	again := false
	if a.step.state == fetchAsked || a.step.state == fetchActive {
		a.cause = cause
		again = d.again(a.r, cause, byFence)
		if a.r.cause != nil {
			a.cause = a.r.cause
		}
	}
	d.stepFetch(a, fetchEvent{kind: evLost, writers: a.writersAre(), again: again})
}

// stepFetch feeds one event to an attempt and carries the effects out.
func (d *Decoder) stepFetch(a *fetchAttempt, e fetchEvent) {
	r, before := a.r, a.step.state
	d.seen.fetch[before][e.kind]++
	next, fx, ok := a.step.step(e)
	if !ok {
		d.unexpectedFetch[before][e.kind]++
		d.unexpected(before.String(), e.kind.String())
		return
	}
	a.step = next
	if next.state != before {
		a.since = d.now
		d.touch(a)
		d.note(Note{Kind: NoteAttempt, Request: r.id, Seq: a.seq, From: before.String(), To: next.state.String(), Err: a.cause})
	}
	if fx&fxCancel != 0 {
		d.cancelWriters(a)
	}
	if fx&fxQuarantine != 0 {
		d.quarantine(a)
	}
	if fx&fxQuiet != 0 {
		d.quiet(a)
	}
	if fx&(fxTell|fxAgain) != 0 {
		d.dropRequest(a)
	}
	switch {
	case fx&fxReady != 0:
		d.ready(r, a.result())
	case fx&fxTell != 0:
		d.end(r, d.attemptError(a, a.cause))
	case fx&fxAgain != 0 && next.state == fetchQuarantined && r.f.Pages != nil:
		d.end(r, d.attemptError(a, fmt.Errorf("%w: the caller's pages may still be written: %w", hawser.ErrUnfenced, a.cause)))
	case fx&fxAgain != 0:
		if !next.state.quiet() {
			r.old = append(r.old, a)
		}
		d.anew(r)
	case fx&fxQuiet != 0:
		d.retire(r)
	}
	if fx&fxRelease != 0 {
		d.dropRequest(a)
		d.freeTail(a)
		delete(d.attempts, a.seq)
	}
}

// cancelWriters asks those who may still write to stop.
func (d *Decoder) cancelWriters(a *fetchAttempt) {
	for i := range a.writers {
		if w := &a.writers[i]; w.step.state.open() {
			w.since = d.now
			w.repeat, w.pause = d.now+cancelFirst, 2*cancelFirst
			d.sendCancel(w)
		}
	}
}

func (d *Decoder) sendCancel(w *fetchWriter) {
	reason := ""
	if w.at.cause != nil {
		reason = w.at.cause.Error()
	}
	d.send(w.link, &Cancel{Seq: w.at.seq, Request: w.at.r.f.ID, Cost: w.at.cost, Reason: reason})
}

// quarantine counts the pages of an attempt as out of service.
func (d *Decoder) quarantine(a *fetchAttempt) {
	a.counted = true
	n := a.pageCount()
	d.quarantined += n
	if a.writerHolds {
		for i, l := range a.leases {
			d.defect(d.cfg.Pools[i].Quarantine(l))
		}
	}
	d.note(Note{Kind: NoteQuarantine, Request: a.r.id, Seq: a.seq, N: uint64(n)})
}

// quiet ends what an attempt holds because somebody may write: nobody may any more.
func (d *Decoder) quiet(a *fetchAttempt) {
	d.out.Put(a.seq)
	d.live--
	a.r.unquiet--
	a.r.old = without(a.r.old, a)
	if a.counted {
		a.counted = false
		d.quarantined -= a.pageCount()
	}
	for i := range a.writers {
		d.unlink(&a.writers[i])
	}
	if a.writerHolds {
		a.writerHolds = false
		for i, l := range a.leases {
			d.defect(d.cfg.Pools[i].Drop(l, pool.OwnerWriter))
		}
	}
	if a.step.state == fetchReady {
		d.publish(a)
	} else {
		d.freeTail(a)
		delete(d.attempts, a.seq)
	}
	d.note(Note{Kind: NoteEnd, Request: a.r.id, Seq: a.seq})
	d.kick = true
}

// publish makes the full pages findable.
func (d *Decoder) publish(a *fetchAttempt) {
	if !d.cache || len(a.leases) == 0 || len(a.r.f.Blocks) == 0 {
		return
	}
	s, size := a.span(0), d.groups[0].PageTokens
	from, to := s.First/size, min(s.N/size, len(a.r.f.Blocks))
	if from < to {
		d.defect(d.cfg.Pools[0].Publish(a.leases[0], a.r.f.Blocks[from:to]))
		d.note(Note{Kind: NotePublish, Request: a.r.id, Seq: a.seq, N: uint64(to - from)})
	}
}

// dropRequest ends the request's hold on the attempt's pages.
func (d *Decoder) dropRequest(a *fetchAttempt) {
	if a.requestHolds {
		a.requestHolds = false
		for i, l := range a.leases {
			d.defect(d.cfg.Pools[i].Drop(l, pool.OwnerRequest))
		}
		d.kick = true
	}
	d.unpin(a.r)
}

// result is what the caller gets.
func (a *fetchAttempt) result() Result {
	res := Result{
		Pages: a.r.f.Pages, Spans: make([]Span, len(a.d.groups)), Prefix: a.r.prefixTokens(), Tail: a.tail,
		Try: a.try, Seq: a.seq, Bytes: a.bytes, Dispatched: a.begun,
	}
	for i := range a.writers {
		res.Writes += a.writers[i].step.expected
	}
	for i := range res.Spans {
		res.Spans[i] = a.d.spanOf(&a.r.f, i, 0)
	}
	if res.Pages == nil {
		res.Pages = make([][]uint32, len(a.leases))
		for i, l := range a.leases {
			res.Pages[i] = l.Pages
		}
		if n := len(a.r.prefix.Pages); n > 0 {
			res.Pages[0] = append(append(make([]uint32, 0, n+len(a.leases[0].Pages)), a.r.prefix.Pages...), a.leases[0].Pages...)
		}
	}
	return res
}

func (d *Decoder) attemptError(a *fetchAttempt, cause error) error {
	e := &AttemptError{Request: a.r.f.ID, Attempt: a.seq, Try: a.try, Pages: a.pageCount(), Err: cause}
	for i := range a.writers {
		e.Owes = append(e.Owes, a.writers[i].owed())
	}
	return e
}

func (w *fetchWriter) owed() Owed {
	return Owed{Addr: w.link.addr, Peer: w.peer, Landed: w.seen, Expected: w.step.expected, State: w.step.state.String()}
}

// takeTail lends a tail slot; there is one.
func (d *Decoder) takeTail(r *fetchRequest, generation uint64) TailRef {
	last := len(d.freeTails) - 1
	slot := d.freeTails[last]
	d.freeTails = d.freeTails[:last]
	d.tails[slot] = tailSlot{r.id, generation}
	return TailRef{slot, generation}
}

func (d *Decoder) freeTail(a *fetchAttempt) {
	if t := a.tail; t.Generation != 0 {
		if !d.TailIs(t) || d.tails[t.Slot].owner != a.r.id {
			d.defect(fmt.Errorf("tail slot %d belongs to request %d, not to %d", t.Slot, d.tails[t.Slot].owner, a.r.id))
			return
		}
		a.tail = TailRef{}
		d.tails[t.Slot] = tailSlot{}
		d.freeTails = append(d.freeTails, t.Slot)
		d.kick = true
	}
}

// TailIs reports whether a slot still holds the tail that t names: ask after reading.
func (d *Decoder) TailIs(t TailRef) bool {
	return t.Generation != 0 && int(t.Slot) < len(d.tails) && d.tails[t.Slot].generation == t.Generation
}

// errUnanswered and errUnsettled: a peer is up and does not what it must.
var (
	errUnanswered = errors.New("no answer to cancel")
	errUnsettled  = fmt.Errorf("%w: fewer writes arrived than it says it posted", ErrProtocol)
	errNoDigest   = fmt.Errorf("%w: no digest", ErrStalled)
)
