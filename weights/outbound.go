package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/schedule"
	"github.com/hawser-project/hawser/weights/stage"
)

// outbound is one member's writing in one epoch: it binds a slice to what was granted, and runs the pipeline.
type outbound struct {
	m       *member
	e       *proto.Epoch
	grants  []proto.PeerGrant
	slice   *reshard.Slice
	version proto.Version
	buffers []*hawser.Region
	ready   *readiness
	inbox   *inbox // for maxima; nil: there are none
	ctx     context.Context
	cancel  context.CancelCauseFunc
	began   time.Time
	wrote   func(memberReport) // nil: nobody wants to know

	members map[int]int // rank of a receiver -> its index in the epoch; also what the writer's targets are called
	partner map[int]int // rank of a publisher -> its index

	// guarded by m.mu
	writer  *writer       // nil while memory is imported
	dropped []int         // members
	lost    map[int]error // members
	report  memberReport
}

// newOutbound needs m.mu.
func newOutbound(m *member, e *proto.Epoch, grants []proto.PeerGrant) *outbound {
	a := m.slices[e.Key]
	o := &outbound{
		m: m, e: e, grants: grants, slice: a.slice, version: e.Version, buffers: slices.Clone(m.source()), members: map[int]int{}, partner: map[int]int{},
		lost: map[int]error{}, began: time.Now(),
	}
	if o.slice == nil {
		o.slice = &reshard.Slice{}
	}
	for i := range e.Members {
		switch x := &e.Members[i]; {
		case x.Role == proto.RolePublisher:
			o.partner[x.Rank] = i
		case i != e.Me:
			o.members[x.Rank] = i
		}
	}
	o.ctx, o.cancel = context.WithCancelCause(m.ctx)
	return o
}

// run writes, and tells the machine how it ended, when nothing is in flight any more.
func (o *outbound) run() {
	defer o.cancel(nil)
	err := o.push()
	o.m.mu.Lock()
	defer o.m.unlock()
	var missed, unquiet []int
	for i := range o.e.Members {
		if o.lost[i] != nil && !slices.Contains(o.dropped, i) {
			missed = append(missed, i)
		}
	}
	if o.writer != nil {
		o.sum()
		for i := range o.e.Members {
			if o.unquiet(o.e.Members[i].ID) {
				unquiet = append(unquiet, i)
			}
		}
	}
	if err != nil && !errors.Is(err, errStopped) {
		o.m.log.Warn("push failed", "epoch", o.e.Key, "err", err)
	} else {
		err = nil
	}
	o.m.out = nil
	if o.wrote != nil {
		o.wrote(o.report)
	}
	o.m.tell(o.e.Key, o.report)
	o.m.mm.Wrote(o.m.now(), o.e.Key, missed, unquiet, err)
}

// sum notes what was written.
func (o *outbound) sum() {
	o.report.Bytes, o.report.Writes = o.writer.stats.Bytes, o.writer.stats.Writes
	if a := o.writer.arena; a != nil {
		o.report.Staging = a.most()
	}
	if !o.writer.first.IsZero() {
		o.report.Phases.FirstByte, o.report.Phases.LastByte = o.writer.first.Sub(o.began), o.writer.last.Sub(o.began)
	}
}

func (o *outbound) unquiet(id proto.ID) bool {
	for p := range o.writer.loud {
		if p.ID() == id {
			return true
		}
	}
	return false
}

// drop leaves members out. Needs m.mu.
func (o *outbound) drop(members []int) {
	for _, i := range members {
		if slices.Contains(o.dropped, i) {
			continue
		}
		o.dropped = append(o.dropped, i)
		if w := o.writer; w != nil {
			select {
			case w.drops <- o.e.Members[i].Rank:
			default: // it was dropped before
			}
		}
	}
}

