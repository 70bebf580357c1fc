//go:build cgo

package verbs

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

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
// no key. An address in a WR is an offset.
type region struct {
	reg    registration
	used   bool   // the slot: the card knows the memory
	live   bool   // its key
	bytes  []byte // nil for the memory of a device
	addr   uint64 // of the first byte, as the card counts
	n      uint64
	gen    uint32
	access provider.Access
	posted int // requests at the card that read it
	grants int // to all peers
}

// Register implements [provider.Domain].
func (d *domain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	switch {
	case d.closed:
		return provider.Key{}, d.errorf("register: %w", provider.ErrClosed)
	case m.DMABuf == nil && m.Bytes == nil && m.Phantom > 0:
		return provider.Key{}, d.errorf("register: %w: memory without bytes", provider.ErrUnsupported)
	case m.DMABuf != nil && !d.card.dmabuf:
		return provider.Key{}, d.errorf("register: %w: this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 or later)", provider.ErrUnsupported)
	case m.Len() == 0:
		return provider.Key{}, d.errorf("register: %w: no bytes", provider.ErrInvalid)
	case acc&^provider.AccessRemoteWrite != 0:
		return provider.Key{}, d.errorf("register: %w: access %#x", provider.ErrInvalid, acc)
	}
	fresh := region{used: true, live: true, n: m.Len(), access: acc}
	var err error
	remote, relaxed := acc&provider.AccessRemoteWrite != 0, !d.opts.StrictOrdering
	if b := m.DMABuf; b != nil {
		fresh.addr = b.Addr
		fresh.reg, err = d.card.registerDMABuf(b.FD, b.Offset, b.Addr, b.Len, remote, relaxed)
	} else {
		fresh.bytes, fresh.addr = m.Bytes, addressOf(m.Bytes)
		fresh.reg, err = d.card.register(m.Bytes, remote, relaxed)
	}
	if err != nil {
		return provider.Key{}, d.errorf("register %d bytes: %w", fresh.n, registerFault(err, m))
	}
	slot := len(d.regions)
	if n := len(d.freeRegions); n > 0 {
		slot = int(d.freeRegions[n-1])
		d.freeRegions = d.freeRegions[:n-1]
	} else if slot == maxRegions {
		_ = d.card.deregister(fresh.reg) // nobody knows it yet
		return provider.Key{}, d.errorf("register: %w: %d registrations", provider.ErrLimit, maxRegions)
	} else {
		d.regions = append(d.regions, region{})
	}
	fresh.gen = d.regions[slot].gen + 1
	d.regions[slot] = fresh
	return provider.Key{ID: uint64(slot) | uint64(fresh.gen)<<32}, nil
}

// registerFault says what to do about an error of a registration.
func registerFault(err error, m provider.Memory) error {
	call := "ibv_reg_mr"
	if m.DMABuf != nil {
		call = "ibv_reg_dmabuf_mr"
	}
	err = fmt.Errorf("%s: %w", call, err)
	switch {
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: %w%s", provider.ErrLimit, err, memlockHint(err, m.Len()))
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: %w: the kernel or the card's driver cannot do it", provider.ErrUnsupported, err)
	case errors.Is(err, unix.EFAULT) && m.DMABuf == nil:
		return fmt.Errorf("%w: %w: not memory of the host: register a device's memory as a dma-buf", provider.ErrInvalid, err)
	}
	return err
}

// Deregister implements [provider.Domain]. What peers have on its way is refused by the card; they are told that their grants
// have ended, so that they refuse the rest by themselves. Memory that a write or message of our own is still sent from must stay,
// as Register says; who takes it away nevertheless learns so by StatusLocal, or, when it was a message, by the end of the connection.
func (d *domain) Deregister(k provider.Key) error {
	if d.closed {
		return d.errorf("deregister: %w", provider.ErrClosed)
	}
	r, slot := d.region(k.ID)
	if r == nil {
		return d.errorf("deregister key %#x: %w", k.ID, provider.ErrStale)
	}
	r.live = false
	if r.grants > 0 {
		d.endGrants(uint32(slot), k.ID)
	}
	// Memory that nobody else can write to stays with the card until it has read what was posted from it. Other memory cannot: the
	// card fails the requests that still read it, and a control queue pair has no renewal.
	if r.posted > 0 && r.access&provider.AccessRemoteWrite == 0 {
		return nil
	}
	if err := d.unregister(r); err != nil {
		return d.errorf("deregister: %w", err)
	}
	d.freeRegion(uint32(slot))
	return nil
}

func (d *domain) unregister(r *region) error {
	r.used = false
	return d.card.deregister(r.reg)
}

// freeRegion makes a slot whose memory the card has forgotten free for another registration, once no request counts on it.
func (d *domain) freeRegion(slot uint32) {
	r := &d.regions[slot]
	if r.used || r.live || r.posted > 0 {
		return
	}
	r.bytes = nil
	if r.gen != math.MaxUint32 { // else its keys are used up
		d.freeRegions = append(d.freeRegions, slot)
	}
}

// unpost notes that the card reads a region for one request less.
//
// hot:
func (d *domain) unpost(slot uint32) {
	r := &d.regions[slot]
	r.posted--
	if r.posted == 0 && !r.live {
		d.retireRegion(slot)
	}
}

