//go:build cgo

package verbs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// Limits of a Domain.
const (
	// maxMsg bounds a write below what every port can do (2 GiB by the specification; soft-RoCE 8 MiB).
	maxMsg  = 1 << 30
	maxSend = provider.MinMaxSend
	// peerDepth is more than fits into the queue pair; the rest waits here.
	peerDepth = 1024
	recvDepth = 4096
	// errorDepth is how many bad WRs can wait for Poll to report them; Post takes no more meanwhile.
	errorDepth = 1024
	maxPeers   = 1 << provider.PeerIndexBits

	// queueLimit is the most entries of a completion queue or shared receive queue: some 3 MiB of memory for a Domain. Soft-RoCE has 32,767.
	queueLimit = 16 << 10
	// notifyWindow is how many notifications a peer may have on its way over the control queue pair: each record and message is one.
	notifyWindow = 8
	// controlDepth adds a probe, and one for safety.
	controlDepth = notifyWindow + 2
	// immFloor and immMost bound the window of a peer's immediates, writeFloor and writeMost that of our writes to it.
	immFloor, immMost     = 4, 512
	writeFloor, writeMost = 4, 256
)

// rxeVendor is what soft-RoCE says its maker is.
const rxeVendor = 0xFFFFFF

var _ provider.Domain = (*domain)(nil)

// domain is one port with its peers. Owned by the owner of the Domain, like everything it points to but what results guards.
type domain struct {
	card   *card
	name   string
	at     endpoint
	find   func() (endpoint, error) // at, as it is now
	moved  bool                     // at may be another one
	opts   Options
	bell   provider.Bell
	caps   provider.Caps
	closed bool
	fatal  error // the device is gone: Poll returns it once everything was delivered

	ep, timer int       // the epoll instance holds the timer and the descriptors of the card; the bell watches it
	watched   bool      // ep, by the bell
	alarm     time.Time // when the timer fires, zero when it is not set
	woken     bool      // armed since the last look at ep
	turns     uint32
	drainTime time.Duration // of leave.go

	peers       []*peer // by index, nil when free
	freePeers   []uint16
	generations []uint16 // of each index, the last used
	byQP        qpTable
	active      fifo[*peer] // to be visited by the next Poll
	waiting     fifo[*peer] // messages of theirs wait for receives
	receives    pool        // posted receives, shared out to peers
	completions pool        // room in the completion queue of sends, likewise

	serial      uint32 // of the last grant
	regions     []region
	freeRegions []uint32
	recvs       fifo[posted]
	errs        fifo[provider.Completion]
	ready       fifo[provider.Completion] // what arrived, in order

	// No credit is given before everything that has come was counted: who has used more than its credit would get away with it.
	caughtUp bool

	batch   [batchSize]sendWR
	batched int
	touched []*peer             // by the current Post
	dones   [doneBatch]workDone // of the current Poll
	drained [doneBatch]workDone // of the current retire
	events  [4]unix.EpollEvent
	stats   Stats

	jobs    sync.WaitGroup
	results results
}

const (
	// batchSize is how many writes one crossing posts at most.
	batchSize = 256
	// doneBatch is how many completions one crossing takes at most.
	doneBatch = 64
	// sendPart of the room for completions is kept for those of sends, in C.
	sendPart = 4
	// signalEvery bounds how long the completion of a write waits for that of a later one.
	signalEvery = 16
	// lookEvery is after how many Polls timers and the device are asked about when the owner never sleeps.
	lookEvery = 256
)

// Stats count what happened since Open. The Domains of this package have the method Stats() Stats, for the owner.
type Stats struct {
	Writes     uint64 // write requests handed to the card, also anew after a renewal
	Doorbells  uint64 // calls that handed them over: one for each 64 to a queue pair in a batch
	Posts      uint64 // crossings to C that posted
	Polls      uint64 // crossings to C that asked for completions
	Found      uint64 // of these, the ones that found any
	Dones      uint64 // completions found
	Signaled   uint64 // writes that asked for a completion
	Renewals   uint64 // queue pairs replaced because the peer had refused a write
	Violations uint64 // peers disconnected with StatusProtocol
}

// Stats returns the counts.
func (d *domain) Stats() Stats { return d.stats }

func (d *domain) Caps() provider.Caps { return d.caps }

// results is what the goroutines of a Domain have finished.
type results struct {
	mu   sync.Mutex
	list []result // guarded by mu
}

// result is one of them: then is called by the owner, with what the goroutine returned.
type result struct {
	peer *peer
	err  error
	then func(error)
}

