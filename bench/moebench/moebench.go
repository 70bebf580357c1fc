package moebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/moetest"
)

// Config says how a benchmark is run.
type Config struct {
	Provider string
	Shape    Shape
	Seed     uint64
	Rounds   int // that count, after one that does not
	Warm     int // steps of a run that do not count
	Steps    int // that do

	Child  proc.Spec    // of a rank, which calls Serve
	Env    *versus.Env  // of the peers; nil without
	Peers  []string     // of versus.Exchangers
	Python string       // that has torch
	Tell   func(string) // progress; may be nil
}

// world is a process for each rank, and one for each peer. Owned by one goroutine, which closes it.
type world struct {
	c     *Config
	dir   string
	gate  *mem.Span
	ranks []*proc.Child
	peers []*rival
	load  load

	samples  map[string]*Distribution
	posts    uint64
	bytes    uint64
	verified int
	wrong    int64
}

// rival is a peer, or why there is none.
type rival struct {
	Peer
	x            *versus.Exchanger
	ratio, steps []float64
}

// Measured are the names of a Report's samples, in order: times of whole steps and of their parts, and of the kinds of runs beside them.
func Measured() []string { return slices.Clone(measured) }

var measured = []string{"dispatch", "combine", kindStep, kindExchange, kindStages, kindFloor, "dispatch_floor", "combine_floor"}

// Run runs a benchmark: rounds in which ours and the peers take their turns, in an order that rotates.
func Run(ctx context.Context, c Config) (r *Report, err error) {
	if c.Rounds < 1 || c.Steps < 1 || c.Warm < 0 {
		return nil, fmt.Errorf("moebench: %w: %d rounds of %d steps", hawser.ErrInvalid, c.Rounds, c.Steps)
	}
	if c.Tell == nil {
		c.Tell = func(string) {}
	}
	w := &world{c: &c, samples: map[string]*Distribution{}}
	for _, name := range measured {
		w.samples[name] = &Distribution{}
	}
	defer func() { err = errors.Join(err, w.close()) }()
	routing, err := c.Shape.NewRouting(c.Seed)
	if err != nil {
		return nil, err
	}
	sizes, err := w.open(ctx, routing)
	if err != nil {
		return nil, err
	}
	for round := range 1 + c.Rounds {
		if err := w.round(ctx, round); err != nil {
			return nil, err
		}
	}
	return w.report(sizes), nil
}

// open starts all processes.
func (w *world) open(ctx context.Context, routing *moetest.Routing) (*moe.SizeReport, error) {
	c := w.c
	config, err := c.Shape.Config()
	if err != nil {
		return nil, err
	}
	l := loadOf(routing, 0)
	config.MaxRecv = max(l.most(), 1)
	sizes, err := moe.Sizes(config)
	if err != nil {
		return nil, err
	}
	w.load = loadOf(routing, sizes.Layout.FirstChunk)
	if w.dir, err = os.MkdirTemp("", "hawser-moebench-"); err != nil {
		return nil, err
	}
	path := filepath.Join(w.dir, "routing")
	if err := writeRouting(path, routing); err != nil {
		return nil, err
	}
	meet := filepath.Join(w.dir, "meet")
	if err := os.Mkdir(meet, 0o700); err != nil {
		return nil, err
	}
	c.Tell("starting the ranks")
	var door *os.File
	if w.gate, door, err = newGate(); err != nil {
		return nil, err
	}
	defer door.Close()
	child := c.Child
	child.Files = []*os.File{door}
	for rank := range c.Shape.Ranks {
		child, err := proc.Start(child)
		if err != nil {
			return nil, err
		}
		w.ranks = append(w.ranks, child)
		if err := child.Send("setup", setup{Provider: c.Provider, Rank: rank, Shape: c.Shape, Routing: path, Dir: meet}); err != nil {
			return nil, err
		}
	}
	if _, err := w.gather(ctx); err != nil {
		return nil, err
	}
	transport := c.Provider
	for _, name := range c.Peers {
		c.Tell("preparing " + name)
		p := &rival{Peer: Peer{Name: name}}
		w.peers = append(w.peers, p)
		x, err := versus.NewExchanger(ctx, c.Env, name, transport, c.Python, versus.Alltoall{
			Ranks: c.Shape.Ranks, Routing: path, Dispatch: sizes.Layout.Dispatch, Combine: sizes.Layout.Combine,
		})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			p.Why = err.Error()
			continue
		}
		p.x, p.Version, p.Settings = x, x.Version, x.Settings
	}
	return &sizes, nil
}

