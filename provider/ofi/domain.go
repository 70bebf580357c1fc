//go:build cgo

package ofi

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// Limits of a Domain.
const (
	// peerDepth is the window of a peer, in writes and messages. 64 KiB writes at 400 Gbit/s and 33 us of latency need 26.
	peerDepth = 256
	maxSend   = provider.MinMaxSend
	recvDepth = 4096
	// maxMsg is the longest write: what libfabric takes, up to this.
	maxMsg     = 1 << 30
	errorDepth = 1024
	maxPeers   = 1 << provider.PeerIndexBits
	// queueDepth is the length of the completion queue that is asked for; software providers let it grow.
	queueDepth = 8192
	// entriesPerPoll completions are fetched with one call.
	entriesPerPoll = 128
	// perVisit requests of a peer are posted at once: with more the message rate of EFA falls.
	perVisit   = 32
	batchLimit = 512
	noteLen    = 4096 // bytes of a control message: what shm takes without a second copy
	noteBufs   = 256  // control messages that may be under way from here
	noteRecvs  = 256  // and that may arrive before they are looked at
	// drainBound covers the writes that are under way on hardware when its peer goes silent.
	drainBound = 5 * time.Second
	// datagramPatience covers some retransmissions of ofi_rxd.
	datagramPatience = 300 * time.Millisecond
)

var _ provider.Domain = (*domain)(nil)

// domain is one open device. Owned by the owner of the Domain, like everything it points to.
type domain struct {
	name   string
	bell   provider.Bell
	caps   provider.Caps
	closed bool
	dead   error

	rail      *rail
	info      *info
	private   bool          // each connection has an endpoint of its own; see doc.go
	sockets   bool          // each endpoint accepts sockets; see accepted.go
	inert     bool          // closing an endpoint does not take its writes back: they are waited for
	silent    bool          // libfabric does not tell the writer that its key was refused
	patience  time.Duration // with a write that may have been dropped so
	fragile   bool          // an endpoint must outlive those of this process that know it; see park.go
	hardware  bool          // a NIC does the work
	efa       bool          // of AWS
	virtual   bool          // remote addresses are virtual ones
	provKey   bool          // the provider chooses keys
	flags     uint64        // of writes
	plainKind opKind        // of a write without an immediate
	acks      bool          // short writes are acknowledged by the receiver's Domain; see ack.go
	covers    bool          // the last of some writes acknowledges all; see ack.go
	bySource  bool          // the source of an immediate is its sender's address; see source.go

	ctl     unsafe.Pointer // endpoint of control messages, and of writes unless private
	ctlName []byte
	parked  []unsafe.Pointer // endpoints
	self    hostID

	peers       []*peer
	freePeers   []uint16
	generations []uint16
	active      fifo[*peer] // have something to post
	connecting  []*peer
	dying       []*peer // to be ended by settle
	suspects    []*peer // have writes under way whose key has ended; see ack.go
	ending      []*peer // shared endpoint: writes of ours are under way
	live        int     // handles

	// With bySource.
	sources sources
	from    []uint64  // of entries; else nil
	held    []*peer   // are being confirmed
	haunted []*target // have writes under way of connections that have ended

	targets   map[string]*target // by name of the endpoint for control messages
	dests     []dest
	freeDests []uint32
	stuck     []*dest

	regs     []registration
	freeRegs []uint32
	serial   uint64
	scratch  mr // what empty writes of peers name, where each has an endpoint; see peer.scratch
	page     []byte

	slabs [][]byte // of operations, free

	out   fifo[provider.Completion]
	recvs fifo[posting]
	early fifo[*peer] // have messages that wait for a receive

	notes    noteBox
	batch    []*op
	nbatch   int
	entries  []entry
	arenas   [][]byte
	now      int64 // of the last Poll, coarse, nanoseconds
	turns    uint32
	moved    bool // the last turn did something
	put      bool // the last gather put off a count
	unknown  uint64
	refused  uint64
	protocol uint64

	sleep sleeper
}

