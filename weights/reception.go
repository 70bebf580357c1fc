package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// reception is one epoch at a receiver: it waits for the counts of each stage, compares digests, and runs PostLoad. One goroutine, verify, goes through the stages in
// order.
type reception struct {
	r       *Receiver
	e       *proto.Epoch
	in      *inbound
	memory  []*hawser.Region
	copy    int
	ctx     context.Context
	cancel  context.CancelFunc
	started bool // guarded by r.mu: over will be closed
	waits   bool // guarded by r.mu: the controller was told that something is missing
	// counting ends when a publisher says that it has written what cannot be right: waiting for the rest would be in vain.
	counting context.Context
	spoil    context.CancelCauseFunc
	over     chan struct{} // closed when verify has ended

	done atomic.Int64 // stages that are verified

	mu   sync.Mutex
	told map[int]map[int]proto.StageSum // by stage and rank of the publisher
	more chan struct{}                  // capacity 1: told has grown
}

func (r *Receiver) newReception(e *proto.Epoch, slice *reshard.Slice, kept []uint64) (*reception, error) {
	copy := r.writes()
	in, err := newInbound(r.eng, slice, r.copies[copy], func(stage int) bool { return stage/64 < len(kept) && kept[stage/64]>>(stage%64)&1 != 0 })
	if err != nil {
		return nil, err
	}
	x := &reception{
		r: r, e: e, in: in, memory: r.copies[copy], copy: copy, over: make(chan struct{}), told: map[int]map[int]proto.StageSum{},
		more: make(chan struct{}, 1),
	}
	x.ctx, x.cancel = context.WithCancel(r.ctx)
	x.counting, x.spoil = context.WithCancelCause(x.ctx)
	return x, nil
}

// start begins to verify. Needs mu.
func (x *reception) start() {
	if x.ctx.Err() == nil {
		x.started = true
		x.r.wg.Go(func() { x.run(x.ctx) })
		x.r.wg.Go(func() { x.progress(x.ctx) })
	}
}

// sums takes what writers say.
func (x *reception) sums(sums []proto.StageSum) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range sums {
		rank := x.e.Members[s.From].Rank
		if x.told[s.Stage] == nil {
			x.told[s.Stage] = map[int]proto.StageSum{}
		}
		x.told[s.Stage][rank] = s
		if want := x.in.expected(s.Stage, rank); int(s.Runs) != want {
			x.spoil(fmt.Errorf("%s from publisher %d: %w: it has written %d runs, its part are %d", x.in.stage(s.Stage), rank, ErrDigest, s.Runs, want))
		}
	}
	signal(x.more)
}

// run tells the machine how it ended, unless the epoch is over.
func (x *reception) run(ctx context.Context) {
	defer close(x.over)
	root, err := x.verify(ctx)
	if ctx.Err() != nil {
		return
	}
	x.r.event(func(now proto.Time) { x.r.m.Ready(now, x.e.Key, root, err) })
}

// verify goes through the stages.
func (x *reception) verify(ctx context.Context) (proto.Hash, error) {
	if err := x.meet(ctx); err != nil {
		return proto.Hash{}, err
	}
	for s := range x.in.slice.Stages {
		if x.in.counters[s] == nil {
			continue
		}
		if err := x.stage(ctx, s); err != nil {
			return proto.Hash{}, err
		}
		x.r.event(func(now proto.Time) { x.r.m.Verified(now, x.e.Key, s) })
		x.done.Add(1)
	}
	if x.r.verify == stage.Off || x.e.Mode == proto.ModePush && x.alone() {
		return proto.Hash{}, nil
	}
	began := time.Now()
	root, err := x.r.rootOf(ctx, x.memory)
	x.r.phases.verified(time.Since(began))
	x.r.spans.note("digest", "content root", began)
	x.r.mu.Lock()
	x.r.roots[x.copy] = root
	x.r.mu.Unlock()
	return root, err
}

// meet finds the publishers: they connect, to import what was granted, or are connected to.
func (x *reception) meet(ctx context.Context) error {
	for rank := range x.in.owing() {
		i := slices.IndexFunc(x.e.Writers, func(w int) bool { return x.e.Members[w].Rank == rank })
		if i < 0 {
			return fmt.Errorf("%w: the plan has publisher %d write here, and it is no writer of the epoch", hawser.ErrInvalid, rank)
		}
		p, err := x.r.eng.Connect(ctx, x.e.Members[x.e.Writers[i]].Addr)
		if err != nil {
			return fmt.Errorf("publisher %d: %w", rank, err)
		}
		x.r.mu.Lock()
		x.in.peers[rank] = p
		x.r.mu.Unlock()
	}
	return nil
}

