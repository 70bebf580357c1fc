package proto

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/hawser-project/hawser"
)

// maxWaiting is how many jobs that one link made may wait for a half.
const maxWaiting = 1024

// job is one request on P, shared by the attempts of all members of its decoder. Owned by the Prefiller.
type job struct {
	id       JobID
	request  string
	instance string // of the decoder; empty until it is known
	next     *job   // of the same request id, of another instance
	step     jobStep
	prompt   Prompt
	expected bool // Expect was called
	known    bool // the inference engine must hear Stop

	maker    *serveLink // whose Dispatch made it; nil after Expect
	first    *serving   // the attempt that is joining
	members  int        // of the decoder's instance
	seen     uint64     // members that came, or said that they will not
	retry    bool       // made by one: waits for no other member
	attempts []*serving // live ones
	payer    *serveLink // who paid for it
	paid     uint64
	alarm    alarm // JoinWait
	refusal  Code  // of the inference engine
	why      string

	source      SourcePages
	pinned      bool    // source is set
	pausing     bool    // Preempt was called, and source pages are still read
	generation  uint32  // of source; passes that began with another one mean nothing
	computed    []int32 // by lane: tokens that are in the source pages
	anything    bool    // some of computed is above 0, or a pass with these pages has begun
	ran         bool    // a pass has begun
	tail        bool    // the caller's tail is there
	outstanding int     // writes

	made, begun, done Time // made, its first pass began, last layer computed
	layers, late      int
}

// detachment is which members of a decoder have said that they will not dispatch a request, of which there is no job yet. It is kept as
// long as the tombs that say so.
type detachment struct {
	request, instance string
	next              *detachment // of the same request, of another instance
	members           int
	seen              uint64
	tombs             int
}

func (p *Prefiller) sortedJobs() []*job {
	return slices.SortedFunc(maps.Values(p.jobs), func(a, b *job) int { return cmp.Compare(a.id, b.id) })
}

// findJob finds the job of a decoder's request. One that was only expected becomes that decoder's.
func (p *Prefiller) findJob(l *serveLink, request string) *job {
	for j := p.named[request]; j != nil; j = j.next {
		if j.instance == "" {
			j.instance = l.instance
		}
		if j.instance == l.instance {
			j.members = max(j.members, l.members)
			return j
		}
	}
	return nil
}

func (p *Prefiller) newJob(request string) *job {
	p.lastJob++
	j := &job{id: p.lastJob, request: request, next: p.named[request], made: p.now}
	j.alarm.kind, j.alarm.job = alarmJob, j
	p.jobs[j.id], p.named[request] = j, j
	return j
}

// jobFor makes the job of a Dispatch.
func (p *Prefiller) jobFor(l *serveLink, m *Dispatch) *job {
	j := p.newJob(m.Request)
	j.instance, j.members, j.maker, j.prompt = l.instance, l.members, l, m.Prompt
	j.retry = m.Try > 1
	if d := p.findDetached(l, m.Request, false); d != nil {
		j.seen = d.seen
	}
	l.waiting++ // until it is live or ends; see stepJob
	return j
}

// removeJob takes a job that has ended out of the tables.
func (p *Prefiller) removeJob(j *job) {
	delete(p.jobs, j.id)
	at := p.named[j.request]
	if at == j {
		if j.next == nil {
			delete(p.named, j.request)
		} else {
			p.named[j.request] = j.next
		}
		return
	}
	for ; at.next != j; at = at.next {
	}
	at.next = j.next
}

// findDetached finds what members of a decoder have said of a request before there was a job; made is to make it.
func (p *Prefiller) findDetached(l *serveLink, request string, made bool) *detachment {
	for d := p.detached[request]; d != nil; d = d.next {
		if d.instance == l.instance {
			return d
		}
	}
	if !made {
		return nil
	}
	d := &detachment{request: request, instance: l.instance, next: p.detached[request], members: l.members}
	p.detached[request] = d
	return d
}