// push binds and runs.
func (o *outbound) push() error {
	targets, partners, err := o.bind()
	if err != nil {
		return err
	}
	if o.e.Since == o.e.Key { // a repair goes on
		o.m.spans.begin()
	}
	p, err := newPipeline(o.slice)
	if err != nil {
		return err
	}
	p.buffers, p.stager, p.reach, p.ready = o.buffers, o.m.stager, o.m.reach, o.ready
	if o.m.verify != stage.Off {
		p.sum = func(offset int64, b []byte) uint64 { return stage.Digest(o.m.verify, uint64(o.version), offset, b) }
	}
	if err := o.stagingFor(p); err != nil {
		return err
	}
	if o.inbox != nil {
		x := exchange{eng: o.m.eng, inbox: o.inbox.region, outbox: o.inbox.outbox, counter: o.inbox.counter, partners: partners}
		p.trade = func(ctx context.Context, a *reshard.Amax, maxima []float32) error {
			err := x.trade(ctx, a, maxima)
			if errors.Is(err, hawser.ErrPeerDown) {
				o.m.log.Info("a partner is gone", "epoch", o.e.Key, "err", err)
				<-ctx.Done() // the controller knows, too, and ends or repairs the epoch
				return context.Cause(ctx)
			}
			return err
		}
	}
	w := newWriter(p.slice, o.m.eng.NewQueue(o.m.limits.Window*o.m.limits.PerDest), targets, o.m.limits)
	w.buffers, w.staging, w.placed, w.failed = p.buffers, p.staging, o.placed, o.failed
	w.arena = p.arena
	p.writer, p.spans = w, &o.m.spans
	o.m.mu.Lock()
	o.writer = w
	dropped := slices.Clone(o.dropped)
	for i, err := range o.lost {
		w.without(o.e.Members[i].Rank, err)
	}
	o.m.mu.Unlock()
	for _, i := range dropped {
		w.without(o.e.Members[i].Rank, errDropped)
	}
	return p.run(o.ctx)
}

// bind makes targets of the receivers and partners of the publishers that have granted. A receiver whose memory cannot be imported is lost.
func (o *outbound) bind() (targets []*target, partners map[int]*partner, err error) {
	partners = map[int]*partner{}
	granted := map[int]*proto.Grant{}
	for i := range o.grants {
		granted[o.grants[i].Member] = &o.grants[i].Grant
	}
	for _, rank := range destinations(o.slice) {
		i, ok := o.members[rank]
		t := &target{rank: rank}
		targets = append(targets, t)
		if !ok {
			return nil, nil, fmt.Errorf("receiver %d: %w: the plan writes to it, and it is no member of the epoch", rank, hawser.ErrInvalid)
		}
		if err := o.bindTarget(t, i, granted[i]); err != nil {
			o.lose(i, err)
		}
	}
	for _, rank := range partnersOf(o.slice) {
		i, ok := o.partner[rank]
		g := granted[i]
		if !ok || g == nil || len(g.Imms) == 0 {
			return nil, nil, fmt.Errorf("publisher %d: %w: it shares blocks with this one, and has granted no inbox", rank, hawser.ErrInvalid)
		}
		f, err := o.m.imported(o.ctx, o.e.Members[i].ID, g)
		if err != nil {
			return nil, nil, fmt.Errorf("publisher %d: inbox: %w", rank, err)
		}
		partners[rank] = &partner{peer: f.regions[0].Peer(), inbox: f.regions[0], imm: g.Imms[0]}
	}
	return targets, partners, nil
}

