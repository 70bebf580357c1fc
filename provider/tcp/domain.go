package tcp

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// Limits of a Domain. Those of a stream are part of the wire protocol.
const (
	// maxMsg bounds how long a frame can keep the acks and writes behind it waiting: some 10 ms at 10 Gbit/s, about as long
	// as what the kernel's buffers hold anyway.
	maxMsg  = 16 << 20
	maxSend = provider.MinMaxSend
	// peerDepth is the window of a stream, in writes. A round trip of 1 ms then still allows 1 M writes a second.
	peerDepth = 1024
	recvDepth = 4096
	// errorDepth is how many bad WRs can wait for Poll to report them; Post takes no more meanwhile.
	errorDepth = 1024
	maxPeers   = 1 << provider.PeerIndexBits
)

// drainBound is the longest time until the kernel gives up an unreachable peer, and some for the owner to notice. The death
// of a process is noticed at once.
const drainBound = userTimeout*time.Millisecond + 5*time.Second

var (
	_ provider.Domain  = (*domain)(nil)
	_ provider.Revoker = (*domain)(nil)
)

// domain is one local address with its peers. Owned by the owner of the Domain, like everything it points to.
type domain struct {
	bell   provider.Bell
	ip     netip.Addr
	caps   provider.Caps
	at     netip.AddrPort // where we listen
	closed bool

	// Descriptors. The gate contains ep and is what the bell watches; see Arm.
	listener, ep, gate, timer int
	open                      bool // the gate
	watched                   bool // the gate, by the bell
	events                    [64]unix.EpollEvent

	peers       []*peer // by index, nil when free
	freePeers   []uint16
	generations []uint16    // of each index, the last used
	active      fifo[*peer] // to be visited by the next Poll
	activeSize  int         // its capacity
	turns       uint32      // Polls, to ask for events now and then although there is enough to do
	busy        bool        // the last Poll left work behind
	moved       int         // bytes in the current Poll
	recent      *peer       // the last that data came from; see try
	kicked      []*peer
	earlyPeers  []*peer

	serial      uint32 // of the last grant
	regions     []region
	freeRegions []uint32
	recvs       fifo[posted]
	errs        fifo[provider.Completion]

	strangers  [maxStrangers]stranger
	expected   int       // offers that wait for a hello
	alarm      time.Time // when the timer fires, zero when it is not set
	deaf       bool      // the listener is off until the alarm
	refused    uint64    // connections that were closed because of their greeting
	violations uint64    // peers that broke the protocol

	batch   batch
	vecs    [][]byte // of the current receive call, up to 3
	scatter scatter
}

// Stats counts what a Domain refused. The Domains of this package have the method Stats() Stats, for the owner.
type Stats struct {
	Refused    uint64 // connections closed because of a missing, wrong or late greeting
	Violations uint64 // peers disconnected with StatusProtocol
}

func (d *domain) Stats() Stats { return Stats{Refused: d.refused, Violations: d.violations} }

func (d *domain) Caps() provider.Caps { return d.caps }

// openDomain makes the Domain of a local address.
func openDomain(ip netip.Addr, fabric string, link uint64, cfg provider.Config) (*domain, error) {
	n := cfg.MaxPeers
	if n == 0 {
		n = provider.DefaultMaxPeers
	}
	if n < 0 || n > maxPeers {
		return nil, fmt.Errorf("%w: MaxPeers %d, at most %d", provider.ErrInvalid, n, maxPeers)
	}
	if cfg.Bell == nil {
		return nil, fmt.Errorf("%w: no Bell", provider.ErrInvalid)
	}
	d := &domain{
		bell: cfg.Bell, ip: ip, listener: -1, ep: -1, gate: -1, timer: -1,
		peers:       make([]*peer, n),
		generations: make([]uint16, n),
		caps: provider.Caps{
			MaxMsg: maxMsg, MaxSend: maxSend, PeerDepth: peerDepth, RecvDepth: recvDepth, CrossHost: !ip.IsLoopback(),
			HeapMemory: true, GrantRange: true, Refusals: true, Fabric: fabric, LinkBits: link, DrainBound: drainBound, Ordered: true,
		},
		vecs: make([][]byte, 0, 3),
	}
	d.batch.init()
	d.activeSize = 1 << bits.Len(uint(n)) // a power of two
	for i := range n {
		d.freePeers = append(d.freePeers, uint16(i))
	}
	if err := d.openSockets(); err != nil {
		reason := provider.ErrUnavailable // the address is not local, or not of a family that the kernel has
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			reason = provider.ErrLimit
		}
		return nil, errors.Join(fmt.Errorf("%w: %w", reason, err), d.closeSockets())
	}
	return d, nil
}

func (d *domain) openSockets() (err error) {
	if d.listener, err = newSocket(d.ip); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err = unix.Bind(d.listener, sockaddr(netip.AddrPortFrom(d.ip, 0))); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err = unix.Listen(d.listener, maxStrangers); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	sa, err := unix.Getsockname(d.listener)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	d.at = addrPort(sa)
	if d.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	if d.gate, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	if d.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return fmt.Errorf("timerfd_create: %w", err)
	}
	err = errors.Join(
		d.watch(unix.EPOLL_CTL_ADD, d.listener, unix.EPOLLIN, tagListener, 0),
		d.watch(unix.EPOLL_CTL_ADD, d.timer, unix.EPOLLIN, tagTimer, 0),
		unix.EpollCtl(d.gate, unix.EPOLL_CTL_ADD, d.ep, &unix.EpollEvent{}),
	)
	if err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	if err = d.bell.Watch(d.gate); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	d.watched = true
	return nil
}

func (d *domain) closeSockets() (err error) {
	if d.watched {
		d.watched = false
		err = d.bell.Unwatch(d.gate)
	}
	for _, fd := range []*int{&d.gate, &d.ep, &d.timer, &d.listener} {
		if *fd >= 0 {
			err = errors.Join(err, unix.Close(*fd))
			*fd = -1
		}
	}
	return err
}

// Close implements [provider.Domain].
func (d *domain) Close() error {
	if d.closed {
		return nil
	}
	for i := range d.strangers {
		if d.strangers[i].here {
			d.dismiss(i)
		}
	}
	for _, p := range d.peers {
		if p != nil {
			d.fail(p, provider.StatusFlushed, 0)
		}
	}
	d.closed = true
	d.peers, d.regions, d.active, d.earlyPeers, d.recvs = nil, nil, fifo[*peer]{}, nil, fifo[posted]{}
	if err := d.closeSockets(); err != nil {
		return d.errorf("close: %w", err)
	}
	return nil
}
