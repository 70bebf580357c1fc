package rail

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// What happens when a connection of a link fails, on both sides alike:
//
//  1. The connection is fenced: nothing of the other side can land over it any more, and everything that has landed was counted.
//  2. What was counted is reported to the other side.
//  3. When the other side's report is here, and the domain has let go of all WRs, those without an answer are divided into those
//     that the other side has counted, which are done, and the others, which are placed again over what links there are.
//
// The order is what makes it exact: whoever places a WR again knows that the first attempt cannot land any more.

// guard names a step that keeps counts and memory right. Tests take them away one by one, to see that something notices.
type guard uint8

const (
	guardFence   guard = 1 << iota // report only what is final
	guardReport                    // place again only what the report allows
	guardFlushed                   // divide only when the domain has let go of everything
	guardLast                      // an immediate waits for the fragments, or pages, before it
	guardKeys                      // a key is for one connection
)

// Lose takes the connection of link i of p out of service, as if it had failed.
func (g *Group) Lose(p *Peer, i int, why string) {
	if i < len(p.links) && p.live && !p.down {
		g.lose(p.links[i], why)
	}
}

// lose takes a connection out of service.
func (g *Group) lose(l *link, why string) {
	p := l.peer
	if l.state == lost || l.state == idle || p.down {
		return
	}
	was := l.state
	l.state, l.since = lost, g.ticks
	if was == ready {
		p.ready--
		l.counts.Losses++
		if g.ticks-l.failedAt < hasty {
			g.strike(l, 1)
		}
		l.failedAt = g.ticks
	}
	g.reclass(p)
	if p.ready == 0 {
		g.due = append(g.due, p.links...) // those that stand by need not wait for a tick
	}
	g.sink.Link(p, l.index, false, why)
	if g.without&guardFence != 0 {
		g.report(l)
	}
	if !l.fencing {
		g.fenceLink(l)
	}
}

// A link of which this side loses one connection right after the other costs the session, and so do writes of the other side that were refused,
// on a network where that ends the connection. Links that flap or stall do not, however long: an honest leader of one begins connections with
// pauses (relink.go), so that few losses follow each other within hasty, and more are forgiven in the 5 s in service that its pauses need
// to become short again.
const (
	maxStrikes    = 64
	denialStrikes = 8          // for a write of the other side that was refused: with the longest pauses about 10 end the session
	hasty         = 2          // ticks since the last loss, within which another one is a strike: less than half of aloneRetry
	forgiveTime   = steady / 2 // ticks, in any state, after which one is forgiven
)

// strike notes what the other side has cost us.
func (g *Group) strike(l *link, n int) {
	if l.strikes += n; l.strikes > maxStrikes {
		g.sink.GiveUp(l.peer, fmt.Sprintf("too many connections of link %d were lost, %d of them by writes that were refused", l.index, l.counts.Denials), true)
	}
}

// report tells the other side what arrived. Everything that did has been polled.
func (g *Group) report(l *link) {
	if l.reported {
		return
	}
	l.reported = true
	n := &wire.LinkNotice{
		Step: wire.LinkReport, Link: uint16(l.index), Epoch: l.epoch,
		Imms: l.rxImms, Refusals: l.rxRefusals, Refused: l.refused, Messages: l.rxMsgs, Buckets: slices.Clone(l.rxBucket[:]),
	}
	if l.rail.caps.Ordered {
		n.Ordered = 1
	}
	g.sink.Tell(l.peer, n)
}

// reported takes the report of the other side.
func (g *Group) reported(l *link, n *wire.LinkNotice) error {
	if n.Epoch == l.epoch && l.state == idle {
		return nil // of a connection that this side could not even offer
	}
	if n.Epoch != l.epoch || l.report != nil {
		return fmt.Errorf("link %d: a report about connection %d, the last one is %d", l.index, n.Epoch, l.epoch)
	}
	if err := l.check(n); err != nil {
		return err
	}
	l.report = n
	g.lose(l, "the other side has closed it")
	g.settle(l)
	return nil
}

