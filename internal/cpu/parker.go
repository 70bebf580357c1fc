package cpu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Parker is where one goroutine, its owner, sleeps until somebody wakes it or a watched descriptor is ready. It implements
// provider.Bell.
//
// It is an epoll instance that holds an eventfd and the watched descriptors and is itself watched by the Go
// runtime's poller: a sleeping owner costs no thread, and a foreign process that holds the eventfd can wake it.
type Parker struct {
	epoll   *os.File
	raw     syscall.RawConn
	bell    int
	rung    atomic.Bool // the eventfd holds a wake that nobody has consumed
	events  [16]unix.EpollEvent
	sink    [8]byte // what reading the eventfd gives; here, because a local would escape to the heap under the race detector
	ready   bool
	poll    func(fd uintptr) bool // made once: a closure per Park would allocate
	block   func(fd uintptr)      // the same for Block
	until   time.Time             // the end of Block
	watcher watcher

	mu     sync.RWMutex // held while the eventfd is written, so that it stays open
	closed bool         // guarded by mu
}

// NewParker makes a Parker; Close frees its two descriptors.
func NewParker() (*Parker, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &Parker{bell: bell}
	p.poll, p.block, p.watcher.do = p.check, p.wait, p.watcher.control
	err = unix.SetNonblock(ep, true) // so that os.NewFile hands it to the runtime's poller
	if err == nil {
		p.epoll = os.NewFile(uintptr(ep), "parker")
		p.raw, err = p.epoll.SyscallConn()
	}
	if err == nil {
		err = p.Watch(bell)
	}
	if err != nil {
		unix.Close(bell)
		unix.Close(ep)
		return nil, fmt.Errorf("parker: %w", err)
	}
	return p, nil
}

// one is what is written to an eventfd.
var one = [8]byte{1}

// Wake ends the owner's current or next Park. Any goroutine may call it. Wakes are merged.
func (p *Parker) Wake() {
	if p.rung.Swap(true) {
		return
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return // the descriptor may be somebody else's by now
	}
	_, _ = unix.Write(p.bell, one[:]) // fails only when the counter is full, and then the owner wakes anyway
}

// FD is the eventfd behind Wake.
func (p *Parker) FD() int { return p.bell }

// Watch adds a descriptor, level triggered.
func (p *Parker) Watch(fd int) error {
	return p.control(unix.EPOLL_CTL_ADD, fd)
}

// Unwatch removes a descriptor; call it before closing fd.
func (p *Parker) Unwatch(fd int) error {
	return p.control(unix.EPOLL_CTL_DEL, fd)
}

// watcher is what a call of control passes to the function that does it: a closure would allocate, and some networks watch their descriptor
// only while the owner sleeps.
type watcher struct {
	mu     sync.Mutex // guards the rest
	op, fd int
	ev     unix.EpollEvent
	err    error
	do     func(ep uintptr)
}

func (p *Parker) control(op, fd int) error {
	w := &p.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	w.op, w.fd, w.ev = op, fd, unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(fd)}
	if err := p.raw.Control(w.do); err != nil {
		return err
	}
	return w.err
}

func (w *watcher) control(ep uintptr) { w.err = unix.EpollCtl(int(ep), w.op, w.fd, &w.ev) }

// Park sleeps until a wake, a ready descriptor or the end of d, and reports whether it was one of the first two.
// Only the owner calls it.
func (p *Parker) Park(d time.Duration) bool {
	p.ready = false
	if err := p.epoll.SetReadDeadline(time.Now().Add(d)); err != nil {
		return true // closed: the owner is about to find out
	}
	err := p.raw.Read(p.poll)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	return p.ready
}

// Block is Park for an owner that has a thread of its own: the thread sleeps in the kernel, where a wake finds it without the detour over
// the runtime's poller.
func (p *Parker) Block(d time.Duration) bool {
	p.ready = true // when the epoll instance is closed the owner is about to find out
	p.until = time.Now().Add(d)
	_ = p.raw.Control(p.block)
	return p.ready
}

// wait runs inside Block.
func (p *Parker) wait(ep uintptr) {
	for {
		left := max(time.Until(p.until)+time.Millisecond-1, 0) / time.Millisecond
		if p.look(ep, int(min(left, math.MaxInt32))) {
			return
		}
		// A signal, as the runtime sends them to threads that it wants to preempt.
	}
}

// check runs inside Park: false makes the runtime park the goroutine until the epoll instance is readable.
func (p *Parker) check(ep uintptr) bool {
	p.look(ep, 0)
	return p.ready
}

// look waits for wakes and descriptors, consumes a wake, and sets ready. It reports false when a signal has interrupted it.
func (p *Parker) look(ep uintptr, millis int) bool {
	n, err := unix.EpollWait(int(ep), p.events[:], millis)
	if err != nil {
		p.ready = err != unix.EINTR
		return p.ready
	}
	for i := range n {
		if int(p.events[i].Fd) != p.bell {
			continue
		}
		_, _ = unix.Read(p.bell, p.sink[:])
		// After the read: a Wake that comes in between is not written, and need not be, because the owner is awake. The
		// other order would consume its write and leave rung set, and every later Wake would be lost.
		p.rung.Store(false)
	}
	p.ready = n > 0
	return true
}

// Close frees the descriptors. No other method may be running or be called later, except Wake, which becomes useless.
func (p *Parker) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return errors.Join(p.epoll.Close(), unix.Close(p.bell))
}