// Stats counts what a Domain refused. The Domains of this package have the method Stats() Stats, for the owner.
type Stats struct {
	Refused    uint64 // greetings with a wrong secret or for a handle that is not waiting
	Violations uint64 // peers disconnected with StatusProtocol
	Unknown    uint64 // immediates and control messages that name no connection
}

func (d *domain) Stats() Stats {
	return Stats{Refused: d.refused, Violations: d.protocol, Unknown: d.unknown}
}

func (d *domain) Caps() provider.Caps { return d.caps }

func (d *domain) errorf(format string, args ...any) error {
	return fmt.Errorf(d.name+": "+format, args...)
}

func (n network) open(dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	peers := cfg.MaxPeers
	if peers == 0 {
		peers = provider.DefaultMaxPeers
	}
	if peers < 0 || peers > maxPeers {
		return nil, fmt.Errorf("%w: MaxPeers %d, at most %d", provider.ErrInvalid, peers, maxPeers)
	}
	if cfg.Bell == nil {
		return nil, fmt.Errorf("%w: no Bell", provider.ErrInvalid)
	}
	i, about, err := n.find(dev.Name)
	if err != nil {
		return nil, err
	}
	d := &domain{
		name: n.Name() + " " + dev.Name, bell: cfg.Bell, info: i,
		private: about.software && !n.shared, hardware: !about.software, inert: !about.software || about.acks || n.shared, fragile: about.acks, silent: about.acks || about.lossy,
		virtual: i.desc.mr_mode&mrVirtual != 0, provKey: i.desc.mr_mode&mrProvKey != 0,
		acks:        about.acks,
		bySource:    about.source,
		peers:       make([]*peer, peers),
		generations: make([]uint16, peers),
		targets:     map[string]*target{},
	}
	if about.lossy {
		d.patience = datagramPatience
	}
	d.plainKind = opWriteData
	d.sockets = about.ordered
	d.covers = about.ordered && d.private && !d.bySource
	if !d.acks && !d.covers {
		d.flags, d.plainKind = flagDelivery, opWrite
	}
	d.sleep.init()
	for i := range peers {
		d.freePeers = append(d.freePeers, uint16(i))
	}
	d.caps = provider.Caps{
		MaxMsg: min(uint64(i.desc.max_msg), maxMsg), MaxSend: maxSend, PeerDepth: peerDepth, RecvDepth: recvDepth,
		CrossHost: !about.dev.Loopback, NoImmLen: about.noLen, GrantRange: true, AccessEnds: true, PinsMemory: d.hardware,
		DMABuf: d.hardware && uint64(i.desc.caps)&capHMEM != 0, LinkBits: about.dev.LinkBits, Fabric: about.dev.Fabric, DrainBound: drainBound,
	}
	if err := d.start(); err != nil {
		return nil, errors.Join(err, d.free())
	}
	return d, nil
}

