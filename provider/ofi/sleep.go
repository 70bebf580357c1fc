//go:build cgo

package ofi

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How long an owner sleeps when nothing but time wakes it.
const (
	// retryAfter is for what libfabric did not take: a connection of its own that is being made, a queue that is full.
	retryAfter = 500 * time.Microsecond
	// A provider without a descriptor moves only when it is polled: the sleeps grow from the first to the last while nothing happens.
	firstNap = 100 * time.Microsecond
	lastNap  = 5 * time.Millisecond
	// handshakeNap is for a provider that has a descriptor and needs polls to make its connections.
	handshakeNap = 2 * time.Millisecond
)

// sleeper is what the owner's bell watches: the gate always, the descriptor of libfabric's queue from Arm to Poll, so that a spinning
// owner does not wake the threads that wait behind the bell. The descriptor is not put behind the gate: it leads to more
// such instances within libfabric, and the kernel allows few to be nested. Owned by the domain.
type sleeper struct {
	gate    int // contains the timer and the processes that are watched
	timer   int
	queue   int  // libfabric's descriptor, -1 when it has none
	watched bool // the gate, by the bell
	armed   bool
	listens bool // the bell watches queue
	nap     time.Duration
	events  [16]unix.EpollEvent
	sink    [8]byte // what reading the timer says, which nobody needs; here, as a local one would be allocated by builds with the race detector
}

func (s *sleeper) init() { s.gate, s.timer, s.queue = -1, -1, -1 }

// tagTimer is the tag of the timer's event; those of processes are handles, which are larger.
const tagTimer = 0

func (s *sleeper) open(d *domain) (err error) {
	if s.gate, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	if s.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return fmt.Errorf("timerfd_create: %w", err)
	}
	if err = s.add(s.timer, tagTimer); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	s.queue = d.rail.waitFD()
	if err := d.bell.Watch(s.gate); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	s.watched = true
	return nil
}

func (s *sleeper) add(fd int, tag int32) error {
	return unix.EpollCtl(s.gate, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: tag})
}

func (s *sleeper) close(d *domain) (err error) {
	s.disarm(d)
	if s.watched {
		s.watched = false
		err = d.bell.Unwatch(s.gate)
	}
	for _, fd := range []*int{&s.gate, &s.timer} {
		if *fd >= 0 {
			err = errors.Join(err, unix.Close(*fd))
			*fd = -1
		}
	}
	return err
}

// Arm implements [provider.Domain].
func (d *domain) Arm() bool {
	if d.closed || d.out.len() > 0 || d.dead != nil {
		return true
	}
	d.slow()
	d.turn()
	if d.moved || d.out.len() > 0 || d.dead != nil {
		d.sleep.nap = 0
		return true
	}
	return d.sleep.arm(d)
}

// arm sets the timer and has the bell listen; true means that the owner must not sleep.
func (s *sleeper) arm(d *domain) bool {
	if s.queue >= 0 && d.rail.dangling {
		s.disarm(d)
		s.queue = -1
	}
	if s.queue >= 0 && !s.listens {
		if err := d.bell.Watch(s.queue); err != nil {
			s.queue = -1 // from here on time wakes the owner
		} else {
			s.listens = true
		}
	}
	if s.queue >= 0 && !d.rail.quiet() {
		return true
	}
	s.armed = true
	return unix.TimerfdSettime(s.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(s.due(d)))}, nil) != nil
}

// due is how long the owner may sleep, 0 for ever.
func (s *sleeper) due(d *domain) time.Duration {
	var t time.Duration
	sooner := func(n time.Duration) {
		if t == 0 || n < t {
			t = max(n, 1)
		}
	}
	if len(d.stuck) > 0 || d.notes.retry.len() > 0 || d.active.len() > 0 {
		sooner(retryAfter)
	}
	if s.queue < 0 && d.live > 0 {
		s.nap = min(max(2*s.nap, firstNap), lastNap)
		sooner(s.nap)
	}
	if len(d.connecting) > 0 {
		sooner(handshakeNap)
	}
	for _, p := range d.suspects {
		sooner(time.Duration(p.suspect - d.now))
	}
	for _, p := range d.dying { // wait for the other side's reason
		sooner(time.Duration(p.grace - d.now))
	}
	for _, p := range d.ending {
		sooner(time.Duration(p.deadline - d.now))
	}
	return t
}

// disarm: the owner is awake.
func (s *sleeper) disarm(d *domain) {
	s.armed = false
	if s.listens {
		s.listens = false
		_ = d.bell.Unwatch(s.queue)
	}
}

// look takes the events of the timer and of processes that have died.
func (s *sleeper) look(d *domain) {
	n, err := unix.EpollWait(s.gate, s.events[:], 0)
	if err != nil {
		return
	}
	for i := range n {
		if tag := s.events[i].Fd; tag != tagTimer {
			d.mourn(tag)
			continue
		}
		_, _ = unix.Read(s.timer, s.sink[:])
	}
}
