package proto

import (
	"fmt"

	"github.com/hawser-project/hawser"
)

// Counted: the immediates of this kind that came from rank in this view are total by now. Values of other views must not get here.
//
// hot:
func (l *Lane) Counted(rank int, k Kind, total uint64) {
	p := &l.peers[rank]
	if !l.open || !p.member || total <= p.seen[k] {
		return
	}
	p.seen[k] = total
	if k == KindCancel {
		l.cancelled(rank)
		return
	}
	if l.phase >= receiving {
		l.advance(rank)
		l.turned()
	}
}

// advance takes what a peer has written that can be used now.
func (l *Lane) advance(rank int) {
	p := &l.peers[rank]
	if !p.member || p.missing || l.phase < receiving {
		return
	}
	if err := l.take(rank, p); err != nil {
		l.miss(rank, CodeCorrupt)
	}
}

func (l *Lane) take(rank int, p *peer) error {
	if !p.head && p.seen[KindHead] > p.taken[KindHead] {
		if err := l.takeHead(rank, p); err != nil {
			return err
		}
	}
	for w := range l.cfg.Window {
		if k := KindChunk + Kind(w); p.head && p.seen[k] > p.taken[k] {
			if p.seen[k] > p.taken[k]+1 || p.window[w].state != slotGranted {
				return ErrCorrupt
			}
			p.taken[k]++
			p.window[w].state = slotArrived
		}
		if k := KindGrant + Kind(w); p.seen[k] > p.taken[k] {
			if err := l.takeGrant(rank, p, w); err != nil {
				return err
			}
		}
	}
	l.postChunks(rank)
	l.offer(rank, p)
	if !p.combIn && p.head {
		return l.takeResults(p)
	}
	return nil
}

// takeHead checks a header against the step.
func (l *Lane) takeHead(rank int, p *peer) error {
	p.taken[KindHead]++
	h, err := l.cfg.ParseHeader(l.out.Head(rank))
	if err != nil {
		return err
	}
	switch {
	case h.View != l.view:
		return &headField{"view", uint64(h.View), uint64(l.view)}
	case h.Step != l.step:
		return &headField{"step", h.Step, l.step}
	case h.Source != rank:
		return &headField{"source", uint64(h.Source), uint64(rank)}
	case h.Flags&FlagReuse != 0 && h.RouteHash != p.route:
		return &headField{"hash of the ids that are used again", h.RouteHash, p.route}
	}
	p.route = h.RouteHash
	p.head, p.first, p.in, p.inBase = true, slotArrived, h.Records, h.Base
	l.heads--
	l.wanted += l.cfg.Chunks(int(p.in))
	if p.in == 0 {
		p.first, p.unpacked = slotFree, 1
	} else {
		l.left += l.cfg.Pieces(int(p.in))
	}
	l.grant()
	return nil
}

// takeGrant: the slot holds the grant of the chunk that is due there.
func (l *Lane) takeGrant(rank int, p *peer, w int) error {
	k := KindGrant + Kind(w)
	if p.seen[k] > p.taken[k]+1 || p.ready[w] {
		return ErrCorrupt
	}
	p.taken[k]++
	g, err := ParseGrant(l.out.Grant(rank, w), l.step, p.due[w], l.cfg.PoolChunks)
	if err != nil {
		return err
	}
	if int(g.Seq) >= l.cfg.Chunks(int(p.out)) {
		return ErrCorrupt
	}
	p.due[w] += uint32(l.cfg.Window)
	p.lent[w], p.ready[w] = g.Chunk, true
	return nil
}

// takeResults: results are complete when every value has come as often as it is owed.
func (l *Lane) takeResults(p *peer) error {
	whole := true
	for w := range l.cfg.Window {
		k := KindComb + Kind(w)
		switch want := p.taken[k] + l.cfg.combOf(int(p.out), w); {
		case p.seen[k] > want:
			return ErrCorrupt
		case p.seen[k] < want:
			whole = whole && broken(mutCounted)
		}
	}
	if whole {
		for w := range l.cfg.Window {
			p.taken[KindComb+Kind(w)] += l.cfg.combOf(int(p.out), w)
		}
		p.combIn = true
		l.combs--
	}
	return nil
}