func openDomain(c *card, name string, find func() (endpoint, error), o Options, cfg provider.Config) (*domain, error) {
	at, err := find()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
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
	recvs := min(queueLimit, c.attrs.maxCQE, c.attrs.maxSRQWR, n*(notifyWindow+immMost))
	sends := min(queueLimit, c.attrs.maxCQE, n*(controlDepth+writeMost))
	writes := min(writeMost, c.attrs.maxQPWR)
	d := &domain{
		card: c, name: name, at: at, find: find, opts: o, bell: cfg.Bell, ep: -1, timer: -1, drainTime: drainTime,
		peers:       make([]*peer, n),
		generations: make([]uint16, n),
		receives:    newPool(recvs, n, notifyWindow+immFloor, notifyWindow+immMost),
		completions: newPool(sends, n, controlDepth+writeFloor, controlDepth+writes),
		caps: provider.Caps{
			MaxMsg: min(maxMsg, max(at.maxMsg, 1)), MaxSend: maxSend, PeerDepth: peerDepth, RecvDepth: recvDepth, Ordered: true, CrossHost: true,
			DMABuf: c.dmabuf, PinsMemory: true, LinkBits: at.linkBits, Fabric: at.fabric,
			DrainBound: probeEvery + o.patience() + goodbyeTime + drainTime,
		},
	}
	for i := range n {
		d.freePeers = append(d.freePeers, uint16(i))
	}
	d.byQP.init(qpsPerPeer * n)
	if err := c.start(sends, recvs, recvs); err != nil {
		return nil, fmt.Errorf("%w: %w%s", provider.ErrUnavailable, err, memlockHint(err, 0))
	}
	if err := d.openFDs(); err != nil {
		d.closeFDs()
		return nil, err
	}
	return d, nil
}

func (d *domain) openFDs() (err error) {
	if d.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	if d.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return fmt.Errorf("timerfd_create: %w", err)
	}
	for _, fd := range []int{d.timer, d.card.channelFD(), d.card.asyncFD()} {
		if err = unix.EpollCtl(d.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return fmt.Errorf("epoll_ctl: %w", err)
		}
	}
	if err = d.bell.Watch(d.ep); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	d.watched = true
	return nil
}

func (d *domain) closeFDs() {
	if d.watched {
		_ = d.bell.Unwatch(d.ep) // the bell may be closed by now
		d.watched = false
	}
	for _, fd := range []*int{&d.ep, &d.timer} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// errorf names the rail in an error.
func (d *domain) errorf(format string, args ...any) error {
	return fmt.Errorf("verbs %s: %w", d.name, fmt.Errorf(format, args...))
}

// memlockHint is what to do about an error of something that pins n bytes, empty when it is not about that.
func memlockHint(err error, n uint64) string {
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) {
		return ""
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf(" (RLIMIT_MEMLOCK is %d KiB, %d KiB more were asked for: raise it with \"ulimit -l unlimited\", LimitMEMLOCK=infinity "+
		"in the systemd unit, or --ulimit memlock=-1 of docker)", limit.Cur>>10, n>>10)
}

// Close implements [provider.Domain]. Peers that are up are told, as far as the network takes it in a moment.
func (d *domain) Close() error {
	if d.closed {
		return nil
	}
	d.jobs.Wait()
	d.collect()
	d.drain() // whoever has said goodbye does not wait for ours
	told := false
	for _, p := range d.peers {
		if p != nil && p.phase == up {
			d.end(p, provider.StatusFlushed, 0, true)
			d.stopWrites(p)
			told = d.sayBye(p) || told
		}
	}
	d.flush()
	if told {
		d.awaitByes()
	}
	var errs []error
	for _, p := range d.peers {
		if p != nil {
			errs = append(errs, d.destroy(p))
		}
	}
	for i := range d.regions {
		if r := &d.regions[i]; r.used {
			errs = append(errs, d.unregister(r))
		}
	}
	d.closeFDs()
	errs = append(errs, d.card.close())
	d.closed = true
	d.peers, d.regions, d.active, d.waiting, d.recvs, d.ready = nil, nil, fifo[*peer]{}, fifo[*peer]{}, fifo[posted]{}, fifo[provider.Completion]{}
	if err := errors.Join(errs...); err != nil {
		return d.errorf("close: %w", err)
	}
	return nil
}

// awaitByes polls until all goodbyes have arrived, for a moment.
func (d *domain) awaitByes() {
	for end := time.Now().Add(goodbyeTime); time.Now().Before(end); {
		pending := false
		for _, p := range d.peers {
			pending = pending || p != nil && p.phase == leaving && !p.control.broken && p.control.done != p.control.sent
		}
		if !pending {
			return
		}
		if d.drain() == 0 {
			time.Sleep(closePause)
		}
	}
}

// closePause is how long Close waits between looks for the answers to its goodbyes: a round trip of a fast network.
const closePause = 20 * time.Microsecond
