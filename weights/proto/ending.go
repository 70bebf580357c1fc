package proto

import (
	"fmt"
	"slices"
)

// failed takes the end of a member's part.
func (c *Controller) failed(i int, x *Failed) {
	e := c.epoch
	switch {
	case !e.begun:
		e.blame, e.code, e.text = i, x.Code, x.Text
		c.over(nil)
	case e.phase >= epDeciding:
	case e.at[i].source:
		c.fail(i, x.Code, x.Text, false)
	case x.Code == CodeDigest:
		c.fail(i, x.Code, x.Text, false)
	default:
		c.outInstance(i, x.Code, x.Text)
	}
}

// lose takes the loss of a member.
func (c *Controller) lose(i int, code Code, text string) {
	e := c.epoch
	p := &e.at[i]
	if p.lost {
		return
	}
	p.lost = true
	switch {
	case !e.begun && e.mode == ModePush && p.source && c.op != nil && c.op.id == e.op:
		c.again()
	case !e.begun:
		e.blame, e.code, e.text = i, code, text
		c.over(nil)
	case e.phase == epDeciding: // what is being logged stays
	case e.phase == epSwitching && !e.members[i].Leader: // its leader finds out, and decides what becomes of the instance
	case p.source:
		c.fail(i, code, text, true)
	default:
		c.outInstance(i, code, text)
	}
}

// again drops an epoch that has not begun: the operation begins another one, with those who are there then.
func (c *Controller) again() {
	e := c.epoch
	c.forget(func(l *letter) bool { return l.about == e.key.Number })
	c.epoch = nil
	c.op.deadline = c.now + c.cfg.Limits.Offer
}

// outInstance takes the instance of a receiver out of the epoch.
func (c *Controller) outInstance(i int, code Code, text string) {
	e := c.epoch
	if e.at[i].out {
		return
	}
	n := e.members[i].Instance
	e.outs = append(e.outs, InstanceOut{n, e.members[i].ID, code, text})
	c.out.Note(Note{Kind: NoteOut, Peer: e.members[i].ID, Epoch: e.key, Version: e.version, Code: code, Text: text})
	var gone []int
	for k := range e.members {
		if p := &e.at[k]; e.members[k].Role == RoleReceiver && e.members[k].Instance == n && !p.source {
			p.out = true
			gone = append(gone, k)
			id := e.members[k].ID
			c.forget(func(l *letter) bool { return l.to == id && l.about == e.key.Number })
			if !p.lost && e.begun {
				c.sayTo(k, &OutOf{Of: e.key, Since: e.since, Commit: e.phase == epSwitching, Code: code, Text: text})
			}
		}
	}
	if e.phase >= epDeciding {
		return
	}
	if e.phase == epWriting {
		for _, s := range e.sources {
			if !e.at[s].lost {
				c.sayTo(s, &Drop{gone})
			}
		}
	}
	if len(e.left()) < c.least() {
		c.fail(i, code, text, false)
	}
}

// least is how many instances must be left.
func (c *Controller) least() int {
	if c.epoch.mode == ModePush {
		return c.cfg.MinInstances
	}
	return 1
}

// left are the instances that are still part of it, ascending.
func (e *epoch) left() (in []int) {
	for i := range e.members {
		if m := &e.members[i]; m.Role == RoleReceiver && !e.at[i].source && !e.at[i].out && !slices.Contains(in, m.Instance) {
			in = append(in, m.Instance)
		}
	}
	slices.Sort(in)
	return in
}

// fail ends an epoch that is not decided. repairable: another attempt may do without, or again.
func (c *Controller) fail(blame int, code Code, text string, repairable bool) {
	e := c.epoch
	switch {
	case e.phase >= epDeciding:
	case e.phase == epHalting || e.phase == epFencing || e.phase == epRepairing:
		if !repairable && e.repairable {
			e.blame, e.code, e.text, e.repairable = blame, code, text, false
		}
		if e.phase != epHalting { // the others must know who else is lost
			e.next = nil
			c.sayFence()
		}
	default:
		e.blame, e.code, e.text, e.repairable = blame, code, text, repairable
		c.sayHalt()
	}
}

// sayHalt stops the sources.
func (c *Controller) sayHalt() {
	e := c.epoch
	c.enter(epHalting, c.cfg.Limits.Quiet)
	c.forget(func(l *letter) bool { return l.about == e.key.Number && l.kind != KindOut })
	for _, s := range e.sources {
		p := &e.at[s]
		if !p.lost {
			p.quiet = nil
			c.sayTo(s, &Halt{})
		}
	}
}

