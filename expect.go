package hawser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// MissingError says which peers have not sent what was expected of them, when a wait for it has ended.
type MissingError struct {
	Imm        uint32
	Have, Want uint64      // of all expected peers together; what one sent beyond its part is left out
	Missing    []PeerShort // those that are short, in the order of a Group, else by name
	Err        error       // why the wait ended: the context's cause, ErrPeerDown, ErrClosed
}

// PeerShort is a peer that has not sent what was expected of it.
type PeerShort struct {
	Peer       *Peer
	Have, Want uint64
	Down       error // why nothing more comes from it, nil while it is up
}

func (e *MissingError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "counter %#x: %d of %d", e.Imm, e.Have, e.Want)
	for i, m := range e.Missing {
		if i == maxNamed {
			fmt.Fprintf(&b, ", and %d more peers", len(e.Missing)-i)
			break
		}
		fmt.Fprintf(&b, ", peer %s %d of %d", m.Peer, m.Have, m.Want)
		if m.Down != nil {
			fmt.Fprintf(&b, " (%v)", m.Down)
		}
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap is the cause, and why the peers that are down are.
func (e *MissingError) Unwrap() []error {
	errs := []error{e.Err}
	for _, m := range e.Missing {
		if m.Down != nil {
			errs = append(errs, m.Down)
		}
	}
	return errs
}

// debt is what a peer is expected to have sent.
type debt struct {
	peer *Peer
	want uint64
	sess *session // over which it comes; nil when the peer has never connected
}

func newDebt(p *Peer, want uint64) debt { return debt{peer: p, want: want, sess: p.cur.Load()} }

// lost is why nothing more can come from the peer over the session of the debt, nil while something can. The links have been fenced
// then, so everything that arrived over them is counted, or there is no proof and nobody knows.
func (d *debt) lost() error {
	s := d.sess
	if s == nil {
		return fmt.Errorf("%w: never connected", ErrPeerDown)
	}
	if s.state.Load() != stateDown {
		return nil
	}
	s.mu.Lock()
	ended, why, used := s.torn && !s.fencing, s.why, s.wasUp || s.linked.Load()
	s.mu.Unlock()
	if cur := d.peer.cur.Load(); !used && cur != s { // it gave way to another connection before anything came over it
		d.sess = cur
		return d.lost()
	}
	switch {
	case !ended:
		return nil
	case errors.Is(why, ErrPeerDown):
		return why
	}
	return fmt.Errorf("%w: %w", ErrPeerDown, why)
}

// owed is how many immediates the debts lack.
func (c *Counter) owed(debts []debt) uint64 {
	sum := uint64(0)
	for i := range debts {
		if have := c.From(debts[i].peer); have < debts[i].want {
			sum += debts[i].want - have
		}
	}
	return sum
}

// Expect waits until each peer of want has sent as many immediates as stated there, all together and not from now on (see From). When
// a peer that still owes something goes down, or is down, the wait ends: what it has sent may be lost, and its successor does not
// know. A wait that ends early returns a *MissingError that names who owes how many: errors.Is finds ErrPeerDown, ErrClosed, or
// the cause of ctx in it.
func (c *Counter) Expect(ctx context.Context, want map[*Peer]uint64) error {
	debts := make([]debt, 0, len(want))
	for p, n := range want {
		if p == nil || p.e != c.e {
			return fmt.Errorf("counter %#x: expect: peer: %w: none, or of another engine", c.c.Imm, ErrInvalid)
		}
		debts = append(debts, newDebt(p, n))
	}
	slices.SortFunc(debts, func(a, b debt) int { return cmp.Compare(a.peer.String(), b.peer.String()) })
	return c.expect(ctx, debts)
}

func (c *Counter) expect(ctx context.Context, debts []debt) error {
	if c.owed(debts) == 0 {
		return nil
	}
	w := &waiter{debts: debts, ch: make(chan struct{}, 1)}
	down := make(chan struct{}, 1)
	c.e.creditors.add(down) // before the first look at the sessions
	defer c.e.creditors.remove(down)
	debts = slices.Clone(debts) // those of w belong to the counter
	c.add(w)
	for {
		if c.defaulted(debts) {
			return c.missing(debts, c.takeBack(w, ErrPeerDown))
		}
		select {
		case <-w.ch:
			return c.missing(debts, w.err)
		case <-down:
		case <-ctx.Done():
			return c.missing(debts, c.takeBack(w, context.Cause(ctx)))
		}
	}
}

// defaulted reports whether somebody owes what cannot come any more.
func (c *Counter) defaulted(debts []debt) bool {
	for i := range debts {
		d := &debts[i]
		if c.From(d.peer) < d.want && d.lost() != nil && c.From(d.peer) < d.want { // what came before it was lost counts
			return true
		}
	}
	return false
}

// takeBack ends a wait for the reason err, unless it has ended otherwise in the meantime.
func (c *Counter) takeBack(w *waiter, err error) error {
	if c.remove(w) {
		return err
	}
	<-w.ch
	return w.err
}

// missing is the error of a wait that ended with err.
func (c *Counter) missing(debts []debt, err error) error {
	if err == nil {
		return nil
	}
	if c.e.closing.Load() && errors.Is(err, ErrPeerDown) { // peers go down because this engine does
		err = errNoEngine
	}
	e := &MissingError{Imm: c.c.Imm, Err: err}
	for i := range debts {
		d := &debts[i]
		have := c.From(d.peer)
		e.Have += min(have, d.want)
		e.Want += d.want
		if have < d.want {
			e.Missing = append(e.Missing, PeerShort{Peer: d.peer, Have: have, Want: d.want, Down: d.lost()})
		}
	}
	return e
}

// creditors are those who want to know when a session ends.
type creditors struct {
	mu  sync.Mutex
	all map[chan struct{}]struct{} // of capacity 1; guarded by mu
}

func (l *creditors) add(c chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[chan struct{}]struct{}{}
	}
	l.all[c] = struct{}{}
}

func (l *creditors) remove(c chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, c)
}

// tell is called after a session went down, and after its links were fenced.
func (l *creditors) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.all {
		signal(c)
	}
}
