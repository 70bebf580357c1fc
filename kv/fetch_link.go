package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
)

// fetchLink is the Decoder's side of a link to one prefiller: one epoch, from Hello to the first thing that goes wrong.
// Guarded by Decoder.mu, but for the fields that say otherwise.
type fetchLink struct {
	addr   string        // set once
	epoch  uint64        // set once
	ticket uint64        // P's number of the link; set when up
	ready  chan struct{} // closed when it is usable or has ended
	peer   *hawser.Peer  // nil until connected
	up     bool
	ended  bool
	err    error // why it ended
	live   map[uint64]*attempt
	seqs   []uint64 // of live attempts, ascending; ended ones are removed from the front only
}

// fence is a fence of a peer under way.
type fence struct {
	link   *fetchLink
	over   chan struct{} // closed by the first PeerFenced since the fence began
	isOver bool          // guarded by Decoder.mu
	done   chan struct{} // closed when a new link to the peer may begin
}

// link returns a usable link to the engine at addr, making one if needed.
func (d *Decoder) link(ctx context.Context, addr string) (*fetchLink, error) {
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		return nil, fmt.Errorf("decoder: %w", hawser.ErrClosed)
	}
	l := d.links[addr]
	if l == nil {
		l = &fetchLink{addr: addr, epoch: mint(), ready: make(chan struct{}), live: map[uint64]*attempt{}}
		d.links[addr] = l
		d.wg.Go(func() { d.connect(l) })
	}
	d.mu.Unlock()
	select {
	case <-l.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("link to %s: %w", short(addr), context.Cause(ctx))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.ended {
		return nil, fmt.Errorf("link to %s: %w", short(addr), l.err)
	}
	return l, nil
}

// short is an address as people want to see it in an error.
func short(addr string) string {
	const most = 32
	if len(addr) <= most {
		return addr
	}
	return addr[:most] + "..."
}

