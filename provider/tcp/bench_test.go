package tcp_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
)

// pin locks the calling goroutine to a thread and that to a processor, so that two spinners never share one; the function that it
// returns undoes both.
func pin(cpu int) (undo func()) {
	runtime.LockOSThread()
	var before, set unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil || runtime.NumCPU() < 2 {
		return runtime.UnlockOSThread
	}
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
	return func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}
}

// end is one side of a connection between two domains of this process, with memory that the other side may write to.
type end struct {
	dom   provider.Domain
	bell  *cpu.Parker
	peer  provider.Peer
	span  *mem.Span
	local provider.Key
	key   provider.Key // of the other side's memory
	cs    [64]provider.Completion
}

// poll returns what one Poll has found.
func (e *end) poll(tb testing.TB) []provider.Completion {
	n, err := e.dom.Poll(e.cs[:])
	if err != nil {
		tb.Fatal(err)
	}
	return e.cs[:n]
}

func (e *end) wr(op provider.Op, n int) provider.WR {
	return provider.WR{Op: op, Peer: e.peer, Len: uint64(n), LocalKey: e.local.ID, RemoteKey: e.key.ID}
}

func newEnds(tb testing.TB, ip string, size uint64) (ends [2]*end) {
	tb.Helper()
	var addrs [2]provider.Addr
	for i := range ends {
		e := &end{}
		var err error
		if e.bell, err = cpu.NewParker(); err != nil {
			tb.Fatal(err)
		}
		if e.dom, err = tcp.New().Open(context.Background(), provider.Device{Name: ip}, provider.Config{Bell: e.bell}); err != nil {
			tb.Fatal(err)
		}
		if e.span, err = mem.New(size, mem.Shared); err != nil {
			tb.Fatal(err)
		}
		if e.local, err = e.dom.Register(provider.Memory{Bytes: e.span.Bytes(), FD: -1}, provider.AccessRemoteWrite); err != nil {
			tb.Fatal(err)
		}
		if e.peer, addrs[i], err = e.dom.Offer(); err != nil {
			tb.Fatal(err)
		}
		ends[i] = e
		tb.Cleanup(func() {
			if err := e.dom.Close(); err != nil {
				tb.Error(err)
			}
			_ = e.span.Free()
			_ = e.bell.Close()
		})
	}
	for i, e := range ends {
		if err := e.dom.Connect(e.peer, addrs[1-i], i == 0); err != nil {
			tb.Fatal(err)
		}
	}
	for up := 0; up < 2; {
		for _, e := range ends {
			for _, c := range e.poll(tb) {
				if c.Kind != provider.KindPeerUp {
					tb.Fatalf("connect: %v %v", c.Kind, c.Status)
				}
				up++
			}
		}
	}
	for i, e := range ends {
		k, err := e.dom.Grant(e.local, e.peer, 0, size)
		if err != nil {
			tb.Fatal(err)
		}
		ends[1-i].key = k
	}
	return ends
}

// serve polls an end on a goroutine of its own until stop.
func (e *end) serve(tb testing.TB, each func(c provider.Completion)) (stop func()) {
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		pin(1)
		for !end.Load() {
			for _, c := range e.poll(tb) {
				if each != nil {
					each(c)
				}
			}
		}
	}()
	return func() { end.Store(true); <-done }
}

// stream writes total bytes in writes of size with up to depth outstanding and returns when all have completed.
func (e *end) stream(tb testing.TB, size, total, depth int) {
	wrs := make([]provider.WR, min(depth, 64))
	for i := range wrs {
		wrs[i] = e.wr(provider.OpWriteImm, size)
	}
	left, out := total/size, 0
	for left > 0 || out > 0 {
		if n := min(left, depth-out, len(wrs)); n > 0 {
			n, err := e.dom.Post(wrs[:n])
			if err != nil {
				tb.Fatal(err)
			}
			left -= n
			out += n
		}
		for _, c := range e.poll(tb) {
			if c.Kind != provider.KindWrite || c.Status != provider.StatusOK {
				tb.Fatalf("%v %v", c.Kind, c.Status)
			}
			out--
		}
	}
}

// plain is a connected pair of blocking sockets with a reader that throws away, like iperf3's.
type plain struct {
	fd   int
	buf  []byte
	done chan struct{}
	seen atomic.Int64
}

func newPlain(tb testing.TB, size int) *plain {
	tb.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(l)
	congestion := func(fd int) {
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	}
	congestion(l)
	p := &plain{buf: make([]byte, size), done: make(chan struct{})}
	if err = unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = unix.Listen(l, 1)
	}
	if err != nil {
		tb.Fatal(err)
	}
	sa, err := unix.Getsockname(l)
	if err != nil {
		tb.Fatal(err)
	}
	if p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		tb.Fatal(err)
	}
	congestion(p.fd)
	if err := unix.Connect(p.fd, sa); err != nil {
		tb.Fatal(err)
	}
	fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(p.done)
		defer unix.Close(fd)
		pin(1)
		buf := make([]byte, size)
		for {
			n, err := unix.Read(fd, buf)
			if n <= 0 || err != nil {
				return
			}
			p.seen.Add(int64(n))
		}
	}()
	tb.Cleanup(func() { unix.Close(p.fd); <-p.done })
	return p
}