// undetach ends what a tomb keeps of a job that did not exist.
func (p *Prefiller) undetach(s *serving) {
	gone := s.detach
	s.detach = nil
	if gone.tombs--; gone.tombs > 0 {
		return
	}
	if at := p.detached[gone.request]; at != gone {
		for ; at.next != gone; at = at.next {
		}
		at.next = gone.next
	} else if gone.next != nil {
		p.detached[gone.request] = gone.next
	} else {
		delete(p.detached, gone.request)
	}
}

// stepJob feeds one event to a job and carries the effects out.
func (p *Prefiller) stepJob(j *job, e jobEvent) {
	before := j.step
	p.seen.job[before.state][e]++
	next, fx, ok := before.step(e)
	if !ok {
		p.stats.Unexpected++
		p.unexpJob[before.state][e]++
		p.out.Note(ServeNote{Kind: ServeUnexpected, Job: j.id, Request: j.request, From: before.state.String(), To: e.String()})
		return
	}
	j.step = next
	if next.state != before.state {
		p.out.Note(ServeNote{Kind: ServeJob, Job: j.id, Request: j.request, From: before.state.String(), To: next.state.String()})
		p.count(j, before.state, next.state)
	}
	if fx&jxWait != 0 {
		p.alarms.set(&j.alarm, p.now+p.cfg.JoinWait)
	}
	switch {
	case fx&jxBusy != 0:
		p.failAll(j, CodeBusy, fmt.Sprintf("%d jobs are live", p.cfg.Jobs))
	case fx&jxFail != 0:
		p.failAll(j, CodePrompt, fmt.Sprintf("the other half of the request did not come within %v", p.cfg.JoinWait))
	}
	if fx&jxStop != 0 {
		p.endJob(j)
	}
	if fx&jxAdmit != 0 {
		p.alarms.clear(&j.alarm)
		p.admit(j)
	}
}

// count keeps the numbers of jobs by state.
func (p *Prefiller) count(j *job, from, to jobState) {
	if from == jobLive {
		p.live--
		if j.ran {
			p.begun--
		}
	}
	if to == jobLive {
		p.live++
	}
	if (from == jobWaiting || from == jobNone) && to != jobWaiting && j.maker != nil {
		j.maker.waiting--
	}
	if from == jobLive && to == jobWaiting && j.maker != nil {
		j.maker.waiting++
	}
}

// failAll ends all attempts of a job.
func (p *Prefiller) failAll(j *job, code Code, text string) {
	for i := len(j.attempts) - 1; i >= 0; i-- {
		p.fail(j.attempts[i], code, text)
	}
}

// endJob is everything that a job's end means here.
func (p *Prefiller) endJob(j *job) {
	p.alarms.clear(&j.alarm)
	p.removeJob(j)
	p.life += (p.now - j.made - p.life) / 8
	if j.known {
		j.known = false
		p.out.Stop(j.id)
	}
	p.mayUnpin(j)
	p.payBack(j)
	p.failAll(j, CodeEngine, "the job has ended")
}

// hasRoom reports whether one more job may be live.
func (p *Prefiller) hasRoom() bool { return p.live < p.cfg.Jobs }

// admit asks the inference engine to take a job that has become live.
func (p *Prefiller) admit(j *job) {
	s := j.first
	if s == nil {
		s = j.attempts[len(j.attempts)-1]
	}
	info := JobInfo{
		Request: j.request, Instance: j.instance, Prompt: j.prompt, Expected: j.expected, Spans: s.spans, Tail: s.tail, Priority: s.priority, Deadline: s.deadline,
		Trace: s.trace,
	}
	a := p.out.Admit(j.id, &info)
	switch a.Verdict {
	case AdmitUnknown:
		p.stepJob(j, jobUnknown)
		return
	case AdmitReady, AdmitQueued:
		j.known = true
		p.out.Start(j.id)
		if a.Verdict == AdmitReady {
			if err := p.sourced(j, a.Source); err != nil {
				a = Admission{Verdict: AdmitRefused, Code: CodeEngine, Text: err.Error()}
			}
		}
	}
	if a.Verdict != AdmitReady && a.Verdict != AdmitQueued {
		j.refusal, j.why = cmp.Or(a.Code, CodeEngine), a.Text
		p.unpay(j)
		p.failAll(j, j.refusal, j.why)
		if j.step.state != jobEnded { // not ended with its last attempt
			p.stepJob(j, jobRefused)
		}
	}
}

