package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/provider"
)

// CrowdConfig says which crowd of idle peers to measure. Provider is required.
type CrowdConfig struct {
	Provider string        `json:"provider"`
	Peers    int           `json:"peers"` // DefaultPeers when 0
	Rest     time.Duration `json:"rest"`  // how long they are watched when all are connected; DefaultRest when 0
}

const (
	// DefaultPeers is more than any engine of today's clusters has.
	DefaultPeers = 1000
	// DefaultRest lets each peer send its rare beats twice.
	DefaultRest = 21 * time.Second

	maxCrowd = 10_000

	// settleTime is what comes between the last connection and the rest: peers are watched closely when they are new.
	settleTime = 12 * time.Second

	// crowdHolders is over how many processes the peers are spread, unless their descriptors need more.
	crowdHolders = 4
	// dialsAtOnce of all processes together stay below what a listener serves at once.
	dialsAtOnce = 8

	// Descriptors, measured: of an engine with one rail and nobody connected, of a connection on either side, and of a process.
	fdsOfEngine  = 16
	fdsOfPeer    = 3
	fdsOfProcess = 32
)

// Usage is what a process holds and has used. Sizes are in bytes.
type Usage struct {
	RSS        uint64  `json:"rss"`         // every page that it has mapped, shared ones in full
	PSS        uint64  `json:"pss"`         // shared pages by their share
	Private    uint64  `json:"private"`     // pages of its own
	Shared     uint64  `json:"shared"`      // mapped pages of shared memory, in full
	Heap       uint64  `json:"heap"`        // live objects of the Go heap
	Stacks     uint64  `json:"stacks"`      // of goroutines
	Goroutines int     `json:"goroutines"`  //
	FDs        int     `json:"descriptors"` // open ones
	Mappings   int     `json:"mappings"`    //
	CPU        float64 `json:"cpu_s"`       // user and system
	Kernel     uint64  `json:"kernel"`      // of the machine: slabs and page tables, sockets among them
}

// CrowdRow is the outcome of one crowd, seen from the one engine that all others are connected to.
type CrowdRow struct {
	Config  CrowdConfig `json:"config"`
	Holders int         `json:"holders"`   // processes that the others are in
	Connect float64     `json:"connect_s"` // from the first dial until all are up
	Slowest float64     `json:"slowest_s"` // connection, as its dialer saw it
	Before  Usage       `json:"before"`    // without peers
	After   Usage       `json:"after"`     // with them, at rest
	CPU     float64     `json:"cpu"`       // share of a core at rest
}

// Fault is what is wrong with a config, nil when nothing is.
func (c CrowdConfig) Fault() error {
	_, err := c.withDefaults()
	return err
}

func (c CrowdConfig) withDefaults() (CrowdConfig, error) {
	if c.Peers == 0 {
		c.Peers = DefaultPeers
	}
	if c.Rest == 0 {
		c.Rest = DefaultRest
	}
	switch {
	case c.Peers < 1 || c.Peers > maxCrowd:
		return c, fmt.Errorf("bench: %d peers, want 1 .. %d", c.Peers, maxCrowd)
	case c.Rest < time.Second:
		return c, fmt.Errorf("bench: a rest of %v is too short to measure: at least 1s", c.Rest)
	}
	_, err := Provider(c.Provider)
	return c, err
}

// holders is how many processes the peers need, and an error when one process cannot have all connections.
func (c CrowdConfig) holders() (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("bench: getrlimit: %w", err)
	}
	return c.holdersFor(r.Max) // the Go runtime raises the soft limit to it
}

func (c CrowdConfig) holdersFor(limit uint64) (int, error) {
	if need := uint64(fdsOfProcess + fdsOfEngine + c.Peers*fdsOfPeer); need > limit {
		return 0, fmt.Errorf("bench: %d peers need %d descriptors in one process, RLIMIT_NOFILE allows %d: raise it (ulimit -Hn %d, "+
			"LimitNOFILE=%d in a systemd unit), or ask for at most %d peers", c.Peers, need, limit, need, need, (limit-min(limit, fdsOfProcess+fdsOfEngine))/fdsOfPeer)
	}
	each := (int(min(limit, 1<<20)) - fdsOfProcess) / (fdsOfEngine + fdsOfPeer)
	return min(max(crowdHolders, (c.Peers+each-1)/each), c.Peers), nil
}

