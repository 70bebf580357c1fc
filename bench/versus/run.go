package versus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	// DefaultRounds is odd, so that the median is a sample.
	DefaultRounds = 7
	// DefaultCongestion is the congestion control of all sockets: what Hawser takes on loopback.
	DefaultCongestion = "cubic"

	// A driver that takes longer is hung.
	openLimit = 2 * time.Minute
	runLimit  = time.Minute
)

// Config says what to compare. Zero fields take their defaults.
type Config struct {
	Cases      []Case
	Peers      []Peer // without ours
	Rounds     int    // default DefaultRounds
	Seed       uint64 // of the order of the blocks
	Congestion string // default DefaultCongestion

	// Progress is called before each step, and may be nil.
	Progress func(c Case, step string)

	openLimit, runLimit time.Duration // for tests
}

func (c Config) withDefaults() Config {
	if c.Rounds == 0 {
		c.Rounds = DefaultRounds
	}
	if c.Congestion == "" {
		c.Congestion = DefaultCongestion
	}
	if c.Progress == nil {
		c.Progress = func(Case, string) {}
	}
	if c.openLimit == 0 {
		c.openLimit, c.runLimit = openLimit, runLimit
	}
	return c
}

// Run measures all cases, one after the other, and calls each with its result. A peer that fails is a row that says why; the
// error is about everything else: the context, or ours.
func Run(ctx context.Context, c Config, env *Env, each func(Result) error) error {
	c = c.withDefaults()
	for _, k := range c.Cases {
		if err := k.check(); err != nil {
			return err
		}
	}
	for _, k := range c.Cases {
		r, err := c.measure(ctx, k, env)
		if err != nil {
			return err
		}
		if err := each(r); err != nil {
			return err
		}
	}
	return nil
}

// entry is a driver in a case. process is nil when it has failed, or does not run any more.
type entry struct {
	row     Row
	blind   bool
	process *process
}

// fail ends a driver and notes why.
func (e *entry) fail(err error) {
	e.row.Why = oneLine(err.Error())
	if e.process != nil {
		e.process.end(true)
		e.process = nil
	}
}

// measure runs one case.
func (c Config) measure(ctx context.Context, k Case, env *Env) (Result, error) {
	order := filepath.Join(env.dir, "order")
	if err := writeOrder(order, int(k.slots()), c.Seed); err != nil {
		return Result{}, err
	}
	defer func() { _ = os.Remove(order) }()
	entries := c.open(ctx, k, env, order)
	defer func() {
		for _, e := range entries {
			if e.process != nil {
				e.process.end(ctx.Err() != nil)
			}
		}
	}()
	// The first round does not count.
	for round := range c.Rounds + 1 {
		c.Progress(k, fmt.Sprintf("round %d of %d", round, c.Rounds))
		for i := range entries {
			e := entries[(i+round)%len(entries)]
			if e.process == nil {
				continue
			}
			if err := c.sample(ctx, k, e, round); err != nil {
				e.fail(err)
			}
			if ctx.Err() != nil {
				return Result{}, context.Cause(ctx)
			}
		}
	}
	c.Progress(k, "verifying")
	for _, e := range entries {
		c.verify(ctx, k, e)
	}
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	r := Result{Case: k}
	for _, e := range entries {
		r.Rows = append(r.Rows, e.row)
	}
	ours := &r.Rows[0]
	if ours.Why != "" {
		ours = nil
	}
	k.finish(r.Rows, ours)
	return r, nil
}

// open starts all drivers that do a case, ours first.
func (c Config) open(ctx context.Context, k Case, env *Env, order string) []*entry {
	o := &Opening{
		Scenario: k.Scenario, Transport: k.Path, Size: k.Size, Pool: k.Pool, Count: k.Count, Depth: k.Depth, Batch: k.Batch,
		Pings: k.Pings, Order: order, Seed: c.Seed, Congestion: c.Congestion, Foreign: k.Foreign,
	}
	entries := []*entry{{row: Row{Peer: Ours}}}
	commands := []func() (command, error){func() (command, error) { return env.self(Ours), nil }}
	for _, p := range c.Peers {
		if p.Cases(k) {
			entries = append(entries, &entry{row: Row{Peer: p.Name, Beside: p.Beside}, blind: p.Blind})
			commands = append(commands, func() (command, error) { return env.command(ctx, p, k, c.Congestion) })
		}
	}
	for i, e := range entries {
		c.Progress(k, "preparing "+e.row.Peer)
		cmd, err := commands[i]()
		if err == nil {
			e.process, err = start(e.row.Peer, cmd)
		}
		var a reply
		if err == nil {
			a, err = e.process.ask(ctx, request{Op: opOpen, Opening: o}, c.openLimit)
		}
		if err != nil {
			e.fail(err)
			continue
		}
		e.row.Version, e.row.Settings = a.Version, a.Settings
		e.process.pause()
	}
	return entries
}

// sample runs one sample of one driver. All others are stopped.
func (c Config) sample(ctx context.Context, k Case, e *entry, round int) error {
	first := uint64(round) * uint64(k.Count)
	e.process.resume()
	a, err := e.process.ask(ctx, request{Op: opRun, First: &first}, c.runLimit)
	e.process.pause()
	if err != nil {
		return err
	}
	if !(a.Seconds > 0 && a.CPU >= 0) || k.Scenario == Latency && !(a.P50 > 0) {
		return fmt.Errorf("run: %v s, %v s of processor time and a latency of %v us are no measurement", a.Seconds, a.CPU, a.P50)
	}
	if round > 0 {
		e.row.Samples = append(e.row.Samples, Sample{Round: round, Seconds: a.Seconds, CPU: a.CPU, P50: a.P50, P99: a.P99, P999: a.P999})
	}
	return nil
}

// errCorrupt: the receiver's memory does not hold what was sent.
var errCorrupt = errors.New("content differs")

// verify checks what is in the receiver's memory, and ends the driver.
func (c Config) verify(ctx context.Context, k Case, e *entry) {
	if e.process == nil {
		return
	}
	e.process.resume()
	if k.Scenario == Pages && !e.blind {
		moved := uint64(c.Rounds+1) * uint64(k.Count)
		a, err := e.process.ask(ctx, request{Op: opVerify, Moved: &moved}, c.runLimit)
		e.row.CorruptBytes = a.Corrupt
		if err == nil && a.Corrupt > 0 {
			err = fmt.Errorf("%w: %d bytes of the receiver's memory are wrong", errCorrupt, a.Corrupt)
		}
		if err != nil {
			e.fail(err)
			return
		}
	}
	e.process.end(false)
	e.process = nil
}
