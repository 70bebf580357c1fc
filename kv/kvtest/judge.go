package kvtest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

// judge hears all messages and knows what they promise.
type judge struct {
	w     *world
	links map[linkKey]*promises
	// The link of the newest epoch, of each pair.
	newest map[newestKey]*promises
	// aliased: a prefiller has two links to a decoder, by two addresses, and after a restart they may be of two of its lives.
	aliased bool
}

type newestKey struct{ d, p proto.Peer }

type linkKey struct {
	d     proto.Peer
	epoch uint64
}

// promises is what was said on a link.
type promises struct {
	x         *pair
	epoch     uint64
	granted   uint64 // by p, the most
	heard     uint64 // of that, by d
	used      uint64 // by d
	ticket    uint64 // of p
	low, next uint64 // of d, as p has heard
	cancels   map[uint64]proto.Time
	bye       bool // p has said so
}

func (g *judge) link(x *pair, epoch uint64) *promises {
	k := linkKey{x.d.id, epoch}
	l := g.links[k]
	if l == nil {
		l = &promises{x: x, epoch: epoch, cancels: map[uint64]proto.Time{}}
		g.links[k] = l
		if n := (newestKey{x.d.id, x.p.id}); g.newest[n] == nil || g.newest[n].epoch < epoch {
			g.newest[n] = l
		}
	}
	if l.x != x {
		g.w.fail("model", "%s: epoch %d is used with %s and %s", x.d.name, epoch, l.x.p.name, x.p.name)
	}
	return l
}

// parted: p has heard that d is down and owes it no answer. What d asks after that is told that there is no such link.
func (g *judge) parted(x *pair) {
	for _, l := range g.links {
		if l.x == x {
			clear(l.cancels)
		}
	}
}

// reads is a message that is sent, and the link that it belongs to. The link is nil when the message cannot be read.
func (g *judge) reads(x *pair, from, to string, data []byte) (*promises, proto.Head, proto.Body) {
	h, b, err := proto.Decode(data)
	if err != nil {
		g.w.fail("model", "%s sends: %v", from, err)
		return nil, h, nil
	}
	g.w.told(from, to, h, b)
	return g.link(x, h.Epoch), h, b
}

// fromD is a message that a decoder sends.
func (g *judge) fromD(x *pair, data []byte) {
	w := g.w
	l, h, b := g.reads(x, x.d.name, x.p.name, data)
	if l == nil {
		return
	}
	for _, a := range x.owed(h.Epoch) {
		if a.seq < h.LowWater {
			w.fail("I8", "%s says that %d is its oldest attempt, and %s is live", x.d.name, h.LowWater, a)
		}
	}
	switch m := b.(type) {
	case *proto.Dispatch:
		g.dispatch(x, l, h, m)
	case *proto.Bye:
		if m.Text == "there is no such link" {
			break // it has ended before
		}
		for _, a := range x.owed(h.Epoch) {
			w.fail("I11", "%s says bye to %s, and %s is live", x.d.name, x.p.name, a)
		}
	}
}

// owed is the attempts that were dispatched to the prefiller in an epoch, and into which it may still write.
func (x *pair) owed(epoch uint64) (all []*attempt) {
	for _, a := range x.d.live {
		if o := a.writer(x.p); o != nil && o.epoch == epoch && o.dispatched && !x.d.settled(o) {
			all = append(all, a)
		}
	}
	return all
}

// dispatch is a Dispatch that is sent.
func (g *judge) dispatch(x *pair, l *promises, h proto.Head, m *proto.Dispatch) {
	w := g.w
	a := x.d.attempts[m.Seq]
	if a == nil || a.put || a.imm != m.Imm {
		w.fail("I6", "%s dispatches attempt %d with immediate %d, which it has not", x.d.name, m.Seq, m.Imm)
		return
	}
	o := a.writer(x.p)
	if o == nil || o.expected != m.Expected {
		w.fail("I6", "%s expects other counts than %s says to %s", x.d.name, a, x.p.name)
		return
	}
	if o.dispatched {
		if o.epoch != h.Epoch {
			w.fail("I8", "%s is dispatched to %s in two epochs", a, x.p.name)
		}
		return
	}
	o.dispatched, o.epoch, o.serial = true, h.Epoch, x.d.serial
	if l.used += m.Cost; l.used > l.granted {
		w.fail("I10", "%s: %s uses %d credits of %s, which has granted %d", x.d.name, a, l.used, x.p.name, l.granted)
	}
	if a.pages == nil {
		g.lease(a, m)
	}
}