// bindTarget checks that what was granted covers the runs.
func (o *outbound) bindTarget(t *target, i int, g *proto.Grant) error {
	if g == nil {
		return fmt.Errorf("%w: it has granted nothing", hawser.ErrInvalid)
	}
	if len(g.Imms) != len(o.slice.Stages)+1 {
		return fmt.Errorf("%w: it has granted %d stages, the plan has %d", hawser.ErrInvalid, len(g.Imms), len(o.slice.Stages))
	}
	f, err := o.m.imported(o.ctx, o.e.Members[i].ID, g)
	if err != nil {
		return err
	}
	// A receiver with two copies grants both, and says behind the immediates which it is.
	t.imms, t.remotes, t.base = g.Imms[:len(o.slice.Stages)], f.regions, f.base
	if n := len(f.regions) / 2; g.Imms[len(o.slice.Stages)] == 1 {
		t.remotes, t.base = f.regions[n:], f.base[n:]
	}
	for k := range o.slice.Tasks {
		for _, r := range o.slice.Tasks[k].Runs {
			if r.Peer != t.rank {
				continue
			}
			if r.Buffer >= len(t.remotes) || t.remotes[r.Buffer] == nil {
				return fmt.Errorf("%w: buffer %d was not granted", hawser.ErrAccess, r.Buffer)
			}
			rem := t.remotes[r.Buffer]
			if at := r.Offset - t.base[r.Buffer]; at < 0 || uint64(at+r.Len) > rem.Len() {
				return fmt.Errorf("%w: bytes [%d, %d) of buffer %d, granted are [%d, %d)", hawser.ErrAccess,
					r.Offset, r.Offset+r.Len, r.Buffer, t.base[r.Buffer], t.base[r.Buffer]+int64(rem.Len()))
			}
			t.peer = rem.Peer()
		}
	}
	return nil
}

// stagingFor gives the pipeline staging memory: as much as the watermark allows and the slice can use.
func (o *outbound) stagingFor(p *pipeline) error {
	total, largest := int64(0), int64(0)
	for i := range p.slice.Tasks {
		n := (p.slice.Tasks[i].Size + schedule.Align - 1) / schedule.Align * schedule.Align
		total, largest = total+n, max(largest, n)
	}
	if total == 0 {
		return nil
	}
	size := min(max(total, 2*largest), o.m.mark)
	o.m.mu.Lock()
	r := o.m.staging
	o.m.mu.Unlock()
	if r == nil || r.Len() < uint64(size) {
		if r != nil {
			if err := r.Close(); err != nil {
				return fmt.Errorf("staging: %w", err)
			}
		}
		var err error
		if r, err = o.m.eng.Alloc(uint64(size), hawser.MemOptions{}); err != nil {
			return fmt.Errorf("staging: %w", err)
		}
		o.m.mu.Lock()
		o.m.staging = r
		o.m.mu.Unlock()
	}
	p.staging, p.arena, p.most = r, newArena(size), size/2
	return nil
}

// placed is called by the writer: a stage is with a receiver.
func (o *outbound) placed(t *target, stage int, s sent) {
	o.m.spans.note("write", fmt.Sprintf("%s to %d", o.slice.Stages[stage], t.rank), o.writer.begun[stage])
	o.m.event(func(now proto.Time) {
		o.m.mm.Staged(now, o.e.Key, []proto.StageSum{{
			To: o.members[t.rank], Stage: stage, Digest: s.digest, Runs: uint64(s.runs), Bytes: uint64(s.bytes),
		}})
	})
}

// failed is called by the writer: a receiver is given up.
func (o *outbound) failed(t *target, err error) { o.lose(o.members[t.rank], err) }

func (o *outbound) lose(member int, err error) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	if o.lost[member] == nil {
		o.lost[member] = err
		o.m.log.Info("receiver given up", "epoch", o.e.Key, "receiver", o.e.Members[member].Rank, "err", err)
	}
}

// destinations are the ranks that a slice writes to, in the order in which they come first.
func destinations(s *reshard.Slice) (ranks []int) {
	seen := map[int]bool{}
	for i := range s.Tasks {
		for _, r := range s.Tasks[i].Runs {
			if !seen[r.Peer] {
				seen[r.Peer] = true
				ranks = append(ranks, r.Peer)
			}
		}
	}
	return ranks
}

// partnersOf are the sources with which maxima are exchanged.
func partnersOf(s *reshard.Slice) (ranks []int) {
	for i := range s.Amax {
		for _, x := range s.Amax[i].Peers {
			if !slices.Contains(ranks, x.Rank) {
				ranks = append(ranks, x.Rank)
			}
		}
	}
	return ranks
}
