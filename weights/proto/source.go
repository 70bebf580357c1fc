package proto

import "slices"

// source reports whether this member writes in the epoch.
func (p *part) source() bool { return p.Members[p.Me].Role == RolePublisher || len(p.Targets) > 0 }

// start begins to write.
func (m *member) start(x *Start) {
	p := m.part
	if p.phase != phReady || p.started {
		return
	}
	for _, g := range x.Grants {
		if !slices.Contains(p.Targets, g.Member) {
			m.out.Note(Note{Kind: NoteProtocol, Epoch: p.Key, Text: "start with the grant of a member that is no target"})
			return
		}
	}
	p.started = true
	m.enterPhase(phWriting)
	m.mine.Start(&p.Epoch, x.Grants)
}

// Staged says that stages are written, and quiet.
func (m *member) Staged(now Time, k Key, sums []StageSum) {
	m.enter(now)
	p := m.part
	if p == nil || p.Key != k || !p.started || p.wrote {
		m.unexpected("staged")
		return
	}
	p.sums = append(p.sums, sums...)
	if p.sumsAt == 0 {
		p.sumsAt = m.now + stagePause
	}
}

func (m *member) tellSums() {
	p := m.part
	for len(p.sums) > 0 {
		n := min(len(p.sums), maxSums)
		m.sayBack(&Stage{Sums: p.sums[:n]})
		p.sums = p.sums[n:]
	}
	p.sums, p.sumsAt = nil, 0
}

// Wrote answers Start: everything has ended, except what may still arrive at unquiet members. missed are those that did not get everything
// that was meant for them. err: this member could not go on.
func (m *member) Wrote(now Time, k Key, missed, unquiet []int, err error) {
	m.enter(now)
	p := m.part
	if p == nil || p.Key != k || !p.started || p.wrote {
		m.unexpected("wrote")
		return
	}
	p.wrote = true
	m.tellSums()
	p.report = &Quiet{How: QuietPushed, Missed: missed, Unquiet: unquiet}
	switch {
	case p.phase != phWriting:
		m.sayQuiet(QuietHalted)
	case err != nil:
		m.fail(CodeWrite, 0, err)
	default:
		p.voted = true
		m.enterPhase(phVoted)
		m.sayBack(p.report)
	}
}

// sayQuiet says that nothing is under way, after an order to stop.
func (m *member) sayQuiet(how QuietKind) {
	p := m.part
	q := Quiet{}
	if p.report != nil {
		q = *p.report
	}
	q.How = how
	if p.left {
		q.How = QuietLeft
	}
	if p.phase == phEnding {
		m.mayBeSettled()
		return
	}
	p.voted = false
	m.enterPhase(phHalted)
	m.sayBack(&q)
}

// stopWriting ends the writing of a part, if it has begun. false: nothing is under way.
func (m *member) stopWriting() bool {
	p := m.part
	if !p.started || p.wrote {
		return false
	}
	if !p.stopping {
		p.stopping = true
		m.mine.Stop(p.Key)
	}
	return true
}

// halt ends all writing: first the sources stop, in the second pass those who were written to make sure.
func (m *member) halt(h Head, x *Halt) {
	k := h.key()
	p := m.part
	if p == nil || p.Key != k { // it has not begun, or is over: nothing of it is under way
		m.see(k)
		switch {
		case x.Fence:
			m.say(h.Term.ID, h, &Halted{Round: x.Round, Stuck: m.stuck()})
		default:
			m.say(h.Term.ID, h, &Quiet{How: QuietHalted})
		}
		return
	}
	if p.phase == phSwitch || p.phase == phEnding {
		return // the decision is known
	}
	if !x.Fence {
		m.enterPhase(phHalting)
		if !m.stopWriting() {
			m.sayQuiet(QuietHalted)
		}
		return
	}
	if x.Round < p.round {
		return
	}
	p.round, p.voted = max(1, x.Round), false
	m.enterPhase(phHalting)
	lost := map[ID]bool{}
	for _, i := range x.Lost {
		if i < len(p.Members) {
			lost[p.Members[i].ID] = true
		}
	}
	m.fenceWriters(func(id ID) bool { return !lost[id] }, false)
	m.mayBeSettled()
}

// sayHalted answers the second pass.
func (m *member) sayHalted(verified []uint64) {
	p := m.part
	p.stuck = m.stuck()
	m.enterPhase(phHalted)
	m.forget(func(l *letter) bool { return l.kind == KindHalted })
	m.sayBack(&Halted{Round: p.round, Verified: verified, Stuck: p.stuck})
}