// memberEnded looks whether anybody still wants a job, after one of its attempts or members has ended.
func (p *Prefiller) memberEnded(j *job) {
	switch {
	case j.step.state == jobEnded || len(j.attempts) > 0:
	case j.retry || j.members > 0 && j.seen == allMembers(j.members):
		p.stepJob(j, jobOver)
	case j.step.state == jobLive && j.alarm.slot == 0:
		p.alarms.set(&j.alarm, p.now+p.cfg.JoinWait) // the others are silent
	}
}

func allMembers(n int) uint64 { return ^uint64(0) >> (MaxMembers - n) }

// jobTimeout is JoinWait.
func (p *Prefiller) jobTimeout(j *job) {
	if len(j.attempts) == 0 || j.step.state == jobWaiting {
		p.stepJob(j, jobTimeout)
	}
}

// Expect says that a prompt came to P by itself: it may be computed from now on, and its Dispatch will come within JoinWait, or is
// here already. The prompt counts only for length when the Dispatch brings its own. Called again it returns the same job. Admit, and
// Stop of the same job, may be called before it returns. The errors are hawser.ErrClosed, also when no member of the decoder wants the
// request, ErrInvalid and ErrLimit.
func (p *Prefiller) Expect(now Time, request string, prompt Prompt) (JobID, error) {
	p.enter(now)
	defer p.leave()
	switch {
	case p.draining:
		return 0, fmt.Errorf("kv: expect request %s: prefiller: %w", request, hawser.ErrClosed)
	case request == "" || len(request) > MaxRequestID || prompt.Tokens < 1 || prompt.Tokens > MaxTokens:
		return 0, fmt.Errorf("kv: expect request %q of %d tokens: %w", request, prompt.Tokens, hawser.ErrInvalid)
	case len(p.jobs) >= seqWindow:
		return 0, fmt.Errorf("kv: expect request %s: %w: %d jobs", request, hawser.ErrLimit, len(p.jobs))
	}
	j := p.named[request]
	if j == nil {
		if d := p.detached[request]; d != nil && d.seen == allMembers(d.members) {
			return 0, fmt.Errorf("kv: expect request %s: %w: its decoder does not want it", request, hawser.ErrClosed)
		}
		j = p.newJob(request)
		j.prompt = prompt
	} else if j.prompt.Tokens != prompt.Tokens {
		return 0, fmt.Errorf("kv: expect request %s: %w: %d tokens, its dispatch says %d", request, hawser.ErrInvalid, prompt.Tokens, j.prompt.Tokens)
	}
	if j.expected {
		return j.id, nil
	}
	j.expected, j.known = true, true
	if len(j.prompt.IDs) == 0 && j.prompt.Key == "" {
		j.prompt = prompt
	}
	if n := j.step; n.state == jobWaiting && n.payer && n.wanted > 0 && !p.hasRoom() {
		p.stepJob(j, jobFull)
	} else {
		p.stepJob(j, jobExpect)
	}
	return j.id, nil
}

// findLive finds a job for a call of the inference engine. nil without an error: it has ended, which the engine may not have heard yet.
func (p *Prefiller) findLive(what string, id JobID) (*job, error) {
	if id == 0 || id > p.lastJob {
		return nil, fmt.Errorf("kv: %s: %w: there is no job %d", what, hawser.ErrInvalid, id)
	}
	return p.jobs[id], nil
}