// check refuses a report that cannot be true.
func (l *link) check(n *wire.LinkNotice) error {
	if len(n.Buckets) != 0 && len(n.Buckets) != wire.LinkBuckets {
		return fmt.Errorf("link %d: a report with %d buckets", l.index, len(n.Buckets))
	}
	if n.Imms > l.posted || n.Refusals > l.posted || n.Messages > l.posted {
		return fmt.Errorf("link %d: a report of %d immediates, %d refusals and %d messages; %d were sent in all", l.index, n.Imms, n.Refusals, n.Messages, l.posted)
	}
	return nil
}

// settle divides what went down with a connection, once everything about it is known.
func (g *Group) settle(l *link) {
	if l.state != lost || l.peer.down {
		return
	}
	quiet := l.proved && (l.outstanding == 0 || g.without&guardFlushed != 0)
	if quiet { // not before: with both reports, the leader may begin the next connection
		g.report(l)
	}
	known := quiet && l.report != nil
	if g.without&guardReport != 0 {
		known = l.outstanding == 0
	}
	if !known {
		return
	}
	if l.report == nil {
		l.report = &wire.LinkNotice{}
	}
	slices.SortFunc(l.lost, func(a, b flight) int { return cmp.Compare(a.seq, b.seq) })
	divide := g.divide
	if l.report.Ordered != 0 && l.rail.caps.Ordered {
		divide = g.divideOrdered
	}
	if err := divide(l, l.lost); err != nil { // nothing is divided; the end of the session ends what was lost
		g.sink.GiveUp(l.peer, err.Error(), true)
		return
	}
	l.lost = nil
	l.state, l.since = idle, g.ticks
	g.pause(l)
	g.due = append(g.due, l)
}

// divideOrdered: what arrived is a beginning of what was posted, for immediates and for messages.
func (g *Group) divideOrdered(l *link, gone []flight) error {
	rep := l.report
	answered := l.ackImms
	if rep.Refusals > 0 { // else the writer's side of the network refuses by itself, and the receiver does not know
		answered += l.refusedImms
	}
	imms, messages := rep.Imms+rep.Refusals-answered, rep.Messages-l.ackMsgs // that arrived without an answer
	var lostImms, lostMsgs uint64
	last := l.doneSeq
	for i := range gone {
		switch f := &gone[i]; {
		case f.imm:
			if lostImms++; lostImms <= imms {
				last = max(last, f.seq)
			}
		case f.op.Kind == Send:
			lostMsgs++
		}
	}
	if rep.Imms+rep.Refusals < answered || imms > lostImms || rep.Messages < l.ackMsgs || messages > lostMsgs {
		return fmt.Errorf("link %d: a report of %d immediates and %d messages; %d and %d were acknowledged, %d and %d are open",
			l.index, rep.Imms+rep.Refusals, rep.Messages, answered, l.ackMsgs, lostImms, lostMsgs)
	}
	lostImms, lostMsgs = 0, 0
	for i := range gone {
		f := &gone[i]
		arrived := f.op.ImmLast && f.seq < last // a page of an immediate that arrived
		switch {
		case f.imm:
			if lostImms < imms && slices.Contains(rep.Refused, f.ord) {
				lostImms++
				g.concluded(f.link, f.op, provider.StatusAccess)
				continue
			}
			arrived = lostImms < imms
			lostImms++
		case f.op.Kind == Send:
			arrived = lostMsgs < messages
			lostMsgs++
		}
		if arrived {
			g.arrived(f)
		} else {
			g.replace(f)
		}
	}
	return nil
}

