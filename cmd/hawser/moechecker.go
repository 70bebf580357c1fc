package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/backend/cpu"
	"github.com/hawser-project/hawser/moe/moetest"
)

// Messages between hawser moe check and the processes of its ranks.
const (
	msgSetup = "setup" // to a rank, first
	msgOrder = "order" // to a rank
	msgSteps = "steps" // from a rank: how far it is
)

// activateLimit is how long a rank waits for the others to take part in a view.
const activateLimit = 20 * time.Second

// checkerSetup is what a rank is told first.
type checkerSetup struct {
	Provider    network
	Dir         string // where ranks meet
	Rank        int
	Shape       moetest.Shape
	Hidden      int
	DType       moe.DType
	Routing     string
	Seed        uint64
	StepTimeout time.Duration
}

// checkerOrder is what it is told then. What is zero says nothing.
type checkerOrder struct {
	Limit uint64    // the last step for now
	View  *moe.View // to take part in
	End   bool
}

// checkerSteps is how far a rank is.
type checkerSteps struct {
	Next     uint64 // step
	Epoch    uint32 // that is active; of a view that was tried in vain, if Stale
	Stale    bool   // it needs a new view
	Why      string
	Verified int // steps
	Partial  int // of them, without who was missing
	Lost     int // steps that ended early
	Missing  []int
	Wrong    moetest.Wrong
	Bytes    uint64 // written to other ranks
}

type (
	// moeCheckerCmd is the process of a rank.
	moeCheckerCmd struct{}

	// moeChecker does steps and checks them. Owned by the goroutine of Run, but for inbox.
	moeChecker struct {
		checkerSetup
		parent *proc.Parent
		inbox  inbox
		ref    *moetest.Ref
		draw   *moetest.Draw
		route  *moetest.Routing
		group  *moe.Group
		lane   *moe.Lane
		in     moe.Input
		out    moe.Output
		y, sum moe.Tensor
		bias   moe.Tensor
		handle *moe.Handle // of the step before, if its ids can be used again
		limit  uint64
		end    bool
		state  checkerSteps
		told   time.Time
	}
)

// Run serves hawser moe check.
func (moeCheckerCmd) Run(ctx context.Context) error {
	parent, ctx := proc.Attach(ctx)
	r := &moeChecker{parent: parent}
	err := r.run(ctx)
	if err != nil && !errors.Is(err, proc.ErrParentGone) {
		parent.Fail(err)
	}
	return err
}

func (r *moeChecker) run(ctx context.Context) (err error) {
	m, err := r.parent.Next(ctx)
	if err != nil {
		return err
	}
	if err := m.Decode(&r.checkerSetup); err != nil {
		return err
	}
	h := hostFlags{Rails: 1, Listen: "127.0.0.1:0"}
	o, err := h.options(ctx, fmt.Sprint("rank-", r.Rank), r.Provider)
	if err != nil {
		return err
	}
	eng, err := hawser.Open(ctx, o)
	if err != nil {
		return err
	}
	closing := func(f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, f(ctx))
	}
	defer closing(eng.Close)
	b, err := cpu.New(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := r.prepare(); err != nil {
		return err
	}
	// Orders may come while New waits for a view.
	reading, stop := context.WithCancel(ctx)
	var read sync.WaitGroup
	read.Go(func() { r.inbox.read(reading, r.parent) })
	defer read.Wait()
	defer stop()
	r.group, err = moe.New(ctx, eng, b, &moe.Dir{Path: r.Dir, Ranks: r.Shape.Ranks}, r.config())
	if err != nil {
		return err
	}
	defer closing(r.group.Close)
	r.lane = r.group.Lane(0)
	return r.serve(ctx)
}

