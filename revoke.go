package hawser

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
)

// revokeTime is how long a peer may take to stop using a region. A live one needs a round trip and what its network has
// accepted already; one that needs longer is stopped by force.
const revokeTime = 100 * time.Millisecond

// Revoke takes the region away from p, and nothing else: after nil, nothing that p has under way can land in the region, and
// descriptors of it that were issued before are stale for p, whose operations on it fail with ErrStale. New descriptors may be
// issued. p is asked to stop and has 100 ms; then it is fenced, see Engine.Fence. An error that wraps ErrUnfenced: p may still write.
func (r *Region) Revoke(ctx context.Context, p *Peer) error {
	if p == nil || p.e != r.e {
		return fmt.Errorf("revoke: peer: %w: none, or of another engine", ErrInvalid)
	}
	if r.closed.Load() {
		return fmt.Errorf("revoke region %d: %w", r.id, ErrClosed)
	}
	if err := r.revoke(ctx, p); err != nil {
		return fmt.Errorf("revoke region %d from %s: %w", r.id, p, err)
	}
	return nil
}

func (r *Region) revoke(ctx context.Context, p *Peer) error {
	granted := r.grants.end(p, r.e.serial.Load())
	for s := p.cur.Load(); s != nil; s = s.prev.Load() {
		if !granted[s] {
			continue
		}
		err := r.askBack(ctx, s)
		switch {
		case err == nil:
		case s.state.Load() == stateDown:
			if err := s.waitFenced(ctx); err != nil {
				return fmt.Errorf("%w: %w", ErrUnfenced, err)
			}
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", ErrUnfenced, context.Cause(ctx))
		default:
			r.e.opts.Log.Warn("peer does not give a region back", "peer", p.String(), "region", r.id, "err", err)
			if err := r.e.Fence(ctx, p); err != nil {
				return fmt.Errorf("%w: %w", ErrUnfenced, err)
			}
		}
	}
	return nil
}

// askBack asks the other side of s to stop using r, then makes sure, where the network can.
func (r *Region) askBack(ctx context.Context, s *session) error {
	select {
	case s.lent.asked <- struct{}{}:
		defer func() { <-s.lent.asked }()
	case <-s.ctx.Done():
		return s.cause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, r.e.revokeTime)
	defer cancel()
	if err := s.ask(ctx, wire.TypeRevoke, &wire.Revoke{Region: r.id}, &wire.Revoked{}); err != nil {
		return err
	}
	return r.e.worker.do(func(g *rail.Group) error { return g.Revoke(&r.mr, s.links.Load()) })
}

// revokeAll asks everybody to stop using r. Who does not answer in time finds out when it is refused: the caller ends the keys.
func (r *Region) revokeAll() {
	var wg sync.WaitGroup
	for _, s := range r.grants.seal() {
		wg.Go(func() { _ = r.askBack(context.Background(), s) }) // see above
	}
	wg.Wait()
}

// lent is what a session knows of regions that one side has lent to the other.
type lent struct {
	asked chan struct{} // places of our Revoke that are not answered
	owed  atomic.Int64  // Revoke of the peer that we have not answered
	areas areas         // of the peer's memory
}

// grants are who was given keys of a region. They may be used by anyone.
type grants struct {
	mu      sync.Mutex
	sealed  bool
	to      map[*session]bool
	revoked map[ID]uint64 // serial of the last descriptor that was issued when the region was taken from a peer
	sweepAt int
}

// begin notes that s is about to get keys for a descriptor. It is called by the worker, before it grants. false: they were revoked.
func (gs *grants) begin(s *session, serial uint64) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.sealed || serial <= gs.revoked[s.peer.id] {
		return false
	}
	if len(gs.to) >= gs.sweepAt { // sessions come and go while the region stays
		for old := range gs.to {
			if old.over.Load() {
				delete(gs.to, old)
			}
		}
		gs.sweepAt = 2*len(gs.to) + 16
	}
	if gs.to == nil {
		gs.to = map[*session]bool{}
	}
	gs.to[s] = true
	return true
}

// end makes descriptors up to serial stale for p and returns its sessions that may have keys.
func (gs *grants) end(p *Peer, serial uint64) map[*session]bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.revoked == nil {
		gs.revoked = map[ID]uint64{}
	}
	gs.revoked[p.id] = serial
	out := map[*session]bool{}
	for s := range gs.to {
		if s.peer == p {
			out[s] = true
		}
	}
	return out
}

