package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// domain is one open rail. Owned by the goroutine that calls its methods; it has none of its own.
type domain struct {
	bell     provider.Bell
	maxPeers int
	fabric   string
	start    time.Time
	closed   bool

	proof     proof // that this process is this process
	proofPage []byte

	page    *bellPage // ours, shown to peers
	pageMem []byte
	pageFD  int
	epoch   uint64 // what page.epoch holds
	armed   bool   // epoch is odd
	awaited bool   // Arm has waited for a peer's copy since the last immediate came

	name     [16]byte // of the listener
	listener int
	timer    int // rings when due has passed
	watched  bool
	epoll    int // holds listener, timer and the sockets of all peers; the bell watches it
	events   [eventBatch]unix.EpollEvent
	ticks    int   // work units since the sockets were looked at
	due      int64 // earliest deadline of a peer or stranger, 0 for none; nanoseconds since start

	regions     []region // by index
	freeRegions []uint32

	peers      []*peer     // by index; index 0 is no peer
	freePeers  []int       // indexes
	live       []*peer     // may have completions: up, or ending and not yet told
	cursor     int         // next of live to visit
	active     fifo[*peer] // have jobs, in turn order
	connecting int         // peers in stateConnecting
	strangers  []stranger  // accepted, and have not said who they are

	pulling  vectors
	pullLeft int // bytes that this Poll may still pull

	recvs   fifo[provider.WR] // posted receives
	recvOut int               // receives that the owner has not got back
	done    fifo[result]      // of WRs, for Poll
	strays  int               // writes and sends in done that belong to no connection
	turn    bool              // whether Poll looks at done or at peers first

	warmth   warmth
	streamed bool // something was placed that is not settled yet

	one     [8]byte         // what is written to a bell
	midCopy func()          // tests stop in the middle of a copy here
	midPull func(read bool) // and here before each pull, and after it, before it counts
	looked  func()          // and here between the look at revoked and the publication
}

const (
	// controlTicks is how many work units pass between two looks at the sockets, which cost a system call: about 50 us, whether
	// the owner finds nothing to do (40 ns a Poll) or copies (tickBytes in about as long).
	controlTicks = 1024
	tickBytes    = 1024

	// hurryTicks is the same while a connection is being made.
	hurryTicks = 16

	// eventBatch and datagramBatch bound the work of one look.
	eventBatch    = 32
	datagramBatch = 16
)

// What an epoll event is about: the tag is in Fd, the object in Pad.
const (
	tagListener = iota
	tagTimer
	tagStranger // Pad is its descriptor
	tagPeer     // Pad is the handle
)

func (d *domain) init() (err error) {
	d.one[0] = 1
	if _, err := rand.Read(d.name[:]); err != nil {
		return fmt.Errorf("random name: %w", err)
	}
	if d.proof, d.proofPage, err = newProof(); err != nil {
		return err
	}
	if d.pageFD, d.pageMem, err = newBellPage(); err != nil {
		return err
	}
	d.page = bellPageAt(d.pageMem)
	if d.listener, err = listen(d.name); err != nil {
		return err
	}
	if d.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	if d.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	if err := d.watch(d.listener, tagListener, 0); err != nil {
		return err
	}
	if err := d.watch(d.timer, tagTimer, 0); err != nil {
		return err
	}
	if err := d.bell.Watch(d.epoll); err != nil {
		return fmt.Errorf("bell: %w", err)
	}
	d.watched = true
	return nil
}

// free gives back what init and everything later took. Zero fields are fine.
func (d *domain) free() error {
	var errs []error
	for _, p := range d.peers {
		d.dropRegions(p)
		d.dropPair(p)
		d.dropEarly(p)
	}
	for _, s := range d.strangers {
		errs = append(errs, unix.Close(s.fd))
	}
	for i := range d.regions {
		if r := &d.regions[i]; r.fd >= 0 {
			errs = append(errs, unix.Close(r.fd))
		}
	}
	if d.watched {
		errs = append(errs, d.bell.Unwatch(d.epoll))
	}
	for _, fd := range []int{d.epoll, d.timer, d.listener, d.pageFD} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	d.page = nil
	errs = append(errs, unmap(d.pageMem), unmap(d.proofPage))
	*d = domain{closed: true}
	return errors.Join(errs...)
}

