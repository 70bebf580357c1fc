package proto

import (
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

const (
	// maxWords bounds what the live attempts of one link make us keep, in words of 4 bytes: page numbers, token ids, and their own state.
	maxWords = 64 << 20
	// attemptWords is about what an attempt takes itself, and laneWords each lane of it: one without pages and tokens is not free.
	attemptWords, laneWords = 256, 5
)

// serving is one attempt on P. A tomb keeps the first part only. Owned by the Prefiller.
type serving struct {
	link   *serveLink
	seq    uint64
	step   serveStep
	code   Code // why it was refused or failed
	text   string
	after  time.Duration // RetryAfter
	sums   []uint64
	layer  int         // last one that was posted whole
	detach *detachment // of a tomb: it says of a member that it will not dispatch

	job      *job
	liveAt   int // index in link.live
	plan     *layout.Plan
	spans    []Span
	dst      []layout.Pages // of each group
	words    int
	imm      uint32
	slot     uint32 // of the tail
	tail     bool   // wanted from this member
	tailSent bool
	priority int8
	trace    [16]byte
	deadline Time
	alarm    alarm
	posts    *feedState // nil before it is started
}

// dispatch answers a Dispatch of the current epoch that the decoder has not forgotten.
func (p *Prefiller) dispatch(l *serveLink, m *Dispatch) error {
	if s := l.attempts[m.Seq]; s != nil {
		p.step(s, serveEvent{kind: svDispatch})
		return nil
	}
	if !p.spend(l, m.Cost) {
		return fmt.Errorf("%w: dispatch of attempt %d costs %d pages, %d are granted", ErrProtocol, m.Seq, m.Cost, l.credit.free())
	}
	s := &serving{
		link: l, seq: m.Seq, imm: m.Imm, slot: m.TailSlot, tail: m.Tail && p.tails, priority: m.Priority, trace: m.Trace,
		deadline: p.now + min(m.Remaining, 1<<60),
	}
	if code, text := p.refusal(s, m); code != 0 {
		p.refuse(s, code, text, m.Cost)
		return nil
	}
	j := p.findJob(l, m.Request)
	pays := p.pays(l, m, j)
	if code, text := p.mayJoin(l, m, j, pays); code != 0 {
		p.refuse(s, code, text, m.Cost)
		return nil
	}
	if j == nil {
		j = p.jobFor(l, m)
	}
	p.join(j, s, m, pays)
	return nil
}

// pays reports whether a Dispatch pays for a job: that of member 0, that of a retry, and any if member 0 will not come.
func (p *Prefiller) pays(l *serveLink, m *Dispatch, j *job) bool {
	if l.member == 0 || m.Try > 1 {
		return true
	}
	d := p.findDetached(l, m.Request, false)
	return j == nil && d != nil && d.seen&1 != 0
}

// join attaches an attempt to its job. The inference engine may refuse the job, which is then the answer.
func (p *Prefiller) join(j *job, s *serving, m *Dispatch, pays bool) {
	l := s.link
	if pays && j.step.state != jobLive && j.payer == nil {
		p.pay(j, l, m.Cost)
	} else {
		p.refund(l, m.Cost)
	}
	if len(j.prompt.IDs) == 0 && j.prompt.Key == "" {
		j.prompt = m.Prompt
	}
	s.job, j.first, j.refusal = j, s, 0
	j.seen |= 1 << l.member
	if j.step.state == jobLive {
		p.alarms.clear(&j.alarm) // somebody wants it again
	}
	e := jobJoin
	if pays {
		e = jobPay
	}
	p.stepJob(j, e)
	j.first = nil
	if j.refusal != 0 {
		p.stepJob(j, jobLeave)
		s.job = nil
		p.refuse(s, j.refusal, j.why, 0)
		return
	}
	p.attach(j, s, m.Expected)
}

// attach makes an attempt one of its job.
func (p *Prefiller) attach(j *job, s *serving, expected uint64) {
	l := s.link
	l.attempts[s.seq] = s
	s.liveAt = len(l.live)
	l.live = append(l.live, s)
	l.words += s.words
	j.attempts = append(j.attempts, s)
	s.alarm.kind, s.alarm.serving = alarmAttempt, s
	p.alarms.set(&s.alarm, s.deadline)
	p.stats.Accepted++
	p.step(s, serveEvent{kind: svDispatch, n: expected})
	if j.anything && j.pinned && !j.pausing {
		p.start(s)
	}
	if l.beat.slot == 0 {
		p.alarms.set(&l.beat, p.now+beatPause)
	}
}

// refusal says why a Dispatch is refused whatever job it is for; the code is 0 when it is not.
func (p *Prefiller) refusal(s *serving, m *Dispatch) (Code, string) {
	l := s.link
	switch {
	case p.closing:
		return CodeClosed, "prefiller is closing"
	case m.Remaining == 0:
		return CodeLate, "no time is left"
	case m.Tail && int64(m.TailSlot) >= int64(l.slots):
		return CodeInvalid, fmt.Sprintf("tail slot %d of %d", m.TailSlot, l.slots)
	}
	s.spans = make([]Span, len(m.Groups))
	for i, g := range m.Groups {
		if g.Span.N > m.Prompt.Tokens {
			return CodeInvalid, fmt.Sprintf("span of group %d ends at token %d, the prompt has %d", i, g.Span.N, m.Prompt.Tokens)
		}
		s.spans[i] = g.Span
	}
	plan, err := l.pair.Plan(s.spans, m.Seq)
	if err != nil {
		return CodeInvalid, err.Error()
	}
	s.plan = plan
	expected := plan.Expected(p.cfg.Member)
	if s.tail {
		expected++
	}
	if plan.Digest() != m.Plan || expected != m.Expected {
		return CodePlan, fmt.Sprintf("plan %016x with %d writes there, %016x with %d here", m.Plan, m.Expected, plan.Digest(), expected)
	}
	if need := pagesFor(m.Prompt.Tokens, p.own.Groups[0].PageTokens); need > p.cfg.Pages {
		return CodeInfeasible, fmt.Sprintf("prompt needs %d pages, the prefiller has %d", need, p.cfg.Pages)
	}
	return p.place(s, m)
}

func pagesFor(tokens, page int) int { return (tokens + page - 1) / page }

// place puts extents in the order of logical pages: each of the plan's exactly once, on a page that the decoder has.
func (p *Prefiller) place(s *serving, m *Dispatch) (Code, string) {
	l := s.link
	s.words = attemptWords + laneWords*len(p.lanes) + len(m.Prompt.IDs)
	for g := range m.Groups {
		first, end := s.plan.DstPages(g)
		s.words += end - first
	}
	if l.words+s.words > maxWords {
		return CodeBusy, "too many pages and tokens in the attempts of this decoder"
	}
	s.dst = make([]layout.Pages, len(m.Groups))
	for g := range m.Groups {
		first, end := s.plan.DstPages(g)
		most := l.pair.Dst().Members[0].PoolPages(g)
		index := make([]uint32, 0, end-first)
		for _, e := range m.Groups[g].Pages {
			if int(e.Logical) != first+len(index) || int(e.Logical)+int(e.Length) > end || int(e.Physical)+int(e.Length) > most {
				return CodeInvalid, fmt.Sprintf("group %d: %d pages from logical %d at physical %d, want logical %d .. %d in order, physical below %d",
					g, e.Length, e.Logical, e.Physical, first+len(index), end-1, most)
			}
			for i := range e.Length {
				index = append(index, e.Physical+i)
			}
		}
		if len(index) < end-first {
			return CodeInvalid, fmt.Sprintf("group %d: %d pages are listed, the span needs %d", g, len(index), end-first)
		}
		s.dst[g] = layout.Pages{First: first, Index: index}
	}
	return 0, ""
}

// mayJoin says why an attempt is refused at a job, or at a new one when j is nil.
func (p *Prefiller) mayJoin(l *serveLink, m *Dispatch, j *job, pays bool) (Code, string) {
	goesLive := j == nil && pays || j != nil && j.step.state == jobWaiting && !j.step.asked && (pays || j.step.payer)
	switch {
	case j != nil && j.prompt.Tokens != m.Prompt.Tokens:
		return CodeInvalid, fmt.Sprintf("prompt of %d tokens, request %s has %d here", m.Prompt.Tokens, m.Request, j.prompt.Tokens)
	case j != nil && j.prompt.differs(&m.Prompt):
		return CodeInvalid, fmt.Sprintf("another prompt than that of request %s, which is here: an id stands for one prompt", m.Request)
	case j != nil && j.step.state == jobLive:
		return 0, "" // never refused for room
	case j == nil && p.draining:
		return CodeDraining, "prefiller is draining"
	case goesLive && !p.hasRoom():
		return CodeBusy, fmt.Sprintf("%d jobs are live", p.live)
	case j == nil && l.waiting >= maxWaiting:
		return CodeBusy, fmt.Sprintf("%d jobs of this decoder wait for their other half", l.waiting)
	}
	return 0, ""
}

// refuse rejects a Dispatch, and remembers that: a repetition that comes when the decoder has reused the pages must not be accepted.
func (p *Prefiller) refuse(s *serving, code Code, text string, cost uint64) {
	s.code, s.text = code, text
	if code == CodeBusy {
		s.after = p.retryAfter()
	}
	p.refund(s.link, cost)
	p.stats.Rejected++
	if !broken(mutTombOnReject) {
		s.link.attempts[s.seq] = s
	}
	p.step(s, serveEvent{kind: svRefuse})
	s.shrink()
}

// shrink drops what a tomb does not need: a link has many of them.
func (s *serving) shrink() {
	*s = serving{link: s.link, seq: s.seq, step: s.step, code: s.code, text: s.text, after: s.after, sums: s.sums, layer: s.layer}
}

// retryAfter is about when a job will have ended.
func (p *Prefiller) retryAfter() time.Duration {
	return min(max(p.life/time.Duration(max(1, p.live)), 10*time.Millisecond), time.Second)
}

// cancel answers a Cancel of the current epoch that the decoder has not forgotten.
func (p *Prefiller) cancel(l *serveLink, m *Cancel) error {
	if s := l.attempts[m.Seq]; s != nil {
		p.step(s, serveEvent{kind: svCancel})
		return nil
	}
	if !p.spend(l, m.Cost) {
		return fmt.Errorf("%w: cancelled attempt %d has cost %d pages, %d are granted", ErrProtocol, m.Seq, m.Cost, l.credit.free())
	}
	p.refund(l, m.Cost)
	s := &serving{link: l, seq: m.Seq}
	if !broken(mutTombOnCancel) {
		l.attempts[m.Seq] = s
	}
	if m.Request != "" {
		p.detach(l, s, m.Request)
	}
	p.step(s, serveEvent{kind: svCancel})
	return nil
}

// detach tells a job that a member will not dispatch. A job that does not exist yet finds it with the tomb.
func (p *Prefiller) detach(l *serveLink, s *serving, request string) {
	j := p.findJob(l, request)
	if j == nil {
		s.detach = p.findDetached(l, request, true)
		s.detach.seen |= 1 << l.member
		s.detach.tombs++
		return
	}
	j.seen |= 1 << l.member
	switch n := j.step; {
	case l.member != 0:
	case n.state == jobWaiting && n.wanted > 0 && !n.asked && !p.hasRoom():
		p.stepJob(j, jobFull)
	default:
		p.stepJob(j, jobDetach)
	}
	p.memberEnded(j)
}

// query answers a Query.
func (p *Prefiller) query(l *serveLink, m *Query) {
	answer := &State{Of: make([]AttemptState, len(m.Seqs))}
	for i, seq := range m.Seqs {
		a := &answer.Of[i]
		a.Seq, a.Exact = seq, true
		if s := l.attempts[seq]; s != nil {
			a.Phase, a.Layer, a.Posted, a.Exact = s.step.state.phase(), s.layer, s.step.posted, s.step.exact
			if a.Phase == PhaseTomb {
				a.Code, a.Sums = s.code, s.sums
			}
		}
	}
	p.send(l, answer)
}

// fail ends an attempt, if it is live.
func (p *Prefiller) fail(s *serving, code Code, text string) {
	if s.code == 0 && s.step.end == endNone {
		s.code, s.text = code, text
	}
	p.step(s, serveEvent{kind: svFail})
}

// step feeds one event to an attempt and carries the effects out.
func (p *Prefiller) step(s *serving, e serveEvent) {
	before := s.step
	p.seen.serve[before.state][e.kind]++
	next, fx, ok := before.step(e)
	if !ok {
		p.stats.Unexpected++
		p.unexpected[before.state][e.kind]++
		p.note(s, ServeUnexpected, before.state.String(), e.kind.String())
		return
	}
	s.step = next
	if next.state != before.state {
		p.note(s, ServeAttempt, before.state.String(), next.state.String())
		if !next.open() {
			p.close(s)
		}
	}
	if fx&fxAccept != 0 {
		p.send(s.link, &Accept{s.seq, p.queueLength(), s.link.credit.granted})
	}
	if fx&fxReject != 0 {
		p.send(s.link, &Reject{s.seq, s.code, s.text, s.after, s.link.credit.granted})
	}
	if fx&fxTiming != 0 {
		p.sendTiming(s)
	}
	if fx&fxDigest != 0 {
		p.stats.Done++
		if p.cfg.Verify {
			p.send(s.link, &Digest{s.seq, s.sums})
		}
	}
	if next.state >= serveStopping && before.state.live() && before.state < serveStopping {
		p.leaveJob(s) // the credits that come back go with the answer
	}
	if next.state == serveTomb && before.state.live() {
		p.ended(s)
	}
	if fx&fxCancelAck != 0 {
		p.send(s.link, &CancelAck{s.seq, next.posted, next.exact, s.link.credit.granted})
	}
	if fx&fxFailed != 0 {
		p.send(s.link, &Failed{CancelAck{s.seq, next.posted, next.exact, s.link.credit.granted}, s.code, s.text})
	}
}

func (p *Prefiller) note(s *serving, kind ServeNoteKind, from, to string) {
	n := ServeNote{Kind: kind, Link: s.link.id, Peer: s.link.peer.id, Seq: s.seq, From: from, To: to, Code: s.code, Text: s.text}
	if s.job != nil {
		n.Job, n.Request = s.job.id, s.job.request
	}
	p.out.Note(n)
}

// leaveJob takes an attempt that is coming to its end off its job. Writes of it may still read the source pages.
func (p *Prefiller) leaveJob(s *serving) {
	j := s.job
	p.alarms.clear(&s.alarm)
	i := slices.Index(j.attempts, s)
	j.attempts = slices.Delete(j.attempts, i, i+1)
	p.stepJob(j, jobLeave)
	p.memberEnded(j)
}

// ended makes a tomb of an attempt.
func (p *Prefiller) ended(s *serving) {
	l := s.link
	switch s.step.end {
	case endCancel:
		p.stats.Cancelled++
	case endFail:
		p.stats.Failed++
	case endSilent:
		p.stats.Silent++
	}
	last := len(l.live) - 1
	l.live[s.liveAt] = l.live[last]
	l.live[s.liveAt].liveAt = s.liveAt
	l.live[last] = nil
	l.live = l.live[:last]
	l.words -= s.words
	p.dropFeeds(s)
	s.shrink()
	if s.seq < l.lowWater || l.ended {
		delete(l.attempts, s.seq)
	}
	p.mayForget(l)
}

func (p *Prefiller) sendTiming(s *serving) {
	j := s.job
	m := &Timing{Seq: s.seq, Host: p.cfg.Host, Layers: j.layers, Late: j.late}
	if j.begun > 0 {
		m.Begun, m.Computed = p.cfg.Origin+int64(j.begun), p.cfg.Origin+int64(j.done)
	}
	p.send(s.link, m)
}

// queueLength is how many jobs wait for their first pass.
func (p *Prefiller) queueLength() int { return p.live - p.begun }