// config has first chunks and chunks so small that most routings need some of each.
func (r *moeChecker) config() moe.Config {
	s := r.Shape
	chunk := max(1, s.Tokens*s.TopK/16)
	return moe.Config{
		MaxRanks: s.Ranks, Rank: r.Rank, MaxTokens: s.Tokens, Hidden: r.Hidden, TopK: s.TopK, Experts: s.Experts, In: r.DType, Wire: r.DType,
		ExpertAlign: r.ref.Align, FirstChunk: 2 * chunk, ChunkRecords: chunk, PoolRecords: 4 * chunk * s.Ranks, Lanes: 1, StepTimeout: r.StepTimeout,
	}
}

func (r *moeChecker) prepare() (err error) {
	d, err := moetest.ParseDist(r.Routing)
	if err != nil {
		return err
	}
	s := r.Shape
	if r.route, err = moetest.NewRouting(s); err != nil {
		return err
	}
	r.draw = moetest.NewDraw(d, r.Seed, true)
	r.ref = &moetest.Ref{Shape: s, Hidden: r.Hidden, Align: 4, In: r.DType, Wire: r.DType, Out: r.DType}
	rows := s.Ranks*s.Tokens*min(s.TopK, s.Local()) + s.Local()*r.ref.Align
	bytes := map[moe.DType]int{backend.F32: 4, backend.BF16: 2, backend.I32: 4}
	tensor := func(t moe.DType, rows, cols int) moe.Tensor {
		return moe.Tensor{Data: make([]byte, bytes[t]*rows*cols), Type: t, Shape: [3]int{0, rows, cols}}
	}
	r.in = moe.Input{
		X: tensor(r.DType, s.Tokens, r.Hidden), IDs: tensor(backend.I32, s.Tokens, s.TopK), Weights: tensor(backend.F32, s.Tokens, s.TopK),
	}
	r.out.X, r.y = tensor(r.DType, rows, r.Hidden), tensor(r.DType, rows, r.Hidden)
	r.sum, r.bias = tensor(r.DType, s.Tokens, r.Hidden), tensor(r.DType, s.Tokens, r.Hidden)
	return nil
}

// serve does steps as long as it may, and what it is told.
func (r *moeChecker) serve(ctx context.Context) error {
	for {
		idle := r.state.Stale || r.lane.Next() > r.limit
		if err := r.tell(idle); err != nil {
			return err
		}
		o, view, err := r.inbox.take(ctx, idle)
		if err != nil {
			return err
		}
		r.limit, r.end = max(r.limit, o.Limit), r.end || o.End
		switch {
		case r.end:
			return nil
		case view != nil:
			r.activate(ctx, *view)
		case !idle:
			if err := r.step(ctx); err != nil {
				return err
			}
		}
		if r.state.Wrong.Bytes > 0 {
			return r.tell(true)
		}
	}
}

// tellGap is how often the parent hears of progress.
const tellGap = 100 * time.Millisecond

// tell tells how far this rank is: now and then, or at once if it matters.
func (r *moeChecker) tell(matters bool) error {
	if now := time.Now(); matters || now.Sub(r.told) > tellGap {
		r.told = now
		r.state.Next = r.lane.Next()
		if !r.state.Stale {
			r.state.Epoch = r.group.View().Epoch
		}
		r.state.Bytes = 0
		for _, p := range r.group.Stats().Lanes[0].Peers {
			r.state.Bytes += p.Bytes
		}
		return r.parent.Send(msgSteps, r.state)
	}
	return nil
}

// activate takes part in a view. If it fails, a higher one is needed.
func (r *moeChecker) activate(ctx context.Context, v moe.View) {
	ctx, cancel := context.WithTimeout(ctx, activateLimit)
	defer cancel()
	defer r.inbox.interrupt(cancel)()
	r.handle = nil
	if _, err := r.group.Activate(ctx, v); err != nil && !errors.Is(err, hawser.ErrStale) {
		r.stale(v.Epoch, err)
		return
	}
	r.state.Stale, r.state.Missing = r.group.View().Epoch != v.Epoch, nil
}

// stale: a view after this one is needed.
func (r *moeChecker) stale(epoch uint32, why error) {
	r.state.Stale, r.state.Epoch, r.state.Why = true, epoch, why.Error()
	r.handle = nil
}

