package moe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// Group is one rank of the ranks of a model. It owns its lanes, their memory, and the immediates of its tag. Who takes part is its View.
//
// Its lock comes before those of its lanes, which it takes only while the view changes: then no step is in progress.
type Group struct {
	eng      *hawser.Engine
	cfg      Config
	layout   *proto.Layout
	tag      int
	number   uint64 // of the group, in its messages
	imms     *hawser.Reserved
	lanes    []*Lane
	backends []backend.Lane // of the lanes
	fence    func(context.Context, *hawser.Peer) error

	ctx    context.Context // ends in Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	leave  func()        // takes no messages any more
	deaf   func()        // hears of no peers any more
	kick   chan struct{} // capacity 1: something has changed in a lane while the view changes

	mu       sync.Mutex // guards the rest
	core     *proto.Group
	mems     []*memory             // of the lanes; changes while the view does, with the locks of the lanes
	view     View                  // that is active, or was
	attempt  *attempt              // change of view in progress
	seats    []seat                // by rank
	after    []func()              // what the core wanted and can be answered at once
	keepers  map[*hawser.Peer]bool // who may yet write to what was set aside
	aside    []*hawser.Region      // could not be freed yet
	closed   bool
	over     chan struct{} // closed when Close is through
	closeErr error         // set before over is closed
	stats    Stats
}

// Stats are those of a Group since New.
type Stats struct {
	View    uint32 // epoch of the view that is active, or was active last
	Active  bool
	Views   uint64 // changes of view that succeeded
	Failed  uint64 // and that did not
	Fences  uint64 // of peers, that this group asked for
	Refused uint64 // messages of peers that were none
	Parked  int64  // bytes that are set aside because who may write them is not fenced
	Lanes   []LaneStats
}

// New makes the part of a group that is on this engine, with the rank that c names, and returns when the first view that it is a member of is active.
// r brings the ranks together; if they differ in what they must agree on, the error names the field of Config. b outlives the group.
//
// The groups of an engine take all messages of the engine: nobody else may call Receive on it.
func New(ctx context.Context, e *hawser.Engine, b backend.Backend, r Rendezvous, c Config) (*Group, error) {
	g, err := newGroup(ctx, e, b, r, c)
	if err != nil {
		return nil, fmt.Errorf("moe group, rank %d: %w", c.Rank, err)
	}
	return g, nil
}

func newGroup(ctx context.Context, e *hawser.Engine, b backend.Backend, r Rendezvous, c Config) (*Group, error) {
	l, err := c.layout()
	if err != nil {
		return nil, err
	}
	if err := suits(b.Caps(), l); err != nil {
		return nil, err
	}
	g := &Group{
		eng: e, cfg: c, layout: l, fence: e.Fence, kick: make(chan struct{}, 1), over: make(chan struct{}),
		seats: make([]seat, l.MaxRanks), keepers: map[*hawser.Peer]bool{}, leave: func() {}, deaf: func() {},
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	first, err := g.join(ctx, r)
	if err == nil {
		err = g.equip(b)
	}
	if err == nil {
		g.leave, g.deaf = enroll(e, g.number, g.message), e.OnPeer(g.peerEvent)
		_, err = g.Activate(ctx, first)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		return nil, errors.Join(err, g.Close(ctx))
	}
	return g, nil
}

// closeLimit is for how long New waits for operations to end when it has failed.
const closeLimit = 5 * time.Second

// suits says what a backend cannot do.
func suits(c backend.Caps, l *proto.Layout) error {
	for _, x := range []struct {
		name      string
		need, can int
	}{{"TopK", l.TopK, c.MaxTopK}, {"Hidden", l.Hidden, c.MaxHidden}, {"experts of a rank", l.Local, c.MaxLocal}} {
		if x.need > x.can {
			return fmt.Errorf("backend %s: %w: %s is %d, at most %d", c.Name, hawser.ErrUnsupported, x.name, x.need, x.can)
		}
	}
	if c.NeedDevice {
		return fmt.Errorf("backend %s: %w: it needs memory of a device", c.Name, hawser.ErrUnsupported)
	}
	return nil
}

// join meets the others, and agrees with them on what all ranks must have alike.
func (g *Group) join(ctx context.Context, r Rendezvous) (View, error) {
	c := &g.cfg
	card := Card{Member: Member{c.Rank, g.eng.Addr()}, Terms: c.terms(g.layout), Tag: c.Tag, Group: number()}
	if c.Tag == 0 && c.Rank == 0 {
		if err := g.freeTag(); err != nil {
			return View{}, err
		}
		card.Tag = g.tag
	}
	inv, err := r.Join(ctx, card)
	if err != nil {
		return View{}, err
	}
	for _, other := range inv.Cards {
		if err := disagreement(card.Terms, other.Terms, other.Rank); err != nil {
			return View{}, fmt.Errorf("join: %w", err)
		}
	}
	switch {
	case inv.Tag == 0:
		return View{}, fmt.Errorf("join: %w: nobody proposes a tag: rank 0 takes no part, and Tag is 0", hawser.ErrInvalid)
	case c.Tag != 0 && c.Tag != inv.Tag:
		return View{}, fmt.Errorf("join: %w: Tag is %d here and %d at rank %d", hawser.ErrInvalid, c.Tag, inv.Tag, inv.View.Members[0].Rank)
	case g.tag != inv.Tag:
		if err := g.take(inv.Tag); err != nil {
			return View{}, fmt.Errorf("join: %w", err)
		}
	}
	g.number = inv.Group
	return inv.View, nil
}

func number() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.LittleEndian.Uint64(b[:])
}

