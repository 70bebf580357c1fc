package versus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/provider"
)

// Drive is a process that is a driver of this package: it serves requests on standard input. receiver starts the other process of
// ours, which calls [Receive].
func Drive(ctx context.Context, name string, receiver proc.Spec, in io.Reader, out io.Writer) error {
	signal.Ignore(syscall.SIGINT) // the terminal's interrupt goes to the process that measures
	switch name {
	case Ours:
		return serve(&ours{ctx: ctx, spec: receiver}, in, out)
	case oursOFI:
		return serve(&ours{ctx: ctx, spec: receiver, over: overOFI}, in, out)
	case iperf3Name:
		return serve(&iperf3{ctx: ctx}, in, out)
	}
	return fmt.Errorf("versus: driver %q is unknown", name)
}

// overOFI is before the name of a network of libfabric.
const overOFI = "ofi:"

// Immediates of ours.
const (
	immData   = 1 // a block, or a message
	immAnswer = 2 // the receiver has everything, or answers a ping
)

const (
	// Between two samples both processes are stopped, for as long as the others take.
	stoppedTimeout = time.Hour
	closeTimeout   = 5 * time.Second
	// pingDepth is more than one: a completion may come after the answer that it caused.
	pingDepth = 16
)

// side is what both processes of ours have. Its context is that of the process.
type side struct {
	o     Opening
	order []slot
	eng   *hawser.Engine
	pool  *hawser.Region
	small *hawser.Region // source and destination of 8 bytes
	// foreign is the memory of pool, nil when the engine has made it.
	foreign []byte
	queue   *hawser.Queue
	done    []hawser.Done
	// inFlight operations of queue.
	inFlight int
	counter  *hawser.Counter // of what the other side sends
	seen     uint64
}

// hello is what the two sides tell each other, as text of descriptors.
type hello struct {
	Pool  string `json:"pool"`
	Small string `json:"small"`
}

func (s *side) open(ctx context.Context, o Opening, imm uint32) (hello, error) {
	order, err := readOrder(o.Order, o.Pool/o.Size)
	if err != nil {
		return hello{}, err
	}
	s.o, s.order = o, order
	p, err := bench.Provider(o.Transport)
	if err != nil {
		return hello{}, err
	}
	opts := hawser.Options{Name: "versus", Providers: []provider.Provider{p}, Require: o.Transport, PeerTimeout: stoppedTimeout}
	if strings.HasPrefix(o.Transport, overOFI) {
		opts.Poll = hawser.PollBusy // as the loop in C that it is beside
	}
	s.eng, err = hawser.Open(ctx, opts)
	if err != nil {
		return hello{}, err
	}
	if err := s.makePool(); err != nil {
		return hello{}, err
	}
	if s.small, err = s.eng.Alloc(smallSize, hawser.MemOptions{}); err != nil {
		return hello{}, err
	}
	depth := max(o.Depth, pingDepth)
	s.queue, s.done, s.counter = s.eng.NewQueue(depth), make([]hawser.Done, depth), s.eng.Counter(imm)
	var h hello
	if h.Pool, err = export(s.pool); err != nil {
		return hello{}, err
	}
	h.Small, err = export(s.small)
	return h, err
}

// makePool makes the pool, or registers one that the engine did not make.
func (s *side) makePool() (err error) {
	if !s.o.Foreign {
		s.pool, err = s.eng.Alloc(s.o.Pool, hawser.MemOptions{})
		return err
	}
	if s.foreign, err = unix.Mmap(-1, 0, int(s.o.Pool), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("pool: mmap: %w", err)
	}
	s.pool, err = s.eng.Register(s.foreign, hawser.RegisterOptions{})
	return err
}

func export(r *hawser.Region) (string, error) {
	text, err := r.Descriptor(r.All(), hawser.RightWrite).MarshalText()
	return string(text), err
}

func (s *side) importText(ctx context.Context, text string) (*hawser.Remote, error) {
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return nil, err
	}
	return s.eng.Import(ctx, d)
}

func (s *side) close(ctx context.Context) error {
	if s.eng == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := s.eng.Close(ctx)
	if err == nil && s.foreign != nil {
		err = unix.Munmap(s.foreign)
	}
	return err
}

