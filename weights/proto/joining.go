package proto

import "slices"

// join takes a member's report.
func (c *Controller) join(from ID, h Head, j *Join) {
	i := slices.IndexFunc(c.peers, func(p *peer) bool { return p.id == from })
	if i < 0 {
		i = len(c.peers)
		c.peers = append(c.peers, &peer{id: from})
		c.out.Note(Note{Kind: NoteJoined, Peer: from, Text: j.Member.String() + " " + j.Name})
	}
	p := c.peers[i]
	if h.Seq < p.seq || j.Member.ID != from {
		return // an older one, late
	}
	fresh := p.join == nil
	if fresh {
		c.back(&j.Member)
	}
	p.join, p.seq = j, h.Seq
	c.out.Meet(from, j.Member.Addr)
	c.sees(h.Term.Number)
	c.sees(j.Epoch.Number)
	switch {
	case !c.ruling:
		c.window = c.now + c.cfg.JoinWindow
		if c.cfg.Expect > 0 && len(c.peers) >= c.cfg.Expect {
			c.rule()
		}
	case h.Term.Compare(c.term) > 0 || j.Epoch.Term.ID != c.id && j.Epoch.Number > c.term.Number && (c.epoch == nil || j.Epoch.Number >= c.epoch.key.Number):
		c.raise()
	default:
		if fresh || h.Term != c.term {
			c.say(from, Head{Term: c.term}, &Joined{})
		}
		c.resolve(p)
		c.strand()
		if k := j.Epoch; !j.State.inEpoch() && c.running(k) {
			c.done(from, &Done{Of: k, Code: CodeFlip, OK: !c.epoch.commit || j.State == StateCommitted && j.Version == c.epoch.version})
		}
	}
	c.wantLayout(p)
}

// wantLayout asks a member for its layout, if that is not here.
func (c *Controller) wantLayout(p *peer) {
	if !c.out.Has(p.join.Member.Layout) {
		c.tell(p.id, Head{Term: c.term}, &Want{p.join.Member.Layout})
	}
}

// recover tells members of epochs that are over how they ended.
func (c *Controller) recover() {
	for _, p := range slices.Clone(c.peers) {
		c.resolve(p)
	}
	c.strand()
}

// running reports whether an epoch is the one that is under way, or one that it continues.
func (c *Controller) running(k Key) bool {
	e := c.epoch
	return e != nil && inChain(e.since, e.key, k)
}

// resolve tells one member how its epoch ended. Without a record an epoch of this log was not committed, and never will be.
func (c *Controller) resolve(p *peer) {
	k := p.join.Epoch
	if !p.join.State.inEpoch() || p.join.Log != c.cfg.Log || c.broken != nil {
		return
	}
	if c.running(k) {
		e := c.epoch
		if i := e.index(p.id); i >= 0 && e.at[i].out && p.join.Member.Role == RoleReceiver {
			c.say(p.id, c.head(), &OutOf{Of: e.key, Since: e.since, Commit: e.phase == epSwitching, Code: CodeLost, Text: "its session had ended"})
		}
		return
	}
	if r := c.decided(k); r != nil {
		c.sayFact(p.id, r)
	} else if !c.deciding(k) {
		c.write(Record{Decision: Decision{Of: k, Version: p.join.Pending}}, p.id)
	} else {
		for i := range c.writes {
			if c.recordOf(c.writes[i].seq).Decision.Of == k {
				c.writes[i].tell = append(c.writes[i].tell, p.id)
			}
		}
	}
}

// strand takes ranks out of a switch that nobody drives any more: their leader is gone, or has given it up.
func (c *Controller) strand() {
	for _, p := range c.peers {
		j := p.join
		if j.State != StateSwitching || j.Member.Leader || c.running(j.Epoch) || j.Epoch == p.out {
			continue
		}
		if !slices.ContainsFunc(c.peers, func(q *peer) bool {
			m := &q.join.Member
			resumed := q.join.Epoch == j.Epoch && q.join.State == StateCommitted && q.join.Version == j.Pending // so all had flipped
			return m.Role == RoleReceiver && m.Instance == j.Member.Instance && m.Leader && (q.join.State.inEpoch() || resumed)
		}) {
			id := p.id
			c.forget(func(l *letter) bool { return l.to == id && l.kind == KindOut && l.about == 0 })
			c.say(id, Head{Term: c.term}, &OutOf{Of: j.Epoch, Since: j.Epoch, Commit: true, Code: CodeLost, Text: "the leader is gone, or has given the switch up"})
		}
	}
}

// asked answers what is known of an epoch.
func (c *Controller) asked(from ID, h Head, x *Ask) {
	t := &Told{Of: x.Of}
	switch r := c.decided(x.Of); {
	case r != nil:
		t.Known, t.Decision = true, r.Decision
	case c.running(x.Of) || c.deciding(x.Of):
		t.Pending = true
	case broken(mutUnknown):
		t.Known, t.Decision = true, Decision{Of: x.Of}
	case x.Log == c.cfg.Log && c.ruling && c.broken == nil:
		c.write(Record{Decision: Decision{Of: x.Of, Version: h.Version}}, from)
		t.Pending = true
	}
	c.tell(from, Head{Term: h.Term, Epoch: h.Epoch}, t)
}

// dropEpoch ends the running epoch, which is not decided, without its members: they obey somebody else, or are about to be told.
func (c *Controller) dropEpoch() {
	e := c.epoch
	c.epoch = nil
	c.forget(func(l *letter) bool { return l.about == e.key.Number })
	if e.begun && c.broken == nil {
		var tell []ID
		for i := range e.members {
			if !e.at[i].lost {
				tell = append(tell, e.members[i].ID)
			}
		}
		for _, k := range e.chain {
			c.write(Record{Decision: Decision{Of: k, Version: e.version}}, tell...)
		}
	}
	c.endOp(&EpochError{Version: e.version, Epoch: e.key, Code: CodeStale, Text: "a member has seen a higher term", Err: ErrAborted})
}