// Receive says how the step is received. Whole needs all headers; Streamed may follow it as long as nothing was offered, and the other
// way round. Streamed may be said before the step is packed.
func (l *Lane) Receive(m Mode) error {
	switch {
	case l.phase != receiving && (l.phase != packing || m == Whole) || l.mode != Undecided:
		return fmt.Errorf("receive step %d: %w: already decided, or no step is being received", l.step, hawser.ErrBusy)
	case m == Whole && l.heads > 0:
		return fmt.Errorf("receive step %d: %w: %d headers are missing", l.step, hawser.ErrBusy, l.heads)
	}
	l.mode = m
	for i := range l.peers {
		if p := &l.peers[i]; p.member && !p.missing {
			l.offer(i, p)
		}
	}
	l.turned()
	return nil
}

// offer hands over the pieces of a peer that have arrived.
func (l *Lane) offer(rank int, p *peer) {
	if l.mode == Undecided {
		return
	}
	if p.first == slotArrived {
		p.first = slotOffered
		l.reading++
		l.out.Arrived(rank, 0, 0)
	}
	for w := range l.cfg.Window {
		if s := &p.window[w]; s.state == slotArrived {
			s.state = slotOffered
			l.reading++
			l.out.Arrived(rank, s.seq+1, s.chunk)
		}
	}
}

// Unpacked: a piece that arrived is where the experts read it, and its memory may be written.
//
// hot:
func (l *Lane) Unpacked(rank int, piece uint32) {
	p := &l.peers[rank]
	if l.phase != receiving {
		return
	}
	s := &p.window[(piece+uint32(l.cfg.Window)-1)%uint32(l.cfg.Window)]
	if piece == 0 {
		if p.first != slotOffered {
			return
		}
		p.first = slotFree
	} else {
		if s.state != slotOffered || s.seq != piece-1 {
			return
		}
		s.state = slotFree
		l.free = append(l.free, s.chunk)
	}
	l.reading--
	if !p.missing {
		p.unpacked++
		l.left--
	}
	l.grant()
	l.turned()
}

// grant lends chunks to who has announced more, one each in turn, while there are any.
func (l *Lane) grant() {
	if l.phase != receiving {
		return
	}
	for idleRanks := 0; l.wanted > 0 && len(l.free) > 0 && idleRanks < len(l.peers); {
		rank := l.turn
		l.turn = (l.turn + 1) % len(l.peers)
		if l.grantTo(rank) {
			idleRanks = 0
		} else {
			idleRanks++
		}
	}
}

func (l *Lane) grantTo(rank int) bool {
	p := &l.peers[rank]
	if !l.talks(p) || !p.head || int(p.granted) >= l.cfg.Chunks(int(p.in)) {
		return false
	}
	w := int(p.granted) % l.cfg.Window
	k := KindGrant + Kind(w)
	s := &p.window[w]
	early := s.state == slotOffered && broken(mutUnpacked) || broken(mutWindow)
	if s.state != slotFree && !early || p.busy[k] > 0 && !broken(mutGate) {
		return false
	}
	c := l.free[len(l.free)-1]
	if s.state == slotOffered && early {
		c = s.chunk
	} else {
		l.free = l.free[:len(l.free)-1]
	}
	*s = slot{slotGranted, p.granted, c}
	p.granted++
	l.wanted--
	l.write(OpGrant, Target{Rank: rank, Kind: k, Piece: s.seq, Chunk: c})
	return true
}

// turned looks whether the step as a whole has come further.
func (l *Lane) turned() {
	if l.phase == receiving && l.heads == 0 && l.mode == Undecided && !l.headsIn {
		l.headsIn = true
		l.out.HeadsIn(l.step)
	}
	if l.phase == receiving && l.wanted > 0 && l.away == l.cfg.PoolChunks {
		l.fail(CodePool, l.blamed)
		return
	}
	if l.phase == receiving && l.heads == 0 && (l.left == 0 || broken(mutResults)) && l.mode != Undecided {
		l.phase = computing
		l.out.Received(l.step)
	}
	if l.phase == combining && l.combs == 0 && l.sent {
		l.phase = reducing
		l.out.CombIn(l.step)
	}
}

// Reduced: the results are summed; the step is complete.
//
// hot:
func (l *Lane) Reduced() {
	if l.phase != reducing {
		return
	}
	l.phase, l.completed = idle, l.step
	if l.stale {
		l.tell()
	}
}
