package weights

import (
	"context"
	"fmt"
	"math"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// exchange carries maxima between the sources of one epoch. Each has an inbox, in which each partner has a place of its own for every
// stage, and counts one immediate for each stage from each partner.
type exchange struct {
	eng      *hawser.Engine
	inbox    *hawser.Region
	outbox   *hawser.Region // what is being written to partners; as long as the longest stage needs
	counter  *hawser.Counter
	partners map[int]*partner
}

// partner is another source with which blocks are shared.
type partner struct {
	peer  *hawser.Peer
	inbox *hawser.Remote
	imm   uint32
	told  uint64 // immediates that it has sent when the stages so far are done
}

// inboxBytes is how long the inbox and the outbox of a source must be.
func inboxBytes(s *reshard.Slice) (inbox, outbox int64) {
	for i := range s.Amax {
		n := int64(0)
		for _, x := range s.Amax[i].Peers {
			inbox = max(inbox, x.Answer+4*int64(entries(x.Blocks)))
			n += 4 * int64(entries(x.Blocks))
		}
		outbox = max(outbox, n)
	}
	return inbox, outbox
}

func entries(blocks []reshard.BlockRange) (n int) {
	for _, b := range blocks {
		n += b.Len
	}
	return n
}

// trade sends what this source has of a stage to all partners, then takes theirs. When it returns, its own writes have ended: so the
// immediates of one partner come in the order of the stages.
func (e *exchange) trade(ctx context.Context, a *reshard.Amax, maxima []float32) error {
	writes, err := e.send(a, maxima)
	for _, tr := range writes {
		if end := tr.Wait(context.Background()); err == nil { // it reads the outbox until it ends
			err = end
		}
	}
	if err != nil {
		return err
	}
	want := make(map[*hawser.Peer]uint64, len(a.Peers))
	for i := range a.Peers {
		p := e.partners[a.Peers[i].Rank]
		p.told++
		want[p.peer] = p.told
	}
	if err := e.counter.Expect(ctx, want); err != nil {
		return err
	}
	box := e.inbox.Bytes()
	for i := range a.Peers {
		at := a.Peers[i].Answer
		for _, b := range a.Peers[i].Blocks {
			for k := b.First; k < b.First+b.Len; k++ {
				maxima[k] = larger(maxima[k], math.Float32frombits(le.Uint32(box[at:])))
				at += 4
			}
		}
	}
	return nil
}

// join gives both entries of each block that a source has several pieces of the larger value.
func join(maxima []float32, s *reshard.Same) {
	b, at := 0, 0 // the entry of B that belongs to the next of A
	for _, x := range s.A {
		for k := x.First; k < x.First+x.Len; k++ {
			for at == s.B[b].Len {
				b, at = b+1, 0
			}
			other := &maxima[s.B[b].First+at]
			maxima[k] = larger(maxima[k], *other)
			*other = maxima[k]
			at++
		}
	}
}

// larger keeps what is not a number: it must not vanish in the exchange.
func larger(a, b float32) float32 {
	if b > a || b != b {
		return b
	}
	return a
}

func (e *exchange) send(a *reshard.Amax, maxima []float32) (writes []*hawser.Transfer, err error) {
	at, box := uint64(0), e.outbox.Bytes()
	for i := range a.Peers {
		x := &a.Peers[i]
		p := e.partners[x.Rank]
		if p == nil {
			return writes, fmt.Errorf("partner %d: %w: it has granted no inbox", x.Rank, hawser.ErrInvalid)
		}
		from := at
		for _, b := range x.Blocks {
			for _, m := range maxima[b.First : b.First+b.Len] {
				le.PutUint32(box[at:], math.Float32bits(m))
				at += 4
			}
		}
		tr, err := e.eng.Write(hawser.Write{Src: e.outbox.Slice(from, at-from), Dst: p.inbox.Slice(uint64(x.Inbox), at-from), Imm: hawser.Imm(p.imm)})
		if err != nil {
			return writes, fmt.Errorf("partner %d: %w", x.Rank, err)
		}
		writes = append(writes, tr)
	}
	return writes, nil
}