// divide is for networks that keep no order: only numbers are known, by class of value. All or none of a class is clear. So are signals of
// one value: one is as good as another. When all of a class belong to one operation, nobody can act on some of its immediates, so
// its bytes are written again, and then as many immediates as are missing. Else the operations fail: some of their immediates
// were counted, and nobody can tell which.
func (g *Group) divide(l *link, gone []flight) error {
	var unanswered [wire.LinkBuckets]uint32
	var owner [wire.LinkBuckets]*Op
	var mixed, differ, bytes [wire.LinkBuckets]bool // several operations; several values; not only signals
	messages := uint64(0)
	for i := range gone {
		f := &gone[i]
		switch {
		case f.op.Kind == Send:
			messages++
		case f.imm:
			b := bucket(f.op.Imm)
			unanswered[b]++
			if o := owner[b]; o != nil {
				mixed[b] = mixed[b] || o != f.op
				differ[b] = differ[b] || o.Imm != f.op.Imm
			}
			bytes[b] = bytes[b] || f.n > 0
			owner[b] = f.op
		}
	}
	var placed [wire.LinkBuckets]uint32
	for b := range placed {
		if len(l.report.Buckets) > 0 {
			placed[b] = l.report.Buckets[b] - l.ackBucket[b] // modulo 2^32, as both sides count
		}
		if placed[b] > unanswered[b] {
			return fmt.Errorf("link %d: a report of immediates that were not sent", l.index)
		}
	}
	taken := l.report.Messages - l.ackMsgs
	if l.report.Messages < l.ackMsgs || taken > messages {
		return fmt.Errorf("link %d: a report of messages that were not sent", l.index)
	}
	counted := placed
	for i := range gone {
		f := &gone[i]
		b := bucket(f.op.Imm)
		switch {
		case f.op.Kind == Send && taken == messages, f.imm && placed[b] == unanswered[b]:
			g.arrived(f)
		case f.op.ImmLast && !f.op.strict && !f.imm: // this side of the network keeps order, the other does not: its immediate may have been counted
			g.concluded(l, f.op, provider.StatusFlushed)
		case f.op.Kind == Send && taken == 0, !f.imm && f.op.Kind != Send, f.imm && placed[b] == 0:
			g.replace(f)
		case f.imm && !differ[b] && !bytes[b] && counted[b] > 0:
			counted[b]--
			g.arrived(f)
		case f.imm && !differ[b] && !bytes[b]:
			g.replace(f)
		case f.imm && !mixed[b]:
			g.replaceSome(f, &counted[b])
		default:
			g.concluded(f.link, f.op, provider.StatusFlushed)
		}
	}
	return nil
}

// replaceSome places the bytes of a flight again, and an immediate, after all such bytes, while there are more of them than were
// counted.
func (g *Group) replaceSome(f *flight, counted *uint32) {
	if g.without&guardLast != 0 {
		f.op.again(piece{src: f.src, dst: f.dst, n: f.n, imm: *counted == 0})
	} else {
		f.op.again(piece{src: f.src, dst: f.dst, n: f.n, frag: true})
		if *counted == 0 {
			f.op.again(piece{imm: true})
		}
	}
	if *counted > 0 {
		*counted--
	}
	g.placeAgain(f)
}

// arrived ends a flight that the other side has counted.
func (g *Group) arrived(f *flight) {
	c := &f.link.counts
	c.TxBytes += f.n
	if f.imm {
		c.TxImms++
	} else if f.op.Kind == Send {
		c.TxMessages++
	}
	if f.frag {
		f.op.frags--
	}
	g.concluded(f.link, f.op, provider.StatusOK)
}

// replace places a flight again.
func (g *Group) replace(f *flight) {
	f.op.again(piece{src: f.src, dst: f.dst, n: f.n, imm: f.imm, frag: f.frag})
	g.placeAgain(f)
}

func (g *Group) placeAgain(f *flight) {
	op := f.op
	f.link.counts.Resent++
	if f.frag {
		op.frags-- // again has counted it anew
	}
	op.inflight--
	if op.Status == provider.StatusOK && op.Dst != nil && (op.Dst.closed || op.Dst.Hold != nil && op.Dst.Hold.Revoked()) {
		op.Status = provider.StatusAccess
	}
	if op.Status != provider.StatusOK { // it has failed for another reason
		op.list().remove(op)
		op.fail(op.Status)
		if op.inflight == 0 {
			g.end(op)
		}
		return
	}
	if !op.listed {
		op.list().pushFront(op)
	}
	g.queue(op.Peer)
}

// concluded ends a flight whose WR has ended before, and its operation when that was the last one.
func (g *Group) concluded(l *link, op *Op, st provider.Status) {
	op.inflight--
	op.via = uint8(l.index)
	if st != provider.StatusOK {
		op.list().remove(op)
		op.fail(st)
	}
	if op.inflight == 0 && op.placed() {
		g.end(op)
	}
}