// lease takes the pages of an attempt down, when it is dispatched for the first time.
func (g *judge) lease(a *attempt, m *proto.Dispatch) {
	w, d := g.w, a.d
	for _, f := range d.fetches {
		if f.id == m.Request && !f.ended {
			a.f = f
		}
	}
	if f := d.fetching; f != nil && f.id == m.Request {
		a.f = f
	}
	if a.f == nil {
		w.fail("I3", "%s dispatches %q, which is not asked for or has ended", d.name, m.Request)
		return
	}
	a.f.attempts = append(a.f.attempts, a)
	a.pages = make([][]uint32, len(m.Groups))
	for g := range m.Groups {
		for _, e := range m.Groups[g].Pages {
			for i := range e.Length {
				page := e.Physical + i
				if o := d.owner[g][page]; o != nil && o.holds() {
					w.fail("I11", "%s: page %d of group %d goes to %s, and is still of %s", d.name, page, g, a, o)
				}
				d.owner[g][page] = a
				a.pages[g] = append(a.pages[g], page)
			}
		}
	}
	if m.Tail {
		if o := d.tailOwner[m.TailSlot]; o != nil && o.holds() {
			w.fail("I11", "%s: tail slot %d goes to %s, and is still of %s", d.name, m.TailSlot, a, o)
		}
		d.tailOwner[m.TailSlot], a.tail, a.slot = a, true, m.TailSlot
	}
}

// holds reports whether the pages of an attempt are not to be used by others.
func (a *attempt) holds() bool {
	return !a.put || a.ready && a.f != nil && !a.f.released
}

// fromP is a message that a prefiller sends.
func (g *judge) fromP(x *pair, data []byte) {
	l, h, b := g.reads(x, x.p.name, x.d.name, data)
	if l == nil {
		return
	}
	l.granted = max(l.granted, granted(b))
	switch m := b.(type) {
	case *proto.HelloAck:
		if l.ticket != h.Ticket {
			l.ticket, l.low, l.next, l.bye = h.Ticket, 0, 0, false // p has forgotten the epoch, and a late Hello began it again
			clear(l.cancels)
		}
	case *proto.Reject:
		g.ends(x, l, m.Seq, 0, true, "Reject")
	case *proto.CancelAck:
		g.ends(x, l, m.Seq, m.Posted, m.Exact, "CancelAck")
	case *proto.Failed:
		g.ends(x, l, m.Seq, m.Posted, m.Exact, "Failed")
	case *proto.State:
		for _, s := range m.Of {
			if s.Phase == proto.PhaseTomb {
				g.ends(x, l, s.Seq, s.Posted, s.Exact, "State")
			}
		}
	case *proto.Bye:
		l.bye = true
		if !x.p.closed && m.Text == "prefiller is draining" && l.low != l.next {
			g.w.fail("I11", "%s says bye to %s, and has heard of attempts from %d to %d", x.p.name, x.d.name, l.low, l.next)
		}
	}
}

// ends is an answer that promises that no write of an attempt is outstanding and none will start.
func (g *judge) ends(x *pair, l *promises, seq, posted uint64, exact bool, what string) {
	w := g.w
	delete(l.cancels, seq)
	a := x.d.attempts[seq]
	if a == nil {
		return // never dispatched
	}
	o := a.writer(x.p)
	if o == nil {
		return
	}
	o.over = true
	if o.outstanding > 0 && x.s != nil && x.s.up[atP] {
		w.fail("I7", "%s says %s of %s, and has %d writes outstanding", x.p.name, what, a, o.outstanding)
	}
	if posted > o.completed || exact && posted < o.completed {
		w.fail("I7", "%s says %s of %s with %d posted (exact %v), and %d have completed", x.p.name, what, a, posted, exact, o.completed)
	}
	if exact && o.tainted && what != "Reject" {
		w.fail("I11", "%s says %s of %s as exact, and a write ended with an error", x.p.name, what, a)
	}
}

// posts is an operation that a prefiller submits.
func (g *judge) posts(p *prefiller, x *pair, a *attempt, m *proto.Posting, writes int) {
	w := g.w
	if a == nil || a.imm != m.Imm {
		w.fail("I8", "%s writes for attempt %d of %s, which has no such immediate", p.name, m.Seq, x.d.name)
		return
	}
	o := a.writer(p)
	switch {
	case o == nil || !o.dispatched:
		w.fail("I8", "%s writes for %s, which was not dispatched to it", p.name, a)
	case o.over:
		w.fail("I7", "%s writes for %s, and has said that it is over", p.name, a)
	case x.posted+writes > p.window:
		w.fail("I10", "%s has %d writes outstanding with %s and posts %d more: the window is %d", p.name, x.posted, x.d.name, writes, p.window)
	case a.put && p.links[m.Link].serial > x.fenced && !x.d.dead:
		w.fail("I1", "%s writes for %s, which is quiet", p.name, a)
	}
}