// sayFence makes sure that nobody writes any more.
func (c *Controller) sayFence() {
	e := c.epoch
	c.forward() // what is verified need not be written again
	c.enter(epFencing, c.cfg.Limits.Quiet)
	e.round++
	c.forget(func(l *letter) bool { return l.about == e.key.Number && l.kind == KindHalt })
	for i := range e.members {
		if p := &e.at[i]; !p.lost && !p.out {
			c.sayTo(i, &Halt{Round: e.round, Fence: true, Lost: e.unquiet(i)})
		}
	}
}

// quietTo reports whether a source is known to write nothing more into a member.
func (e *epoch) quietTo(s, i int) bool {
	q := e.at[s].quiet
	return q != nil && !slices.Contains(q.Unquiet, i)
}

// unquiet are the sources that may still write into a member.
func (e *epoch) unquiet(i int) (list []int) {
	for _, s := range e.sources {
		if slices.Contains(e.planned.Writes[s], i) && !e.quietTo(s, i) {
			list = append(list, s)
		}
	}
	return list
}

// repair tries to go on without those who are lost, or ends the epoch.
func (c *Controller) repair() {
	e := c.epoch
	if !e.repairable || e.repairs >= c.cfg.Repairs || e.mode != ModePush || c.deposed || c.broken != nil {
		c.decide(false)
		return
	}
	c.top++
	n := &epoch{
		key: Key{c.term, c.top}, since: e.since, version: e.version, mode: e.mode, begun: true, started: e.started, repairs: e.repairs + 1,
		blame: -1, outs: e.outs, op: e.op,
	}
	n.chain = append(slices.Clone(e.chain), n.key)
	r := &PlanRequest{Epoch: n.key, Version: e.version, Mode: e.mode, Of: e.planned.Plan}
	for i := range e.members {
		switch p := &e.at[i]; {
		case p.lost && p.source:
			r.Lost = append(r.Lost, e.members[i])
		case !p.lost && !p.out:
			if p.source {
				n.sources = append(n.sources, len(n.members))
			}
			n.members = append(n.members, e.members[i])
			n.at = append(n.at, progress{source: p.source, kept: p.verified})
			r.Verified = append(r.Verified, p.verified)
		}
	}
	r.Members, r.Sources = n.members, n.sources
	e.next = n
	c.enter(epRepairing, c.cfg.Limits.Plan)
	if len(n.sources) == 0 {
		e.next, e.code, e.text = nil, CodeReplica, "no publisher is left"
		c.decide(false)
		return
	}
	c.out.Plan(r)
}

// supersede logs that the next epoch continues this one.
func (c *Controller) supersede() {
	e := c.epoch
	c.enter(epDeciding, 0)
	c.write(Record{Decision: Decision{Of: e.key, Version: e.version}, By: e.next.key})
	c.waitLog()
}

// waitLog waits until the last record is durable.
func (c *Controller) waitLog() {
	e := c.epoch
	if len(c.writes) > 0 && c.writes[len(c.writes)-1].seq == c.record {
		e.log = c.record
		return
	}
	c.logged()
}

// decide logs the decision.
func (c *Controller) decide(commit bool) {
	e := c.epoch
	if c.broken != nil {
		c.epoch = nil
		c.endOp(&EpochError{Version: e.version, Epoch: e.key, Code: CodeLog, Text: c.broken.Error(), Err: ErrLog})
		return
	}
	c.enter(epDeciding, 0)
	e.commit = commit
	d := Decision{Of: e.key, Version: e.version, Commit: commit}
	if commit {
		e.instances = e.left()
		d.Instances = e.instances
	}
	c.write(Record{Decision: d})
	c.waitLog()
}

// logged goes on when the record is durable.
func (c *Controller) logged() {
	e := c.epoch
	switch {
	case e.next != nil:
		c.forget(func(l *letter) bool { return l.about == e.key.Number && l.kind != KindOut })
		c.epoch = e.next
		c.epoch.phase = epRepairing
		c.adopt()
		for i := range e.next.members { // who was lost in the meantime
			if c.epoch == e.next && c.peer(e.next.members[i].ID) == nil {
				c.lose(i, CodeLost, "its session ended")
			}
		}
	case e.commit:
		c.version = e.version
		c.enter(epSwitching, c.cfg.Limits.Commit)
		c.sayDecision()
		for i := range e.members {
			if e.at[i].lost && e.members[i].Leader && !e.at[i].source {
				c.outInstance(i, CodeLost, "its leader is gone")
			}
		}
	default:
		c.enter(epAborting, c.cfg.Limits.Quiet)
		c.sayDecision()
	}
}

// sayDecision tells all members that are there.
func (c *Controller) sayDecision() {
	e := c.epoch
	c.forget(func(l *letter) bool { return l.about == e.key.Number && l.kind != KindOut })
	r := c.decided(e.key)
	for i := range e.members {
		p := &e.at[i]
		if p.lost || p.done || p.out && e.commit {
			continue
		}
		m := &Decided{Decision: r.Decision, Since: e.since, Code: e.code, Text: e.text}
		if !e.commit {
			m.Clean = !e.started
			for _, s := range e.sources {
				if e.quietTo(s, i) {
					m.Quiet = append(m.Quiet, e.members[s].ID)
				}
			}
		}
		c.sayTo(i, m)
	}
}