func writeRouting(path string, r *moetest.Routing) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(r.Write(f), f.Close())
}

// round has everybody take a turn. Ours are of four kinds; ratios are to the exchange, and to the whole steps, of the same round.
func (w *world) round(ctx context.Context, round int) error {
	times := map[string]float64{}
	var turns []func() error
	for _, kind := range []string{kindStep, kindExchange, kindStages, kindFloor} {
		turns = append(turns, func() error { return w.ours(ctx, kind, round, times) })
	}
	for i, p := range w.peers {
		if p.x != nil { // between ours
			turns = slices.Insert(turns, 1+2*i, func() error { return w.theirs(ctx, p, round, times) })
		}
	}
	for i := range turns {
		if err := turns[(i+round)%len(turns)](); err != nil {
			return err
		}
	}
	a, err := w.ask(ctx, "verify", order{})
	if err != nil {
		return err
	}
	bad := int64(0)
	for _, x := range a {
		bad += x.Wrong
	}
	if w.wrong += bad; bad == 0 {
		w.verified++
	}
	for _, p := range w.peers {
		if their, ok := times[p.Name]; ok && round > 0 {
			p.ratio = append(p.ratio, times[kindExchange]/their)
			p.steps = append(p.steps, times[kindStep]/(times[kindStages]+their))
		}
	}
	return nil
}

func (w *world) tell(what string, round int) {
	w.c.Tell(fmt.Sprintf("round %d of %d: %s", round+1, 1+w.c.Rounds, what))
}

// ours does a run of one kind.
func (w *world) ours(ctx context.Context, kind string, round int, times map[string]float64) error {
	w.tell(kind, round)
	all, err := w.ask(ctx, "run", order{Kind: kind, Warm: w.c.Warm, Steps: w.c.Steps})
	if err != nil {
		return err
	}
	d, c, sum := make([]float64, w.c.Steps), make([]float64, w.c.Steps), make([]float64, w.c.Steps)
	var cpu float64
	var bytes, posts uint64
	for _, a := range all {
		for i := range sum {
			d[i], c[i], sum[i] = max(d[i], a.Dispatch[i]), max(c[i], a.Combine[i]), max(sum[i], a.Dispatch[i]+a.Combine[i])
		}
		cpu, bytes, posts = cpu+a.CPU, bytes+a.Bytes, posts+a.Posts
	}
	times[kind] = quantile(sum, 0.5)
	if round == 0 {
		return nil
	}
	w.samples[kind].add(sum, cpu, w.gibibytes())
	switch kind {
	case kindStep:
		w.samples["dispatch"].add(d, 0, 0)
		w.samples["combine"].add(c, 0, 0)
		w.bytes, w.posts = w.bytes+bytes, w.posts+posts
	case kindFloor:
		w.samples["dispatch_floor"].add(d, 0, 0)
		w.samples["combine_floor"].add(c, 0, 0)
	}
	return nil
}

// gibibytes are the rows that a run of steps moves between all ranks.
func (w *world) gibibytes() float64 {
	n := 0
	for i := range w.load.out {
		n += w.load.out[i]
	}
	l := w.c.Shape.Hidden
	row := 2*l + 2*l
	if w.c.Shape.DType == "fp8" {
		row = l + 2*l
	}
	return float64(n*row*w.c.Steps) / (1 << 30)
}