// handled is a message that its receiver gets now.
func (g *judge) handled(x *pair, from int, data []byte) {
	h, b, err := proto.Decode(data)
	if err != nil {
		return
	}
	l := g.link(x, h.Epoch)
	if from == atP {
		l.heard = max(l.heard, granted(b))
		return
	}
	if h.Ticket != l.ticket {
		return
	}
	l.low, l.next = max(l.low, h.LowWater), max(l.next, h.Next)
	if m, ok := b.(*proto.Cancel); ok && m.Seq >= l.low && !l.bye {
		first, ok := l.cancels[m.Seq]
		if !ok {
			l.cancels[m.Seq] = g.w.now
		} else if first > x.p.thaw && g.w.now > first+2*g.w.sc.Net.SlowFor+500*time.Millisecond {
			g.w.fail("I9", "%s does not answer the Cancel of attempt %d for %v", x.p.name, m.Seq, g.w.now-first)
		}
	}
}

// put is an attempt of which its decoder says that nothing can land any more.
func (g *judge) put(a *attempt) {
	w := g.w
	whole := len(a.writers) > 0
	for _, o := range a.writers {
		if o.from != o.expected {
			whole = false
			if o.tainted && !a.d.fencedSince(o) {
				w.fail("I11", "%s is over, a write of %s ended with an error, and there was no fence", a, o.x.p.name)
			}
		}
	}
	if whole {
		a.d.whole = append(a.d.whole, a)
	}
}

// unproven is a fence that has no proof: attempts are given up then.
func (g *judge) unproven(x *pair) {
	for _, a := range x.d.live {
		if a.writer(x.p) != nil {
			a.excused = true
		}
	}
}

// stops is the cause for which an attempt was stopped.
func (g *judge) stops(d *decoder, seq uint64, why error) {
	a := d.attempts[seq]
	if a == nil {
		return
	}
	for _, e := range []error{proto.ErrCancelled, proto.ErrDeadline, proto.ErrStalled, proto.ErrCorrupt, hawser.ErrClosed} {
		a.excused = a.excused || errors.Is(why, e)
	}
}

// granted is what a message says of credits.
func granted(b proto.Body) uint64 {
	switch m := b.(type) {
	case *proto.HelloAck:
		return m.Granted
	case *proto.Accept:
		return m.Granted
	case *proto.Beat:
		return m.Granted
	case *proto.Reject:
		return m.Granted
	case *proto.CancelAck:
		return m.Granted
	case *proto.Failed:
		return m.Granted
	}
	return 0
}

// patient looks whether the only request that waits does so for credits that it has. The machine says what it waits for.
func (g *judge) patient(d *decoder) {
	if d.m.Stats().Waiting != 1 || len(g.w.shape.src.Members) > 1 || g.aliased { // of several members each must have a link
		return
	}
	d.m.Live(func(info proto.AttemptInfo) {
		addr, ok := strings.CutPrefix(info.Waits, "credits of ")
		f := d.byNumber[info.Number]
		if !ok || info.Seq != 0 || f == nil || g.w.at[addr] == nil {
			return
		}
		l := g.newest[newestKey{d.id, g.w.at[addr].id}]
		cost := uint64(0)
		for _, c := range g.w.shape.src.Members[0].Groups {
			cost += uint64((f.Tokens + c.PageTokens - 1) / c.PageTokens)
		}
		if l != nil && d.up[l.x.p.id] && l.used+cost <= l.heard {
			g.w.fail("I10", "%s: %s waits for credits of %s, has used %d of %d and needs %d at most", d.name, f.id, addr, l.used, l.heard, cost)
		}
	})
}

// wasted looks for attempts of which everything was here, and that were given up without need.
func (g *judge) wasted(d *decoder) {
	for _, a := range d.whole {
		if !a.ready && !a.excused {
			g.w.fail("I6", "%s has got all that was expected, and is not ready", a)
		}
	}
	d.whole = d.whole[:0]
}

// verify compares the sums of a writer with what has landed.
func (g *judge) verify(a *attempt, p proto.Peer, sums []uint64) error {
	have := make([]uint64, proto.Sums(a.d.mem.of.Layers))
	for _, t := range a.landed {
		if t.x.p.id != p {
			continue
		}
		i := t.sum
		if i < 0 {
			i = len(have) - 1
		}
		have[i] += t.digest(t.to)
	}
	if len(sums) != len(have) {
		return fmt.Errorf("%d sums, want %d", len(sums), len(have))
	}
	for i := range have {
		if sums[i] != have[i] {
			return fmt.Errorf("sum %d is %#x, want %#x", i, sums[i], have[i])
		}
	}
	return nil
}

// complete is an attempt that is ready.
func (g *judge) complete(a *attempt) {
	for _, o := range a.writers {
		if o.from != o.expected {
			g.w.fail("I5", "%s is ready, and %s has written %d of %d", a, o.x.p.name, o.from, o.expected)
		}
	}
}