// done takes what a member made of the decision.
func (c *Controller) done(from ID, x *Done) {
	if p := c.peer(from); p != nil {
		p.out = x.Of
	}
	e := c.epoch
	if e == nil || e.phase != epSwitching && e.phase != epAborting || !inChain(e.since, e.key, x.Of) || e.commit && x.Of != e.key {
		return
	}
	i := e.index(from)
	if i < 0 || e.at[i].done {
		return
	}
	e.at[i].done, e.at[i].ok = true, x.OK
	if e.commit && !x.OK && e.members[i].Leader && !e.at[i].source {
		c.outInstance(i, x.Code, x.Text)
	}
}

// late: a phase has taken too long. Who owes something pays for it.
func (c *Controller) late() {
	e := c.epoch
	owes := func(f func(p *progress) bool) (list []int) {
		for i := range e.at {
			if p := &e.at[i]; !p.lost && !p.out && f(p) {
				list = append(list, i)
			}
		}
		return list
	}
	text := "no answer in time while " + e.phase.String()
	switch e.phase {
	case epPlanning, epAdopting, epOffering:
		e.code, e.text = CodeTimeout, text
		if l := owes(func(p *progress) bool { return e.phase == epAdopting && !p.planned }); len(l) > 0 {
			e.blame = l[0]
		}
		if e.begun { // a repair
			c.sayHalt()
		} else {
			c.over(nil)
		}
	case epGranting:
		c.punish(owes(func(p *progress) bool { return !p.granted }), text)
	case epWriting:
		limit := c.cfg.Limits.Push
		if e.pushed {
			limit = c.cfg.Limits.PostLoad
		}
		if owed := c.out.Owed(e.key, e.members, limit); owed != "" {
			text = owed
		}
		if l := owes(func(p *progress) bool { return p.source && p.quiet == nil }); len(l) > 0 {
			c.fail(l[0], CodeTimeout, text, false)
		} else {
			c.punish(owes(func(p *progress) bool { return !p.source && !p.prepared }), text)
		}
	case epHalting:
		c.punish(owes(func(p *progress) bool { return p.source && p.quiet == nil }), text)
	case epFencing:
		c.punish(owes(func(p *progress) bool { return p.halted != e.round }), text)
	case epRepairing:
		e.next, e.code, e.text = nil, CodeTimeout, text
		c.decide(false)
	case epSwitching, epAborting:
		for _, i := range owes(func(p *progress) bool { return !p.done }) {
			e.at[i].done = true
			e.outs = append(e.outs, InstanceOut{e.members[i].Instance, e.members[i].ID, CodeTimeout, text})
		}
	}
}

// punish takes those who are silent for lost.
func (c *Controller) punish(list []int, text string) {
	e := c.epoch
	for _, i := range list {
		if c.epoch != e || e.at[i].lost || e.at[i].out {
			continue
		}
		if e.at[i].source {
			c.lose(i, CodeTimeout, text)
		} else {
			c.outInstance(i, CodeTimeout, text)
		}
	}
}

// outcome is how the epoch ended.
func (e *epoch) outcome() *Outcome {
	o := &Outcome{Version: e.version, Epoch: e.key, Out: e.outs, Repairs: e.repairs}
	if !e.commit {
		o.Err = e.err(ErrAborted)
		return o
	}
	for _, n := range e.instances {
		if !slices.ContainsFunc(e.outs, func(x InstanceOut) bool { return x.Instance == n }) {
			o.Serving = append(o.Serving, n)
		}
	}
	if len(o.Serving) == 0 {
		o.Err = e.err(ErrAborted)
	}
	return o
}

func (e *epoch) err(kind error) error {
	x := &EpochError{Version: e.version, Epoch: e.key, Code: e.code, Text: e.text, Err: kind}
	switch {
	case e.blame >= 0:
		x.Member = e.members[e.blame].String()
	case len(e.outs) > 0 && e.code == 0:
		o := e.outs[0]
		x.Member, x.Code, x.Text = fmt.Sprintf("instance %d", o.Instance), o.Code, o.Text
	}
	return x
}

// over ends the epoch. o is nil when it did not get as far as BEGIN.
func (c *Controller) over(o *Outcome) {
	e := c.epoch
	c.forget(func(l *letter) bool { return l.about == e.key.Number && l.kind != KindOut })
	c.epoch = nil
	if o == nil {
		o = &Outcome{Version: e.version, Epoch: e.key, Err: e.err(ErrAborted)}
	}
	c.opOver(e, o)
	c.recover()
}
