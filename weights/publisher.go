package weights

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/schedule"
	"github.com/hawser-project/hawser/weights/stage"
)

// PublisherOptions is what NewPublisher needs. Controller, Layout and Regions are required.
type PublisherOptions struct {
	Controller string          // Addr of the controller's engine
	Name       string          // for people
	Rank       int             // of Layout: this publisher
	Layout     *reshard.Layout // of all training ranks; it must not change
	Rules      []reshard.Rule  // that come with it; the controller's go first
	Regions    []*hawser.Region
	Stager     Stager       // nil: the processor stages
	Verify     stage.Verify // as the receivers have it
	Watermark  int64        // bytes of staging in flight; default 1 GiB. Tasks of more than half of it are done in parts, which is slower
	Window     int          // destinations with writes in flight; default 16
	PerDest    int          // writes in flight to each; default 4
	DoubtAfter time.Duration
	// Wanted is called when the controller is about to push a version for which Push was not called. It must not block.
	Wanted func(v Version)
	Log    *slog.Logger // discarded when nil
}

// defaultWatermark is that of the reference pipeline's order of magnitude: a few of its largest tasks.
const defaultWatermark = 1 << 30

// Publisher is a training rank. It takes all messages of its engine: nothing else may call Receive on it. Safe for concurrent use, one Push
// at a time.
type Publisher struct {
	member
	o PublisherOptions
	m *proto.Publisher

	free chan struct{} // capacity 1: the machine's part of an epoch is over

	// guarded by mu
	push  *push
	inbox *inbox
}

// push is a call of Push.
type push struct {
	version Version
	ready   *readiness
	over    chan struct{}
	began   time.Time
	epoch   proto.Key
	err     error
	sum     memberReport
	epochs  int // that wrote
}

// inbox is where partners write their maxima.
type inbox struct {
	region, outbox *hawser.Region
	counter        *hawser.Counter
	serial         uint64 // of its descriptor
	descriptors    [][]byte
}

// NewPublisher starts a publisher on an engine, and joins its controller, now and whenever that comes back. Close ends it, before the engine
// is closed and the regions are.
func NewPublisher(eng *hawser.Engine, o PublisherOptions) (*Publisher, error) {
	if o.Layout == nil || o.Rank < 0 || o.Rank >= len(o.Layout.Buffers) {
		return nil, fmt.Errorf("weights: publisher %d: %w: no layout, or one without this rank", o.Rank, hawser.ErrInvalid)
	}
	if err := checkBuffers(o.Layout.Buffers[o.Rank], o.Regions); err != nil {
		return nil, fmt.Errorf("weights: publisher %d: %w", o.Rank, err)
	}
	blob, err := encodeLayout(o.Layout, o.Rules)
	if err != nil {
		return nil, fmt.Errorf("weights: publisher %d: %w", o.Rank, err)
	}
	p := &Publisher{member: newMember(eng, o.Log), o: o, free: make(chan struct{}, 1)}
	hash := proto.Hash(sha256.Sum256(blob))
	p.blobs[hash] = blob
	p.home, p.stager, p.verify, p.mark = o.Controller, o.Stager, o.Verify, o.Watermark
	if p.mark == 0 {
		p.mark = defaultWatermark
	}
	if p.reach = far; p.stager == nil {
		p.stager, p.reach = cpuStager{}, near
	}
	p.limits = schedule.Limits{Window: o.Window, PerDest: o.PerDest}.WithDefaults()
	p.fits, p.source, p.open = p.fitting, func() []*hawser.Region { return o.Regions }, p.granted
	p.m, err = proto.NewPublisher(proto.MemberConfig{
		Member: proto.Member{ID: eng.ID(), Addr: eng.Addr(), Role: proto.RolePublisher, Rank: o.Rank, Layout: hash},
		Name:   o.Name, Group: len(o.Layout.Buffers), DoubtAfter: o.DoubtAfter,
	}, publisherOut{p})
	if err != nil {
		p.stop()
		return nil, err
	}
	p.start(p.m)
	return p, nil
}

// granted is what others may write to. Needs mu.
func (p *Publisher) granted() []*hawser.Region {
	if p.inbox == nil {
		return nil
	}
	return []*hawser.Region{p.inbox.region}
}

// fitting checks that a slice is of this rank, and that it can be staged.
func (p *Publisher) fitting(_ proto.Mode, s *reshard.Slice) error {
	if s.Rank != p.o.Rank || !s.Source {
		return fmt.Errorf("%w: slice of rank %d", hawser.ErrInvalid, s.Rank)
	}
	if err := checkBuffers(s.Buffers, p.o.Regions); err != nil {
		return err
	}
	return stage.Check(s)
}

// Push offers version v and takes part in the epochs that push it, until one of them is decided. ready delivers the numbers of the stages whose
// bytes are final, all of them in the end; nil: all are. Until Push returns the bytes must not change: a repair may need them again.
//
// When ctx ends first, Push waits until nothing of it is under way, and returns ErrInDoubt if an epoch was under way: the others may commit it. The next Push waits
// until it is known how that one ended.
func (p *Publisher) Push(ctx context.Context, v Version, ready <-chan int) (*Report, error) {
	x := &push{version: v, over: make(chan struct{}), began: time.Now()}
	if ready != nil {
		x.ready = &readiness{more: ready, final: map[int]bool{}}
	}
	if err := p.offer(ctx, x); err != nil {
		return nil, err
	}
	select {
	case <-x.over:
	case <-p.ctx.Done():
		return nil, fmt.Errorf("weights: push v%d: %w", v, hawser.ErrClosed)
	case <-ctx.Done():
		p.event(p.m.Leave)
		select {
		case <-x.over:
		case <-p.ctx.Done():
			return nil, fmt.Errorf("weights: push v%d: %w", v, hawser.ErrClosed)
		}
	}
	return p.report(x), typed(x.err)
}

// offer begins a push. One that was given up may have left an epoch whose end is not known here: the controller, or a member of it, tells.
func (p *Publisher) offer(ctx context.Context, x *push) error {
	for {
		p.mu.Lock()
		err := p.m.Push(p.now(), x.version)
		if err == nil {
			p.push = x
		}
		given := p.push == nil
		p.unlock()
		if !given || !errors.Is(err, hawser.ErrBusy) {
			return err
		}
		select {
		case <-p.free:
		case <-p.ctx.Done():
			return fmt.Errorf("weights: push v%d: %w", x.version, hawser.ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("%w; %w", err, context.Cause(ctx))
		}
	}
}

// Stages are the names of the stages of the last plan that was adopted, in their order: what Push's channel counts. Nil before the first one.
func (p *Publisher) Stages() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var last proto.Key
	var names []string
	for k, a := range p.slices {
		if k.Compare(last) > 0 && a.slice.Stages != nil {
			last, names = k, a.slice.Stages
		}
	}
	return names
}

// State is what the publisher does.
func (p *Publisher) State() proto.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m.State()
}

// Close stops taking part. Writes that are under way end by themselves before it returns.
func (p *Publisher) Close(context.Context) error {
	p.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.staging != nil {
		_ = p.staging.Close()
	}
	p.closeInbox()
	return nil
}
