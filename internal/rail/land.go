package rail

import (
	"errors"

	"github.com/hawser-project/hawser/internal/invariants"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// complete handles one completion.
// hot:
func (g *Group) complete(r *railState, c *provider.Completion) {
	switch c.Kind {
	case provider.KindImm:
		if l := r.link(c.Peer); l != nil {
			l.rxImms++
			l.rxBucket[bucket(c.Imm)]++
			l.counts.RxImms++
			l.counts.RxImmBytes += c.Len
			g.sink.Imm(l.peer, c.Imm)
		}
	case provider.KindWrite, provider.KindSend:
		i := uint32(c.Token)
		if int(i) < len(r.flights) && r.flights[i].gen == uint32(c.Token>>32) && r.flights[i].link != nil {
			g.land(r, i, c.Status)
		}
	case provider.KindRecv:
		g.received(r, c)
	case provider.KindRefused:
		if l := r.link(c.Peer); l != nil {
			l.refuse()
		}
	case provider.KindPeerUp, provider.KindPeerDown, provider.KindFenced:
		g.linkEvent(r, c)
	}
}

// refuse notes a write that the network has refused. Its writer learns that from the network, unless the connection fails before.
func (l *link) refuse() {
	l.counts.RxRefused++
	if len(l.refused) == wire.MaxRefused {
		l.refused = append(l.refused[:0], l.refused[wire.MaxRefused/2:]...) // the writer has an answer to the older ones
	}
	l.refused = append(l.refused, l.rxImms+l.rxRefusals)
	l.rxRefusals++
}

// land ends a flight, and its operation when that was the last one.
// hot:
func (g *Group) land(r *railState, i uint32, st provider.Status) {
	f := &r.flights[i]
	op, l := f.op, f.link
	l.outstanding--
	l.landed++
	if f.probe {
		g.free(r, i)
		g.probed(l, st)
		return
	}
	l.load -= f.n + perWR
	r.load -= f.n + perWR
	if f.send >= 0 {
		g.freeSend(f.send)
		l.peer.sends--
		l.sends--
	}
	l.counts.TxWrites++
	if f.sample != 0 {
		r.followed(f, st)
	}
	if st == provider.StatusFlushed && !l.peer.down {
		r.total.Failed[st]++
		l.lost = append(l.lost, *f)
		g.free(r, i)
		if l.outstanding == 0 {
			g.settle(l)
		}
		return
	}
	if st == provider.StatusOK {
		l.counts.TxBytes += f.n
	} else {
		r.total.Failed[st%statuses]++
	}
	l.account(f, op, st)
	if f.frag {
		op.frags--
	}
	g.free(r, i)
	if st == provider.StatusAccess && r.caps.AccessEnds {
		g.denied(l, op)
	}
	if invariants.Enabled && (op.inflight <= 0 || op.frags < 0 || l.outstanding < 0 || l.peer.sends < 0) {
		invariants.Broken("negative count: op %+v, link %+v", op, l)
	}
	g.concluded(l, op, st)
	if l.state == lost && l.outstanding == 0 {
		g.settle(l)
	}
}

// denied deals with a write of ours whose refusal ends its connection. Operations check their bounds before they are placed, so the owner
// has taken the memory back without our knowing: whoever tried again would cost all that share the next connection that one, too.
func (g *Group) denied(l *link, op *Op) {
	if !l.denied {
		l.denied = true
		l.counts.Denials++
	}
	if r := op.Dst; r != nil {
		g.CloseRemote(r)
	}
}

// free gives the place of a flight back.
// hot:
func (g *Group) free(r *railState, i uint32) {
	f := &r.flights[i]
	f.op, f.link, f.next, r.free = nil, nil, r.free, int32(i)
}

// account notes an answer for the division of what has none.
// hot:
func (l *link) account(f *flight, op *Op, st provider.Status) {
	switch {
	case f.imm && st == provider.StatusOK:
		l.ackImms++
		l.doneSeq = max(l.doneSeq, f.seq)
		l.ackBucket[bucket(op.Imm)]++
	case f.imm && st == provider.StatusAccess:
		l.refusedImms++
	case op.Kind == Send && st == provider.StatusOK:
		l.ackMsgs++
	}
}

// probed ends the proof of a new connection.
func (g *Group) probed(l *link, st provider.Status) {
	switch {
	case l.peer.down:
	case l.state == probing && st == provider.StatusOK:
		g.inService(l)
	case l.state == probing:
		g.lose(l, "its first write failed: "+st.String())
	case l.outstanding == 0:
		g.settle(l)
	}
}

// railDead takes a rail out of service, and with it the connections over it. What was in flight on it ends. A domain that is dead delivers
// nothing any more: if the other side has an answer to something that was not delivered, our report does not add up for it, and
// it ends the session, as an immediate is lost.
func (g *Group) railDead(r *railState, err error) {
	err = errors.Join(err, r.close())
	r.batch = r.batch[:0]
	for i := range r.flights {
		if r.flights[i].link != nil {
			g.land(r, uint32(i), provider.StatusFlushed)
		}
	}
	g.sink.Dead(r.index, err)
	for _, l := range r.links {
		if l == nil {
			continue
		}
		g.linkDown(l, provider.StatusFlushed)
		g.outcome(l, r.silent)
	}
}
