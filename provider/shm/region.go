package shm

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// region is memory that the owner registered.
type region struct {
	key    uint64 // 0 when the index is free
	bytes  []byte
	remote bool // registered with AccessRemoteWrite
	fd     int  // our duplicate of its memfd, -1 when it cannot be granted
}

// Register takes memory of any origin, and a descriptor when it has a sealed memfd and AccessRemoteWrite: peers write to such memory
// by themselves. What they write to other memory is fetched by this side.
func (d *domain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	k, err := d.register(m, acc)
	if err != nil {
		return provider.Key{}, fmt.Errorf("register %d bytes with shm: %w", m.Len(), err)
	}
	return k, nil
}

func (d *domain) register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	switch {
	case d.closed:
		return provider.Key{}, provider.ErrClosed
	case len(m.Bytes) == 0 && m.Phantom > 0:
		return provider.Key{}, fmt.Errorf("phantom memory: %w", provider.ErrUnsupported)
	case len(m.Bytes) == 0:
		return provider.Key{}, fmt.Errorf("no memory: %w", provider.ErrInvalid)
	case acc&^provider.AccessRemoteWrite != 0:
		return provider.Key{}, fmt.Errorf("access %#x: %w", acc, provider.ErrInvalid)
	}
	r := region{bytes: m.Bytes, remote: acc&provider.AccessRemoteWrite != 0, fd: -1}
	if r.remote && m.FD >= 0 {
		if err := mem.CheckSealed(m.FD, uint64(len(m.Bytes))); err != nil {
			return provider.Key{}, fmt.Errorf("descriptor %d: %w: %w", m.FD, provider.ErrInvalid, err)
		}
		fd, err := unix.FcntlInt(uintptr(m.FD), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return provider.Key{}, fmt.Errorf("duplicate descriptor %d: %w", m.FD, limit(err))
		}
		r.fd = fd
	}
	i, ok := d.regionSlot()
	if !ok {
		return provider.Key{}, errors.Join(fmt.Errorf("%d regions: %w", maxRegions, provider.ErrLimit), closeIf(r.fd))
	}
	r.key = regionKey(i, d.page.gens[i].Add(1)) // odd: alive
	d.regions[i] = r
	return provider.Key{ID: r.key}, nil
}

// regionSlot takes a free index.
func (d *domain) regionSlot() (uint32, bool) {
	if n := len(d.freeRegions); n > 0 {
		i := d.freeRegions[n-1]
		d.freeRegions = d.freeRegions[:n-1]
		return i, true
	}
	if len(d.regions) == maxRegions {
		return 0, false
	}
	d.regions = append(d.regions, region{fd: -1})
	return uint32(len(d.regions) - 1), true
}

// Deregister ends a key. A write that is being copied goes on to the end of its chunk: into this memory, which its writer has mapped, and
// nowhere else; it ends with StatusAccess.
func (d *domain) Deregister(k provider.Key) error {
	r := d.region(k)
	if r == nil {
		return fmt.Errorf("deregister key %#x with shm: %w", k.ID, d.stale())
	}
	i := regionIndex(k.ID)
	gen := d.page.gens[i].Add(1) // even: dead; writers look before and after each chunk
	for _, p := range d.live {
		granted := i < uint32(len(p.granted)) && p.granted[i] == regionGen(k.ID)
		if p.state == stateUp && (granted || p.hasShown(k.ID)) {
			if granted {
				p.granted[i] = 0
				p.grants--
			}
			// When the socket is full the peer has datagrams to read, and looks at the page after them.
			_ = send(p.fd, &datagram{kind: kindSweep})
		}
	}
	err := closeIf(r.fd)
	*r = region{fd: -1}
	if gen < math.MaxUint32-1 { // else its generations are used up
		d.freeRegions = append(d.freeRegions, i)
	}
	if err != nil {
		return fmt.Errorf("deregister key %#x with shm: %w", k.ID, err)
	}
	return nil
}

