package tcp

import (
	"fmt"
	"math"

	"github.com/hawser-project/hawser/provider"
)

// Bounds of the tables, against an owner that only ever adds.
const (
	maxRegions = 1 << 20
	maxGrants  = 1 << 20 // of one peer
)

// grantBit is set in the slot of a granted key and clear in the slot of a local one, so that neither passes for the other.
const grantBit = 1 << 31

// region is one slot of the table of registrations. Its key is slot | generation<<32; generations start at 1, so that 0 is
// no key. Bases are 0: an address is an offset.
type region struct {
	bytes  []byte // nil when the slot is free
	gen    uint32
	access provider.Access
}

func (d *domain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	switch {
	case d.closed:
		return provider.Key{}, d.errorf("register: %w", provider.ErrClosed)
	case m.Bytes == nil && m.Phantom > 0:
		return provider.Key{}, d.errorf("register: %w: memory without bytes cannot be sent", provider.ErrUnsupported)
	case len(m.Bytes) == 0:
		return provider.Key{}, d.errorf("register: %w: no bytes", provider.ErrInvalid)
	case acc&^provider.AccessRemoteWrite != 0:
		return provider.Key{}, d.errorf("register: %w: access %#x", provider.ErrInvalid, acc)
	}
	slot := len(d.regions)
	if n := len(d.freeRegions); n > 0 {
		slot = int(d.freeRegions[n-1])
		d.freeRegions = d.freeRegions[:n-1]
	} else if slot == maxRegions {
		return provider.Key{}, d.errorf("register: %w: %d registrations", provider.ErrLimit, maxRegions)
	} else {
		d.regions = append(d.regions, region{})
	}
	r := &d.regions[slot]
	r.bytes, r.gen, r.access = m.Bytes, r.gen+1, acc
	return provider.Key{ID: uint64(slot) | uint64(r.gen)<<32}, nil
}

func (d *domain) Deregister(k provider.Key) error {
	if d.closed {
		return d.errorf("deregister: %w", provider.ErrClosed)
	}
	r, slot := d.region(k.ID)
	if r == nil {
		return d.errorf("deregister key %#x: %w", k.ID, provider.ErrStale)
	}
	r.bytes = nil            // grants of it end with its generation
	if r.gen != ^uint32(0) { // else its keys are used up
		d.freeRegions = append(d.freeRegions, uint32(slot))
	}
	return nil
}

// grant is one slot of a peer's table: what the peer may write to. The key is slot | grantBit | serial<<32; serials are
// never used twice in a domain, so that a key of an earlier connection, or of a slot's earlier user, is no key.
type grant struct {
	serial uint32
	region uint32 // slot
	gen    uint32
	off, n uint64
}

// span is what a range of one registration is found by.
type span struct {
	id     uint64
	off, n uint64
}

// grants are those of one peer.
type grants struct {
	table []grant
	free  []uint32
	keys  map[span]provider.Key // so that granting again needs no new slot
}

func (d *domain) Grant(k provider.Key, h provider.Peer, off, n uint64) (provider.Key, error) {
	if d.closed {
		return provider.Key{}, d.errorf("grant: %w", provider.ErrClosed)
	}
	r, slot := d.region(k.ID)
	p := d.peer(h)
	switch {
	case r == nil:
		return provider.Key{}, d.errorf("grant key %#x: %w", k.ID, provider.ErrStale)
	case r.access&provider.AccessRemoteWrite == 0:
		return provider.Key{}, d.errorf("grant key %#x: %w: not registered for remote writes", k.ID, provider.ErrInvalid)
	case !inside(off, n, len(r.bytes)):
		return provider.Key{}, d.errorf("grant key %#x: %w: range %d+%d of %d bytes", k.ID, provider.ErrInvalid, off, n, len(r.bytes))
	case p == nil || p.phase == down:
		return provider.Key{}, d.errorf("grant to peer %#x: %w", h, provider.ErrStale)
	case p.phase != up:
		return provider.Key{}, d.errorf("grant to peer %#x: %w: not up yet", h, provider.ErrBusy)
	}
	key, ok := p.grants.keys[span{k.ID, off, n}]
	if ok {
		return key, nil
	}
	if d.serial == math.MaxUint32 {
		return provider.Key{}, d.errorf("grant: %w: all keys are used up", provider.ErrLimit)
	}
	i, ok := d.grantSlot(&p.grants)
	if !ok {
		return provider.Key{}, d.errorf("grant to peer %#x: %w: %d grants", h, provider.ErrLimit, maxGrants)
	}
	d.serial++
	p.grants.table[i] = grant{serial: d.serial, region: uint32(slot), gen: r.gen, off: off, n: n}
	key = provider.Key{ID: grantKey(i, d.serial)}
	if p.grants.keys == nil {
		p.grants.keys = make(map[span]provider.Key)
	}
	p.grants.keys[span{k.ID, off, n}] = key
	return key, nil
}