// stage takes one stage: counts, digests, PostLoad.
func (x *reception) stage(ctx context.Context, s int) error {
	name := x.in.slice.Stages[s]
	began := time.Now()
	err := x.in.wait(x.counting, s)
	x.r.spans.note("receive", name, began)
	if err != nil {
		if cause := context.Cause(x.counting); cause != nil && ctx.Err() == nil {
			return cause
		}
		if errors.Is(err, hawser.ErrPeerDown) {
			x.r.log.Info("stage is not complete", "epoch", x.e.Key, "err", err)
			<-ctx.Done() // the controller knows, too, and ends or repairs the epoch
		}
		return err
	}
	for rank := range x.in.runs[s] {
		sum, err := x.sum(ctx, s, rank)
		if err != nil {
			return fmt.Errorf("%s: publisher %d has not said what it wrote: %w", name, rank, err)
		}
		if err := x.compare(s, rank, sum); err != nil {
			return err
		}
	}
	if err := x.in.exact(s); err != nil {
		return err
	}
	if hook := x.r.o.Hooks.PostLoad; hook != nil && x.e.Mode == proto.ModePush { // what is copied is loaded already
		began := time.Now()
		err := callHook(ctx, "PostLoad", x.r.o.Limits.PostLoad, func(ctx context.Context) error { return hook(ctx, s) })
		x.r.phases.loaded(time.Since(began))
		x.r.spans.note("post-load", name, began)
		if err != nil {
			return &proto.EpochError{Version: x.e.Version, Epoch: x.e.Key, Code: proto.CodePostLoad, Text: name, Err: err}
		}
	}
	return nil
}

// sum waits for what a publisher says of a stage.
func (x *reception) sum(ctx context.Context, s, rank int) (proto.StageSum, error) {
	for {
		x.mu.Lock()
		sum, ok := x.told[s][rank]
		x.mu.Unlock()
		if ok {
			return sum, nil
		}
		select {
		case <-x.more:
		case <-ctx.Done():
			return sum, context.Cause(ctx)
		}
	}
}

// compare compares the digest of what a publisher has sent with that of what is here.
func (x *reception) compare(s, rank int, sum proto.StageSum) error {
	if x.r.verify == stage.Off {
		return nil
	}
	began := time.Now()
	got, err := x.digest(s, rank)
	x.r.phases.verified(time.Since(began))
	x.r.spans.note("digest", x.in.stage(s), began)
	if err != nil {
		return err
	}
	if got != sum.Digest {
		return fmt.Errorf("%s from publisher %d: %w: %016x sent, %016x here", x.in.stage(s), rank, ErrDigest, sum.Digest, got)
	}
	return nil
}

func (x *reception) digest(s, rank int) (uint64, error) {
	if x.r.o.Hooks.Hash != nil {
		return 0, errors.ErrUnsupported // digests of memory that the processor cannot read are not taken: NewReceiver refuses them
	}
	return x.in.digest(s, rank, func(offset int64, b []byte) uint64 {
		return stage.Digest(x.r.verify, uint64(x.e.Version), offset, b)
	}), nil
}

// missing is what is owed, in the order of stages. Needs r.mu.
func (x *reception) missing() (all []Missing) {
	for s, runs := range x.in.runs {
		c := x.in.counters[s]
		if c == nil {
			continue
		}
		first := len(all)
		for rank, r := range runs {
			m := Missing{Publisher: rank, Stage: x.in.slice.Stages[s], Want: uint64(len(r)), Down: true}
			if p := x.in.peers[rank]; p != nil {
				m.Have, m.Down = c.From(p), !p.Up()
			}
			if m.Have < m.Want {
				all = append(all, m)
			}
		}
		slices.SortFunc(all[first:], func(a, b Missing) int { return a.Publisher - b.Publisher })
	}
	return all
}

// stuck is where a writer may still write: what it owes of the stages that are not complete. x may be nil: then nothing is known.
func (x *reception) stuck(id proto.ID) (all []Stuck) {
	if x == nil {
		return []Stuck{{Peer: id, Publisher: -1}}
	}
	for rank, p := range x.in.peers {
		if p.ID() != id {
			continue
		}
		for s, runs := range x.in.runs {
			c := x.in.counters[s]
			if c == nil || c.From(p) == uint64(len(runs[rank])) {
				continue
			}
			for _, r := range runs[rank] {
				i := slices.IndexFunc(all, func(s Stuck) bool { return s.Buffer == r.Buffer })
				if i < 0 {
					i = len(all)
					all = append(all, Stuck{Peer: id, Publisher: rank, Buffer: r.Buffer, From: r.Offset, To: r.Offset})
				}
				all[i].From, all[i].To = min(all[i].From, r.Offset), max(all[i].To, r.Offset+r.Len)
			}
		}
	}
	if all == nil {
		return []Stuck{{Peer: id, Publisher: -1}}
	}
	return all
}