func (d *domain) retireRegion(slot uint32) {
	r := &d.regions[slot]
	if r.used {
		if err := d.unregister(r); err != nil {
			d.die(err)
			return
		}
	}
	d.freeRegion(slot)
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
	if r.gen != uint32(id>>32) || !r.live {
		return nil, 0
	}
	return r, int(slot)
}

func inside(addr, n, size uint64) bool { return addr <= size && n <= size-addr }

// grant is one slot of what we have granted to a peer. The key is slot | grantBit | serial<<32; serials are never used twice in a
// domain, so that a key of an earlier connection, or of a slot's earlier user, is no key.
type grant struct {
	serial uint32 // 0: free
	region uint64 // key
	off, n uint64
	known  bool // the peer has said so
}

// span is what a range of one registration is found by.
type span struct {
	id     uint64
	off, n uint64
}

// grants are those to one peer.
type grants struct {
	table []grant
	free  []uint32
	slots map[span]uint32 // so that granting again needs no new slot
}

// Grant implements [provider.Domain]. The peer checks its writes against what it was told, so a grant is good once it has been told:
// ErrBusy until it says so.
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
	case !inside(off, n, r.n):
		return provider.Key{}, d.errorf("grant key %#x: %w: range %d+%d of %d bytes", k.ID, provider.ErrInvalid, off, n, r.n)
	case p == nil || p.phase > up:
		return provider.Key{}, d.errorf("grant to peer %#x: %w", h, provider.ErrStale)
	case p.phase != up:
		return provider.Key{}, d.errorf("grant to peer %#x: %w: not up yet", h, provider.ErrBusy)
	}
	i, ok := p.grants.slots[span{k.ID, off, n}]
	if !ok {
		if i, ok = p.grants.slot(); !ok {
			return provider.Key{}, d.errorf("grant to peer %#x: %w: %d grants", h, provider.ErrLimit, maxGrants)
		}
		if d.serial == math.MaxUint32 {
			return provider.Key{}, d.errorf("grant: %w: all keys are used up", provider.ErrLimit)
		}
		d.serial++
		p.grants.table[i] = grant{serial: d.serial, region: k.ID, off: off, n: n}
		if p.grants.slots == nil {
			p.grants.slots = make(map[span]uint32)
		}
		p.grants.slots[span{k.ID, off, n}] = i
		d.regions[slot].grants++
		d.tell(p, record{kind: recGrant, slot: i, serial: d.serial, rkey: r.reg.rkey, addr: r.addr + off, n: n})
	}
	g := &p.grants.table[i]
	if !g.known {
		return provider.Key{}, d.errorf("grant to peer %#x: %w: it has not said yet that it knows", h, provider.ErrBusy)
	}
	return provider.Key{ID: uint64(i) | grantBit | uint64(g.serial)<<32}, nil
}

// slot finds a free one.
func (g *grants) slot() (uint32, bool) {
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

// endGrants ends all grants of a registration and tells the peers.
func (d *domain) endGrants(slot uint32, id uint64) {
	for _, p := range d.peers {
		if p == nil {
			continue
		}
		for i := range p.grants.table {
			g := &p.grants.table[i]
			if g.serial == 0 || g.region != id {
				continue
			}
			if p.phase == up {
				d.tell(p, record{kind: recEnd, slot: uint32(i), serial: g.serial})
			}
			delete(p.grants.slots, span{id, g.off, g.n})
			*g = grant{}
			p.grants.free = append(p.grants.free, uint32(i))
		}
	}
	d.regions[slot].grants = 0
}

// forgetGrants ends all grants to a peer.
func (d *domain) forgetGrants(p *peer) {
	for i := range p.grants.table {
		if g := &p.grants.table[i]; g.serial != 0 {
			if r, _ := d.region(g.region); r != nil {
				r.grants--
			}
		}
	}
	p.grants = grants{}
}

// right is one slot of what a peer has granted to us: where the card finds it.
type right struct {
	serial uint32 // 0: none
	rkey   uint32
	addr   uint64
	n      uint64
}

// learn notes what a peer has granted; false when that cannot be.
func (p *peer) learn(r *record) bool {
	switch {
	case r.slot > uint32(len(p.rights)) || r.slot >= maxGrants || r.serial == 0 || r.addr+r.n < r.addr:
		return false
	case r.slot == uint32(len(p.rights)):
		p.rights = append(p.rights, right{})
	}
	p.rights[r.slot] = right{r.serial, r.rkey, r.addr, r.n}
	return true
}

// unlearn notes that a grant has ended.
func (p *peer) unlearn(r *record) bool {
	if r.slot >= uint32(len(p.rights)) {
		return false
	}
	if p.rights[r.slot].serial == r.serial {
		p.rights[r.slot] = right{}
	}
	return true
}

// target resolves the remote side of a write, or returns nil when the peer has granted no such thing.
//
// hot:
func (p *peer) target(wr *provider.WR) *right {
	i := uint32(wr.RemoteKey) ^ grantBit
	if uint64(i) >= uint64(len(p.rights)) {
		return nil
	}
	g := &p.rights[i]
	if g.serial == 0 || g.serial != uint32(wr.RemoteKey>>32) || !inside(wr.RemoteAddr, wr.Len, g.n) {
		return nil
	}
	return g
}

// local resolves the local side of a WR.
//
// hot:
func (d *domain) local(wr *provider.WR) (*region, int) {
	r, slot := d.region(wr.LocalKey)
	if r == nil || !inside(wr.LocalAddr, wr.Len, r.n) {
		return nil, 0
	}
	return r, slot
}