// Close ends all connections; peers see KindPeerDown. What is outstanding is not read any more, and nothing completes after it.
func (d *domain) Close() error {
	if d.closed {
		return fmt.Errorf("close shm domain: %w", provider.ErrClosed)
	}
	for _, p := range d.peers {
		if p.state == stateUp {
			p.rx.revoked.Store(1) // stops a writer before it sees the end of the socket
		}
	}
	d.awaitSources()
	if err := d.free(); err != nil {
		return fmt.Errorf("close shm domain: %w", err)
	}
	return nil
}

// Caps never change.
func (d *domain) Caps() provider.Caps {
	return provider.Caps{
		MaxMsg:     maxMsg,
		MaxSend:    maxSend,
		PeerDepth:  peerDepth,
		RecvDepth:  recvDepth,
		Ordered:    true,
		PeerCopies: true,
		LinkBits:   linkBits,
		Fabric:     d.fabric,
		DrainBound: drainBound,
	}
}

func (d *domain) watch(fd, tag int, object int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(tag), Pad: object}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

func (d *domain) unwatch(fd int) {
	_ = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_DEL, fd, nil) // fails only when it is not watched
}

// control looks at the sockets and the deadlines.
func (d *domain) control() {
	d.ticks = 0
	n, err := unix.EpollWait(d.epoll, d.events[:], 0)
	if err != nil {
		n = 0 // interrupted: the events stay
	}
	for i := range n {
		switch ev := d.events[i]; ev.Fd {
		case tagListener:
			d.accept()
		case tagTimer:
			var b [8]byte
			_, _ = unix.Read(d.timer, b[:]) // what it says is in due
		case tagStranger:
			d.meet(int(ev.Pad))
		case tagPeer:
			if p := d.peer(provider.Peer(uint32(ev.Pad))); p != nil {
				d.readSocket(p)
			}
		}
	}
	if d.due != 0 {
		d.expire()
	}
	if d.connecting > 0 {
		d.ticks = controlTicks - hurryTicks
	}
}

// pending reports whether control would find something.
func (d *domain) pending() bool {
	n, err := unix.EpollWait(d.epoll, d.events[:1], 0)
	return err != nil || n > 0
}

func (d *domain) now() int64 { return int64(time.Since(d.start)) }

// after returns the deadline that ends in t, and has the timer ring for it.
func (d *domain) after(t time.Duration) int64 {
	at := d.now() + int64(t)
	if d.due == 0 || at < d.due {
		d.setDue(at)
	}
	return at
}

func (d *domain) setDue(at int64) {
	d.due = at
	var spec unix.ItimerSpec // zero disarms
	if at != 0 {
		spec.Value = unix.NsecToTimespec(max(at-d.now(), 1))
	}
	_ = unix.TimerfdSettime(d.timer, 0, &spec, nil) // fails only for a bad descriptor or time
}

// expire handles the deadlines that have passed.
func (d *domain) expire() {
	now := d.now()
	if now < d.due {
		return
	}
	next := int64(math.MaxInt64)
	for _, p := range d.peers {
		if p.lend.until > now {
			next = min(next, p.lend.until)
		}
		if p.deadline == 0 {
			continue
		}
		if p.deadline <= now {
			p.deadline = 0
			d.overdue(p) // may set another one
		}
		if p.deadline != 0 {
			next = min(next, p.deadline)
		}
	}
	for i := len(d.strangers) - 1; i >= 0; i-- {
		if s := d.strangers[i]; s.deadline <= now {
			d.forget(s.fd)
			unix.Close(s.fd)
		} else {
			next = min(next, s.deadline)
		}
	}
	if next == math.MaxInt64 {
		next = 0
	}
	d.setDue(next)
}