// connect makes l usable, or ends it.
func (d *Decoder) connect(l *fetchLink) {
	ctx, cancel := context.WithTimeout(d.ctx, linkLimit)
	defer cancel()
	err := d.hello(ctx, l)
	if err == nil {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: no answer in %v", hawser.ErrPeerDown, linkLimit)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLink(l, err)
}

// hello connects and says Hello until the prefiller answers.
func (d *Decoder) hello(ctx context.Context, l *fetchLink) error {
	if err := d.meet(ctx, l); err != nil {
		return err
	}
	// Issued now: a fence makes all earlier descriptors of this peer worthless.
	m, err := d.describe()
	if err != nil {
		return err
	}
	for pause := repeatFirst; ; pause = min(2*pause, repeatMost) {
		d.mu.Lock()
		if !l.ended {
			d.send(l, m)
		}
		d.mu.Unlock()
		select {
		case <-l.ready:
			return nil
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// meet connects l and makes it the link to its peer. A fence of the peer that is under way ends whatever session there is: meet
// waits for it and connects again.
func (d *Decoder) meet(ctx context.Context, l *fetchLink) error {
	for {
		peer, err := d.net.Connect(ctx, l.addr)
		if err != nil {
			return err
		}
		f, err := d.claim(l, peer)
		if f == nil {
			return err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return fmt.Errorf("fence of %s: %w: no proof yet", peer, hawser.ErrUnfenced)
		}
	}
}

// claim makes l the link to a peer, or returns the fence that has to end before.
func (d *Decoder) claim(l *fetchLink, peer *hawser.Peer) (*fence, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.fences[peer]; f != nil {
		return f, nil
	}
	if other := d.peers[peer]; other != nil {
		return nil, fmt.Errorf("%w: there is a link to %s already, by the address %s", hawser.ErrBusy, peer, short(other.addr))
	}
	l.peer = peer
	d.peers[peer] = l
	return nil, nil
}

// describe makes the Hello that tells a prefiller where the cache of this process lies.
func (d *Decoder) describe() (*hello, error) {
	m := &hello{geometry: d.cfg.Geometry}
	index := map[*hawser.Region]uint32{}
	for _, v := range d.cfg.Views {
		i, ok := index[v.Region]
		if !ok {
			b, err := d.net.Describe(v.Region)
			if err != nil {
				return nil, err
			}
			i = uint32(len(m.descriptors))
			index[v.Region] = i
			m.descriptors = append(m.descriptors, b)
			if len(b) > maxDescriptor || len(m.descriptors) > maxRegions {
				return nil, fmt.Errorf("%w: %d regions, descriptor of %d bytes: at most %d regions and %d bytes",
					hawser.ErrLimit, len(m.descriptors), len(b), maxRegions, maxDescriptor)
			}
		}
		m.views = append(m.views, wireView{region: i, pages: uint32(v.Pages), base: v.Base, stride: v.Stride})
	}
	if n := len(encode(head{}, m)); n > maxMessage {
		return nil, fmt.Errorf("%w: hello has %d bytes, a message at most %d: use fewer regions", hawser.ErrLimit, n, maxMessage)
	}
	return m, nil
}

// head is what every message on l begins with.
func (d *Decoder) head(l *fetchLink) head {
	for len(l.seqs) > 0 && l.live[l.seqs[0]] == nil {
		l.seqs = l.seqs[1:]
	}
	h := head{epoch: l.epoch, ticket: l.ticket, lowWater: d.nextSeq, next: d.nextSeq}
	if len(l.seqs) > 0 {
		h.lowWater = l.seqs[0]
	}
	return h
}

// send sends a message, or loses it: everything that matters is repeated. Needs mu.
func (d *Decoder) send(l *fetchLink, b body) {
	if _, err := d.net.Send(l.peer, encode(d.head(l), b)); err != nil {
		d.log.Debug("message lost", "kind", b.kind(), "peer", l.peer, "err", err)
	}
}

// endLink ends a link: nothing is sent on it any more and its messages are dropped. Attempts whose pages may still be written
// wait for a fence, which ends every attempt of the peer: it fences a peer, not an attempt. Needs mu.
func (d *Decoder) endLink(l *fetchLink, cause error) {
	if l.ended {
		return
	}
	l.ended, l.err = true, cause
	if d.links[l.addr] == l {
		delete(d.links, l.addr)
	}
	if l.peer != nil && d.peers[l.peer] == l {
		delete(d.peers, l.peer)
	}
	if !l.up {
		close(l.ready)
	}
	d.log.Info("link ended", "peer", l.peer, "epoch", l.epoch, "attempts", len(l.live), "cause", cause)
	for _, p := range slices.Clone(d.queue) {
		if p.link == l {
			d.drop(p, cause)
		}
	}
	for _, a := range l.live {
		d.step(a, fetchEvent{kind: evLinkEnded, cause: cause})
	}
	if len(l.live) == 0 || d.ctx.Err() != nil {
		return
	}
	f := &fence{link: l, over: make(chan struct{}), done: make(chan struct{})}
	d.fences[l.peer] = f
	d.wg.Go(func() { d.fence(f) })
}

// fence tries until there is proof that nothing of the peer can land any more. It gives up only when the Decoder closes.
//
// The engine reports PeerFenced when the session is over, and not before PeerDown. Only then may there be a new link: a report that
// came later would end it. It is no proof by itself: it may be about a session before.
func (d *Decoder) fence(f *fence) {
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.fences, f.link.peer)
		close(f.done)
	}()
	over := f.over
	for d.tryFence(f.link) != nil {
		select {
		case <-over:
			over = nil
		case <-time.After(fenceLimit):
		case <-d.ctx.Done():
			return
		}
	}
	select {
	case <-f.over:
	case <-d.ctx.Done():
	}
}

// tryFence fences the peer of a link that has ended and tells the attempts how that went.
func (d *Decoder) tryFence(l *fetchLink) error {
	ctx, cancel := context.WithTimeout(d.ctx, fenceLimit)
	defer cancel()
	err := d.net.Fence(ctx, l.peer)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range l.live {
		if err == nil {
			d.step(a, fetchEvent{kind: evFenced, from: a.landed()})
		} else {
			d.step(a, fetchEvent{kind: evUnfenced})
		}
	}
	if err != nil {
		d.log.Warn("fence has no proof, retrying", "peer", l.peer, "quarantined pages", d.quarantined, "err", err)
	}
	return err
}

// peerEvent is called by the engine.
func (d *Decoder) peerEvent(e hawser.PeerEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Kind {
	case hawser.PeerDown:
		if l := d.peers[e.Peer]; l != nil {
			d.endLink(l, peerDown(e))
		}
	case hawser.PeerFenced:
		if f := d.fences[e.Peer]; f != nil && !f.isOver {
			f.isOver = true
			close(f.over)
		}
	}
}

// peerDown is the cause of a peer-down event; it always is an ErrPeerDown.
func peerDown(e hawser.PeerEvent) error {
	switch {
	case e.Cause == nil:
		return hawser.ErrPeerDown
	case errors.Is(e.Cause, hawser.ErrPeerDown):
		return e.Cause
	}
	return fmt.Errorf("%w: %w", hawser.ErrPeerDown, e.Cause)
}
