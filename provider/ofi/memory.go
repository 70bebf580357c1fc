//go:build cgo

package ofi

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// registration is memory of ours.
type registration struct {
	id     uint64 // 0: free
	ptr    unsafe.Pointer
	base   uint64 // address of the first byte, of a device or of the host
	n      uint64
	remote bool
	dmabuf *provider.DMABuf // with a descriptor of our own
	local  mr               // of the whole memory, for the provider that wants one
}

// grant is the right of one peer to write to a range. It has a registration of its own, so that it can be ended alone.
type grant struct {
	id    uint64 // 0: free
	owner uint64 // registration.id
	off   uint64
	n     uint64
	raddr uint64
	m     mr
}

// known is a grant as the writer knows it.
type known struct {
	id, base, n, raddr, rkey uint64
}

const (
	// A key of a grant is a serial number above the slot in the peer's table.
	slotBits  = 16
	maxGrants = 1 << slotBits // of one peer
	maxRegs   = 1 << 20
)

// Register implements [provider.Domain].
func (d *domain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	if d.closed {
		return provider.Key{}, d.errorf("register: %w", provider.ErrClosed)
	}
	if m.Phantom > 0 && m.Bytes == nil && m.DMABuf == nil {
		return provider.Key{}, d.errorf("register: %w: memory without bytes", provider.ErrUnsupported)
	}
	if m.Len() == 0 {
		return provider.Key{}, d.errorf("register: %w: no memory", provider.ErrInvalid)
	}
	r := registration{n: m.Len(), remote: acc&provider.AccessRemoteWrite != 0}
	if m.DMABuf != nil {
		if err := d.takeDMABuf(&r, m.DMABuf); err != nil {
			return provider.Key{}, d.errorf("register a dma-buf of %d bytes: %w", r.n, err)
		}
	} else {
		r.ptr = unsafe.Pointer(unsafe.SliceData(m.Bytes))
		r.base = uint64(uintptr(r.ptr))
	}
	if d.info.desc.mr_mode&mrLocal != 0 || r.dmabuf != nil {
		var err error
		if r.local, err = d.pin(&r, 0, r.n, accessLocal); err != nil {
			r.drop()
			return provider.Key{}, d.errorf("register %d bytes: %w", r.n, d.memlock(r.n, err))
		}
	}
	i := len(d.regs)
	if n := len(d.freeRegs); n > 0 {
		i, d.freeRegs = int(d.freeRegs[0]), append(d.freeRegs[:0], d.freeRegs[1:]...)
	} else if i < maxRegs {
		d.regs = append(d.regs, registration{})
	} else {
		_ = d.rail.deregister(r.local)
		r.drop()
		return provider.Key{}, d.errorf("register: %w: %d registrations", provider.ErrLimit, maxRegs)
	}
	d.serial++
	r.id = d.serial<<32 | uint64(i)
	d.regs[i] = r
	return provider.Key{ID: r.id, Base: r.base}, nil
}

