package moetest

import (
	"bytes"
	"slices"

	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// part is one write under way. Its bytes are read where they lie, at any time until it is acknowledged.
type part struct {
	from, to *node
	view     uint32
	post     exec.Post
	source   []byte // where they lie
	sent     []byte // what they were when it was posted
	store    *store
	tr       *transfer

	left    int  // fragments that have not landed
	try     int  // counts how often it was sent: fragments of an earlier time are void
	counted bool // its immediate was
	ended   bool // for the sender
	void    bool // nothing of it can land any more
}

// transfer is a post: parts that end together.
type transfer struct {
	from *node
	id   proto.Transfer
	left int // parts that have not ended
}

// Scatter implements exec.Wire.
func (n *node) Scatter(op proto.Op, posts []exec.Post) {
	n.post(posts, proto.Transfer{Op: op, Rank: proto.All})
}

// Write implements exec.Wire.
func (n *node) Write(op proto.Op, p exec.Post) {
	n.post([]exec.Post{p}, proto.Transfer{Op: op, Rank: p.Rank, Kind: p.Kind})
}

func (n *node) post(posts []exec.Post, id proto.Transfer) {
	tr := &transfer{n, id, len(posts)}
	for _, post := range posts {
		p := &part{from: n, view: n.store.view, post: post, tr: tr, store: n.remote[post.Rank]}
		if p.store == nil {
			n.w.fault("rank %d writes to rank %d, of which it has no descriptor", n.rank, post.Rank)
			return
		}
		p.to = p.store.n
		p.source = n.store.areas[post.From][post.Src : post.Src+post.Len]
		p.sent = bytes.Clone(p.source)
		n.gate(p)
		n.noted(p)
		n.w.parts = append(n.w.parts, p)
		switch {
		case n.cut[post.Rank] || p.to.dead: // there is no session
			n.w.fail(p, false)
		case !p.store.valid[n.id]:
			n.w.fault("%v goes to rank %d, for which there is no valid descriptor", p, post.Rank)
			n.w.fail(p, false)
		default:
			n.w.send(p)
		}
	}
}

// gate: no value may be used towards a peer that another Transfer uses which has not ended.
func (n *node) gate(p *part) {
	for _, o := range n.w.parts {
		if o.from == n && o.to == p.to && o.post.Kind == p.post.Kind && !o.ended && (o.tr != p.tr || p.post.Kind < proto.KindComb || p.post.Kind >= proto.KindGrant) {
			n.w.fault("%v to rank %d is posted while one before it has not ended", p, p.post.Rank)
		}
	}
}

// noted changes the own shadow: what a post permits a peer, and which places of peers it answers.
func (n *node) noted(p *part) {
	s, rank := n.store, p.post.Rank
	switch k := p.post.Kind; {
	case k == proto.KindHead:
		first, count := n.exec.Lane().Slots(rank)
		for i := first; i < first+count; i++ {
			n.permit(&s.results[i], rank)
		}
	case k >= proto.KindChunk: // the grant was read
		s.grants[rank*proto.Window+int(k-proto.KindChunk)] = slot{}
	case k >= proto.KindGrant:
		c := le.Uint32(p.sent[8:])
		if t := &s.chunks[c]; t.state == written {
			if missing, _ := n.exec.Lane().Held(t.from); missing { // nobody reads it
				*t = slot{}
			}
		}
		n.permit(&s.chunks[c], rank)
	case k >= proto.KindComb && k < proto.KindGrant: // a header without records was read
		if h := &s.heads[rank]; h.state == written && int(h.part.post.Len) == n.cfg.HeadBytes {
			s.take(h, n.head(rank))
		}
	}
}

func (n *node) permit(t *slot, rank int) {
	if t.state != free {
		n.w.fault("rank %d lets rank %d write to a place that is %s (of rank %d)", n.rank, rank, stateNames[t.state], t.from)
	}
	*t = slot{state: granted, from: rank}
}

// send lets a part fly, cut into fragments.
func (w *World) send(p *part) {
	p.try++
	if p.post.Len != int64(len(p.sent)) || !bytes.Equal(p.source, p.sent) {
		w.fault("%v: its source has changed since it was posted", p)
	}
	cuts := []int64{0, p.post.Len}
	for range w.rng.IntN(3) {
		if p.post.Len > 1 {
			cuts = append(cuts, 1+w.rng.Int64N(p.post.Len-1))
		}
	}
	slices.Sort(cuts)
	p.left = len(cuts) - 1
	for i, from := range cuts[:p.left] {
		w.add(event{kind: fragment, part: p, try: p.try, from: from, to: cuts[i+1]})
	}
}

// fragment lands.
func (w *World) fragment(e *event) {
	p := e.part
	if p.void || p.try != e.try {
		return
	}
	if !p.ended && !bytes.Equal(p.source[e.from:e.to], p.sent[e.from:e.to]) {
		w.fault("%v: its source has changed before it landed", p)
	}
	switch s := p.store; {
	case p.to.dead:
	case p.to.store != s && p.to.parked != s:
		w.fault("%v lands in memory of rank %d that was freed", p, p.to.rank)
	case p.to.store == s && s.view != p.view:
		w.fault("%v lands at rank %d in view %d", p, p.to.rank, s.view)
	default:
		s.land(p, e.from, e.to)
	}
	if p.left--; p.left == 0 {
		w.add(event{kind: immediate, part: p, try: p.try})
	}
}

// immediate is counted, after all of its own fragments.
func (w *World) immediate(e *event) {
	p := e.part
	if p.void || p.try != e.try {
		return
	}
	p.counted, p.void = true, true
	if !p.to.dead && p.to.store == p.store && p.store.view == p.view {
		p.store.counted(p)
		n := p.to
		n.totals[p.from.rank][p.post.Kind]++
		n.exec.Counted(p.from.rank, p.post.Kind, n.totals[p.from.rank][p.post.Kind])
		n.after()
	}
	w.add(event{kind: ack, part: p})
}

// acked: the sender knows that a part was counted.
func (w *World) acked(p *part) {
	if p.ended {
		return
	}
	if !bytes.Equal(p.source, p.sent) {
		w.fault("%v: its source has changed before it was acknowledged", p)
	}
	w.end(p)
}

// fail ends a part for its sender. If it is fenced, nothing of it lands any more.
func (w *World) fail(p *part, unfenced bool) {
	if p.ended {
		return
	}
	p.void = p.void || !unfenced
	w.add(event{kind: failure, part: p, unfenced: unfenced})
}

func (w *World) failed(e *event) {
	if p := e.part; !p.ended {
		if !p.from.dead {
			p.from.exec.Fault(p.post.Rank, e.unfenced)
		}
		w.end(p)
	}
}

func (w *World) end(p *part) {
	p.ended = true
	if p.tr.left--; p.tr.left == 0 && !p.from.dead {
		p.from.exec.Ended(p.tr.id)
		p.from.after()
	}
}

// sweep forgets parts of which nothing can happen any more.
func (w *World) sweep() {
	w.parts = slices.DeleteFunc(w.parts, func(p *part) bool { return p.ended && p.void })
}

// between calls f for each part from one node to another.
func (w *World) between(from, to *node, f func(p *part)) {
	for _, p := range w.parts {
		if p.from == from && p.to == to {
			f(p)
		}
	}
}

// sever ends the session of two nodes. What flies between them is lost; both learn of it.
func (w *World) sever(a, b *node) {
	for _, x := range [][2]*node{{a, b}, {b, a}} {
		w.between(x[0], x[1], func(p *part) { w.fail(p, false) })
		if !x[0].dead && !x[0].cut[x[1].rank] {
			x[0].cut[x[1].rank] = true
			w.add(event{kind: down, node: x[0], peer: x[1], epoch: x[0].group.Epoch()})
		}
	}
}

// resend is the death of a rail: what was not counted is sent once more, acknowledgements that were lost are asked for.
func (w *World) resend(a, b *node) {
	w.between(a, b, func(p *part) {
		switch {
		case p.ended:
		case !p.void:
			w.send(p)
		case p.counted:
			w.delay(p)
		}
	})
}

// delay puts an acknowledgement behind all else: it was lost.
func (w *World) delay(p *part) {
	w.events = slices.DeleteFunc(w.events, func(e event) bool { return e.kind == ack && e.part == p })
	w.lost = append(w.lost, p)
}