// room waits until less than n operations are in flight.
func (s *side) room(ctx context.Context, n int) error {
	for s.inFlight >= n {
		k, err := s.queue.Wait(ctx, s.done)
		if err != nil {
			return err
		}
		if err := s.take(k); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) take(n int) error {
	s.inFlight -= n
	for _, d := range s.done[:n] {
		if d.Err != nil {
			return d.Err
		}
	}
	return nil
}

// await waits for n more immediates.
func (s *side) await(ctx context.Context, n int) error {
	s.seen += uint64(n)
	return s.counter.Wait(ctx, s.seen)
}

// write sends 8 bytes and an immediate.
func (s *side) write(ctx context.Context, to hawser.RemoteSlice, imm uint32, depth int) error {
	if s.inFlight > 0 {
		if err := s.take(s.queue.Poll(s.done)); err != nil {
			return err
		}
	}
	if err := s.room(ctx, depth); err != nil {
		return err
	}
	s.inFlight++
	return s.queue.Write(hawser.Write{Src: s.small.Slice(0, smallSize), Dst: to, Imm: hawser.Imm(imm)}, 0)
}

// ours is the driver of Hawser: the sender.
type ours struct {
	side
	ctx    context.Context // of the process: a driver's methods have none
	spec   proc.Spec
	over   string // before the name of the network, that of its provider
	child  *proc.Child
	remote *hawser.Remote
	word   hawser.RemoteSlice // of the receiver
	src    []uint32           // of a batch
	dst    []uint32
}

// Messages of the two processes.
const (
	msgOpen   = "open"   // oursHello -> hello
	msgRun    = "run"    // null -> msgGo, then float64: CPU seconds
	msgGo     = "go"     // null
	msgVerify = "verify" // moved -> corrupt
	msgAnswer = "answer"
)

type oursHello struct {
	Opening Opening `json:"Opening"`
	Hello   hello   `json:"hello"`
}

func (d *ours) open(o Opening) (reply, error) {
	o.Transport = d.over + o.Transport
	mine, err := d.side.open(d.ctx, o, immAnswer)
	if err != nil {
		return reply{}, err
	}
	stamp(d.pool.Bytes(), o.Size, o.Seed)
	d.spec.Name = "receiver"
	if d.child, err = proc.Start(d.spec); err != nil {
		return reply{}, err
	}
	var theirs hello
	if err := d.ask(msgOpen, oursHello{o, mine}, &theirs); err != nil {
		return reply{}, err
	}
	if d.remote, err = d.importText(d.ctx, theirs.Pool); err != nil {
		return reply{}, err
	}
	small, err := d.importText(d.ctx, theirs.Small)
	if err != nil {
		return reply{}, err
	}
	d.word = small.Slice(0, smallSize)
	how := "a WritePages for each batch, an immediate for each page"
	if o.Scenario != Pages {
		how = "Write of 8 bytes with an immediate, counted by Counter.Wait"
	}
	if o.Foreign {
		how += ", pools of private anonymous memory that Register took"
	}
	if d.over != "" {
		return reply{Name: Ours, Settings: "provider " + o.Transport + ", PollBusy; " + how + "; one rail"}, nil
	}
	return reply{Name: Ours, Settings: how + "; one rail, default Options"}, nil
}

func (d *ours) ask(kind string, question, answer any) error {
	if err := d.child.Send(kind, question); err != nil {
		return err
	}
	return d.next(answer)
}

func (d *ours) next(answer any) error {
	m, err := d.child.Next(d.ctx)
	if errors.Is(err, io.EOF) {
		return errors.New("the receiver ended")
	}
	if err != nil || answer == nil {
		return err
	}
	return m.Decode(answer)
}

func (d *ours) run(first uint64) (reply, error) {
	if err := d.ask(msgRun, nil, nil); err != nil { // it answers msgGo
		return reply{}, err
	}
	// An immediate that does not come because the receiver is gone would be waited for without end.
	ctx, cancel := context.WithCancelCause(d.ctx)
	over := make(chan struct{})
	defer func() { cancel(nil); <-over }()
	go func() {
		defer close(over)
		select {
		case <-d.child.Done():
			cancel(errors.Join(errors.New("the receiver ended"), d.child.Err()))
		case <-ctx.Done():
		}
	}()
	var trips []time.Duration
	cpu, start := cpuTime(), time.Now()
	var err error
	switch d.o.Scenario {
	case Latency:
		trips, err = d.pings(ctx)
	case Rate:
		err = d.flood(ctx)
	default:
		err = d.pages(ctx, first)
	}
	a := reply{Seconds: time.Since(start).Seconds(), CPU: cpuTime() - cpu}
	if err != nil {
		return reply{}, err
	}
	var theirs float64
	if err := d.next(&theirs); err != nil {
		return reply{}, err
	}
	a.CPU += theirs
	if len(trips) > 0 {
		slices.Sort(trips)
		at := func(q float64) float64 {
			return float64(trips[min(int(q*float64(len(trips))), len(trips)-1)].Nanoseconds()) / 2e3
		}
		a.P50, a.P99, a.P999 = at(.5), at(.99), at(.999)
	}
	return a, nil
}

// pages moves one sample and returns when the receiver's application says that it has everything.
func (d *ours) pages(ctx context.Context, first uint64) error {
	o, n := d.o, uint64(len(d.order))
	for i := 0; i < o.Count; {
		if err := d.room(ctx, o.Depth); err != nil {
			return err
		}
		d.src, d.dst = d.src[:0], d.dst[:0]
		for ; i < o.Count && len(d.src) < o.Batch; i++ {
			s := d.order[(first+uint64(i))%n]
			d.src, d.dst = append(d.src, s.src), append(d.dst, s.dst)
		}
		d.inFlight++
		err := d.queue.WritePages(hawser.WritePages{
			PageLen: o.Size,
			Src:     hawser.Pages{Region: d.pool, Indices: d.src, Stride: o.Size},
			Dst:     hawser.RemotePages{Remote: d.remote, Indices: d.dst, Stride: o.Size},
			Imm:     hawser.Imm(immData),
		}, 0)
		if err != nil {
			return err
		}
	}
	if err := d.room(ctx, 1); err != nil {
		return err
	}
	return d.await(ctx, 1)
}

func (d *ours) pings(ctx context.Context) ([]time.Duration, error) {
	trips := make([]time.Duration, d.o.Pings)
	for i := range trips {
		start := time.Now()
		if err := d.write(ctx, d.word, immData, pingDepth); err != nil {
			return nil, err
		}
		if err := d.await(ctx, 1); err != nil {
			return nil, err
		}
		trips[i] = time.Since(start)
	}
	return trips, d.room(ctx, 1)
}

func (d *ours) flood(ctx context.Context) error {
	for range d.o.Count {
		if err := d.write(ctx, d.word, immData, d.o.Depth); err != nil {
			return err
		}
	}
	if err := d.room(ctx, 1); err != nil {
		return err
	}
	return d.await(ctx, 1)
}

func (d *ours) verify(moved uint64) (reply, error) {
	var a reply
	return a, d.ask(msgVerify, moved, &a.Corrupt)
}

func (d *ours) close() error {
	var err error
	if d.child != nil {
		err = d.child.Stop(closeTimeout)
	}
	return errors.Join(err, d.side.close(d.ctx))
}

// stamp fills a source pool.
func stamp(pool []byte, size, seed uint64) {
	for s := range uint64(len(pool)) / size {
		block := pool[s*size:][:size]
		for o := uint64(0); o+8 <= size; o += 8 {
			binary.LittleEndian.PutUint64(block[o:], word(seed, s, o))
		}
	}
}

// corrupt counts the bytes of a destination that differ from what moved blocks must have left.
func corrupt(pool []byte, order []slot, size, seed, moved uint64) uint64 {
	var bad uint64
	for _, s := range order[:min(moved, uint64(len(order)))] {
		block := pool[uint64(s.dst)*size:][:size]
		for o := uint64(0); o+8 <= size; o += 8 {
			if binary.LittleEndian.Uint64(block[o:]) != word(seed, uint64(s.src), o) {
				bad += 8
			}
		}
	}
	return bad
}

// cpuTime is the user and system time of this process in seconds.
func cpuTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
