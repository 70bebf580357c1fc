package rail

import (
	"fmt"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// Times, in calls of Tick.
const (
	// TicksPerSecond is how often the sink calls Tick.
	TicksPerSecond = 10

	firstRetry   = 1                   // before the second attempt in a row to connect a link anew; the first is at once
	aloneRetry   = TicksPerSecond / 2  // the longest pause while no link is in service: the session ends after some seconds of that
	lastRetry    = 5 * TicksPerSecond  // the longest pause between two attempts
	steady       = 5 * TicksPerSecond  // in service for so long, a link is connected at once when it fails
	offerTime    = 10 * TicksPerSecond // for an attempt as a whole; networks give up after provider.ConnectTimeout
	keyTime      = 5 * TicksPerSecond  // for the owner of a remote to give the key for a new connection
	proofTime    = 1 * TicksPerSecond  // between two attempts to prove that a connection is silent
	settleTime   = 5 * TicksPerSecond  // for both sides to find out what had arrived over a connection
	maxLinkCount = wire.MaxRails       // of one session
)

const unconnected = "it could not be connected"

// Live says that the session of p is set up: from now on a link that fails is replaced, and Sink.Tell carries what the two sides have
// to say about that. slots are those of the links that there are, and then of those that stand by; only the leader needs them.
func (g *Group) Live(p *Peer, lead bool, slots []Slot) {
	if p.down {
		return // it has ended already
	}
	p.live, p.lead, p.slots = true, lead, slots
	g.live = append(g.live, p)
	for _, l := range p.links {
		if l.state == lost { // it failed during the set-up
			l.state = offered
			g.lose(l, "it failed during the set-up")
		}
	}
	for i := len(p.links); i < len(slots) && i < maxLinkCount; i++ {
		p.links = append(p.links, &link{peer: p, index: i, class: slots[i].Class, rail: g.rails[slots[i].Local]})
	}
}

// forget takes p off the list that Tick goes through.
func (g *Group) forget(p *Peer) {
	for i, q := range g.live {
		if q == p {
			g.live = append(g.live[:i], g.live[i+1:]...)
			return
		}
	}
}

// Tick is the clock of everything that has to do with links: stalls, new attempts, proofs. The sink calls it TicksPerSecond times a
// second while there are sessions, from any goroutine; no guarantee depends on it.
func (g *Group) Tick() {
	g.ticked.Store(true)
	g.wake()
}

func (g *Group) tickAll() {
	g.ticks++
	for _, p := range g.live {
		asking := p.asking
		p.asking = p.asking[:0]
		for _, r := range asking {
			r.asked = false
			if r.waits++; r.waits > keyTime && p.ops.head != nil {
				g.CloseRemote(r)
			}
		}
		if p.ops.head != nil {
			g.queue(p) // what waits for keys asks again
		}
		for _, l := range p.links {
			g.tick(l)
		}
		p.stir()
	}
}

func (g *Group) tick(l *link) {
	if g.ticks%forgiveTime == 0 {
		l.strikes = max(0, l.strikes-1)
	}
	age := g.ticks - l.since
	switch l.state {
	case ready:
		if age == steady {
			l.tries = 0
		}
		if l.landed != l.seen || l.outstanding == l.sends {
			l.seen, l.stalled = l.landed, 0
		} else if l.stalled++; g.StallTicks > 0 && l.stalled > g.StallTicks {
			g.lose(l, "no progress")
		}
	case offered, probing:
		if age > offerTime {
			g.lose(l, unconnected)
		}
	case lost:
		if age > settleTime {
			g.sink.GiveUp(l.peer, fmt.Sprintf("what was under way over link %d, which failed, is not known to be quiet", l.index), false)
		}
		if l.handle != 0 && !l.fencing && age%proofTime == 0 {
			g.fenceLink(l)
		}
	case idle:
		g.relink(l)
	}
}

// relink begins the next connection of a link, if this side leads, and if it is wanted now.
func (g *Group) relink(l *link) {
	p := l.peer
	if !p.lead || p.down || l.rail.dead || g.ticks < l.due() || l.index >= len(p.slots) {
		return
	}
	if p.ready > 0 && p.class < l.class {
		return // it stands by
	}
	remotes := p.slots[l.index].Remote
	n := &wire.LinkNotice{
		Step: wire.LinkOffer, Link: uint16(l.index), Class: l.class, Rail: remotes[max(l.tries-1, 0)%len(remotes)],
	}
	addr, err := g.offer(l)
	if err != nil {
		g.pause(l)
		return
	}
	n.Epoch, n.Addr = l.epoch, addr
	g.sink.Tell(p, n)
}

// due is when the next attempt may begin. A peer without any link does not wait long for one.
func (l *link) due() uint64 {
	if l.peer.ready == 0 {
		return min(l.retryAt, l.since+aloneRetry)
	}
	return l.retryAt
}

// pause sets the time of the next attempt: twice the last pause, and up to half as much again so that the links of many peers do not
// come back in step.
func (g *Group) pause(l *link) {
	if l.tries > 0 {
		n := min(uint64(firstRetry)<<min(l.tries-1, 16), lastRetry)
		spread := uint64(bucket(uint32(l.handle)+uint32(l.index)+l.epoch*7)) * (n/2 + 1) / wire.LinkBuckets
		l.retryAt = g.ticks + n + spread
	}
	l.tries++
}

// Notice acts on what the other side says about a link.
func (g *Group) Notice(p *Peer, n *wire.LinkNotice) {
	if p.down || !p.live {
		return
	}
	if err := g.notice(p, n); err != nil {
		g.sink.GiveUp(p, err.Error(), true)
	}
}

func (g *Group) notice(p *Peer, n *wire.LinkNotice) error {
	i := int(n.Link)
	for n.Step == wire.LinkOffer && i >= len(p.links) && i < maxLinkCount && int(n.Rail) < len(g.rails) {
		p.links = append(p.links, &link{peer: p, index: len(p.links), rail: g.rails[n.Rail]}) // those between have not been offered yet
	}
	if i >= len(p.links) {
		return fmt.Errorf("link %d of %d", i, len(p.links))
	}
	l := p.links[i]
	switch n.Step {
	case wire.LinkReport:
		return g.reported(l, n)
	case wire.LinkOffer:
		return g.offeredBy(l, n)
	}
	return g.answered(l, n)
}

// offeredBy is the follower's part.
func (g *Group) offeredBy(l *link, n *wire.LinkNotice) error {
	p := l.peer
	switch {
	case p.lead:
		return fmt.Errorf("link %d: both sides lead", l.index)
	case l.state != idle || n.Epoch != l.epoch+1:
		return fmt.Errorf("link %d: connection %d is offered while connection %d is not over", l.index, n.Epoch, l.epoch)
	case int(n.Rail) >= len(g.rails) || p.Allowed != nil && !p.Allowed[n.Rail]:
		return fmt.Errorf("link %d: rail %d, which it may not use", l.index, n.Rail)
	}
	l.rail, l.class = g.rails[n.Rail], n.Class
	answer := &wire.LinkNotice{Step: wire.LinkAnswer, Link: n.Link, Epoch: n.Epoch}
	addr, err := g.offer(l)
	if err != nil {
		l.epoch = n.Epoch
		answer.Fault = err.Error()
		g.sink.Tell(p, answer)
		return nil
	}
	answer.Addr = addr
	g.sink.Tell(p, answer)
	if err := g.Connect(p, l.index, n.Addr, true); err != nil {
		g.lose(l, unconnected)
	}
	return nil
}

// answered is the leader's part.
func (g *Group) answered(l *link, n *wire.LinkNotice) error {
	switch {
	case !l.peer.lead:
		return fmt.Errorf("link %d: an answer that nobody asked for", l.index)
	case n.Epoch != l.epoch || l.state == idle:
		return nil // given up in the meantime
	case n.Fault != "" && (l.posted > 0 || l.report != nil):
		return fmt.Errorf("link %d: connection %d is refused after it was there", l.index, n.Epoch)
	case n.Fault != "": // the other side has nothing that could be over: that is its report
		l.report = &wire.LinkNotice{Step: wire.LinkReport, Link: n.Link, Epoch: n.Epoch}
		g.lose(l, unconnected)
		g.settle(l)
		return nil
	case l.state != offered:
		return nil
	}
	if err := g.Connect(l.peer, l.index, n.Addr, false); err != nil {
		g.lose(l, unconnected)
	}
	return nil
}

// probe writes nothing, and waits for the answer.
func (g *Group) probe(l *link) {
	token, f := l.rail.takeOff()
	*f = flight{link: l, probe: true, send: -1, gen: f.gen}
	l.rail.batch = append(l.rail.batch, provider.WR{Peer: l.handle, Op: provider.OpWrite, Token: token})
	l.outstanding++
}
