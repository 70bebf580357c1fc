package proto

import (
	"fmt"

	"github.com/hawser-project/hawser"
)

// postChunks writes the chunks that a peer has granted.
func (l *Lane) postChunks(rank int) {
	p := &l.peers[rank]
	if !l.talks(p) || l.phase < receiving {
		return
	}
	for w := range l.cfg.Window {
		k := KindChunk + Kind(w)
		if !p.ready[w] || p.busy[k] > 0 && !broken(mutGate) {
			continue
		}
		p.ready[w] = false
		seq := p.due[w] - uint32(l.cfg.Window)
		first, n := l.cfg.Piece(int(p.out), int(seq)+1)
		l.write(OpChunk, Target{Rank: rank, Kind: k, Piece: seq + 1, Chunk: p.lent[w], First: uint32(first), N: uint32(n)})
	}
}

// target is where the results of a piece go.
func (l *Lane) target(rank int, piece uint32, half uint8) Target {
	p := &l.peers[rank]
	first, n := l.cfg.Piece(int(p.in), int(piece))
	return Target{
		Rank: rank, Kind: KindComb + Kind(piece%uint32(l.cfg.Window)), Piece: piece, First: p.inBase + uint32(first), N: uint32(n), Half: half,
	}
}

// HalfFree: this half of Y may be written. Results of the step before may be under way when a peer's records of this one are here already.
func (l *Lane) HalfFree(half uint8) bool {
	return l.half[half] == 0 && l.wholeY == 0 || broken(mutY)
}

// CombinePiece sends the results of one piece of a streamed step, which lie in a half of Y.
//
// hot:
func (l *Lane) CombinePiece(rank int, piece uint32, half uint8) error {
	p := &l.peers[rank]
	switch {
	case l.phase != receiving && l.phase != computing || l.mode != Streamed:
		return fmt.Errorf("combine piece %d of rank %d: %w: no step is being streamed", piece, rank, hawser.ErrBusy)
	case p.missing:
		return nil
	case p.back >= p.unpacked || !p.head || p.in == 0 || int(piece) >= l.cfg.Pieces(int(p.in)):
		return fmt.Errorf("combine piece %d of rank %d: %w: not received, or all were combined", piece, rank, hawser.ErrInvalid)
	}
	p.back++
	l.half[half]++
	l.waiting = append(l.waiting, l.target(rank, piece, half))
	l.flush()
	return nil
}

// flush sends the streamed results whose value is free, in order.
func (l *Lane) flush() {
	kept := l.waiting[:0]
	for _, t := range l.waiting {
		switch p := &l.peers[t.Rank]; {
		case !l.talks(p) || l.phase == idle:
			l.freeHalf(t.Half)
		case p.busy[t.Kind] > 0 && !broken(mutGate):
			kept = append(kept, t)
		default:
			p.half[t.Kind-KindComb] = t.Half + 1
			l.write(OpComb, t)
		}
	}
	l.waiting = kept
}

// Combine sends the results of the step, all of them; after a streamed step only those that have no records. The experts are done.
//
// hot:
func (l *Lane) Combine(now Time) error {
	if l.phase != computing {
		return fmt.Errorf("combine step %d: %w: records are not all received, or results are under way", l.step, hawser.ErrBusy)
	}
	if l.mode == Streamed {
		for i := range l.peers {
			if p := &l.peers[i]; l.talks(p) && p.in > 0 && int(p.back) < l.cfg.Pieces(int(p.in)) {
				return fmt.Errorf("combine step %d: %w: of rank %d %d pieces of %d were combined", l.step, hawser.ErrBusy, i, p.back, l.cfg.Pieces(int(p.in)))
			}
		}
	}
	l.phase, l.deadline = packingY, now+l.cfg.StepTimeout
	l.packY()
	return nil
}

// packY, once nothing reads Y any more.
func (l *Lane) packY() {
	if l.phase != packingY || l.asked || l.fromY > 0 && !broken(mutY) || len(l.waiting) > 0 {
		return
	}
	l.asked = true
	if l.mode == Streamed {
		l.YPacked()
		return
	}
	l.out.PackY(l.step)
}

// YPacked: Y holds the results of the whole step.
//
// hot:
func (l *Lane) YPacked() {
	if l.phase != packingY || !l.asked {
		return
	}
	l.phase = combining
	l.targets = l.targets[:0]
	l.cfg.Order(func(i int) {
		p := &l.peers[i]
		if !l.talks(p) || !p.head || l.mode == Streamed && p.in > 0 || p.in == 0 && broken(mutEmpty) {
			return
		}
		p.scattered = true
		for piece := range l.cfg.Pieces(int(p.in)) {
			l.targets = append(l.targets, l.target(i, uint32(piece), 0))
		}
	})
	l.sent = true
	l.scatter(OpComb)
	for i := range l.peers {
		l.advance(i)
	}
	l.turned()
}
