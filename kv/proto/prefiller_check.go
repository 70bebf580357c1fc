package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/internal/invariants"
)

// broke notes the first broken invariant, or panics where that is wanted.
func (p *Prefiller) broke(format string, args ...any) {
	if invariants.Enabled {
		invariants.Broken("kv: prefiller: "+format, args...)
	}
	if p.broken == nil {
		p.broken = fmt.Errorf("kv: prefiller: "+format, args...)
	}
}

// Check looks at every internal invariant, in time proportional to everything that lives: for tests. It may be called between events.
func (p *Prefiller) Check() error {
	posted := map[*serving]uint64{}
	peers := map[*servePeer]post{}
	for _, o := range p.posts {
		if s := o.serving; s != nil {
			posted[s] += uint64(o.writes)
			sum := peers[s.link.peer]
			peers[s.link.peer] = post{writes: sum.writes + o.writes, bytes: sum.bytes + o.bytes}
		}
	}
	for _, l := range p.links {
		p.checkLink(l, posted)
		sum := peers[l.peer]
		if sum.writes != l.peer.writes || sum.bytes != l.peer.bytes {
			p.broke("peer %d: %d writes of %d bytes are outstanding, counted %d of %d", l.peer.id, sum.writes, sum.bytes, l.peer.writes, l.peer.bytes)
		}
		if w := p.cfg.Window; sum.writes > w.Writes || sum.bytes > max(w.Bytes, uint64(l.longest)) {
			p.broke("peer %d: %d writes of %d bytes are outstanding, the window is %d of %d", l.peer.id, sum.writes, sum.bytes, w.Writes, w.Bytes)
		}
	}
	p.checkJobs(posted)
	p.checkCredits()
	if !p.alarms.heap.sound() {
		p.broke("an alarm is out of place")
	}
	return p.broken
}

func (p *Prefiller) checkLink(l *serveLink, posted map[*serving]uint64) {
	words, outstanding := 0, 0
	for i, s := range l.live {
		words += s.words
		outstanding += int(posted[s])
		if s.liveAt != i || s.link != l || !s.step.state.live() || l.attempts[s.seq] != s || (s.alarm.slot > 0) != (s.step.state != serveStopping) {
			p.broke("link %d: live attempt %d is out of place", l.id, s.seq)
			return
		}
		p.checkServing(s, posted[s])
	}
	if words != l.words || outstanding != l.outstanding {
		p.broke("link %d: %d words and %d writes, counted %d and %d", l.id, l.words, l.outstanding, words, outstanding)
	}
	live := 0
	for seq, s := range l.attempts {
		if s.seq != seq || s.step.state == serveNew {
			p.broke("link %d: attempt %d is out of place", l.id, seq)
		}
		if s.step.state.live() {
			live++
		}
	}
	if live != len(l.live) || len(l.attempts)-live > seqWindow {
		p.broke("link %d: %d of %d attempts are live, counted %d", l.id, live, len(l.attempts), len(l.live))
	}
	if !l.work.sound() || slices.ContainsFunc(l.work.items, func(s *serving) bool { return !s.step.open() }) {
		p.broke("link %d: work is out of place, or of an attempt that must not post", l.id)
	}
}

func (p *Prefiller) checkServing(s *serving, outstanding uint64) {
	a, f := s.step, s.posts
	expected := s.plan.Expected(p.cfg.Member)
	if s.tail {
		expected++
	}
	sum := a.left + a.outstanding + a.posted
	if a.outstanding != outstanding || sum > expected || a.exact && sum != expected {
		p.broke("attempt %d: %+v, outstanding are %d, expected %d", s.seq, a, outstanding, expected)
	}
	if a.open() && f.slot == 0 && (f.first >= 0 || f.at >= 0 || s.tailDue()) {
		p.broke("attempt %d has something to post and waits for nothing", s.seq)
	}
	if !a.open() {
		return
	}
	for i := range f.lanes {
		c := &f.lanes[i]
		_, end := s.plan.Units(p.lanes[i].group)
		if int(c.next) > end || int(c.to) > end || int(c.ready) > end || c.on != (i == f.at || p.chained(f, i)) {
			p.broke("attempt %d lane %d: %+v of %d units", s.seq, i, *c, end)
		}
		if want := s.plan.Ready(p.lanes[i].group, int(s.job.computed[i])); int(c.ready) != want && int(c.next) < want {
			p.broke("attempt %d lane %d: %d units are ready, noted %d", s.seq, i, want, c.ready)
		}
	}
}

func (p *Prefiller) chained(f *feedState, lane int) bool {
	for i := f.first; i >= 0; i = int(f.lanes[i].chain) - 1 {
		if i == lane {
			return true
		}
	}
	return false
}

func (p *Prefiller) checkJobs(posted map[*serving]uint64) {
	live, begun := 0, 0
	waiting := map[*serveLink]int{}
	for id, j := range p.jobs {
		outstanding := 0
		for _, s := range j.attempts {
			outstanding += int(posted[s])
			if s.job != j || !s.step.state.live() || s.step.state == serveStopping {
				p.broke("job %d: attempt %d is out of place", id, s.seq)
			}
		}
		if j.id != id || j.outstanding < outstanding || j.step.wanted != len(j.attempts) || j.outstanding > 0 && !j.pinned {
			p.broke("job %d (%d): %d writes of %d attempts, counted %d of %d, pinned %v", id, j.id, outstanding, len(j.attempts), j.outstanding, j.step.wanted, j.pinned)
		}
		switch j.step.state {
		case jobLive:
			live++
			if j.ran {
				begun++
			}
			if len(j.attempts) == 0 && j.alarm.slot == 0 {
				p.broke("job %d is live, has no attempt, and waits for nothing", id)
			}
		case jobWaiting:
			if j.maker != nil {
				waiting[j.maker]++
			}
			if j.alarm.slot == 0 {
				p.broke("job %d waits for ever", id)
			}
		default:
			p.broke("job %d is kept in state %v", id, j.step.state)
		}
	}
	if live != p.live || begun != p.begun || live > p.cfg.Jobs {
		p.broke("%d jobs are live, %d of them begun, counted %d and %d", live, begun, p.live, p.begun)
	}
	for _, l := range p.links {
		if waiting[l] != l.waiting || l.waiting > maxWaiting {
			p.broke("link %d: %d jobs wait, counted %d", l.id, waiting[l], l.waiting)
		}
	}
}

func (p *Prefiller) checkCredits() {
	var circulation, spent uint64
	held := map[*serveLink]uint64{}
	for _, j := range p.jobs {
		spent += j.paid
		if j.payer != nil {
			held[j.payer] += j.paid
		}
	}
	links := 0
	for _, l := range p.links {
		c := &l.credit
		if c.open {
			circulation += c.free()
			links++
		}
		if c.used > c.granted || held[l] != c.held {
			p.broke("link %d: credit is %+v, jobs hold %d", l.id, *c, held[l])
		}
	}
	if c := &p.credits; c.circulation != circulation+spent || c.spent != spent || c.links != links {
		p.broke("credits are %d in circulation, %d spent, %d links; counted %d, %d, %d", c.circulation, c.spent, c.links, circulation+spent, spent, links)
	}
}