func (p *plain) stream(tb testing.TB, total int) {
	until := p.seen.Load() + int64(total)
	for range total / len(p.buf) {
		for o := 0; o < len(p.buf); {
			n, err := unix.Write(p.fd, p.buf[o:])
			if err != nil {
				tb.Fatal(err)
			}
			o += n
		}
	}
	for p.seen.Load() < until {
		runtime.Gosched()
	}
}

// BenchmarkStream compares writes with a plain blocking socket loop that moves the same blocks, in turns, hot data on both
// sides. x-plain is the median of the ratios.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			defer pin(0)()
			ends := newEnds(b, "127.0.0.1", uint64(size))
			base := newPlain(b, size)
			const part = 256 << 20
			var ratios, ours, theirs []float64
			for b.Loop() {
				stop := ends[1].serve(b, nil)
				t0 := time.Now()
				ends[0].stream(b, size, part, 64)
				t1 := time.Now()
				stop()
				t2 := time.Now()
				base.stream(b, part)
				t3 := time.Now()
				a, p := t1.Sub(t0).Seconds(), t3.Sub(t2).Seconds()
				ratios = append(ratios, p/a)
				ours = append(ours, part/a/1e9)
				theirs = append(theirs, part/p/1e9)
			}
			b.ReportMetric(median(ours), "GB/s")
			b.ReportMetric(median(theirs), "plain-GB/s")
			b.ReportMetric(median(ratios), "x-plain")
		})
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkWriteImm8 is the time of one write of 8 bytes with an immediate one way, half a round trip, both sides spinning.
func BenchmarkWriteImm8(b *testing.B) {
	ends := newEnds(b, "127.0.0.1", 4096)
	defer pin(0)()
	reply := []provider.WR{ends[1].wr(provider.OpWriteImm, 8)}
	stop := ends[1].serve(b, func(c provider.Completion) {
		if c.Kind == provider.KindImm {
			if n, err := ends[1].dom.Post(reply); n != 1 || err != nil {
				b.Error(n, err)
			}
		}
	})
	defer stop()
	call := []provider.WR{ends[0].wr(provider.OpWriteImm, 8)}
	for b.Loop() {
		if n, err := ends[0].dom.Post(call); n != 1 || err != nil {
			b.Fatal(n, err)
		}
		for answered := false; !answered; {
			for _, c := range ends[0].poll(b) {
				answered = answered || c.Kind == provider.KindImm
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2/1000, "us-one-way")
}

// BenchmarkWriteImm8Rate is how many writes of 8 bytes with an immediate per second one connection carries.
func BenchmarkWriteImm8Rate(b *testing.B) {
	ends := newEnds(b, "127.0.0.1", 4096)
	defer pin(0)()
	stop := ends[1].serve(b, nil)
	defer stop()
	const part = 100_000
	n := 0
	for b.Loop() {
		ends[0].stream(b, 8, 8*part, 1024)
		n += part
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "M/s")
}

// BenchmarkParkedWriteImm8 is the same with owners that sleep as soon as there is nothing to do.
func BenchmarkParkedWriteImm8(b *testing.B) {
	ends := newEnds(b, "127.0.0.1", 4096)
	reply := []provider.WR{ends[1].wr(provider.OpWriteImm, 8)}
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !end.Load() {
			imms := ends[1].wait(b)
			for range imms {
				if n, err := ends[1].dom.Post(reply); n != 1 || err != nil {
					b.Error(n, err)
				}
			}
		}
	}()
	call := []provider.WR{ends[0].wr(provider.OpWriteImm, 8)}
	for b.Loop() {
		if n, err := ends[0].dom.Post(call); n != 1 || err != nil {
			b.Fatal(n, err)
		}
		for ends[0].wait(b) == 0 {
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2/1000, "us-one-way")
	end.Store(true)
	ends[1].bell.Wake()
	<-done
}

// wait polls once, sleeps when there was nothing, and returns the number of immediates.
func (e *end) wait(tb testing.TB) (imms int) {
	cs := e.poll(tb)
	if len(cs) == 0 && !e.dom.Arm() {
		e.bell.Park(time.Second)
	}
	for _, c := range cs {
		if c.Kind == provider.KindImm {
			imms++
		}
	}
	return imms
}

// BenchmarkIdlePoll is what a spinning owner pays when nothing happens.
func BenchmarkIdlePoll(b *testing.B) {
	ends := newEnds(b, "127.0.0.1", 4096)
	for b.Loop() {
		ends[0].poll(b)
	}
}