// step does one step and compares all of it.
func (r *moeChecker) step(ctx context.Context) error {
	step := r.lane.Next()
	opts := r.input(step)
	err := r.calls(ctx, step, opts)
	var failed *moe.StepError
	switch {
	case err == nil:
		r.state.Verified++
	case errors.As(err, &failed):
		r.state.Lost++
		r.stale(r.group.View().Epoch, err)
	case errors.Is(err, hawser.ErrStale):
		r.stale(r.group.View().Epoch, err)
	default:
		return fmt.Errorf("step %d: %w", step, err)
	}
	return nil
}

// reused is how often a step has the ids of the one before.
const reused = 5

// input makes what a step sends. Some steps have the ids of the one before.
func (r *moeChecker) input(step uint64) (opts []moe.Opt) {
	again := step%reused == 0
	if again {
		r.draw.Step(r.route, step-1)
		if r.handle != nil {
			opts = append(opts, moe.Reuse(r.handle))
		}
	} else {
		r.draw.Step(r.route, step)
	}
	n := r.route.N[r.Rank]
	r.in.N = n
	r.ref.Input(r.route, step, r.Rank, r.in.X.Data)
	ids, weights := r.route.Row(r.Rank)
	for i := range ids {
		binary.LittleEndian.PutUint32(r.in.IDs.Data[4*i:], uint32(ids[i]))
		binary.LittleEndian.PutUint32(r.in.Weights.Data[4*i:], math.Float32bits(weights[i]))
	}
	for _, t := range []*moe.Tensor{&r.in.X, &r.in.IDs, &r.in.Weights, &r.sum, &r.bias} {
		t.Shape[1] = n
	}
	moetest.Poison(r.out.X.Data)
	return opts
}

// calls are those of a step. Errors are the end of it.
func (r *moeChecker) calls(ctx context.Context, step uint64, opts []moe.Opt) error {
	p, err := r.lane.DispatchSend(ctx, &r.in, opts...)
	if err != nil {
		return err
	}
	h, err := r.receive(ctx, p, step)
	if h == nil {
		return err
	}
	c, err := h.CombineSend(ctx, r.y)
	if err != nil {
		return err
	}
	s, n := moetest.SumOf(step), r.route.N[r.Rank]
	r.ref.Before(step, r.Rank, n, r.sum.Data)
	o := moe.CombineOpts{Accumulate: s.Accumulate}
	if s.Bias {
		r.ref.Bias(step, r.Rank, n, r.bias.Data)
		o.Bias = []moe.Tensor{r.bias}
	}
	return r.summed(step, c.Recv(ctx, r.sum, o), h)
}

// summed compares the sums. With a PartialError tokens that it does not name have their whole sum, the others the sum without who is missing.
func (r *moeChecker) summed(step uint64, err error, h *moe.Handle) error {
	var partial *moe.PartialError
	outside := r.outside()
	r.handle = h
	switch {
	case errors.As(err, &partial):
		r.wrong(r.ref.CheckCombine(r.route, step, r.Rank, r.sum.Data, outside, partial.Tokens.Has))
		r.state.Partial++
		r.state.Missing = partial.Missing
		r.stale(partial.View, err)
		r.wrong(r.ref.CheckCombine(r.route, step, r.Rank, r.sum.Data, func(rank int) bool {
			return outside(rank) || slices.Contains(partial.Missing, rank)
		}, nil))
	case err != nil:
		return err
	default:
		r.wrong(r.ref.CheckCombine(r.route, step, r.Rank, r.sum.Data, outside, nil))
	}
	return nil
}

// outside are the ranks that are no members.
func (r *moeChecker) outside() moetest.Gone {
	v := r.group.View()
	if len(v.Members) == r.Shape.Ranks {
		return func(int) bool { return false }
	}
	return func(rank int) bool {
		return !slices.ContainsFunc(v.Members, func(m moe.Member) bool { return m.Rank == rank })
	}
}

