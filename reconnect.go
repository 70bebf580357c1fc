package hawser

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
)

// A session that was lost is set up again by the side that had dialed it. Which losses: a connection that broke, silence, a rail.
// Not those that somebody wanted: a fence, an engine that closes, a goodbye, which is also what a side says that was sent nonsense.
const (
	redialFirst   = 50 * time.Millisecond // the first pause is shorter than this
	redialLongest = 5 * time.Second       // each bound is twice the one before, up to this one
	redialStable  = 10 * time.Second      // a session that lasted so long starts anew with short pauses
	maxRedials    = 16                    // dials at once of one engine, so that losing many peers does not flood the network

	defaultReconnectTime = time.Minute
)

// redial is the attempt of a peer's engine to get it back. Guarded by Peer.mu.
type redial struct {
	active bool
	cancel context.CancelFunc
	tries  int // dials since a session last was stable
	err    error
	back   uint64 // sessions that came up by it
}

// replacedError: another engine with the name of a peer answers at its address. It has proved that it belongs to the cluster.
type replacedError struct {
	by   ID
	text error
}

func (r *replacedError) Error() string { return r.text.Error() }
func (r *replacedError) Unwrap() error { return r.text }

// another is what to say about an engine that is not the one that was dialed.
func (e *Engine) another(to target, w *wire.Welcome) error {
	err := fmt.Errorf("%w: identity %s answers there, wanted %s: it has restarted, or the address is of another engine", ErrRefused, ID(w.ID), to.id)
	if p := e.known(to.id); to.again && p != nil && w.Name != "" && w.Name == p.Name() {
		return &replacedError{by: ID(w.ID), text: err}
	}
	return err
}

// lost is called when a session that was up has ended.
func (e *Engine) lost(s *session) {
	why := s.cause()
	for _, wanted := range []error{errFenced, errClosing, errBye, errBroken} {
		if errors.Is(why, wanted) {
			return
		}
	}
	if s.addr == "" || e.opts.ReconnectTime < 0 || errors.Is(why, ErrLimit) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed { // Close joins those that were started before
		e.wg.Go(func() { e.redial(s) })
	}
}

// redial brings the peer of a lost session back, or gives up.
func (e *Engine) redial(s *session) {
	p := s.peer
	ctx, cancel := context.WithTimeoutCause(e.ctx, e.opts.ReconnectTime,
		fmt.Errorf("%w: gave up after %v", ErrPeerDown, e.opts.ReconnectTime))
	defer cancel()
	if !p.beginRedial(s, cancel) {
		return
	}
	err := e.redialLoop(ctx, s)
	p.endRedial(err)
	var r *replacedError
	switch {
	case errors.As(err, &r):
		e.opts.Log.Warn("peer is replaced", "peer", p.String(), "cause", err)
		e.emit(PeerEvent{Peer: p, Kind: PeerReplaced, Cause: err, Successor: r.by})
	case err != nil && e.ctx.Err() == nil:
		e.opts.Log.Warn("peer does not come back", "peer", p.String(), "cause", err)
	}
}

// redialLoop returns nil when the peer is up again, whoever did it.
func (e *Engine) redialLoop(ctx context.Context, s *session) error {
	p := s.peer
	if err := s.waitOver(ctx); err != nil { // nobody could begin before that
		return err
	}
	var err error
	for {
		pause := time.NewTimer(redialPause(p.redialTries()))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(context.Cause(ctx), err)
		}
		if e.known(p.id) != p {
			return fmt.Errorf("%w: forgotten among too many that are gone", ErrPeerDown)
		}
		err = e.redialOnce(ctx, s)
		var r *replacedError
		switch {
		case err == nil, errors.As(err, &r):
			return err
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), err)
		}
		p.missRedial(err)
	}
}

func (e *Engine) redialOnce(ctx context.Context, s *session) error {
	select {
	case e.redials <- struct{}{}:
		defer func() { <-e.redials }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err := e.connect(ctx, target{id: s.peer.id, addr: s.addr, again: true})
	return err
}

// redialPause is the time before a dial. It is random from 0 on, so that the peers of an engine that vanished and came back
// do not come to it all at once.
func redialPause(tries int) time.Duration {
	bound := redialLongest
	if shift := uint(tries); shift < 16 {
		bound = min(bound, redialFirst<<shift)
	}
	return rand.N(bound)
}

// beginRedial reports whether the peer of s is wanted back and nobody is at it.
func (p *Peer) beginRedial(s *session, cancel context.CancelFunc) bool {
	s.mu.Lock()
	stable := time.Since(s.upAt) >= redialStable
	s.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unwanted == s || p.redial.active {
		return false
	}
	p.redial.active, p.redial.cancel, p.redial.err = true, cancel, nil
	if stable {
		p.redial.tries = 0
	}
	return true
}

func (p *Peer) endRedial(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.redial.active, p.redial.err = false, err
	if err == nil {
		p.redial.tries++ // a session that ends at once again makes the next pause longer
		p.redial.back++
	}
}

func (p *Peer) missRedial(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.redial.tries++
	p.redial.err = err
}

func (p *Peer) redialTries() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.redial.tries
}

// leaveDown ends the attempts to bring the peer back, now and after its latest session.
func (p *Peer) leaveDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwanted = p.cur.Load()
	if p.redial.active {
		p.redial.cancel()
	}
}

func (p *Peer) redialStats(ps *PeerStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.redial
	ps.Reconnecting, ps.ReconnectTries, ps.ReconnectErr, ps.Reconnects = r.active, r.tries, r.err, r.back
}