func (w *world) theirs(ctx context.Context, p *rival, round int, times map[string]float64) error {
	w.tell(p.Name, round)
	x, err := p.x.Run(ctx, w.c.Warm, w.c.Steps)
	if err == nil {
		err = p.x.Verify(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.Why = err.Error()
		p.x.Close()
		p.x = nil
		return nil
	}
	times[p.Name] = quantile(x.Whole, 0.5)
	if round > 0 {
		p.Exchange.add(x.Whole, x.CPU, w.gibibytes())
	}
	return nil
}

// ask gives all ranks an order and waits for their answers.
func (w *world) ask(ctx context.Context, kind string, o order) ([]answer, error) {
	for _, c := range w.ranks {
		if err := c.Send(kind, o); err != nil {
			return nil, err
		}
	}
	return w.gather(ctx)
}

func (w *world) gather(ctx context.Context) (all []answer, err error) {
	for _, c := range w.ranks {
		m, err := c.Next(ctx)
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("a rank's process has ended: %w", c.Err())
		}
		if err != nil {
			return nil, err
		}
		var a answer
		if err := m.Decode(&a); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func (w *world) close() error {
	var errs []error
	for _, p := range w.peers {
		if p.x != nil {
			p.x.Close()
		}
	}
	for _, c := range w.ranks {
		c.End()
	}
	for _, c := range w.ranks {
		errs = append(errs, c.Stop(closeLimit))
	}
	if w.gate != nil {
		errs = append(errs, w.gate.Free())
	}
	if w.dir != "" {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(errs...)
}

// add adds a round.
func (d *Distribution) add(us []float64, cpu, gib float64) {
	d.all = append(d.all, us...)
	d.rounds = append(d.rounds, quantile(us, 0.5))
	if gib > 0 {
		d.cpu = append(d.cpu, cpu/gib)
	}
}

func (d *Distribution) finish() {
	if len(d.all) == 0 {
		return
	}
	slices.Sort(d.all)
	d.Min, d.P50, d.P90, d.P99 = d.all[0], quantile(d.all, 0.5), quantile(d.all, 0.9), quantile(d.all, 0.99)
	d.Rounds, d.CPU = bench.SpreadOf(d.rounds), bench.SpreadOf(d.cpu).Median
}

// quantile of values in any order.
func quantile(of []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(of))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func (w *world) report(sizes *moe.SizeReport) *Report {
	for _, d := range w.samples {
		d.finish()
	}
	n, c := float64(w.c.Shape.Ranks), w.c
	steps := c.Rounds * c.Steps
	p50 := func(name string) *float64 { return &w.samples[name].Rounds.Median }
	r := &Report{
		Schema: Schema, Provider: c.Provider, Shape: c.Shape, Routing: c.Shape.Routing, Seed: c.Seed, Rounds: c.Rounds, Samples: w.samples, Sizes: sizes,
		Row: &Row{
			Ranks: c.Shape.Ranks, Steps: steps, VerifiedSteps: &w.verified, MismatchedBytes: &w.wrong,
			Dispatch: p50("dispatch"), Combine: p50("combine"), Step: p50(kindStep), Exchange: p50(kindExchange),
			Bytes: float64(w.bytes) / n / float64(steps), Posts: float64(w.posts) / n / float64(steps), Overflow: float64(w.load.over) / n,
			Floor: *p50(kindFloor), DispatchFloor: *p50("dispatch_floor"), CombineFloor: *p50("combine_floor"), Memory: sizes.Regions.Total(),
		},
	}
	for _, p := range w.peers {
		p.Exchange.finish()
		p.Ratio, p.Step = bench.SpreadOf(p.ratio), bench.SpreadOf(p.steps)
		r.Peers = append(r.Peers, p.Peer)
		if len(p.ratio) == 0 {
			continue
		}
		switch p.Name {
		case "mpi":
			r.RatioMPI, r.StepRatioMPI = &p.Ratio.Median, &p.Step.Median
		case "gloo":
			r.RatioGloo = &p.Ratio.Median
		}
	}
	return r
}
