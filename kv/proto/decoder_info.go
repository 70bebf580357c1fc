package proto

import (
	"errors"
	"fmt"
	"slices"
)

// Health never depends on a peer.
func (d *Decoder) Health() Health {
	most := d.cfg.QuarantineMax
	return Health{Draining: d.draining, Quarantined: d.quarantined, Stuck: d.stuck, Exceeded: most > 0 && d.quarantined > most}
}

// Stats returns a snapshot.
func (d *Decoder) Stats() DecoderStats {
	s := d.stats
	s.Waiting, s.Live, s.Held, s.Quarantined, s.Fencing = d.waiting, d.live, d.held, d.quarantined, len(d.fences)
	for _, l := range d.inOrder {
		if l.state == linkUp {
			s.Links++
		}
	}
	return s
}

// Links calls f for every link that is up.
func (d *Decoder) Links(f func(LinkInfo)) {
	for _, l := range d.inOrder {
		if l.state != linkUp {
			continue
		}
		i := LinkInfo{Peer: l.peer, Instance: l.instance, Member: l.member, Granted: l.granted, Used: l.used}
		for w := l.first; w != nil; w = w.next {
			i.Attempts++
		}
		f(i)
	}
}

// Live calls f for each request that waits and each attempt of which something may land, in the order of requests and attempts.
func (d *Decoder) Live(f func(AttemptInfo)) {
	var waiting []*fetchRequest
	for _, r := range d.requests {
		if r.place != placeNone {
			waiting = append(waiting, r)
		}
	}
	slices.SortFunc(waiting, before)
	for _, r := range waiting {
		f(AttemptInfo{
			Request: r.f.ID, Number: r.id, State: "waiting", Try: r.dispatched + 1, Pages: r.total, Age: d.now - r.arrived,
			Deadline: r.deadline - d.now, Waits: r.blocked,
		})
	}
	var live []*fetchAttempt
	for _, a := range d.attempts {
		if !a.step.state.quiet() {
			live = append(live, a)
		}
	}
	slices.SortFunc(live, func(a, b *fetchAttempt) int { return int(int64(a.seq - b.seq)) })
	for _, a := range live {
		info := AttemptInfo{
			Request: a.r.f.ID, Number: a.r.id, Seq: a.seq, State: a.step.state.String(), Try: a.try, Pages: a.pageCount(),
			Age: d.now - a.since, Deadline: a.r.deadline - d.now,
		}
		for i := range a.writers {
			o := a.writers[i].owed()
			o.Landed = d.out.Landed(a.seq, o.Peer) // what the machine saw at its last look may be old
			info.Writers = append(info.Writers, o)
		}
		f(info)
	}
}

// Check verifies the whole machine, in one pass over everything that it holds. An error is a defect of this package, or of whoever
// changed a list that it keeps.
func (d *Decoder) Check() error {
	c := &fetchChecker{d: d}
	if d.fault != nil {
		c.faults = append(c.faults, d.fault)
	}
	c.attempts()
	c.requests()
	c.links()
	c.timers()
	c.tails()
	for i, p := range d.cfg.Pools {
		if err := p.Check(); err != nil {
			c.fault("pool %d: %w", i, err)
		}
	}
	return errors.Join(c.faults...)
}

type fetchChecker struct {
	d      *Decoder
	faults []error
}

func (c *fetchChecker) fault(format string, args ...any) {
	if len(c.faults) < 20 {
		c.faults = append(c.faults, fmt.Errorf("decoder: "+format, args...))
	}
}

func (c *fetchChecker) attempts() {
	live, quarantined := 0, 0
	for seq, a := range c.d.attempts {
		quiet := a.step.state.quiet()
		if !quiet {
			live++
			if c.d.requests[a.r.id] != a.r {
				c.fault("attempt %d is %v, its request is forgotten", seq, a.step.state)
			}
		}
		if a.counted {
			quarantined += a.pageCount()
		}
		if a.seq != seq || quiet && a.step.state != fetchReady || a.counted != (a.step.state == fetchQuarantined) {
			c.fault("attempt %d is %v, kept as %d, quarantined: %v", a.seq, a.step.state, seq, a.counted)
		}
		if len(a.leases) > 0 && (a.writerHolds == quiet && !broken(mutSecondHolder) || a.step.state <= fetchReady && !a.requestHolds) {
			c.fault("attempt %d is %v, pages held by the writers: %v, by the request: %v", seq, a.step.state, a.writerHolds, a.requestHolds)
		}
		c.writers(a)
	}
	if live != c.d.live || quarantined != c.d.quarantined {
		c.fault("%d attempts live, %d pages quarantined, counted %d and %d", live, quarantined, c.d.live, c.d.quarantined)
	}
}

