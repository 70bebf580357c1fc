package cpu

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newParker(t testing.TB) *Parker {
	t.Helper()
	p, err := NewParker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// sleeps are the two ways to sleep: as a goroutine and with the thread.
var sleeps = map[string]func(*Parker, time.Duration) bool{"park": (*Parker).Park, "block": (*Parker).Block}

func TestParkEndsByTimeWakeOrDescriptor(t *testing.T) {
	for name, sleep := range sleeps {
		t.Run(name, func(t *testing.T) { endsByTimeWakeOrDescriptor(t, sleep) })
	}
}

func endsByTimeWakeOrDescriptor(t *testing.T, sleep func(*Parker, time.Duration) bool) {
	p := newParker(t)
	if sleep(p, time.Millisecond) {
		t.Fatal("park with nothing to wake it reported a wake")
	}
	p.Wake()
	p.Wake()
	if !sleep(p, time.Minute) {
		t.Fatal("a wake before park was lost")
	}
	if sleep(p, time.Millisecond) {
		t.Fatal("two wakes before park must merge into one")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := p.Watch(int(r.Fd())); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if !sleep(p, time.Minute) {
		t.Fatal("a readable descriptor did not end park")
	}
	if err := p.Unwatch(int(r.Fd())); err != nil {
		t.Fatal(err)
	}
	if sleep(p, time.Millisecond) {
		t.Fatal("an unwatched descriptor ended park")
	}
}

// Two owners that only wake each other: a single lost wake stops the exchange.
func TestNoWakeIsLost(t *testing.T) {
	for name, sleep := range sleeps {
		t.Run(name, func(t *testing.T) { losesNoWake(t, sleep) })
	}
}

func losesNoWake(t *testing.T, sleep func(*Parker, time.Duration) bool) {
	a, b := newParker(t), newParker(t)
	const rounds = 20000
	done := make(chan bool)
	go func() {
		for range rounds {
			if !sleep(b, 10*time.Second) {
				done <- false
				return
			}
			a.Wake()
		}
		done <- true
	}()
	for i := range rounds {
		b.Wake()
		if !sleep(a, 10*time.Second) {
			t.Fatalf("wake lost in round %d", i)
		}
	}
	if !<-done {
		t.Fatal("wake lost on the other side")
	}
}

// A wake that comes too late must not write to a descriptor that somebody else has opened in the meantime.
func TestLateWakeTouchesNoOtherDescriptor(t *testing.T) {
	for i := range 10000 {
		p, err := NewParker()
		if err != nil {
			t.Fatal(err)
		}
		started, woken := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(woken)
			close(started)
			p.Wake()
		}()
		<-started
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		var others [2]int // they take the numbers of the two that were closed
		for i := range others {
			if others[i], err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
				t.Fatal(err)
			}
		}
		<-woken
		for _, fd := range others {
			var b [8]byte
			_, err = unix.Read(fd, b[:])
			unix.Close(fd)
			if err != unix.EAGAIN {
				t.Fatalf("round %d: a descriptor of somebody else holds %v (%v)", i, b, err)
			}
		}
	}
}

func TestParkAllocatesNothing(t *testing.T) {
	p := newParker(t)
	for name, sleep := range sleeps {
		if n := testing.AllocsPerRun(100, func() { p.Wake(); sleep(p, time.Second) }); n != 0 {
			t.Fatalf("%v allocations a %s", n, name)
		}
	}
}

func BenchmarkWakeRoundTrip(b *testing.B) {
	for name, sleep := range sleeps {
		b.Run(name, func(b *testing.B) {
			x, y := newParker(b), newParker(b)
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				if name == "block" {
					unlock, err := Lock(Set{})
					if err != nil {
						b.Error(err)
					}
					defer unlock()
				}
				for !stop.Load() {
					sleep(y, time.Second)
					x.Wake()
				}
			}()
			for b.Loop() {
				y.Wake()
				x.Park(time.Second)
			}
			stop.Store(true)
			y.Wake()
			<-done
		})
	}
}

// A thread that sleeps in the kernel goes on sleeping when a signal finds it, as those of the runtime do.
func TestBlockSurvivesSignals(t *testing.T) {
	p := newParker(t)
	thread, woken := make(chan int), make(chan bool)
	go func() {
		unlock, err := Lock(Set{})
		if err != nil {
			t.Error(err)
		}
		defer unlock()
		thread <- unix.Gettid()
		woken <- p.Block(time.Minute)
	}()
	tid := <-thread
	for range 1000 {
		if err := unix.Tgkill(unix.Getpid(), tid, unix.SIGURG); err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
			t.Fatal("a signal ended the sleep")
		default:
		}
		time.Sleep(10 * time.Microsecond) // so that many find it asleep
	}
	p.Wake()
	if !<-woken {
		t.Fatal("the wake was not reported")
	}
}

// Networks watch and forget a descriptor each time that the owner sleeps.
func TestWatchAllocatesNothing(t *testing.T) {
	p := newParker(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var errs error
	if n := testing.AllocsPerRun(100, func() { errs = errors.Join(errs, p.Watch(fd), p.Unwatch(fd)) }); n > 0 || errs != nil {
		t.Fatalf("%v allocations, %v", n, errs)
	}
}