// freeTag takes the lowest tag that nobody has on this engine.
func (g *Group) freeTag() (err error) {
	for tag := 1; tag <= proto.MaxTag; tag++ {
		if err = g.take(tag); !errors.Is(err, hawser.ErrBusy) {
			return err
		}
	}
	return fmt.Errorf("no tag is free, the last: %w", err)
}

// take takes a tag, in place of the one that was.
func (g *Group) take(tag int) error {
	if g.imms != nil {
		g.imms.Close()
		g.imms = nil
	}
	imms, err := g.eng.Imms().Reserve(fmt.Sprintf("moe group of rank %d with tag %d", g.cfg.Rank, tag), uint32(tag)<<groupBits, groupBits, blockBits(g.layout))
	if err != nil {
		return fmt.Errorf("tag %d: %w", tag, err)
	}
	g.tag, g.imms = tag, imms
	return nil
}

// equip allocates memory and makes the lanes.
func (g *Group) equip(b backend.Backend) error {
	values, err := g.layout.Values(g.tag)
	if err != nil {
		return err
	}
	origin, protos := time.Now(), []*proto.Lane(nil)
	for i := range g.layout.Lanes {
		m, err := newMemory(g.eng, g.layout)
		if err != nil {
			return err
		}
		g.mems = append(g.mems, m)
		bl, err := b.NewLane(backend.Spec{Layout: g.layout, In: g.cfg.In, Wire: g.cfg.Wire, Scale: g.cfg.Scale, Memory: m.ofBackend()})
		if err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
		g.backends = append(g.backends, bl)
		l := newLane(g.eng, laneConfig{
			index: i, layout: g.layout, options: g.cfg.options(g.layout), policy: g.cfg.OnOverflow, values: values, imms: g.imms, backend: bl,
			memory: m, origin: origin, stopped: g.stopped, moved: func() { signal(g.kick) },
		})
		g.lanes, protos = append(g.lanes, l), append(protos, l.proto())
	}
	g.core = proto.NewGroup(g.layout, proto.ID(g.eng.ID()), protos, g)
	return nil
}

// stopped is called by a lane that begins no step any more: so do the others.
func (g *Group) stopped(from *Lane, why proto.Code) {
	for _, l := range g.lanes {
		if l != from {
			l.stop(why)
		}
	}
}

// Lane is one of the group's, from 0 on.
func (g *Group) Lane(i int) *Lane { return g.lanes[i] }

// Lanes is how many there are.
func (g *Group) Lanes() int { return len(g.lanes) }

// View is the one that is active, or that was active last.
func (g *Group) View() View {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.view.clone()
}

// Stats may be called at any time.
func (g *Group) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.stats
	s.View, s.Active = g.view.Epoch, !g.closed && g.core.Active()
	for _, l := range g.lanes {
		s.Lanes = append(s.Lanes, l.Stats())
	}
	return s
}

// Close ends the steps in progress, here with ErrClosed, and what this rank does in the group, and frees all that the group has. Calls that
// wait return. If ctx ends first, operations may be under way, whose memory is freed with the engine then.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	first := !g.closed
	if first {
		g.closed = true
		if g.attempt != nil {
			g.inChange(func() { g.core.Abandon(fmt.Errorf("group: %w", hawser.ErrClosed)) })
		}
	}
	g.mu.Unlock()
	if first {
		g.closeErr = g.shut(ctx)
		close(g.over)
	}
	<-g.over
	return g.closeErr
}

func (g *Group) shut(ctx context.Context) error {
	var errs []error
	if err := g.hush(ctx); err != nil {
		errs = append(errs, err)
	}
	g.cancel(fmt.Errorf("group: %w", hawser.ErrClosed))
	g.deaf()
	g.leave()
	for _, l := range g.lanes {
		l.close()
	}
	g.wg.Wait()
	for _, b := range g.backends {
		errs = append(errs, b.Close())
	}
	if g.imms != nil {
		g.imms.Close()
	}
	for _, m := range g.mems {
		errs = append(errs, m.close())
	}
	for _, r := range g.aside { // that could not be freed before
		errs = append(errs, r.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close moe group: %w", err)
	}
	return nil
}

// hush ends all steps, and waits until nothing is under way.
func (g *Group) hush(ctx context.Context) error {
	for _, l := range g.lanes {
		l.mail.cancel(fmt.Errorf("group: %w", hawser.ErrClosed), proto.CodeClosed)
		l.handled()
	}
	for {
		quiet := true
		g.lockLanes()
		for _, l := range g.lanes {
			l.changing = true
			quiet = quiet && l.proto().Quiet()
		}
		g.unlockLanes()
		if quiet {
			return nil
		}
		select {
		case <-g.kick:
		case <-ctx.Done():
			return fmt.Errorf("operations are under way: %w", context.Cause(ctx))
		}
	}
}

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