func (r *moeChecker) wrong(w moetest.Wrong) {
	if w.Bytes > 0 && r.state.Wrong.Bytes == 0 {
		fmt.Fprintln(os.Stderr, w.First)
		r.state.Wrong.First = w.First
	}
	r.state.Wrong.Bytes += w.Bytes
}

// chunked is how many of so many steps are received in chunks in any case.
const chunked = 7

// receive takes the rows of a step, whole or in chunks, compares them and lets the experts work. The handle is nil if the step has ended.
func (r *moeChecker) receive(ctx context.Context, p *moe.Pending, step uint64) (*moe.Handle, error) {
	chunks := (step+uint64(r.Rank))%chunked == 0
	if !chunks {
		h, err := p.Recv(ctx, &r.out)
		var partial *moe.PartialError
		switch {
		case errors.Is(err, hawser.ErrLimit) && h == nil && !isStepError(err):
			chunks = true
		case err != nil && !errors.As(err, &partial):
			return nil, err
		default:
			r.wrong(r.ref.CheckDispatch(r.route, step, r.Rank, h.Counts(), h.Offsets(), r.out.X.Data, r.outside(), missing(partial)))
			r.ref.Compute(r.Rank, h.Counts(), h.Offsets(), r.out.X.Data, r.y.Data)
			return h, nil
		}
	}
	tally := r.ref.NewTally(r.route, step, r.Rank)
	for c, err := range p.Chunks(ctx, &r.out) {
		if err != nil {
			return nil, err
		}
		r.wrong(tally.Chunk(c.Counts(), c.Offsets(), r.out.X.Data))
		r.ref.Compute(r.Rank, c.Counts(), c.Offsets(), r.out.X.Data, r.y.Data)
		if err := c.Combine(r.y); err != nil {
			return nil, err
		}
	}
	h, err := p.Handle()
	var partial *moe.PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	r.wrong(tally.Done(r.outside(), missing(partial)))
	return h, nil
}

func isStepError(err error) bool {
	var failed *moe.StepError
	return errors.As(err, &failed)
}

func missing(p *moe.PartialError) []int {
	if p == nil {
		return nil
	}
	return p.Missing
}

// inbox is what the parent has said and nobody has looked at yet. One goroutine reads, another takes.
type inbox struct {
	mu     sync.Mutex
	order  checkerOrder // the sum of all that came
	view   *moe.View
	err    error
	cancel func() // of what a new view interrupts
	bell   chan struct{}
}

func (b *inbox) ring() chan struct{} {
	if b.bell == nil {
		b.bell = make(chan struct{}, 1)
	}
	return b.bell
}

// read reads until the parent is gone.
func (b *inbox) read(ctx context.Context, parent *proc.Parent) {
	for {
		m, err := parent.Next(ctx)
		var o checkerOrder
		if err == nil {
			err = m.Decode(&o)
		}
		b.mu.Lock()
		b.order.Limit, b.order.End, b.err = max(b.order.Limit, o.Limit), b.order.End || o.End, err
		if o.View != nil {
			b.view = o.View
			if b.cancel != nil {
				b.cancel()
			}
		}
		select {
		case b.ring() <- struct{}{}:
		default:
		}
		over := err != nil || b.order.End
		b.mu.Unlock()
		if over {
			return
		}
	}
}

// interrupt has f called when a view comes, until the function that it returns is.
func (b *inbox) interrupt(f func()) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.view != nil {
		f()
	}
	b.cancel = f
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.cancel = nil
	}
}

// take takes what has come, and waits for something if wait.
func (b *inbox) take(ctx context.Context, wait bool) (o checkerOrder, v *moe.View, err error) {
	b.mu.Lock()
	bell := b.ring()
	b.mu.Unlock()
	if wait {
		select {
		case <-bell:
		case <-ctx.Done():
			return o, nil, context.Cause(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	v, b.view = b.view, nil
	return b.order, v, b.err
}