// Messages of a crowd: each request is answered by one of the same kind.
const (
	msgCenter = "center" // CrowdConfig -> crowdCenter: be the engine that is counted
	msgHold   = "hold"   // crowdHold -> crowdHeld: be some of the others
	msgRest   = "rest"   // CrowdConfig -> crowdRest
)

type crowdCenter struct {
	Addr  string `json:"addr"`
	Usage Usage  `json:"usage"`
}

type crowdHold struct {
	Config CrowdConfig `json:"config"`
	Addr   string      `json:"addr"`
	Count  int         `json:"count"`
	AtOnce int         `json:"at_once"`
}

type crowdHeld struct {
	Slowest float64 `json:"slowest_s"`
}

type crowdRest struct {
	Usage Usage   `json:"usage"`
	CPU   float64 `json:"cpu"`
}

// Crowd measures what idle peers cost the engine that they are connected to. spec starts the processes, which must call ServeCrowd;
// progress is told what happens, and may be nil.
func Crowd(ctx context.Context, c CrowdConfig, spec proc.Spec, progress func(what string)) (row CrowdRow, err error) {
	if c, err = c.withDefaults(); err != nil {
		return CrowdRow{}, err
	}
	row = CrowdRow{Config: c}
	if row.Holders, err = c.holders(); err != nil {
		return CrowdRow{}, err
	}
	if progress == nil {
		progress = func(string) {}
	}
	var children []*proc.Child
	defer func() {
		for _, child := range slices.Backward(children) { // the counted one, which was first, last
			err = joinEnd(err, child.Stop(crowdGrace))
		}
	}()
	start := func(name string) (*proc.Child, error) {
		spec.Name = name
		child, err := proc.Start(spec)
		if err == nil {
			children = append(children, child)
		}
		return child, err
	}
	center, err := start("counted process")
	if err != nil {
		return row, err
	}
	var here crowdCenter
	if err := askChild(ctx, center, msgCenter, c, &here); err != nil {
		return row, err
	}
	row.Before = here.Usage
	progress("connecting")
	began := time.Now()
	for i := range row.Holders {
		child, err := start(fmt.Sprintf("holder %d", i+1))
		if err != nil {
			return row, err
		}
		share := c.Peers*(i+1)/row.Holders - c.Peers*i/row.Holders
		if err := child.Send(msgHold, crowdHold{Config: c, Addr: here.Addr, Count: share, AtOnce: max(dialsAtOnce/row.Holders, 1)}); err != nil {
			return row, err
		}
	}
	for _, child := range children[1:] {
		var held crowdHeld
		if err := awaitChild(ctx, child, msgHold, &held); err != nil {
			return row, err
		}
		row.Slowest = max(row.Slowest, held.Slowest)
	}
	row.Connect = time.Since(began).Seconds()
	progress("at rest")
	var rest crowdRest
	if err := askChild(ctx, center, msgRest, c, &rest); err != nil {
		return row, err
	}
	row.After, row.CPU = rest.Usage, rest.CPU
	return row, nil
}

// crowdGrace is how long a process may take to close its engines.
const crowdGrace = time.Minute

func askChild(ctx context.Context, child *proc.Child, kind string, request, answer any) error {
	if err := child.Send(kind, request); err != nil {
		return err
	}
	return awaitChild(ctx, child, kind, answer)
}

func awaitChild(ctx context.Context, child *proc.Child, kind string, answer any) error {
	m, err := child.Next(ctx)
	if err != nil {
		return err
	}
	if m.Kind != kind {
		return fmt.Errorf("bench: answer %q, want %q", m.Kind, kind)
	}
	return m.Decode(answer)
}

// crowdMember is a process of a crowd. Owned by ServeCrowd.
type crowdMember struct {
	parent *proc.Parent
	eng    []*hawser.Engine
}

// ServeCrowd is a process of Crowd: it does what the parent asks and returns when that is gone.
func ServeCrowd(ctx context.Context) error {
	parent, ctx := proc.Attach(ctx)
	m := &crowdMember{parent: parent}
	err := m.serve(ctx)
	if errors.Is(err, proc.ErrParentGone) { // it has ended the run
		err = nil
	}
	err = errors.Join(err, m.close(ctx))
	if err != nil {
		parent.Fail(err)
	}
	return err
}