// Sourced gives a job its source pages: after AdmitQueued, and again after Preempt and its Unpin. hawser.ErrClosed: the job has
// ended, the pages are not used.
func (p *Prefiller) Sourced(now Time, id JobID, s SourcePages) error {
	p.enter(now)
	defer p.leave()
	j, err := p.findLive("source pages", id)
	switch {
	case err != nil:
		return err
	case j == nil || j.step.state != jobLive:
		return fmt.Errorf("kv: source pages of job %d: %w", id, hawser.ErrClosed)
	case j.pinned:
		return fmt.Errorf("kv: source pages of request %s: %w: it has some until Unpin", j.request, hawser.ErrBusy)
	}
	return p.sourced(j, s)
}

func (p *Prefiller) sourced(j *job, s SourcePages) error {
	if err := p.checkSource(j, s); err != nil {
		return fmt.Errorf("kv: source pages of request %s: %w: %w", j.request, hawser.ErrInvalid, err)
	}
	j.source, j.pinned = s, true
	j.generation++
	j.anything = s.Cached > 0
	if j.computed == nil {
		j.computed = make([]int32, len(p.lanes))
	}
	for i := range j.computed {
		j.computed[i] = int32(s.Cached)
	}
	if j.anything {
		p.startAll(j)
	}
	return nil
}

// checkSource refuses pages that are not there.
func (p *Prefiller) checkSource(j *job, s SourcePages) error {
	if len(s.Pages) != len(p.own.Groups) || s.Cached < 0 || s.Cached > j.prompt.Tokens {
		return fmt.Errorf("pages of %d groups, %d tokens cached, want %d groups, at most %d tokens", len(s.Pages), s.Cached, len(p.own.Groups), j.prompt.Tokens)
	}
	for g, pages := range s.Pages {
		most := p.own.PoolPages(g)
		for i, page := range pages.Index {
			if int(page) >= most && most > 0 {
				return fmt.Errorf("group %d: logical page %d is physical page %d, there are %d", g, pages.First+i, page, most)
			}
		}
	}
	return nil
}

// startAll starts the attempts of a job of which something is computed, or begins to be.
func (p *Prefiller) startAll(j *job) {
	for i := len(j.attempts) - 1; i >= 0; i-- {
		p.start(j.attempts[i])
	}
}

// Tail says that the job's tail is in the caller's memory, until Unpin. It is posted after everything else.
func (p *Prefiller) Tail(now Time, id JobID) error {
	p.enter(now)
	defer p.leave()
	j, err := p.findLive("tail", id)
	switch {
	case err != nil:
		return err
	case j == nil:
		return fmt.Errorf("kv: tail of job %d: %w", id, hawser.ErrClosed)
	case !j.pinned || j.pausing:
		return fmt.Errorf("kv: tail of request %s: %w: it has no source pages", j.request, hawser.ErrInvalid)
	}
	j.tail = true
	for _, s := range j.attempts {
		p.ready(s)
	}
	return nil
}

// Fail ends a job because the inference engine cannot compute it. The decoders get code and text.
func (p *Prefiller) Fail(now Time, id JobID, code Code, text string) {
	p.enter(now)
	if j := p.jobs[id]; j != nil {
		p.failJob(j, code, text)
	}
	p.leave()
}

func (p *Prefiller) failJob(j *job, code Code, text string) {
	p.failAll(j, code, text)
	if j.step.state != jobEnded { // not ended with its last attempt
		p.stepJob(j, jobFail)
	}
}

// Preempt takes the source pages of a job back: Unpin says when, possibly during the call. What was sent is not sent again; Sourced
// goes on with the rest.
func (p *Prefiller) Preempt(now Time, id JobID) {
	p.enter(now)
	if j := p.jobs[id]; j != nil && j.pinned && !j.pausing {
		j.pausing, j.tail, j.anything = true, false, false
		j.generation++
		for i := len(j.attempts) - 1; i >= 0; i-- {
			p.park(j.attempts[i])
		}
		p.mayUnpin(j)
	}
	p.leave()
}

// mayUnpin gives the source pages back once nobody reads them.
func (p *Prefiller) mayUnpin(j *job) {
	if !j.pinned || j.outstanding > 0 || !j.pausing && j.step.state != jobEnded {
		return
	}
	j.pinned, j.pausing, j.source = false, false, SourcePages{}
	p.out.Unpin(j.id)
}