// maxGrants bounds the mappings that a peer can cause in this process: half of what Linux allows a process by default
// (vm.max_map_count), so that one peer cannot use them all.
const maxGrants = 32 << 10

// Grant sends the memory's memfd to p, the first time, or tells p that it has none. A range is not enforced: whoever has the memfd has all
// of it. ErrBusy: p has not read what was granted before. ErrUnsupported: it has no memfd, and the kernel does not let this process
// read p's; the text says what to do.
func (d *domain) Grant(k provider.Key, handle provider.Peer, off, n uint64) (provider.Key, error) {
	if err := d.grant(k, handle, off, n); err != nil {
		return provider.Key{}, fmt.Errorf("grant [%#x,+%#x) of key %#x to shm peer %#x: %w", off, n, k.ID, handle, err)
	}
	return provider.Key{ID: k.ID, Base: off}, nil
}

func (d *domain) grant(k provider.Key, handle provider.Peer, off, n uint64) error {
	r := d.region(k)
	p := d.peer(handle)
	switch {
	case r == nil:
		return fmt.Errorf("key: %w", d.stale())
	case p == nil || p.state > stateUp:
		return fmt.Errorf("peer: %w", d.stale())
	case p.state < stateUp:
		return fmt.Errorf("the peer is not up: %w", provider.ErrInvalid)
	case !r.remote:
		return fmt.Errorf("it was registered without AccessRemoteWrite: %w", provider.ErrInvalid)
	case off > uint64(len(r.bytes)) || n > uint64(len(r.bytes))-off:
		return fmt.Errorf("the memory has %d bytes: %w", len(r.bytes), provider.ErrInvalid)
	case r.fd < 0 && p.pull.fault != nil:
		return fmt.Errorf("the memory has no memfd, and what the peer writes to it cannot be fetched: %w: %w", provider.ErrUnsupported, p.pull.fault)
	}
	i, gen := regionIndex(k.ID), regionGen(k.ID)
	if i < uint32(len(p.granted)) && p.granted[i] == gen {
		return nil
	}
	if p.grants == maxGrants {
		return fmt.Errorf("%d regions are granted to this peer: %w", maxGrants, provider.ErrLimit)
	}
	m := datagram{kind: kindGrant, region: k.ID, size: uint64(len(r.bytes))}
	fds := []int{r.fd}
	if r.fd < 0 {
		m.kind, fds = kindForeign, nil
	}
	err := send(p.fd, &m, fds...)
	if errors.Is(err, errAgain) {
		return provider.ErrBusy
	}
	if err != nil {
		return fmt.Errorf("%w: %w", provider.ErrStale, err) // the connection has ended: Poll is about to say so
	}
	if n := int(i) + 1 - len(p.granted); n > 0 {
		p.granted = append(p.granted, make([]uint32, n)...)
	}
	p.granted[i] = gen
	p.grants++
	return nil
}

// region finds registered memory; nil for a key that is not, or no longer, valid.
func (d *domain) region(k provider.Key) *region {
	i := regionIndex(k.ID)
	if k.Base != 0 || k.ID == 0 || i >= uint32(len(d.regions)) || d.regions[i].key != k.ID {
		return nil
	}
	return &d.regions[i]
}

// local is the part of registered memory that a WR names.
// hot:
func (d *domain) local(key, addr, n uint64) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	i := regionIndex(key)
	if i >= uint32(len(d.regions)) || d.regions[i].key != key || key == 0 {
		return nil, false
	}
	b := d.regions[i].bytes
	if size := uint64(len(b)); addr > size || n > size-addr {
		return nil, false
	}
	return b[addr : addr+n], true
}

// stale says why a handle or key is unknown.
func (d *domain) stale() error {
	if d.closed {
		return provider.ErrClosed
	}
	return provider.ErrStale
}

// limit adds ErrLimit to what the operating system says when a limit of it is reached.
func limit(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", provider.ErrLimit, err)
	}
	return err
}

