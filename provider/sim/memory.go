package sim

import (
	"maps"
	"slices"

	"github.com/hawser-project/hawser/provider"
)

// registration is memory that a domain knows. Its local key is {generation and slot, base}.
type registration struct {
	id   uint64
	base uint64
	mem  provider.Memory
	acc  provider.Access
	live bool
}

// grant is the right of one peer to write to a registration, under a key that is of use to nobody else.
type grant struct {
	key    provider.Key
	reg    *registration
	off, n uint64 // the bytes of the registration that may be written
}

// span is a checked range of registered memory. Its registration is nil when it is empty.
type span struct {
	reg    *registration
	off, n uint64
}

// within checks a range of a memory of the given length that starts at address base.
func within(addr, n, base, length uint64) (off uint64, ok bool) {
	off = addr - base // wraps to a huge offset when addr is before base
	return off, off <= length && n <= length-off
}

// copySpan copies the part [at, at+n) of one span to the same part of another. Phantom memory has no bytes to copy.
func copySpan(dst, src span, at, n uint64) {
	if n == 0 || dst.reg.mem.Bytes == nil || src.reg.mem.Bytes == nil {
		return
	}
	copy(dst.reg.mem.Bytes[dst.off+at:][:n], src.reg.mem.Bytes[src.off+at:])
}

// randomBase is an address that no offset is mistaken for, far from both ends of the address space.
func (f *Fabric) randomBase() uint64 { return (f.rng.Uint64()>>2 | 1<<40) &^ 0xFFF }

// keyBits of a local key's ID are its slot, counted from 1; the rest is a generation.
const keyBits = 32

func (d *domain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return provider.Key{}, d.dead
	}
	if m.Len() == 0 || m.Bytes != nil && m.Phantom != 0 || acc&^provider.AccessRemoteWrite != 0 {
		return provider.Key{}, d.fail("register", provider.ErrInvalid, "%d bytes, %d phantom, access %#x", len(m.Bytes), m.Phantom, acc)
	}
	i := 0
	for i < len(d.regs) && d.regs[i].live {
		i++
	}
	if i == len(d.regs) {
		d.regs = append(d.regs, &registration{id: uint64(i) + 1})
	}
	// A new object: what is in flight still points at the old one.
	r := &registration{id: d.regs[i].id + 1<<keyBits, base: f.randomBase(), mem: m, acc: acc, live: true}
	d.regs[i] = r
	return provider.Key{ID: r.id, Base: r.base}, nil
}

// registered finds a live registration.
func (d *domain) registered(k provider.Key) (*registration, error) {
	slot := k.ID & (1<<keyBits - 1)
	if slot == 0 || slot > uint64(len(d.regs)) || k.ID > d.regs[slot-1].id {
		return nil, provider.ErrInvalid
	}
	if r := d.regs[slot-1]; r.live && r.id == k.ID {
		return r, nil
	}
	return nil, provider.ErrStale
}

func (d *domain) Deregister(k provider.Key) error {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return d.dead
	}
	r, err := d.registered(k)
	if err != nil {
		return d.fail("deregister", err, "key %#x", k.ID)
	}
	r.live = false
	for _, s := range d.slots {
		if s.end != nil {
			maps.DeleteFunc(s.end.grants, func(_ uint64, g grant) bool { return g.reg == r })
		}
	}
	return nil
}

func (d *domain) Grant(k provider.Key, p provider.Peer, off, n uint64) (provider.Key, error) {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return provider.Key{}, d.dead
	}
	r, err := d.registered(k)
	if err != nil {
		return provider.Key{}, d.fail("grant", err, "key %#x", k.ID)
	}
	e, err := d.lookup(p)
	if err != nil {
		return provider.Key{}, d.fail("grant", err, "peer %#x", p)
	}
	if e.state > up {
		return provider.Key{}, d.fail("grant", provider.ErrStale, "peer %#x, which is %v", p, e.state)
	}
	if e.state != up || r.acc&provider.AccessRemoteWrite == 0 {
		return provider.Key{}, d.fail("grant", provider.ErrInvalid, "key %#x to peer %#x, which is %v, with access %#x", k.ID, p, e.state, r.acc)
	}
	if _, ok := within(off, n, 0, r.mem.Len()); !ok {
		return provider.Key{}, d.fail("grant", provider.ErrInvalid, "range %d+%d of %d bytes", off, n, r.mem.Len())
	}
	for _, g := range e.grants {
		if g.reg == r && g.off == off && g.n == n {
			return g.key, nil
		}
	}
	g := grant{provider.Key{ID: f.rng.Uint64() | 1, Base: f.randomBase()}, r, off, n}
	e.grants[g.key.ID] = g
	return g.key, nil
}

// Revoke implements [provider.Revoker].
func (d *domain) Revoke(k provider.Key, p provider.Peer) error {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return d.dead
	}
	if d.nic.AccessEnds {
		return d.fail("revoke", provider.ErrUnsupported, "keys end with their connection or registration only")
	}
	r, err := d.registered(k)
	if err != nil {
		return d.fail("revoke", err, "key %#x", k.ID)
	}
	e, err := d.lookup(p)
	if err != nil {
		return d.fail("revoke", err, "peer %#x", p)
	}
	if e.state != up {
		return d.fail("revoke", provider.ErrStale, "peer %#x is %v", p, e.state)
	}
	cut := slices.ContainsFunc(e.other.ops, func(o *op) bool {
		return o.wr.Op != provider.OpSend && o.status == provider.StatusOK &&
			0 < o.left && o.left < o.total && e.grants[o.wr.RemoteKey].reg == r
	})
	maps.DeleteFunc(e.grants, func(_ uint64, g grant) bool { return g.reg == r })
	if cut {
		f.down(e, provider.StatusAccess)
	}
	return nil
}

// local finds the memory that a WR of the owner names.
func (d *domain) local(wr *provider.WR) (span, bool) {
	if wr.Len == 0 {
		return span{}, true
	}
	r, err := d.registered(provider.Key{ID: wr.LocalKey})
	if err != nil {
		return span{}, false
	}
	off, ok := within(wr.LocalAddr, wr.Len, r.base, r.mem.Len())
	return span{r, off, wr.Len}, ok
}

// remote finds the memory that a WR of the peer names, if the peer may write there now.
func (e *end) remote(wr *provider.WR) (span, bool) {
	if wr.Len == 0 {
		return span{}, true
	}
	g, ok := e.grants[wr.RemoteKey]
	if !ok {
		return span{}, false
	}
	off, ok := within(wr.RemoteAddr, wr.Len, g.key.Base, g.n)
	return span{g.reg, g.off + off, wr.Len}, ok
}
