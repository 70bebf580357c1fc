package hawser

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// The part of a handshake that brings up links; see control.go.

// leadLinks is the answerer's part: it proposes one path after the other until the links of one come up.
func (s *session) leadLinks(ctx context.Context, c *control, h *wire.Hello) error {
	ours := s.e.wireRails()
	ways, missing := plans(s.e.opts.Providers, &party{h.Rails, h.Require}, &party{ours, s.e.opts.Require}, s.e.cards)
	if len(ways) == 0 {
		return refuse(wire.RefusePath, "no rail of one side reaches a rail of the other: you have %s%s, this side has %s%s",
			describe(h.Rails), requireText(h.Require), describe(ours), requireText(s.e.opts.Require))
	}
	var tried []string
	for i, way := range ways {
		for _, p := range s.e.opts.Providers { // why it is none of those that are preferred
			if p.Name() == way.path {
				break
			}
			if why := missing[p.Name()]; why != "" {
				tried = append(tried, fmt.Sprintf("%s: %s", p.Name(), why))
				delete(missing, p.Name())
			}
		}
		fault, err := s.tryPath(ctx, c, way, tried)
		if err != nil {
			return err
		}
		if fault == "" {
			s.setSlots(ways[i:])
			return nil
		}
		tried = append(tried, fmt.Sprintf("%s: %s", way.path, fault))
	}
	return refuse(wire.RefusePath, "no path works: %s", strings.Join(tried, ", "))
}

// tryPath proposes one path; fault says why it did not come up.
func (s *session) tryPath(ctx context.Context, c *control, way plan, tried []string) (fault string, err error) {
	reason := way.text
	if len(tried) > 0 {
		reason = fmt.Sprintf("%s; not %s", way.text, strings.Join(tried, ", not "))
	}
	rp, err := s.begin(way.path, reason, len(way.pairs))
	if err != nil {
		return "", err
	}
	links := way.links()
	if err := s.offer(rp, links, func(l wire.Link) uint16 { return l.Answerer }); err != nil {
		return err.Error(), nil //nolint:nilerr // the next path may work
	}
	if _, err := c.write(wire.TypeLinks, &wire.Links{Path: way.path, Reason: reason, Links: links}); err != nil {
		return "", err
	}
	var reply wire.LinksReply
	if _, err := c.read(wire.TypeLinksReply, &reply); err != nil {
		return "", err
	}
	if len(reply.Links) == 0 {
		return "the other side could not open it", nil
	}
	if len(reply.Links) != len(links) {
		return "", refuse(wire.RefuseProtocol, "%d addresses for %d links", len(reply.Links), len(links))
	}
	own := s.connect(rp, reply.Links, false)
	if own != "" {
		s.giveUp(rp) // so that the other side does not wait for its links
	}
	var done wire.LinksDone
	if _, err := c.read(wire.TypeLinksDone, &done); err != nil {
		return "", err
	}
	if own != "" || done.Fault != "" {
		return cmp.Or(own, done.Fault), nil
	}
	return s.waitLinks(ctx)
}

// giveUp closes the links of a path that does not come up. The session keeps none of them: what was given up cannot be fenced, and
// need not be, because nothing was granted over it. A session that has failed is fencing them already.
func (s *session) giveUp(rp *rail.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil && s.links.CompareAndSwap(rp, &rail.Peer{Tag: s, Number: s.peer.number}) {
		s.e.worker.group.Call(func(g *rail.Group) { g.Disconnect(rp) })
	}
}

// followLinks is the dialer's part.
func (s *session) followLinks(ctx context.Context, c *control) error {
	for {
		t, b, err := c.readAny()
		if err != nil {
			return err
		}
		if t == wire.TypeUp && s.linked.Load() {
			return nil
		}
		var m wire.Links
		if t != wire.TypeLinks {
			return refuse(wire.RefuseProtocol, "message of type %d where links were expected", t)
		}
		if err := wire.Parse(b, &m); err != nil {
			return err
		}
		if err := s.followPath(ctx, c, &m); err != nil {
			return err
		}
	}
}

