package hawser_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
)

// A test binary started with wakerEnv reads a descriptor from standard input and writes the time to it, with an immediate, again and
// again until its input ends; with wakerPipe it writes the time to standard output instead. Between two writes it stays awake, on one
// thread, or sleeps as soon as it can.
const (
	wakerEnv  = "HAWSER_TEST_WAKER" // network
	awakeEnv  = "HAWSER_TEST_AWAKE" // not empty: stays awake
	wakerPipe = "pipe"
)

// awaitGap pauses for as long as it takes until everybody who waits is asleep. Pauses differ, or the two sides would fall into step.
func awaitGap() {
	gap := 500*time.Microsecond + rand.N(time.Millisecond)
	if os.Getenv(awakeEnv) == "" {
		time.Sleep(gap)
		return
	}
	for start := time.Now(); time.Since(start) < gap; {
		runtime.Gosched() // to the worker
	}
}

// monotonic is a clock that all processes share.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails only for unknown clocks
	return time.Duration(ts.Nano())
}

func stamp(b []byte) { binary.LittleEndian.PutUint64(b, uint64(monotonic())) }

// stamper writes the time into what is sent, in the moment in which the network gets it.
type stamper struct {
	provider.Domain
	src []byte
}

func (d *stamper) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	d.src = m.Bytes
	return d.Domain.Register(m, acc)
}

func (d *stamper) Post(wrs []provider.WR) (int, error) {
	for i := range wrs {
		if wrs[i].Op == provider.OpWriteImm {
			stamp(d.src)
		}
	}
	return d.Domain.Post(wrs)
}

func waker(network string) error {
	in := bufio.NewReader(os.Stdin)
	text, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error is an end too
		ended.Store(true)
	}()
	write, end := pipeWriter(), func() error { return nil }
	if network != wakerPipe {
		if write, end, err = engineWriter(network, text[:len(text)-1]); err != nil {
			return err
		}
	}
	for err == nil && !ended.Load() {
		awaitGap()
		err = write()
	}
	return errors.Join(err, end())
}

func pipeWriter() (write func() error) {
	b := make([]byte, 8)
	return func() error {
		stamp(b)
		_, err := os.Stdout.Write(b)
		return err
	}
}

func engineWriter(network, text string) (write, end func() error, err error) {
	ctx := context.Background()
	o := hawser.Options{Poll: hawser.PollEvent}
	if os.Getenv(awakeEnv) != "" {
		o.Poll = hawser.PollBusy
	}
	var p provider.Provider = shm.New()
	if network == "tcp" {
		p = tcp.New()
	}
	o.Providers = []provider.Provider{providertest.Decorate(p, func(d provider.Domain) provider.Domain { return &stamper{Domain: d} })}
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return nil, nil, err
	}
	e, err := hawser.Open(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	rem, err := e.Import(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	src, err := e.Alloc(d.Len(), hawser.MemOptions{})
	if err != nil {
		return nil, nil, err
	}
	return func() error {
		tr, err := e.Write(hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(1)})
		if err != nil {
			return err
		}
		return tr.Wait(ctx)
	}, func() error { return e.Close(ctx) }, nil
}

// From the moment in which the network of a writer, in another process, gets a write until the wait of a receiver returns that was
// asleep, engine and all. A writer that stays awake needs a processor that sleeps to be woken; one that goes to sleep can leave its own
// (always, under taskset -c 0). "pipe" is a blocked read of a pipe, as the machine's own figure. Goal: p50 of 12 us.
func BenchmarkParkedWake(b *testing.B) {
	for _, awake := range []string{"awake", ""} {
		for _, network := range []string{wakerPipe, "shm", "tcp"} {
			b.Run(cmp.Or(awake, "asleep")+"/"+network, func(b *testing.B) { parkedWake(b, network, awake) })
		}
	}
}

func parkedWake(b *testing.B, network, awake string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), wakerEnv+"="+network, awakeEnv+"="+awake, "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	var next func() time.Duration
	var text string
	if network == wakerPipe {
		next = pipeReceiver(b, cmd)
	} else {
		next, text = engineReceiver(b)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			b.Error(err)
		}
	}()
	if _, err := fmt.Fprintln(in, text); err != nil {
		b.Fatal(err)
	}
	next() // the connection is up, or the process
	var times []time.Duration
	for b.Loop() {
		times = append(times, next())
	}
	report(b, times, 1)
}

// pipeReceiver reads the child's standard output on a thread that sleeps in the kernel.
func pipeReceiver(b *testing.B, cmd *exec.Cmd) (next func() time.Duration) {
	b.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _, _ = r.Close(), w.Close() })
	cmd.Stdout = w
	fd := int(r.Fd()) // which makes it block
	stamp := make([]byte, 8)
	return func() time.Duration {
		if n, err := unix.Read(fd, stamp); n != len(stamp) || err != nil {
			b.Fatal(n, err)
		}
		return monotonic() - time.Duration(binary.LittleEndian.Uint64(stamp))
	}
}

// engineReceiver waits for the next count; text is where to write.
func engineReceiver(b *testing.B) (next func() time.Duration, text string) {
	b.Helper()
	e := open(b, hawser.Options{})
	dst, err := e.Alloc(8, hawser.MemOptions{})
	if err != nil {
		b.Fatal(err)
	}
	t, err := dst.Descriptor(dst.All(), hawser.RightWrite).MarshalText()
	if err != nil {
		b.Fatal(err)
	}
	c := e.Counter(1)
	return func() time.Duration {
		if err := c.Wait(b.Context(), c.Load()+1); err != nil {
			b.Fatal(err)
		}
		return monotonic() - time.Duration(binary.LittleEndian.Uint64(dst.Bytes()))
	}, string(t)
}
