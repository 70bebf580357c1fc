package hawser

import (
	"context"
	"fmt"
)

// Barrier waits until every member of g has called it: it sends one immediate to each, and waits for one of each. Every call is one
// more round for the members of g, whatever its outcome, so the same value serves again and again, and one that is ahead by a round
// confuses nobody. Each pair of engines goes through the rounds of a value in the same order; other immediates must not use it.
//
// After an error the members may not agree on the round: go on with another value, or close its counter everywhere. The error is a
// *MissingError that names who is missing, as with Counter.Expect: ErrPeerDown when a member has died.
func (e *Engine) Barrier(ctx context.Context, g *Group, v uint32) error {
	if g == nil || g.e != e {
		return fmt.Errorf("barrier %#x: group: %w: none, or of another engine", v, ErrInvalid)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("barrier %#x: %w", v, context.Cause(ctx))
	}
	c := e.Counter(v)
	debts, err := c.nextRound(g)
	if err != nil {
		return fmt.Errorf("barrier %#x: %w", v, err)
	}
	refused := map[*Peer]error{}
	for _, p := range g.peers {
		// How the transfer ends says less than what the peer sends: it may have gone on, and left, before it could tell.
		if _, err := e.Signal(Signal{To: p, Imm: v}); err != nil {
			refused[p] = err
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("barrier: %w", c.refused(debts, refused))
	}
	if err := c.expect(ctx, debts); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	return nil
}

// nextRound is what the members of g owe in their next round. The sessions are those before anything of the round is sent.
func (c *Counter) nextRound(g *Group) ([]debt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return nil, c.gone
	}
	if c.rounds == nil {
		c.rounds = map[*Peer]uint64{}
	}
	debts := make([]debt, len(g.peers))
	for i, p := range g.peers {
		c.rounds[p]++
		debts[i] = newDebt(p, c.rounds[p])
	}
	return debts, nil
}

// refused is the error of a round in which some members could not be signalled: they do not know of it, so it does not end.
func (c *Counter) refused(debts []debt, refused map[*Peer]error) error {
	e := &MissingError{Imm: c.c.Imm}
	for _, d := range debts {
		have := c.From(d.peer)
		e.Have += min(have, d.want)
		e.Want += d.want
		err := refused[d.peer]
		if err == nil && have >= d.want {
			continue
		}
		if e.Err == nil {
			e.Err = err
		}
		e.Missing = append(e.Missing, PeerShort{Peer: d.peer, Have: have, Want: d.want, Down: err})
	}
	return e
}
