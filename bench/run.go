package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/mem"
)

// ErrCorrupt: the receiver's memory does not hold what was sent.
var ErrCorrupt = errors.New("content differs")

// run is the sending side of one row.
type run struct {
	config Config
	child  *proc.Child
	eng    *hawser.Engine
	sender sender

	closeEngine func() error // nil before it is open

	word  *hawser.Region // answers of the receiver are written here
	rw    stream
	yard  *mem.Span // destination of memcpy, nil when the yardstick is a stream
	moved uint64    // blocks of ours so far
	row   Row

	ourTrips, yardTrips trips
}

// Run measures one row. spec starts the receiving process, which must call Serve; progress is called after each round, with round 0
// while it warms up, and may be nil. The row is valid also when the error is ErrCorrupt.
func Run(ctx context.Context, c Config, spec proc.Spec, progress func(round, rounds int)) (row Row, err error) {
	c, err = c.withDefaults()
	if err != nil {
		return Row{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{config: c}
	defer func() { err = joinEnd(err, r.close()) }()
	if err := r.open(ctx, spec); err != nil {
		return Row{}, err
	}
	// Waits for immediates do not know of the other process: its end ends them.
	watch := make(chan struct{})
	defer func() { cancel(nil); <-watch }()
	go func() {
		defer close(watch)
		select {
		case <-r.child.Done():
			cancel(errors.Join(errReceiverEnded, r.child.Err()))
		case <-ctx.Done():
		}
	}()
	stop := context.AfterFunc(ctx, func() { hangUp(r.rw) })
	defer stop()
	if err := r.rounds(ctx, progress); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Row{}, err
	}
	return r.finish(ctx)
}

var errReceiverEnded = errors.New("bench: the receiver ended")

// joinEnd adds what went wrong at the end of a run to what ended it, unless that was it already.
func joinEnd(err, end error) error {
	var said, again *proc.ExitError
	if errors.As(err, &said) && errors.As(end, &again) && *said == *again {
		return err
	}
	return errors.Join(err, end)
}

func (r *run) open(ctx context.Context, spec proc.Spec) error {
	c := r.config
	ours, theirs, err := pipePair()
	if err != nil {
		return err
	}
	r.rw = ours
	spec.Name = "receiver"
	spec.Files = []*os.File{theirs.in, theirs.out}
	r.child, err = proc.Start(spec)
	if err := errors.Join(err, theirs.Close()); err != nil {
		return err
	}
	if r.eng, r.closeEngine, err = open(ctx, c, "sender"); err != nil {
		return err
	}
	s := &r.sender
	s.config, s.order = c, newOrder(c.slots(), c.Seed)
	if s.pool, err = r.eng.Alloc(c.Pool, hawser.MemOptions{}); err != nil {
		return err
	}
	stamp(s.pool.Bytes(), c.Size, c.Seed)
	if r.word, err = r.eng.Alloc(immSize, hawser.MemOptions{}); err != nil {
		return err
	}
	text, err := export(r.word)
	if err != nil {
		return err
	}
	var a openAnswer
	if err := r.ask(ctx, msgOpen, openRequest{Config: c, Descriptor: text}, msgReady, &a); err != nil {
		return err
	}
	if s.remote, err = importText(ctx, r.eng, a.Descriptor); err != nil {
		return err
	}
	s.queue, s.done = r.eng.NewQueue(c.Depth), make([]hawser.Done, c.Depth)
	s.answers = r.eng.Counter(immAnswer)
	if a.Stream == "" {
		if c.Kind != Imm {
			r.yard, err = mem.New(c.Pool, mem.Shared)
		}
		return err
	}
	conn, err := net.Dial("tcp", a.Stream)
	if err != nil {
		return err
	}
	hangUp(r.rw) // the pipes are not needed
	r.rw = conn
	return tune(conn.(*net.TCPConn))
}

// close ends the receiver, then frees everything here.
func (r *run) close() error {
	var errs []error
	if r.child != nil {
		errs = append(errs, r.child.Stop(2*closeTimeout))
	}
	if r.rw != nil {
		hangUp(r.rw)
	}
	if r.closeEngine != nil {
		errs = append(errs, r.closeEngine())
	}
	if r.yard != nil {
		errs = append(errs, r.yard.Free())
	}
	return errors.Join(errs...)
}

// ask sends a request and decodes its answer.
func (r *run) ask(ctx context.Context, kind string, request any, want string, answer any) error {
	if err := r.child.Send(kind, request); err != nil {
		return err
	}
	m, err := r.child.Next(ctx)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if m.Kind != want {
		return fmt.Errorf("bench: the receiver answered %q to %q, want %q", m.Kind, kind, want)
	}
	if answer == nil {
		return nil
	}
	return m.Decode(answer)
}

// sample measures f, during which the receiver does w.
func (r *run) sample(ctx context.Context, w workRequest, f func() error) (Sample, error) {
	if w.Work != workNone {
		if err := r.ask(ctx, msgWork, w, msgGo, nil); err != nil {
			return Sample{}, err
		}
	}
	cpu, start := cpuTime(), time.Now()
	if err := f(); err != nil {
		return Sample{}, err
	}
	s := Sample{Seconds: time.Since(start).Seconds(), CPU: cpuTime() - cpu}
	if w.Work == workNone {
		return s, nil
	}
	m, err := r.child.Next(ctx)
	if err != nil {
		return Sample{}, fmt.Errorf("bench: %w", err)
	}
	var d workDone
	err = m.Decode(&d)
	s.CPU += d.CPU
	return s, err
}

// rounds warms up, then measures all rounds.
func (r *run) rounds(ctx context.Context, progress func(round, rounds int)) error {
	one := r.blockRound
	if r.config.Kind == Imm {
		one = r.immRound
	}
	// The whole pool is written once before the clock counts: memory that nobody has touched since it was mapped costs a page fault.
	for touched := 0; touched < r.config.slots(); touched += r.config.blocks() {
		if progress != nil {
			progress(0, r.config.Rounds)
		}
		if err := one(ctx, touched/r.config.blocks()); err != nil {
			return err
		}
	}
	r.row, r.ourTrips, r.yardTrips = Row{}, trips{}, trips{}
	for i := range r.config.Rounds {
		if err := one(ctx, i); err != nil {
			return err
		}
		if progress != nil {
			progress(i+1, r.config.Rounds)
		}
	}
	return nil
}

// alternate calls both. Which comes first depends on the round, so that neither profits from what the other leaves in the
// caches.
func alternate(round int, a, b func() error) error {
	if round%2 == 1 {
		a, b = b, a
	}
	if err := a(); err != nil {
		return err
	}
	return b()
}

func (r *run) blockRound(ctx context.Context, round int) error {
	c, first := r.config, r.moved
	r.moved += uint64(c.blocks())
	yardFirst := r.sender.order.away(first)
	yard := workRequest{workYard, yardFirst, c.blocks()}
	if r.yard != nil {
		yard.Work = workNone
	}
	return alternate(round,
		func() error {
			s, err := r.sample(ctx, workRequest{workOurs, first, c.blocks()}, func() error { return r.sender.send(ctx, first) })
			r.row.Ours.Samples = append(r.row.Ours.Samples, s)
			return err
		},
		func() error {
			s, err := r.sample(ctx, yard, func() error {
				if r.yard != nil {
					return copyBlocks(r.yard.Bytes(), r.sender.pool.Bytes(), r.sender.order, yardFirst, c)
				}
				return sendBlocks(r.rw, r.sender.pool.Bytes(), r.sender.order, yardFirst, c)
			})
			r.row.Yard.Samples = append(r.row.Yard.Samples, s)
			return err
		})
}

// immRound measures latency and rate of both sides.
func (r *run) immRound(ctx context.Context, round int) error {
	c, first := r.config, r.moved
	r.moved += uint64(c.blocks())
	latency := alternate(round,
		func() error {
			return r.trips(ctx, workPong, &r.ourTrips, func() ([]time.Duration, error) {
				s := &r.sender
				src, dst := s.order.block(0, immSize)
				p := newPinger(r.eng, s.pool.Slice(src, immSize), s.remote.Slice(dst, immSize), immData, immAnswer, s.answered)
				s.answered += uint64(c.Pings)
				return p.ping(ctx, c.Pings)
			})
		},
		func() error {
			return r.trips(ctx, workEcho, &r.yardTrips, func() ([]time.Duration, error) { return ping(r.rw, message(c), c.Pings) })
		})
	if latency != nil {
		return latency
	}
	return alternate(round,
		func() error {
			s, err := r.sample(ctx, workRequest{workOurs, first, c.blocks()}, func() error { return r.sender.send(ctx, first) })
			r.row.Ours.Samples = append(r.row.Ours.Samples, s)
			return err
		},
		func() error {
			s, err := r.sample(ctx, workRequest{workDrain, 0, c.blocks()}, func() error { return flood(r.rw, message(c), c.blocks()) })
			r.row.Yard.Samples = append(r.row.Yard.Samples, s)
			return err
		})
}

func (r *run) trips(ctx context.Context, w work, to *trips, f func() ([]time.Duration, error)) error {
	s, err := r.sample(ctx, workRequest{w, 0, r.config.Pings}, func() error {
		ts, err := f()
		to.add(ts)
		return err
	})
	to.cpu = append(to.cpu, s.CPU)
	return err
}

// finish checks the content and computes the row.
func (r *run) finish(ctx context.Context) (Row, error) {
	c, row := r.config, &r.row
	row.Config = c
	row.Ours.Name, row.Yard.Name = "hawser "+c.Provider, yardPipe
	switch {
	case c.Provider == "tcp":
		row.Yard.Name = yardSocket
	case c.Kind != Imm:
		row.Yard.Name = yardMemcpy
	}
	row.Ours.finish(uint64(c.blocks())*c.Size, c.blocks())
	row.Yard.finish(uint64(c.blocks())*c.Size, c.blocks())
	throughput := spread(ratios(row.Ours.Samples, row.Yard.Samples))
	row.Ratio, row.RatioSpread = throughput.Median, throughput
	if c.Kind == Imm {
		row.Ours.Latency, row.Yard.Latency = r.ourTrips.latency(), r.yardTrips.latency()
		var rs []float64
		for i, ours := range r.ourTrips.rounds {
			rs = append(rs, ours/r.yardTrips.rounds[i])
		}
		row.RateRatio = row.Ratio
		row.RatioSpread = spread(rs)
		row.Ratio = row.RatioSpread.Median
	}
	if err := r.ask(ctx, msgVerify, r.moved, msgResult, &row.CorruptBytes); err != nil {
		return Row{}, err
	}
	if row.CorruptBytes > 0 {
		return *row, fmt.Errorf("bench: %s of %d bytes: %w: %d bytes of the receiver's memory are wrong", c.Kind, c.Size, ErrCorrupt, row.CorruptBytes)
	}
	return *row, nil
}

func pipePair() (ours, theirs pipes, err error) {
	there, out, err := os.Pipe()
	if err != nil {
		return ours, theirs, fmt.Errorf("bench: pipe of the yardstick: %w", err)
	}
	in, back, err := os.Pipe()
	if err != nil {
		return ours, theirs, errors.Join(fmt.Errorf("bench: pipe of the yardstick: %w", err), there.Close(), out.Close())
	}
	return pipes{in, out}, pipes{there, back}, nil
}