// followPath answers one proposal.
func (s *session) followPath(ctx context.Context, c *control, m *wire.Links) error {
	if err := s.checkLinks(m); err != nil {
		return err
	}
	rp, err := s.begin(m.Path, m.Reason, len(m.Links))
	if err != nil {
		return err
	}
	ours := slices.Clone(m.Links)
	if err := s.offer(rp, ours, func(l wire.Link) uint16 { return l.Dialer }); err != nil {
		s.e.opts.Log.Warn("path left out", "peer", s.peer.String(), "path", m.Path, "err", err)
		_, err = c.write(wire.TypeLinksReply, &wire.LinksReply{})
		return err
	}
	if _, err := c.write(wire.TypeLinksReply, &wire.LinksReply{Links: ours}); err != nil {
		return err
	}
	fault := s.connect(rp, m.Links, true)
	if fault == "" {
		if fault, err = s.waitLinks(ctx); err != nil {
			return err
		}
	}
	_, err = c.write(wire.TypeLinksDone, &wire.LinksDone{Fault: fault})
	return err
}

func (s *session) checkLinks(m *wire.Links) error {
	if s.e.opts.Require != "" && !serves(m.Path, s.e.opts.Require) {
		return refuse(wire.RefusePath, "%s is offered%s", m.Path, requireText(s.e.opts.Require))
	}
	if len(m.Links) == 0 {
		return refuse(wire.RefuseProtocol, "a path without links")
	}
	for _, l := range m.Links {
		if int(l.Dialer) >= len(s.e.rails) || s.e.rails[l.Dialer].Provider != m.Path {
			return refuse(wire.RefuseProtocol, "rail %d of this side is not one of %s", l.Dialer, m.Path)
		}
	}
	return nil
}

// offer fills links with the addresses of this side's ends.
func (s *session) offer(rp *rail.Peer, links []wire.Link, railOf func(wire.Link) uint16) error {
	var rails uint64
	for i := range links {
		rails |= 1 << railOf(links[i])
	}
	s.rails.Store(rails)
	return s.e.worker.do(func(g *rail.Group) error {
		for i := range links {
			addr, err := g.Offer(rp, int(railOf(links[i])))
			if err != nil {
				return err
			}
			links[i].Addr = addr
		}
		return nil
	})
}

// connect starts to connect all links; fault says why that is not possible.
func (s *session) connect(rp *rail.Peer, remote []wire.Link, active bool) (fault string) {
	err := s.e.worker.do(func(g *rail.Group) error {
		for i := range remote {
			if err := g.Connect(rp, i, remote[i].Addr, active); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return ""
}

// lateLinks is for how long a session that has a link waits for those that have neither come up nor failed: of many cards one may lead
// nowhere, and it takes seconds to find that out. They join when they are there.
const lateLinks = time.Second

// waitLinks waits until each link is up or has failed, or some are late, and at least one is up: the others are tried again later. fault says
// why none is. An error means that the session has ended.
func (s *session) waitLinks(ctx context.Context) (fault string, err error) {
	ctx, cancel := context.WithTimeout(ctx, provider.ConnectTimeout+time.Second) // the provider's own limit comes first
	defer cancel()
	late := time.NewTimer(lateLinks)
	defer late.Stop()
	for patient := true; ; {
		s.mu.Lock()
		known, up, fault, wake := bits.OnesCount64(s.told) >= s.want, s.inService.Load() > 0, s.fault, s.wake
		s.mu.Unlock()
		switch {
		case known && !up:
			return fault, nil
		case known, up && !patient:
			s.linked.Store(true)
			return "", nil
		}
		select {
		case <-wake:
		case <-late.C:
			patient = false
		case <-s.ctx.Done():
			return "", s.cause()
		case <-ctx.Done():
			return "no answer in time", nil
		}
	}
}

func describe(rails []wire.Rail) string {
	out := ""
	for i, r := range rails {
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%s (fabric %s)", r.Provider, r.Fabric)
	}
	if out == "" {
		return "none"
	}
	return out
}

func requireText(name string) string {
	if name == "" {
		return ""
	}
	return ", and " + name + " is required"
}