func (m *crowdMember) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), crowdGrace/2)
	defer cancel()
	errs := make([]error, len(m.eng))
	var wg sync.WaitGroup
	for i, e := range m.eng {
		wg.Go(func() { errs[i] = e.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (m *crowdMember) serve(ctx context.Context) error {
	for {
		q, err := m.parent.Next(ctx)
		if err != nil {
			return err
		}
		switch q.Kind {
		case msgCenter:
			err = answerWith(m, q, func(c CrowdConfig) (crowdCenter, error) { return m.center(ctx, c) })
		case msgHold:
			err = answerWith(m, q, func(h crowdHold) (crowdHeld, error) { return m.hold(ctx, h) })
		case msgRest:
			err = answerWith(m, q, func(c CrowdConfig) (crowdRest, error) { return m.rest(ctx, c) })
		default:
			err = fmt.Errorf("bench: unknown request %q", q.Kind)
		}
		if err != nil {
			return err
		}
	}
}

func answerWith[Q, A any](m *crowdMember, q proc.Message, f func(Q) (A, error)) error {
	var request Q
	if err := q.Decode(&request); err != nil {
		return err
	}
	answer, err := f(request)
	if err != nil {
		return err
	}
	return m.parent.Send(q.Kind, answer)
}

// open opens an engine that can talk over one network only. Its key lets many connect at once over TCP, as in a cluster.
func (m *crowdMember) open(ctx context.Context, c CrowdConfig) (*hawser.Engine, error) {
	p, err := Provider(c.Provider)
	if err != nil {
		return nil, err
	}
	e, err := hawser.Open(ctx, hawser.Options{
		Providers: []provider.Provider{p}, Rails: []hawser.Rail{{Provider: c.Provider}}, Require: c.Provider, ClusterKey: []byte("hawser bench peers"),
	})
	if err == nil {
		m.eng = append(m.eng, e)
	}
	return e, err
}

func (m *crowdMember) center(ctx context.Context, c CrowdConfig) (a crowdCenter, err error) {
	e, err := m.open(ctx, c)
	if err != nil {
		return a, err
	}
	a.Addr = e.Addr()
	if c.Provider == "tcp" {
		a.Addr = e.ListenAddrs()[0] // over TCP from the first byte, as between hosts
	}
	a.Usage, err = usage()
	return a, err
}

// hold opens engines and connects them, some at once.
func (m *crowdMember) hold(ctx context.Context, h crowdHold) (held crowdHeld, err error) {
	for range h.Count {
		if _, err := m.open(ctx, h.Config); err != nil {
			return held, err
		}
	}
	var mu sync.Mutex // guards held, errs and next
	var errs []error
	next := 0
	var wg sync.WaitGroup
	for range h.AtOnce {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(m.eng) {
					return
				}
				began := time.Now()
				_, err := m.eng[i].Connect(ctx, h.Addr)
				mu.Lock()
				held.Slowest = max(held.Slowest, time.Since(began).Seconds())
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return held, errors.Join(errs...)
}

// rest waits until new peers are old ones and measures what they cost then.
func (m *crowdMember) rest(ctx context.Context, c CrowdConfig) (r crowdRest, err error) {
	if len(m.eng) != 1 {
		return r, fmt.Errorf("bench: a rest of %d engines", len(m.eng))
	}
	if err := m.allUp(ctx, c.Peers); err != nil {
		return r, err
	}
	if err := sleep(ctx, settleTime); err != nil {
		return r, err
	}
	runtime.GC() // what the handshakes have left
	cpu, began := cpuTime(), time.Now()
	if err := sleep(ctx, c.Rest); err != nil {
		return r, err
	}
	r.CPU = (cpuTime() - cpu) / time.Since(began).Seconds()
	if r.Usage, err = usage(); err != nil {
		return r, err
	}
	return r, m.allUp(ctx, c.Peers)
}

// allUp waits until our side of all connections is up.
func (m *crowdMember) allUp(ctx context.Context, peers int) error {
	ctx, cancel := context.WithTimeout(ctx, crowdGrace)
	defer cancel()
	for {
		up := 0
		for _, p := range m.eng[0].Stats().Peers {
			if p.Up {
				up++
			}
		}
		if up == peers {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("bench: %d of %d peers are up: %w", up, peers, err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
