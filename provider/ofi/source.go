//go:build cgo

package ofi

import (
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// Where the data of a write has 4 bytes (EFA), the user's immediate fills it, and the writer is known by its address: libfabric gives the
// index that the sending endpoint has in the address vector (FI_SOURCE, fi_cq_readfrom), and sources leads from there to the peer.
//
// An address is that of an endpoint, not of a connection, and nothing in an immediate says of which connection between two
// endpoints it is. So that none is counted for another one:
//
//   - Two endpoints have one live connection. A second one waits for secondPatience, as the end of the first may be on its way, and is
//     then refused (DetailBusy). A Domain that connects to itself would have two, and is refused, too.
//   - A side speaks up for a new connection (hello, welcome) when its own writes of older ones to that endpoint have all come back.
//     One that has come back has been placed (FI_DELIVERY_COMPLETE), and its immediate is in the other side's queue, before everything
//     that this side sends later. A write that never comes back keeps the address: dest.owed.
//   - A side that hears this reads its queue until it is empty, while the address leads to nobody: what comes out is of older connections,
//     is dropped, and is counted in Stats.Unknown. Then the address leads to the new peer.
//   - Nobody writes before the other side has done that. The active side may when it has the welcome, which follows the emptying there.
//     The passive side needs a third message, ready, or a write, either of which the active side sends after its own.
//
// So when an address leads to a peer, no immediate of an older connection is under way or queued. The same holds for an index that
// libfabric gives to another endpoint: entries get their index when they are read from the device, an address is removed after
// the queue was empty, and what an unknown endpoint sends has no index (FI_ADDR_NOTAVAIL).

// secondPatience is how long a second connection waits for the end of the first, as the goodbye that is under way takes.
const secondPatience = time.Second

// maxSources bounds the table: an address vector of type FI_AV_TABLE counts from 0.
const maxSources = 1 << 20

// sources are the peers by address: 0, or the index of the peer and 1. Owned by the domain.
type sources []uint32

// fit makes room for an address.
func (s *sources) fit(addr uint64) error {
	if addr >= maxSources {
		return fmt.Errorf("%w: address %#x is no index of a table", provider.ErrUnsupported, addr)
	}
	for uint64(len(*s)) <= addr {
		*s = append(*s, 0)
	}
	return nil
}

// sender is whose immediate the k-th entry of the last step is, nil when that is not known.
//
// hot:
func (d *domain) sender(e *entry, k int) *peer {
	if !d.bySource {
		return d.peer(provider.Peer(e.data >> 32 &^ markPlain))
	}
	if a := d.from[k]; a < uint64(len(d.sources)) {
		if i := d.sources[a]; i > 0 {
			return d.peers[i-1]
		}
	}
	return nil
}

// hold has admit look after p from now on.
func (d *domain) hold(p *peer) {
	p.patience = d.clock() + int64(secondPatience)
	d.held = append(d.held, p)
}

// admit takes the connections further that are being made. It is called when no entry is being looked at.
func (d *domain) admit() {
	d.haunted = slices.DeleteFunc(d.haunted, func(t *target) bool {
		if t.dest.owed > 0 {
			return false
		}
		d.leave(t)
		return true
	})
	for _, p := range d.held {
		if p.shaking() && !p.claimed {
			d.claim(p)
		}
	}
	if slices.ContainsFunc(d.held, (*peer).heardOf) {
		d.drain() // see above
	}
	d.held = slices.DeleteFunc(d.held, func(p *peer) bool {
		if p.heardOf() {
			d.confirm(p)
		}
		return !p.shaking()
	})
}

// shaking reports whether p is on the way to be confirmed.
func (p *peer) shaking() bool { return !p.failing && (p.phase == waiting || p.phase == greeting) }

// heardOf reports whether the other side has spoken up for p.
func (p *peer) heardOf() bool {
	return p.shaking() && p.claimed && (p.phase == waiting && p.spent || p.phase == greeting && p.welcomed)
}

// claim gives the pair of endpoints to p when nothing of another connection is left on this side.
func (d *domain) claim(p *peer) {
	if !d.private {
		if o := p.to.owner; o != nil && o.phase == up && !o.failing && d.now >= p.patience {
			if p.phase == waiting && p.spent {
				d.last(p.to, note{kind: noteRefuse, b: DetailBusy}, p.remote.handle, p.toThem)
			}
			d.fail(p, provider.StatusRefused, DetailBusy)
			return
		}
		if p.to.owner != nil || p.data.owed > 0 {
			return
		}
		p.to.owner = p
	}
	p.claimed = true
	if p.phase == greeting {
		p.note(d, note{kind: noteHello})
	}
}

// confirm has the address of p lead to it: the queue is empty.
func (d *domain) confirm(p *peer) {
	if p.phase == waiting {
		if !d.answer(p) {
			return
		}
	} else {
		p.note(d, note{kind: noteReady})
		d.up(p)
	}
	d.sources[p.data.addr] = uint32(p.handle.Index()) + 1
}

// disclaim ends what claim and confirm have begun.
func (d *domain) disclaim(p *peer) {
	if !p.claimed {
		return
	}
	p.claimed = false
	if p.data == nil {
		return
	}
	d.sources[p.data.addr] = 0
	if d.private {
		return
	}
	p.to.owner = nil
	if p.inflight > 0 {
		p.data.owed += uint64(p.inflight)
		p.to.refs++
		d.haunted = append(d.haunted, p.to)
	}
}

// ghost is a write of a connection that has ended.
//
// hot:
func (d *domain) ghost(o *op) {
	if o.dest != nil && o.dest.owed > 0 {
		o.dest.owed--
	}
}
