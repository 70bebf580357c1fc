package proto

import "slices"

// askAtOnce is how many members are asked in one go: in a large epoch all of them may be in doubt.
const askAtOnce = 16

// learn keeps a decision. Of two that contradict each other the first one stays.
func (m *member) learn(d Decision) {
	for i := range m.history {
		if h := &m.history[i]; h.Of == d.Of {
			if h.Commit != d.Commit {
				m.out.Note(Note{Kind: NoteProtocol, Epoch: d.Of, Text: "two decisions that contradict each other"})
			}
			return
		}
	}
	if len(m.history) == decisionsLimit {
		m.history = slices.Delete(m.history, 0, 1)
	}
	m.history = append(m.history, d)
	m.out.Note(Note{Kind: NoteDecision, Epoch: d.Of, Version: d.Version, Text: decisionText(d.Commit)})
}

func decisionText(commit bool) string {
	if commit {
		return "commit"
	}
	return "abort"
}

// decision takes what the controller has decided.
func (m *member) decision(x *Decided) {
	m.see(x.Decision.Of)
	m.learn(x.Decision)
	if p := m.part; p != nil && covers(x, p) {
		m.role.decided(x)
	} else {
		m.role.again(&x.Decision, m.term.ID)
		m.reportAll()
	}
}

// covers reports whether a decision is about a part: an abort is about all epochs of a chain of repairs.
func covers(x *Decided, p *part) bool {
	of := x.Decision.Of
	if x.Decision.Commit || x.Since == (Key{}) {
		return p.Key == of
	}
	return inChain(x.Since, of, p.Key)
}

func inChain(since, of, k Key) bool {
	return k.Term == of.Term && since.Number <= k.Number && k.Number <= of.Number
}

// answer says what is known of an epoch.
func (m *member) answer(from ID, h Head, x *Ask) {
	t := &Told{Of: x.Of}
	for i := range m.history {
		if m.history[i].Of == x.Of {
			t.Known, t.Decision = true, m.history[i]
		}
	}
	m.tell(from, Head{Term: h.Term, Epoch: h.Epoch}, t)
}

// told takes an answer. Not known is not abort.
func (m *member) told(from ID, x *Told) {
	p := m.part
	switch {
	case x.Known && x.Decision.Of == x.Of:
		m.learn(x.Decision)
		if p != nil && p.Key == x.Of {
			m.role.decided(&Decided{Decision: x.Decision})
			if m.part != nil { // its controller may be another one, which does not know
				m.reportAll()
			}
		}
	case p != nil && p.Key == x.Of && x.Pending && from == p.Key.Term.ID && p.doubtAt != 0:
		p.since = m.now
		p.doubtAt = m.now + m.cfg.DoubtAfter/2
		m.doubts(false)
	}
}

func (m *member) doubts(doubt bool) {
	if p := m.part; p.doubt != doubt {
		p.doubt = doubt
		m.mine.Doubt(&p.Epoch, doubt)
		m.reportAll()
	}
}

// ask asks how the epoch ended: first its controller, after DoubtAfter everybody.
func (m *member) ask() {
	p := m.part
	if broken(mutAlone) && p.voted {
		m.role.decided(&Decided{Decision: Decision{Of: p.Key, Version: p.Version}})
		return
	}
	h := Head{Term: p.Key.Term, Epoch: p.Key.Number, Version: p.Version}
	q := &Ask{p.Key, p.Log}
	for _, c := range m.links {
		m.tell(c, h, q)
	}
	if m.now < p.since+m.cfg.DoubtAfter {
		p.doubtAt = min(m.now+askAgain, p.since+m.cfg.DoubtAfter)
		return
	}
	m.doubts(true)
	for range min(askAtOnce, len(p.Members)) {
		p.asked = (p.asked + 1) % len(p.Members)
		if id := p.Members[p.asked].ID; id != m.id {
			m.tell(id, h, q)
		}
	}
	p.doubtAt = m.now + askAgain
}

// InDoubt reports whether the member does not know how its epoch ended, and which one it is.
func (m *member) InDoubt() (Epoch, bool) {
	if m.part == nil || !m.part.doubt {
		return Epoch{}, false
	}
	return m.part.Epoch, true
}
