package moe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// attempt is a change of view in progress.
type attempt struct {
	ctx      context.Context // of Activate; ends in Close, too
	view     View
	served   Placement // without places at ranks that are no members
	unserved []int
	unfenced map[*hawser.Peer]bool // whose proof is sought, or is not to be had
	result   Activated
	err      error
	done     chan struct{} // closed when result or err is set
}

// ErrInactive: a change of view was begun and did not come to its end. The group needs a view with a higher epoch.
var ErrInactive = proto.ErrInactive

// ActivateError: a change of view did not come to its end. Missing are the members for which it has waited.
type ActivateError struct {
	Missing []int
	Err     error
}

func (e *ActivateError) Error() string {
	return fmt.Sprintf("ranks %v are not ready: %v", e.Missing, e.Err)
}

// Unwrap is why it waits no more.
func (e *ActivateError) Unwrap() error { return e.Err }

// Activate changes the view. All members of v call it, with the same v, while no step is in progress (ErrBusy). Steps begin again when it
// returns, with the same numbers everywhere. Who was a member and is none any more, and who did not do what it owed, is fenced before memory is
// used again; that ends all that this engine exchanges with it.
//
// Each epoch is tried once: if ctx ends, or a member dies, the group is inactive (ErrInactive, an *ActivateError with the ranks that were
// not ready), and a higher epoch is needed. A member for which the view had begun by then misses this rank in its first step.
func (g *Group) Activate(ctx context.Context, v View) (Activated, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.ctx, func() { cancel(context.Cause(g.ctx)) })()
	a := &attempt{ctx: ctx, view: v.clone(), unfenced: map[*hawser.Peer]bool{}, done: make(chan struct{})}
	if err := g.begin(a); err != nil {
		return Activated{}, fmt.Errorf("activate view %d: %w", v.Epoch, err)
	}
	for {
		select {
		case <-g.kick:
			g.event(func() {})
		case <-ctx.Done():
			g.event(func() {
				if g.attempt == a {
					g.abandon(context.Cause(ctx))
				}
			})
			<-a.done
			return a.result, a.err
		case <-a.done:
			return a.result, a.err
		}
	}
}

// begin begins a change of view, unless it returns an error: then nothing has happened.
func (g *Group) begin(a *attempt) error {
	p, err := a.view.proto()
	if err == nil {
		err = a.view.Placement.Check(g.layout)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", hawser.ErrInvalid, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return fmt.Errorf("group: %w", hawser.ErrClosed)
	case g.attempt != nil:
		return fmt.Errorf("%w: view %d is being activated", hawser.ErrBusy, g.attempt.view.Epoch)
	}
	if err := g.catchLanes(); err != nil {
		return err
	}
	defer g.unlockLanes()
	seats := slices.Clone(g.seats)
	g.seat(a.view, p)
	g.attempt = a
	if err := g.core.Activate(p); err != nil {
		g.attempt, g.seats, g.after = nil, seats, nil
		return errors.Unwrap(err)
	}
	for _, l := range g.lanes {
		l.changing = true
	}
	a.served, a.unserved = a.view.served(g.layout)
	g.settle()
	return nil
}

// seat gives the members of a view their seats. A rank with another engine has another seat.
func (g *Group) seat(v View, p proto.View) {
	for i := range g.seats {
		s := &g.seats[i]
		s.sent, s.lost, s.refused = [2]uint64{}, nil, 0
	}
	for i, m := range p.Members {
		if m.Rank < 0 || m.Rank >= len(g.seats) || m.Rank == g.cfg.Rank {
			continue // the protocol says what is wrong with it
		}
		if s := &g.seats[m.Rank]; s.id != m.ID {
			*s = seat{id: m.ID, addr: v.Members[i].Addr, peer: g.eng.Peer(hawser.ID(m.ID))}
		}
	}
}

// catchLanes takes the locks of all lanes, unless a call is inside of one: ErrBusy. Needs mu.
func (g *Group) catchLanes() error {
	for i, l := range g.lanes {
		for !l.mu.TryLock() {
			if !l.inside.Load() {
				runtime.Gosched() // the lane's own goroutine is about to leave
				continue
			}
			for _, caught := range g.lanes[:i] {
				caught.rest()
			}
			return fmt.Errorf("lane %d: %w: a call is in progress", i, hawser.ErrBusy)
		}
		l.turn()
	}
	return nil
}

// lockLanes takes the locks of all lanes while no step is in progress, and what has come there.
func (g *Group) lockLanes() {
	for _, l := range g.lanes {
		l.mu.Lock()
		l.turn()
	}
}

func (g *Group) unlockLanes() {
	for _, l := range g.lanes {
		if l.rest() && l.changing {
			signal(g.kick)
		}
	}
}

// event tells the core something, then what follows from it.
func (g *Group) event(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.attempt == nil { // lanes may be in a step, which the core has nothing to do with
		f()
		g.settle()
		return
	}
	g.inChange(f)
}

// inChange is event while the view changes. Needs mu.
func (g *Group) inChange(f func()) {
	g.lockLanes()
	f()
	g.core.Progress()
	g.settle()
	g.unlockLanes()
}

// settle does what the core wanted and can be answered at once. Needs mu, and while the view changes the locks of the lanes.
func (g *Group) settle() {
	for len(g.after) > 0 {
		f := g.after[0]
		g.after = g.after[1:]
		f()
	}
}

// abandon ends the change of view in progress. Needs mu and the locks of the lanes.
func (g *Group) abandon(cause error) {
	missing := g.core.Awaited()
	if len(missing) > 0 {
		cause = &ActivateError{missing, cause}
	}
	g.core.Abandon(cause)
}

// finish ends the attempt. Needs mu and the locks of the lanes.
func (g *Group) finish(err error) {
	a := g.attempt
	a.err = err
	g.attempt = nil
	for _, l := range g.lanes {
		l.changing = false
	}
	close(a.done)
}
