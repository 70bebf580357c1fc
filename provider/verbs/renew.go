//go:build cgo

package verbs

import (
	"time"

	"github.com/hawser-project/hawser/provider"
)

// A write that the peer's card refuses ends the queue pair, in both cards, at exactly that write: those before it were executed, and
// those behind it were not, because queue pairs are in order. So the writer takes a new queue pair, asks the peer for the other end
// over the control queue pair, and goes on behind the write that was refused, or with it where it was refused for no fault of its own.
// Nobody else sees anything of it.
//
//	writer                                  peer
//	retire the old queue pair
//	recRenew{round, new queue pair}   ──►   retire the old one, make a new one ready to receive
//	make the new one ready            ◄──   recRenewed{round, new queue pair}
//	hand over what was not executed

// renewal is where one end is.
type renewal struct {
	step  renewStep
	qpn   uint32    // of the peer's new queue pair
	until time.Time // the peer's: when the old queue pair counts as empty
}

type renewStep uint8

const (
	renewNone   renewStep = iota
	renewBegin            // there is something to do for the next visit
	renewAsked            // the writer waits for recRenewed
	renewAnswer           // recRenewed has come; the peer: the old queue pair is being emptied
	renewReady            // a goroutine makes the new queue pair ready
)

// writeFailed takes the first completion of a queue pair that says that it has failed, at write number seq.
func (d *domain) writeFailed(p *peer, seq uint64, w *workDone) {
	q := &p.writes
	q.broken = true
	if p.phase != up {
		d.activate(p)
		return
	}
	e := q.ring.at(seq)
	d.unsend(q, e)
	switch w.status {
	case wcRemAccess, wcRemOp:
		e.status = provider.StatusAccess
	case wcLocalProt, wcLocalLength:
		e.status = provider.StatusLocal
	case wcRemInvalid:
		// No write is invalid. Soft-RoCE loses its place in one that it sends again because the answer comes late, and the peer's says so:
		// this one is sent anew over the new queue pair, once.
		if q.disputed == seq+1 {
			d.lose(p, provider.StatusPeerDown, w.detail())
			return
		}
		q.disputed = seq + 1
	default: // the peer does not answer, somebody has ended the queue pair, or the card cannot send: soft-RoCE says wcLocalOp when its link is down
		d.lose(p, provider.StatusPeerDown, w.detail())
		return
	}
	q.renew.step = renewBegin
	d.activate(p)
}

// renew does the next step of either end.
func (d *domain) renew(p *peer) {
	if w := &p.writes.renew; w.step == renewBegin {
		d.askRenewal(p)
	} else if w.step == renewAnswer {
		d.resume(p)
	}
	if a := &p.arrived.renew; a.step == renewBegin || a.step == renewAnswer {
		d.answerRenewal(p)
	}
}

// askRenewal is the writer's first step.
func (d *domain) askRenewal(p *peer) {
	q := &p.writes
	if err := d.retire(p, &p.out); err != nil {
		d.lose(p, provider.StatusPeerDown, detailOf(err))
		return
	}
	d.rewind(q)
	var err error
	if p.out, err = d.card.newQP(q.depth, d.opts.PKeyIndex, false); err != nil {
		p.out = queuePair{}
		d.lose(p, provider.StatusPeerDown, detailOf(err))
		return
	}
	d.byQP.add(p.out.qpn, p.handle.Index())
	d.stats.Renewals++
	q.round++
	q.renew.step = renewAsked
	d.tell(p, record{kind: recRenew, round: q.round, qpn: p.out.qpn})
}

// rewind takes back what was handed to the card and not executed.
func (d *domain) rewind(q *writes) {
	for i := q.acked; i != q.sent; i++ {
		d.unsend(q, q.ring.at(i))
	}
	q.sent, q.immSent, q.immCredit = q.acked, 0, 0
}

// heardRenew is the peer's first step.
func (d *domain) heardRenew(p *peer, r *record) bool {
	a := &p.arrived
	if a.renew.step != renewNone || r.round != a.round+1 {
		return false
	}
	a.round = r.round
	a.renew = renewal{step: renewBegin, qpn: r.qpn}
	return true
}

// answerRenewal empties the old queue pair and readies the new one.
func (d *domain) answerRenewal(p *peer) {
	a := &p.arrived
	if a.renew.step == renewBegin {
		if err := d.card.failQP(p.in); err != nil {
			d.lose(p, provider.StatusPeerDown, detailOf(err))
			return
		}
		a.renew.step = renewAnswer
		a.renew.until = d.emptyBy(&p.in)
		d.setAlarm(a.renew.until)
	}
	if !p.in.empty && time.Now().Before(a.renew.until) {
		return
	}
	err := d.retire(p, &p.in)
	if err == nil {
		p.in, err = d.card.newQP(1, d.opts.PKeyIndex, true)
	}
	if err != nil {
		p.in = queuePair{}
		d.lose(p, provider.StatusPeerDown, detailOf(err))
		return
	}
	d.byQP.add(p.in.qpn, p.handle.Index())
	a.renew.step, a.count, a.told = renewReady, 0, 0
	p.remote.out = a.renew.qpn
	c, q, to := d.card, p.in, d.arrivalsRoute(p)
	d.start(p, func() error { return c.readyToReceive(q, &to) }, func(err error) {
		a.renew = renewal{}
		switch {
		case p.phase != up:
		case err != nil:
			d.lose(p, provider.StatusPeerDown, detailOf(err))
		default:
			d.tell(p, record{kind: recRenewed, round: a.round, qpn: q.qpn})
		}
	})
}

// heardRenewed is the writer's second step.
func (d *domain) heardRenewed(p *peer, r *record) bool {
	q := &p.writes
	if q.renew.step != renewAsked || r.round != q.round {
		return false
	}
	p.remote.in = r.qpn
	q.renew.step = renewAnswer
	return true
}

// resume readies the new queue pair and goes on.
func (d *domain) resume(p *peer) {
	q := &p.writes
	q.renew.step = renewReady
	c, qp, to := d.card, p.out, d.writesRoute(p)
	d.start(p, func() error {
		if err := c.readyToReceive(qp, &to); err != nil {
			return err
		}
		return c.readyToSend(qp, &to)
	}, func(err error) {
		q.renew = renewal{}
		switch {
		case p.phase != up:
		case err != nil:
			d.lose(p, provider.StatusPeerDown, detailOf(err))
		default:
			q.broken = false
		}
	})
}