// writers: whoever may write is known to its link, or to a fence.
func (c *fetchChecker) writers(a *fetchAttempt) {
	are, state := a.writersAre(), a.step.state
	if !state.quiet() && (are.are(allSettled) && state >= fetchStopping || state <= fetchActive && are.are(allComplete|allProved)) {
		c.fault("attempt %d is %v, its writers are %b", a.seq, state, are)
	}
	for i := range a.writers {
		w := &a.writers[i]
		switch fenced := w.step.state == writerFencing || w.step.state == writerStuck; {
		case state.quiet():
			if w.linked || state == fetchReady && w.step.state != writerComplete {
				c.fault("attempt %d is %v, member %d is %v, linked: %v", a.seq, state, w.member, w.step.state, w.linked)
			}
		case fenced:
			if f := c.d.fences[w.peer]; f == nil || !slices.Contains(f.writers, w) || !f.asked && f.timer.slot == 0 {
				c.fault("attempt %d: member %d is %v, and no fence is under way", a.seq, w.member, w.step.state)
			}
		case !w.step.state.settled() && (!w.linked || !w.current()):
			c.fault("attempt %d: member %d is %v on a link that has ended", a.seq, w.member, w.step.state)
		case !w.step.state.settled() && (a.r.timer.slot == 0 || a.r.at != a && !slices.Contains(a.r.old, a)):
			c.fault("attempt %d: member %d is %v, and nothing is due", a.seq, w.member, w.step.state)
		}
	}
}

func (c *fetchChecker) requests() {
	waiting, held, unquiet := 0, 0, map[*fetchRequest]int{}
	for _, a := range c.d.attempts {
		if !a.step.state.quiet() {
			unquiet[a.r]++
		}
	}
	for id, r := range c.d.requests {
		in := 0
		if slices.Contains(c.d.queue, r) {
			in++
		}
		if r.src != nil && slices.Contains(r.src.parked, r) {
			in++
		}
		if r.place == placeDelayed {
			in++
		}
		if r.place != placeNone {
			waiting++
		}
		if r.held {
			held++
		}
		switch {
		case r.id != id || in != 0 != (r.place != placeNone) || in > 1:
			c.fault("request %d is kept as %d, in %d lists, its place is %d", r.id, id, in, r.place)
		case !r.told && (r.at == nil) == (r.place == placeNone):
			c.fault("request %d has an attempt: %v, its place is %d", id, r.at != nil, r.place)
		case r.unquiet != unquiet[r]:
			c.fault("request %d: something of %d attempts may land, counted %d", id, unquiet[r], r.unquiet)
		case !r.told && r.timer.slot == 0:
			c.fault("request %d waits, and nothing is due", id)
		case r.told && !r.held && r.unquiet == 0 && r.answer == nil:
			c.fault("request %d has ended and is not forgotten", id)
		case r.place != placeNone && r.prefix.ID != 0 && r != c.d.first:
			c.fault("request %d waits and pins pages", id)
		}
	}
	if waiting != c.d.waiting || held != c.d.held {
		c.fault("%d requests wait, %d are held, counted %d and %d", waiting, held, c.d.waiting, c.d.held)
	}
	if !slices.IsSortedFunc(c.d.queue, before) {
		c.fault("the queue is out of order")
	}
}

func (c *fetchChecker) links() {
	for _, l := range c.d.inOrder {
		up := l.state == linkUp || l.state == linkHello
		if c.d.links[l.addr] != l || c.d.byID[l.id] != l || up != (c.d.peers[l.peer] == l) {
			c.fault("link %d to %s is %v, found by its address: %v, by its peer: %v", l.id, short(l.addr), l.state, c.d.links[l.addr] == l, c.d.peers[l.peer] == l)
		}
		if l.state == linkUp && l.used > l.granted {
			c.fault("link %d: %d credits used, %d granted", l.id, l.used, l.granted)
		}
		if l.last != nil && l.last.at.seq-l.low() >= seqWindow {
			c.fault("link %d: the oldest live attempt is %d, the newest %d", l.id, l.low(), l.last.at.seq)
		}
		if l.state != linkUp && l.first != nil {
			c.fault("link %d is %v and has attempts", l.id, l.state)
		}
		for w, last := l.first, uint64(0); w != nil; w = w.next {
			if w.link != l || !w.linked || w.at.seq <= last || w.at.step.state.quiet() || w.next != nil && w.next.prev != w {
				c.fault("link %d: attempt %d (%v) after %d", l.id, w.at.seq, w.at.step.state, last)
				break
			}
			last = w.at.seq
		}
	}
	if len(c.d.inOrder) != len(c.d.links) || len(c.d.links) != len(c.d.byID) {
		c.fault("%d, %d and %d links", len(c.d.inOrder), len(c.d.links), len(c.d.byID))
	}
	for _, s := range c.d.sources {
		if s.up() && len(s.parked) > 0 && s.parked[0].short == nil {
			c.fault("request %d waits for a source that is up", s.parked[0].id)
		}
	}
}

func (c *fetchChecker) timers() {
	if !c.d.timers.heap.sound() {
		c.fault("a timer is out of place")
	}
	for _, t := range c.d.timers.heap.items {
		if r, ok := t.owner.(*fetchRequest); ok && c.d.requests[r.id] != r {
			c.fault("timer of request %d, which is forgotten", r.id)
		}
	}
}

func (c *fetchChecker) tails() {
	free := 0
	for i, t := range c.d.tails {
		if t.owner == 0 {
			free++
			continue
		}
		if a := c.d.attempts[t.generation]; a == nil || a.tail != (TailRef{uint32(i), t.generation}) || a.r.id != t.owner {
			c.fault("tail slot %d is held for attempt %d, which has it not", i, t.generation)
		}
	}
	if free != len(c.d.freeTails) {
		c.fault("%d tail slots are free, listed %d", free, len(c.d.freeTails))
	}
}