// start opens everything.
func (d *domain) start() (err error) {
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return err
	}
	d.serial = uint64(binary.LittleEndian.Uint32(seed[:]))
	if d.self, err = thisHost(); err != nil {
		return err
	}
	if d.fragile {
		sweep("/dev/shm")
	}
	if d.rail, err = openRail(d.info, queueDepth, len(d.peers), !d.private); err != nil {
		return fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
	if d.fragile {
		graveyard.enter()
	}
	if d.ctl, d.ctlName, err = d.rail.endpoint(d.hardware, false); err != nil {
		return fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
	if d.efa = text(&d.info.desc.provider) == efaName; d.efa && d.rail.lib.version() < efaWrites {
		return fmt.Errorf("%w: %s emulates writes on EFA before release 1.18: install the EFA software of AWS", provider.ErrUnsupported, d.rail.lib.path)
	}
	if d.hardware && emulatesWrites(d.ctl) {
		return fmt.Errorf("%w: libfabric emulates writes on this device: its firmware or driver has no RDMA write, or FI_EFA_USE_DEVICE_RDMA=0 is set",
			provider.ErrUnsupported)
	}
	if err := d.makeArenas(); err != nil {
		return err
	}
	if d.scratch, err = d.rail.register(unsafe.Pointer(&d.page[0]), uint64(len(d.page)), accessRemote|accessLocal, d.newKey()); err != nil {
		return err
	}
	if err := d.notes.start(d); err != nil {
		return err
	}
	return d.sleep.open(d)
}

// arena is memory that is freed when the Domain is closed.
func (d *domain) arena(bytes int) ([]byte, error) {
	b, err := arena(bytes)
	if err == nil {
		d.arenas = append(d.arenas, b)
	}
	return b, err
}

func (d *domain) makeArenas() error {
	ndests := 2*len(d.peers) + noteBufs
	dests, err := d.arena(ndests * int(unsafe.Sizeof(dest{})))
	if err != nil {
		return err
	}
	d.dests = of[dest](dests, ndests)
	for i := range ndests {
		d.freeDests = append(d.freeDests, uint32(ndests-1-i))
	}
	batch, err := d.arena(batchLimit * int(unsafe.Sizeof((*op)(nil))))
	if err != nil {
		return err
	}
	d.batch = of[*op](batch, batchLimit)
	entries, err := d.arena(entriesPerPoll * int(unsafe.Sizeof(entry{})))
	if err != nil {
		return err
	}
	d.entries = of[entry](entries, entriesPerPoll)
	if d.bySource {
		from, err := d.arena(entriesPerPoll * int(unsafe.Sizeof(uint64(0))))
		if err != nil {
			return err
		}
		d.from = of[uint64](from, entriesPerPoll)
	}
	d.page, err = d.arena(unix.Getpagesize())
	return err
}

// newKey is a key for a provider that lets us choose: not to be guessed.
func (d *domain) newKey() uint64 {
	if d.provKey {
		return 0
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	k := binary.LittleEndian.Uint64(b[:])
	if n := uint(d.info.desc.key_size); n > 0 && n < 8 {
		k &= 1<<(8*n) - 1
	}
	return k
}

// closeTurns bounds how long Close tries to say goodbye.
const closeTurns = 2000

// Close implements [provider.Domain].
func (d *domain) Close() error {
	if d.closed {
		return nil
	}
	for _, p := range d.peers {
		if p != nil && p.phase != down {
			d.fail(p, provider.StatusFlushed, 0)
		}
	}
	for i := 0; i < closeTurns && d.dead == nil && (len(d.dying) > 0 || d.notes.unsent() > 0); i++ {
		d.turn()
		if !d.moved {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil) // for the other side
		}
	}
	d.closed = true
	if err := d.free(); err != nil {
		return d.errorf("close: %w", err)
	}
	return nil
}

// names are those of all endpoints that are open.
func (d *domain) names() [][]byte {
	all := [][]byte{d.ctlName}
	for _, p := range d.peers {
		if p != nil && p.ep != nil {
			all = append(all, p.name)
		}
	}
	return all
}

// free gives everything back, in the order that libfabric wants.
func (d *domain) free() (err error) {
	err = d.sleep.close(d)
	if d.sockets && d.entries != nil {
		d.forget(d.names()...)
	}
	for _, p := range d.peers {
		if p != nil {
			err = errors.Join(err, d.closePeer(p))
		}
	}
	if d.rail != nil {
		for i := range d.regs {
			if d.regs[i].id != 0 {
				err = errors.Join(err, d.rail.deregister(d.regs[i].local))
				d.regs[i].drop()
			}
		}
		err = errors.Join(err, d.notes.close(d), d.rail.deregister(d.scratch))
	}
	err = errors.Join(err, d.bury(d.remains()))
	d.arenas, d.rail, d.ctl, d.peers, d.regs, d.page = nil, nil, nil, nil, nil, nil
	d.dests, d.batch, d.entries, d.from, d.slabs = nil, nil, nil, nil, nil
	return err
}
