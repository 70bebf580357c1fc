package proto

// credits divides the source pages over the links. What a link has in circulation is what it may still spend and what its live
// jobs have spent. In sum that may exceed the pool: then jobs wait for pages, or are refused as busy.
type credits struct {
	pages       uint64 // of the pool
	circulation uint64 // over all links
	spent       uint64 // by live jobs
	links       int    // that have credit
	wanting     []*serveLink
}

// linkCredit is one link's part. granted and used only grow.
type linkCredit struct {
	granted uint64 // source pages that were ever allowed
	used    uint64 // sum of the costs that the decoder has told
	held    uint64 // of these, what live jobs have paid
	wants   uint64 // cost of the request that waits for credits there
	open    bool
	queued  bool // in credits.wanting
}

// free is what the decoder may still spend.
func (c *linkCredit) free() uint64 { return c.granted - c.used }

func (c *linkCredit) circulation() uint64 { return c.free() + c.held }

// share is what a link is entitled to.
func (c *credits) share() uint64 { return max(1, c.pages/uint64(max(1, c.links))) }

// spare is what is in nobody's hands.
func (c *credits) spare() uint64 { return c.pages - min(c.pages, c.circulation) }

func (p *Prefiller) grant(l *serveLink, n uint64) {
	l.credit.granted += n
	p.credits.circulation += n
	p.changed(l)
}

// welcome gives a new link its share, although others may still have it.
func (p *Prefiller) welcome(l *serveLink) {
	l.credit.open = true
	p.credits.links++
	p.grant(l, p.credits.share())
}

// closeCredit takes back what a link that has ended can no longer spend. What its jobs have spent comes back when they end.
func (p *Prefiller) closeCredit(l *serveLink) {
	c := &l.credit
	if !c.open {
		return
	}
	p.credits.links--
	p.credits.circulation -= c.free()
	c.open = false
	p.serveWanting()
	for _, o := range p.links {
		p.topUp(o)
	}
}

// spend takes a cost that a decoder tells, once per attempt. It reports false if the decoder was not allowed to.
func (p *Prefiller) spend(l *serveLink, cost uint64) bool {
	if cost > l.credit.free() {
		return false
	}
	l.credit.used += cost
	p.credits.circulation -= cost
	return true
}

// refund gives a cost back at once.
func (p *Prefiller) refund(l *serveLink, cost uint64) {
	if cost > 0 {
		p.grant(l, cost)
	}
}

// pay lets a job hold what an attempt has spent.
func (p *Prefiller) pay(j *job, l *serveLink, cost uint64) {
	j.payer, j.paid = l, cost
	l.credit.held += cost
	p.credits.circulation += cost
	p.credits.spent += cost
}

// payBack gives back what a job has paid: to links that want it, else to the one that paid, up to its share.
func (p *Prefiller) payBack(j *job) {
	l := j.payer
	if l == nil {
		return
	}
	l.credit.held -= j.paid
	p.credits.circulation -= j.paid
	p.credits.spent -= j.paid
	j.payer, j.paid = nil, 0
	p.serveWanting()
	p.topUp(l)
}

// unpay gives back what a job has paid whose Dispatch is refused: all of it, to the one that paid.
func (p *Prefiller) unpay(j *job) {
	l, paid := j.payer, j.paid
	if l == nil {
		return
	}
	l.credit.held -= paid
	p.credits.circulation -= paid
	p.credits.spent -= paid
	j.payer, j.paid = nil, 0
	if l.credit.open {
		p.refund(l, paid)
	}
}

// topUp grants what a link lacks of its share.
func (p *Prefiller) topUp(l *serveLink) {
	c := &l.credit
	if share := p.credits.share(); c.open && c.circulation() < share {
		if n := min(share-c.circulation(), p.credits.spare()); n > 0 {
			p.grant(l, n)
		}
	}
}

// wants takes a Beat. It is answered at once if the decoder waits for credits: it may not have heard of those that it has.
func (p *Prefiller) wants(l *serveLink, cost uint64) {
	c := &l.credit
	if c.wants = min(cost, p.credits.pages); c.wants == 0 {
		return
	}
	if !c.queued && c.wants > c.free() {
		c.queued = true
		p.credits.wanting = append(p.credits.wanting, l)
	}
	p.serveWanting()
	p.sendBeat(l)
}

// serveWanting grants to those that wait, in their order. A link with nothing live gets what it wants in any case: nothing of its own will
// come back.
func (p *Prefiller) serveWanting() {
	rest := p.credits.wanting[:0]
	blocked := false
	for _, l := range p.credits.wanting {
		c := &l.credit
		need := c.wants - min(c.wants, c.free())
		switch {
		case !c.open, need == 0:
			c.queued = false
			continue
		case c.held == 0, !blocked && need <= p.credits.spare():
			c.queued = false
			p.grant(l, need)
			p.sendBeat(l)
			continue
		}
		blocked = true // whoever comes later must not starve it
		rest = append(rest, l)
	}
	clear(p.credits.wanting[len(rest):])
	p.credits.wanting = rest
}

// changed sees to it that the decoder hears of a change before long.
func (p *Prefiller) changed(l *serveLink) {
	if l.up && !l.ended && l.beat.slot == 0 {
		p.alarms.set(&l.beat, max(p.now, l.beaten.at+beatPause))
	}
}

// beat is due.
func (p *Prefiller) beat(l *serveLink) {
	if l.news(p.draining) {
		p.sendBeat(l)
	}
}

// news reports whether a link is to be told something.
func (l *serveLink) news(draining bool) bool {
	return len(l.live) > 0 || l.credit.granted != l.beaten.granted || draining
}

// sendBeat sends one and sets the alarm for the next.
func (p *Prefiller) sendBeat(l *serveLink) {
	if !l.up || l.ended {
		return
	}
	l.beaten.granted, l.beaten.at = l.credit.granted, p.now
	p.send(l, &Beat{
		Granted: l.credit.granted, Queue: p.queueLength(), Busy: int(min(1000, 1000*p.credits.spent/p.credits.pages)), Draining: p.draining,
	})
	if len(l.live) > 0 || p.draining {
		p.alarms.set(&l.beat, p.now+beatPause)
	} else {
		p.alarms.clear(&l.beat)
	}
}
