package proto

import "slices"

// clone is a copy of a world that shares nothing with it that changes. TestCloneIsAlone sees that nothing was forgotten.
func (w *world) clone() *world {
	c := *w
	c.net, c.writes, c.engines, c.faults = slices.Clone(w.net), slices.Clone(w.writes), slices.Clone(w.engines), slices.Clone(w.faults)
	c.logs, c.epochs, c.nodes = nil, nil, nil
	for _, d := range w.logs {
		c.logs = append(c.logs, &logOf{d.id, slices.Clone(d.records)})
	}
	for _, e := range w.epochs {
		c.epochs = append(c.epochs, &epochTruth{e.key, slices.Clone(e.abandoned)})
	}
	for _, n := range w.nodes {
		c.nodes = append(c.nodes, n.clone(&c))
	}
	return &c
}

func (n *node) clone(w *world) *node {
	c := *n
	c.w = w
	c.todo, c.perms, c.parts, c.flipped = slices.Clone(n.todo), slices.Clone(n.perms), slices.Clone(n.parts), slices.Clone(n.flipped)
	c.ended, c.result, c.jobs, c.imms = slices.Clone(n.ended), slices.Clone(n.result), slices.Clone(n.jobs), slices.Clone(n.imms)
	for i := range c.copies {
		c.copies[i] = slices.Clone(n.copies[i])
	}
	for i := range c.jobs {
		c.jobs[i].failed = slices.Clone(c.jobs[i].failed)
	}
	for i := range c.imms {
		l := &c.imms[i]
		l.counts, l.sums, l.told = slices.Clone(l.counts), slices.Clone(l.sums), slices.Clone(l.told)
	}
	switch {
	case n.c != nil:
		c.c = n.c.clone(ctlOut{&c})
	case n.p != nil:
		p := *n.p
		p.mine = &c
		p.member.clone(&c, &p)
		c.p = &p
	default:
		r := *n.r
		r.mine = &c
		r.member.clone(&c, &r)
		c.r = &r
	}
	return &c
}

// clone makes a copy, which m is already field by field, its own.
func (m *member) clone(out MemberOut, r role) {
	m.out, m.mine, m.role = out, out, r
	m.said.all = slices.Clone(m.said.all)
	m.links, m.history, m.early, m.fences, m.holders = slices.Clone(m.links), slices.Clone(m.history), slices.Clone(m.early), slices.Clone(m.fences), slices.Clone(m.holders)
	if m.part == nil {
		return
	}
	p := *m.part
	p.quiet, p.stuck, p.sums, p.told, p.flipped = slices.Clone(p.quiet), slices.Clone(p.stuck), slices.Clone(p.sums), slices.Clone(p.told), slices.Clone(p.flipped)
	p.verified = slices.Clone(p.verified)
	for i := range p.told {
		p.told[i].stages = slices.Clone(p.told[i].stages)
	}
	m.part = &p
}

func (c *Controller) clone(out ControllerOut) *Controller {
	d := *c
	d.out, d.speaker.out = out, out
	d.said.all, d.known, d.writes, d.peers = slices.Clone(c.said.all), slices.Clone(c.known), slices.Clone(c.writes), slices.Clone(c.peers)
	for i := range d.writes {
		d.writes[i].tell = slices.Clone(d.writes[i].tell)
	}
	for i := range d.peers {
		p := *d.peers[i]
		d.peers[i] = &p
	}
	if c.epoch != nil {
		d.epoch = c.epoch.clone()
	}
	if c.op != nil {
		o := *c.op
		o.tried, o.heard, o.facts = slices.Clone(o.tried), slices.Clone(o.heard), slices.Clone(o.facts)
		d.op = &o
	}
	return &d
}

func (e *epoch) clone() *epoch {
	d := *e
	d.at, d.outs, d.sums, d.chain = slices.Clone(e.at), slices.Clone(e.outs), slices.Clone(e.sums), slices.Clone(e.chain)
	for i := range d.sums {
		d.sums[i].body.Sums = slices.Clone(d.sums[i].body.Sums)
	}
	if e.next != nil {
		d.next = e.next.clone()
	}
	return &d
}
