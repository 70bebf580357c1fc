package moebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/backend/cpu"
	"github.com/hawser-project/hawser/provider"
)

// setup is what a rank is told first.
type setup struct {
	Provider string
	Rank     int
	Shape    Shape
	Routing  string // path
	Dir      string // where the ranks meet
}

// order is everything that it is asked afterwards.
type order struct {
	Kind  string // run
	Warm  int
	Steps int
}

// Kinds of runs.
const (
	kindStep     = "step"
	kindExchange = "exchange"
	kindStages   = "stages"
	kindFloor    = "floor"
)

// answer is what it answers.
type answer struct {
	Dispatch []float64 // microseconds of each step
	Combine  []float64
	CPU      float64 // seconds
	Posts    uint64
	Bytes    uint64 // to other ranks
	Wrong    int64
}

const (
	joinLimit  = time.Minute
	closeLimit = 20 * time.Second
	silence    = 10 * time.Second // after which a rank counts as dead: others may keep this machine busy
)

// member is a rank. Owned by the goroutine of Serve.
type member struct {
	setup
	eng   *hawser.Engine
	gate  *gate
	b     *switched
	group *moe.Group
	lane  *moe.Lane
	work  *work
	floor floor
}

// Serve is the main function of a process of a rank.
func Serve(ctx context.Context) error {
	p, ctx := proc.Attach(ctx)
	m := &member{}
	for {
		msg, err := p.Next(ctx)
		if errors.Is(err, proc.ErrParentGone) {
			return m.close()
		}
		var a answer
		if err == nil {
			a, err = m.do(ctx, msg)
		}
		if err != nil {
			p.Fail(err)
			return errors.Join(err, m.close())
		}
		if err := p.Send("done", a); err != nil {
			return errors.Join(err, m.close())
		}
	}
}

func (m *member) do(ctx context.Context, msg proc.Message) (a answer, err error) {
	if msg.Kind == "setup" {
		if err := msg.Decode(&m.setup); err != nil {
			return a, err
		}
		return a, m.start(ctx)
	}
	var o order
	if err := msg.Decode(&o); err != nil {
		return a, err
	}
	switch msg.Kind {
	case "run":
		return m.run(ctx, o)
	case "verify":
		a.Wrong, err = m.verify(ctx)
		return a, err
	default:
		return a, fmt.Errorf("moebench: %w: order %q", hawser.ErrInvalid, msg.Kind)
	}
}

// start opens the engine, makes the group, and does the first step. A rank has its share of the processors, as those of the peers do: with more
// threads than that, each wake of one takes the processor from another rank, and a step of 1 KiB for each pair takes ten times as long (two
// ranks, two cores).
func (m *member) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/m.Shape.Ranks))
	}
	p, err := bench.Provider(m.Provider)
	if err != nil {
		return err
	}
	if m.gate, err = openGate(m.Shape.Ranks); err != nil {
		return err
	}
	m.eng, err = hawser.Open(ctx, hawser.Options{
		Name: fmt.Sprint("rank-", m.Rank), Providers: []provider.Provider{p}, Require: m.Provider, Rails: []hawser.Rail{{Provider: m.Provider}},
		PeerTimeout: silence,
	})
	if err != nil {
		return err
	}
	s := m.Shape
	s.Routing = m.setup.Routing
	r, err := s.read()
	if err != nil {
		return err
	}
	c, err := s.Config()
	if err != nil {
		return err
	}
	l := loadOf(r, 0)
	c.Rank, c.MaxRecv = m.Rank, max(l.most(), 1)
	procs, err := cpu.New(0)
	if err != nil {
		return err
	}
	m.b = &switched{Backend: procs}
	if m.group, err = moe.New(ctx, m.eng, m.b, &moe.Dir{Path: m.Dir, Ranks: s.Ranks}, c); err != nil {
		return err
	}
	m.lane = m.group.Lane(0)
	m.work = newWork(r, c, m.b.lane.cfg, l.all[m.Rank])
	m.floor = newFloor(&l, m.b.lane.cfg)
	m.b.lane.mode = record
	_, _, err = m.step(ctx)
	m.work.experts(m.b.lane.cfg)
	return err
}

// step does one, from the release of the barrier on.
func (m *member) step(ctx context.Context) (dispatch, combine time.Duration, err error) {
	if err := m.gate.pass(ctx); err != nil {
		return 0, 0, err
	}
	w := m.work
	began := time.Now()
	p, err := m.lane.DispatchSend(ctx, &w.in)
	if err != nil {
		return 0, 0, err
	}
	h, err := p.Recv(ctx, &w.out)
	if err != nil {
		return 0, 0, err
	}
	between := time.Now()
	c, err := h.CombineSend(ctx, w.y)
	if err != nil {
		return 0, 0, err
	}
	err = c.Recv(ctx, w.sum, moe.CombineOpts{})
	return between.Sub(began), time.Since(between), err
}

// run does steps of a kind.
func (m *member) run(ctx context.Context, o order) (a answer, err error) {
	do := m.step
	switch o.Kind {
	case kindStep:
		m.b.lane.mode = whole
	case kindExchange:
		m.b.lane.mode = bare
	case kindStages:
		do = m.after(m.b.lane.stages)
	case kindFloor:
		do = m.after(m.floor.copy)
	default:
		return a, fmt.Errorf("moebench: %w: kind of run %q", hawser.ErrInvalid, o.Kind)
	}
	a.Dispatch, a.Combine = make([]float64, 0, o.Steps), make([]float64, 0, o.Steps)
	var used float64
	var before moe.LaneStats
	for i := -o.Warm; i < o.Steps; i++ {
		if i == 0 {
			used, before = processor(), m.lane.Stats()
		}
		d, c, err := do(ctx)
		if err != nil {
			return a, err
		}
		if i >= 0 {
			a.Dispatch, a.Combine = append(a.Dispatch, micros(d)), append(a.Combine, micros(c))
		}
	}
	a.CPU = processor() - used
	after := m.lane.Stats()
	a.Posts = after.Posts - before.Posts
	for i := range after.Peers {
		a.Bytes += after.Peers[i].Bytes - before.Peers[i].Bytes
	}
	return a, nil
}

// after has something done when all ranks are there.
func (m *member) after(do func() (d, c time.Duration, err error)) func(context.Context) (d, c time.Duration, err error) {
	return func(ctx context.Context) (d, c time.Duration, err error) {
		if err := m.gate.pass(ctx); err != nil {
			return 0, 0, err
		}
		return do()
	}
}

// verify counts wrong bytes: of a whole step over poisoned memory, and of an exchange over poisoned regions.
func (m *member) verify(ctx context.Context) (wrong int64, err error) {
	m.work.poison()
	m.b.lane.bad = 0
	for _, x := range []mode{record, poison, check} {
		m.b.lane.mode = x
		if _, _, err := m.step(ctx); err != nil {
			return 0, err
		}
		if x == record {
			wrong = m.work.wrong()
		}
	}
	return wrong + m.b.lane.bad, nil
}

func (m *member) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var errs []error
	if m.group != nil {
		errs = append(errs, m.group.Close(ctx))
	}
	if m.eng != nil {
		errs = append(errs, m.eng.Close(ctx))
	}
	if m.b != nil {
		errs = append(errs, m.b.Close())
	}
	if m.gate != nil {
		errs = append(errs, m.gate.close())
	}
	return errors.Join(errs...)
}

// processor is the user and system time of this process, seconds.
func processor() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