// seal refuses all that comes later and returns who may have keys.
func (gs *grants) seal() (out []*session) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.sealed = true
	for s := range gs.to {
		if s.state.Load() == stateUp {
			out = append(out, s)
		}
	}
	gs.to = nil
	return out
}

// The rest is the side of the peer from which a region is taken.

// area is what all remotes of one region have in common that were imported in one session since its owner last took it back.
type area struct {
	note
	hold    rail.Hold // of all its remotes
	s       *session
	region  uint64
	once    sync.Once
	drained chan struct{} // closed when it is revoked and no operation is left
}

// usable returns an error when the region was taken back. An operation that this comes too late for is refused by the worker, which
// answers for the region only once it has seen that it is taken back.
// hot:
func (a *area) usable() error {
	if a.hold.Revoked() {
		return a.staleError()
	}
	return nil
}

func (a *area) staleError() error {
	return fmt.Errorf("region %d of %s: %w: taken back by its owner", a.region, a.s.peer, ErrStale)
}

// explain replaces the error of an operation that was refused because its region was taken back. A nil area is none.
func (a *area) explain(err error) error {
	if a != nil && errors.Is(err, ErrAccess) && a.hold.Revoked() {
		return a.staleError()
	}
	return err
}

func (a *area) fire() { a.once.Do(func() { close(a.drained) }) }

// areas are those of a session, by region. They are kept as long as a remote or an operation needs them.
type areas struct {
	mu      sync.Mutex
	m       map[uint64][]weak.Pointer[area]
	sweepAt int
}

// get returns the area that is not revoked, a new one if need be.
func (as *areas) get(s *session, region uint64) *area {
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, w := range as.m[region] {
		if a := w.Value(); a != nil && !a.hold.Revoked() {
			return a
		}
	}
	if as.m == nil {
		as.m = map[uint64][]weak.Pointer[area]{}
	}
	if len(as.m) >= as.sweepAt {
		for id := range as.m {
			as.prune(id)
		}
		as.sweepAt = 2*len(as.m) + 64
	}
	as.prune(region)
	a := &area{s: s, region: region, drained: make(chan struct{})}
	a.target = a
	a.hold.Drained = func() { s.e.notes.push(&a.note) }
	as.m[region] = append(as.m[region], weak.Make(a))
	return a
}

// prune forgets areas that are not needed any more. Needs mu.
func (as *areas) prune(region uint64) {
	var keep []weak.Pointer[area]
	for _, w := range as.m[region] {
		if w.Value() != nil {
			keep = append(keep, w)
		}
	}
	if keep == nil {
		delete(as.m, region)
	} else {
		as.m[region] = keep
	}
}

// revoke revokes all areas of a region and returns them.
func (as *areas) revoke(region uint64) (out []*area) {
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, w := range as.m[region] {
		a := w.Value()
		if a == nil {
			continue
		}
		a.hold.Revoke()
		out = append(out, a)
	}
	return out
}

// giveBack answers an owner that takes a region back. It runs on the session's reader.
func (s *session) giveBack(f wire.Frame) error {
	var m wire.Revoke
	if err := wire.Parse(f.Payload, &m); err != nil {
		return err
	}
	taken := s.lent.areas.revoke(m.Region)
	if len(taken) == 0 {
		s.reply(wire.TypeRevoked, f.Request, &wire.Revoked{})
		return nil
	}
	if s.lent.owed.Add(1) > wire.MaxRevokes {
		return fmt.Errorf("%w: more than %d regions are taken back at once", ErrLimit, wire.MaxRevokes)
	}
	rp, request := s.links.Load(), f.Request
	holds := make([]*rail.Hold, len(taken))
	for i, a := range taken {
		holds[i] = &a.hold
	}
	s.e.worker.group.Call(func(g *rail.Group) { g.Drain(rp, holds) })
	s.e.wg.Go(func() {
		for _, a := range taken {
			select {
			case <-a.drained:
			case <-s.ctx.Done():
				return
			}
		}
		if s.ctx.Err() != nil { // areas of a session that has ended are drained, but nobody knows what became of their writes
			return
		}
		s.lent.owed.Add(-1) // before the owner can know, and ask for the next
		s.reply(wire.TypeRevoked, request, &wire.Revoked{})
	})
	return nil
}

// errTaken is why a descriptor cannot be resolved, or an import cannot be used.
var errTaken = errors.New("the region was taken back after the descriptor was issued")