func (d *domain) takeDMABuf(r *registration, b *provider.DMABuf) error {
	if !d.caps.DMABuf {
		return fmt.Errorf("%w: this network takes no memory of devices", provider.ErrUnsupported)
	}
	fd, err := unix.FcntlInt(uintptr(b.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: dup: %w", provider.ErrInvalid, err)
	}
	own := *b
	own.FD = fd
	r.dmabuf, r.base = &own, b.Addr
	// safe: an address of a device; nothing here follows it.
	r.ptr = *(*unsafe.Pointer)(unsafe.Pointer(&own.Addr))
	return nil
}

func (r *registration) drop() {
	if r.dmabuf != nil {
		_ = unix.Close(r.dmabuf.FD)
	}
}

// pin registers a part of r with libfabric.
func (d *domain) pin(r *registration, off, n, access uint64) (mr, error) {
	if r.dmabuf != nil {
		return d.rail.registerDMABuf(r.dmabuf, off, n, access, d.newKey())
	}
	// safe: off+n is within the memory.
	return d.rail.register(unsafe.Add(r.ptr, off), n, access, d.newKey())
}

// memlock explains a registration that failed for the limit of locked memory.
func (d *domain) memlock(n uint64, err error) error {
	var l unix.Rlimit
	if d.caps.PinsMemory && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && n > l.Cur {
		return fmt.Errorf("%w: RLIMIT_MEMLOCK is %d bytes and this memory needs %d more: raise it (ulimit -l unlimited, LimitMEMLOCK=infinity): %w",
			provider.ErrLimit, l.Cur, n, err)
	}
	return fmt.Errorf("%w: %w", provider.ErrUnsupported, err)
}

// registered finds a registration by its key, or returns nil.
//
// hot:
func (d *domain) registered(id uint64) *registration {
	if i := id & (1<<32 - 1); i < uint64(len(d.regs)) && d.regs[i].id == id && id != 0 {
		return &d.regs[i]
	}
	return nil
}

// Deregister implements [provider.Domain].
func (d *domain) Deregister(k provider.Key) error {
	if d.closed {
		return d.errorf("deregister: %w", provider.ErrClosed)
	}
	r := d.registered(k.ID)
	if r == nil {
		return d.errorf("deregister key %#x: %w", k.ID, provider.ErrStale)
	}
	d.drain() // what has arrived was in time
	for _, p := range d.peers {
		if p != nil {
			d.ungrant(p, k.ID)
		}
	}
	err := d.rail.deregister(r.local)
	r.drop()
	*r = registration{}
	d.freeRegs = append(d.freeRegs, uint32(k.ID))
	if err != nil {
		return d.errorf("deregister key %#x: %w", k.ID, err)
	}
	return nil
}

// ungrant ends what p was granted of a registration.
func (d *domain) ungrant(p *peer, owner uint64) {
	for slot := range p.grants {
		g := &p.grants[slot]
		if g.id == 0 || g.owner != owner {
			continue
		}
		_ = d.rail.deregister(g.m)
		if p.phase == up {
			d.barred(p, g.id)
		}
		*g = grant{}
		p.freeGrants = append(p.freeGrants, uint32(slot))
	}
}

// Grant implements [provider.Domain].
func (d *domain) Grant(k provider.Key, h provider.Peer, off, n uint64) (provider.Key, error) {
	if d.closed {
		return provider.Key{}, d.errorf("grant: %w", provider.ErrClosed)
	}
	r, p := d.registered(k.ID), d.peer(h)
	switch {
	case r == nil:
		return provider.Key{}, d.errorf("grant of key %#x: %w", k.ID, provider.ErrStale)
	case p == nil || p.phase == down:
		return provider.Key{}, d.errorf("grant to peer %#x: %w", h, provider.ErrStale)
	case p.phase != up:
		return provider.Key{}, d.errorf("grant to peer %#x: %w: it is not up", h, provider.ErrInvalid)
	case !r.remote:
		return provider.Key{}, d.errorf("grant of key %#x: %w: registered without AccessRemoteWrite", k.ID, provider.ErrInvalid)
	case off > r.n || n > r.n-off || n == 0:
		return provider.Key{}, d.errorf("grant of key %#x: %w: range [%d,+%d) of %d bytes", k.ID, provider.ErrInvalid, off, n, r.n)
	}
	for i := range p.grants {
		if g := &p.grants[i]; g.owner == k.ID && g.off == off && g.n == n {
			return provider.Key{ID: g.id, Base: g.raddr}, nil
		}
	}
	slot := len(p.grants)
	if f := len(p.freeGrants); f > 0 {
		slot = int(p.freeGrants[f-1])
	} else if slot == maxGrants {
		return provider.Key{}, d.errorf("grant to peer %#x: %w: it has %d", h, provider.ErrLimit, maxGrants)
	}
	m, err := d.pin(r, off, n, accessRemote)
	if err != nil {
		return provider.Key{}, d.errorf("grant %d bytes of key %#x: %w", n, k.ID, d.memlock(n, err))
	}
	d.serial++
	g := grant{id: d.serial<<slotBits | uint64(slot), owner: k.ID, off: off, n: n, m: m}
	if d.virtual {
		g.raddr = r.base + off
	}
	if slot == len(p.grants) {
		p.grants = append(p.grants, g)
	} else {
		p.freeGrants = p.freeGrants[:len(p.freeGrants)-1]
		p.grants[slot] = g
	}
	return provider.Key{ID: g.id, Base: g.raddr}, nil
}

// lookup finds a grant that p gave us.
//
// hot:
func (p *peer) lookup(id uint64) *known {
	if i := id & (maxGrants - 1); i < uint64(len(p.known)) && p.known[i].id == id && id != 0 {
		return &p.known[i]
	}
	return nil
}

// learn notes a grant of p's.
func (p *peer) learn(k known) {
	i := int(k.id & (maxGrants - 1))
	for len(p.known) <= i {
		p.known = append(p.known, known{})
	}
	p.known[i] = k
}