func closeIf(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// mapping is memory of a peer that it granted to us.
type mapping struct {
	key     uint64   // 0 when there is none
	bytes   []byte   // nil when it could not be mapped
	touched []uint64 // by window: whether its pages are mapped; see touch
	errno   uint32   // why bytes is nil
}

// touchWindow is the unit in which pages are mapped before the first write, bytes. One system call maps a window in 18 us,
// where the page faults of the copy itself would take 65 us (measured: 74 against 260 ms a GiB).
const touchWindow = 256 << 10

// mapGrant maps what a peer has granted. A grant that this process cannot map fails the writes that use it. An error is the peer's fault.
func (d *domain) mapGrant(p *peer, pkt *packet) error {
	i := regionIndex(pkt.region)
	if n := int(i) + 1 - len(p.maps); n > 0 {
		p.maps = append(p.maps, make([]mapping, n)...)
	}
	m := &p.maps[i]
	if m.key == 0 {
		if p.mapped++; p.mapped > maxGrants {
			d.sweep(p)
		}
		if p.mapped > maxGrants {
			return fmt.Errorf("%w: more than %d grants", errDatagram, maxGrants)
		}
	} else {
		_ = unmap(m.bytes)
	}
	*m = mapping{key: pkt.region}
	if pkt.cut {
		m.errno = uint32(unix.EMFILE)
		return nil
	}
	if err := mem.CheckSealed(pkt.fds[0], pkt.size); err != nil {
		return err
	}
	b, err := mem.Map(pkt.fds[0], pkt.size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		var errno unix.Errno
		_ = errors.As(err, &errno)
		m.errno = uint32(errno)
		return nil
	}
	m.bytes, m.touched = b, make([]uint64, (pkt.size-1)/touchWindow/64+1)
	return nil
}

// remote finds a peer's memory; nil when the key was not granted, or has ended.
// hot:
func (p *peer) remote(key uint64) *mapping {
	i := regionIndex(key)
	if i >= uint32(len(p.maps)) || p.maps[i].key != key || key == 0 {
		return nil
	}
	return &p.maps[i]
}

// alive reports whether the peer still has the region. The load is one of the two looks around each chunk.
// hot:
func (p *peer) alive(key uint64) bool {
	return p.theirs.gens[regionIndex(key)&(maxRegions-1)].Load() == regionGen(key)
}

// touch maps the pages of a range that is about to be written for the first time.
// hot:
func (m *mapping) touch(off, n uint64) {
	first, last := off/touchWindow, (off+n-1)/touchWindow
	for first <= last && m.isTouched(first) {
		first++
	}
	if first <= last {
		m.populate(first, last)
	}
}

func (m *mapping) isTouched(w uint64) bool { return m.touched[w/64]>>(w%64)&1 != 0 }

func (m *mapping) populate(first, last uint64) {
	end := min((last+1)*touchWindow, uint64(len(m.bytes)))
	// For reading: that maps shared pages that exist in blocks, and for writing as well. When it fails, on Linux before 5.14,
	// the copy takes the faults.
	_ = unix.Madvise(m.bytes[first*touchWindow:end], unix.MADV_POPULATE_READ)
	for w := first; w <= last; w++ {
		m.touched[w/64] |= 1 << (w % 64)
	}
}

// sweep unmaps what the peer has deregistered.
func (d *domain) sweep(p *peer) {
	p.sweepSources(false)
	for i := range p.maps {
		if m := &p.maps[i]; m.key != 0 && !p.alive(m.key) {
			_ = unmap(m.bytes) // fails only for a range that is not ours
			*m = mapping{}
			p.mapped--
		}
	}
}

// dropRegions unmaps everything of the peer.
func (d *domain) dropRegions(p *peer) {
	for i := range p.maps {
		_ = unmap(p.maps[i].bytes)
	}
	p.sweepSources(true)
	clear(p.maps)
	p.maps, p.mapped = p.maps[:0], 0
}