// Revoke implements [provider.Revoker]. Only the owner reads the socket, so when it returns nothing of h lands there.
func (d *domain) Revoke(k provider.Key, h provider.Peer) error {
	if d.closed {
		return d.errorf("revoke: %w", provider.ErrClosed)
	}
	r, slot := d.region(k.ID)
	p := d.peer(h)
	switch {
	case r == nil:
		return d.errorf("revoke key %#x: %w", k.ID, provider.ErrStale)
	case p == nil || p.phase == down:
		return d.errorf("revoke from peer %#x: %w", h, provider.ErrStale)
	}
	cut := false
	for i := range p.grants.table {
		if g := &p.grants.table[i]; g.region == uint32(slot) && g.gen == r.gen {
			cut = cut || p.stream.rx.cuts(grantKey(uint32(i), g.serial))
			p.grants.drop(uint32(i), k.ID)
		}
	}
	if cut {
		d.fail(p, provider.StatusAccess, 0)
	}
	return nil
}

func grantKey(slot, serial uint32) uint64 { return uint64(slot) | grantBit | uint64(serial)<<32 }

// drop ends the grant in a slot; id is the key of its registration.
func (g *grants) drop(i uint32, id uint64) {
	e := &g.table[i]
	delete(g.keys, span{id, e.off, e.n})
	*e = grant{} // of generation 0, which no registration has: a key with serial 0 leads nowhere
	g.free = append(g.free, i)
}

// grantSlot finds a free slot. Those whose registration has ended are collected when the table would have to grow.
func (d *domain) grantSlot(g *grants) (uint32, bool) {
	if len(g.free) == 0 && len(g.table) == cap(g.table) {
		for i := range g.table {
			e := &g.table[i]
			id := uint64(e.region) | uint64(e.gen)<<32
			if r, _ := d.region(id); r == nil {
				g.drop(uint32(i), id)
			}
		}
	}
	if n := len(g.free); n > 0 {
		i := g.free[n-1]
		g.free = g.free[:n-1]
		return i, true
	}
	if len(g.table) == maxGrants {
		return 0, false
	}
	g.table = append(g.table, grant{})
	return uint32(len(g.table) - 1), true
}

// region finds a live registration by its key, or returns nil.
//
// hot:
func (d *domain) region(id uint64) (*region, int) {
	slot := uint32(id)
	if uint64(slot) >= uint64(len(d.regions)) {
		return nil, 0
	}
	r := &d.regions[slot]
	if r.gen != uint32(id>>32) || r.bytes == nil {
		return nil, 0
	}
	return r, int(slot)
}

// local resolves the local side of a WR.
//
// hot:
func (d *domain) local(wr *provider.WR) (data []byte, ok bool) {
	if wr.Len == 0 {
		return nil, true
	}
	r, _ := d.region(wr.LocalKey)
	if r == nil || !inside(wr.LocalAddr, wr.Len, len(r.bytes)) {
		return nil, false
	}
	return r.bytes[wr.LocalAddr : wr.LocalAddr+wr.Len : wr.LocalAddr+wr.Len], true
}

// target resolves the memory that peer p wants to write to, or returns nil when it may not.
//
// hot:
func (d *domain) target(p *peer, id, addr, n uint64) []byte {
	i := uint32(id) ^ grantBit
	if uint64(i) >= uint64(len(p.grants.table)) {
		return nil
	}
	g := &p.grants.table[i]
	if g.serial != uint32(id>>32) || addr > g.n || n > g.n-addr {
		return nil
	}
	r := &d.regions[g.region]
	if r.gen != g.gen || r.bytes == nil {
		return nil
	}
	at := g.off + addr
	return r.bytes[at : at+n : at+n]
}

func inside(addr, n uint64, size int) bool {
	return addr <= uint64(size) && n <= uint64(size)-addr
}

// errorf names the rail in an error.
func (d *domain) errorf(format string, args ...any) error {
	return fmt.Errorf("tcp %v: %w", d.ip, fmt.Errorf(format, args...))
}
