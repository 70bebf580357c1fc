package moe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-project/hawser"
)

// Rendezvous brings the ranks of a group together. New asks it once; who takes part later is for whoever calls Activate.
type Rendezvous interface {
	// Join says that a rank is there, and waits for the first view that it is a member of.
	Join(ctx context.Context, c Card) (Invitation, error)
}

// Card is what a rank says of itself.
type Card struct {
	Member
	Terms []Term
	Tag   int    // that it proposes or wants; 0: any
	Group uint64 // a number for the group that it proposes
}

// Invitation is a view to take part in. All its members get the same Tag and Group, also those that come later.
type Invitation struct {
	View  View
	Cards []Card // of its members, by rank
	Tag   int
	Group uint64
}

// Local is a Rendezvous in one process. All fields are set before use.
type Local struct {
	Ranks     int       // that make the first view
	Placement Placement // of the first view

	mu      sync.Mutex
	desk    desk
	changed chan struct{} // closed and replaced at each change; nil: nobody waits
}

// Join implements Rendezvous.
func (r *Local) Join(ctx context.Context, c Card) (Invitation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.desk.add(c); err != nil {
		return Invitation{}, err
	}
	r.desk.first(r.Ranks, r.Placement)
	r.wake()
	for {
		if inv, ok := r.desk.invitation(c.Member); ok {
			return inv, nil
		}
		if err := r.wait(ctx); err != nil {
			state := r.desk.state(r.Ranks)
			r.desk.leave(c.Member)
			return Invitation{}, fmt.Errorf("join as rank %d: %s: %w", c.Rank, state, err)
		}
	}
}

// Waiting are the ranks that want to take part and are no members of the latest view.
func (r *Local) Waiting() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.desk.waiting()
}

// Admit makes a view known, later than the one before: Join returns to those of its members that wait, Next to whoever asked for it. The
// others are to Activate it.
func (r *Local) Admit(v View) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.desk.admit(v); err != nil {
		return err
	}
	r.wake()
	return nil
}

// Next waits for a view later than an epoch.
func (r *Local) Next(ctx context.Context, after uint32) (View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.desk.View.Epoch <= after {
		if err := r.wait(ctx); err != nil {
			return View{}, fmt.Errorf("wait for a view after %d: %w", after, err)
		}
	}
	return r.desk.View.clone(), nil
}

// wait waits for a change. Needs mu, which it gives up meanwhile.
func (r *Local) wait(ctx context.Context) error {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	changed := r.changed
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *Local) wake() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// desk is what a rendezvous knows: who is there, and the latest view.
type desk struct {
	Cards map[int]Card // the latest of each rank
	View  View         // epoch 0: none yet
	Tag   int
	Group uint64
}

// add puts a card in the place of the one that the rank had.
func (d *desk) add(c Card) error {
	if old, ok := d.Cards[c.Rank]; ok && old.Addr != c.Addr && d.View.Epoch == 0 {
		return fmt.Errorf("join as rank %d: %w: the engine %s is there under this rank", c.Rank, hawser.ErrBusy, old.Addr)
	}
	if d.Cards == nil {
		d.Cards = map[int]Card{}
	}
	d.Cards[c.Rank] = c
	return nil
}

// leave takes a card back that no view needs.
func (d *desk) leave(m Member) {
	if c, ok := d.Cards[m.Rank]; ok && c.Member == m && !slices.Contains(d.View.Members, m) {
		delete(d.Cards, m.Rank)
	}
}

// first makes the first view, once so many ranks are there. The lowest of them says which tag and number the group has.
func (d *desk) first(ranks int, p Placement) {
	if d.View.Epoch > 0 || len(d.Cards) < ranks {
		return
	}
	cards := d.sorted()
	d.View = View{Epoch: 1, Placement: p}
	for _, c := range cards {
		d.View.Members = append(d.View.Members, c.Member)
	}
	d.Tag, d.Group = cards[0].Tag, cards[0].Group
}

func (d *desk) sorted() []Card {
	return slices.SortedFunc(maps.Values(d.Cards), func(a, b Card) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (d *desk) admit(v View) error {
	if v.Epoch <= d.View.Epoch {
		return fmt.Errorf("admit view %d: %w: there is view %d", v.Epoch, hawser.ErrStale, d.View.Epoch)
	}
	d.View = v.clone()
	return nil
}

func (d *desk) invitation(m Member) (Invitation, bool) {
	if !slices.Contains(d.View.Members, m) {
		return Invitation{}, false
	}
	inv := Invitation{View: d.View.clone(), Tag: d.Tag, Group: d.Group}
	for _, m := range d.View.Members {
		if c, ok := d.Cards[m.Rank]; ok && c.Member == m {
			inv.Cards = append(inv.Cards, c)
		}
	}
	return inv, true
}

func (d *desk) waiting() (all []Member) {
	for _, c := range d.sorted() {
		if !slices.Contains(d.View.Members, c.Member) {
			all = append(all, c.Member)
		}
	}
	return all
}

// state says why nobody is invited.
func (d *desk) state(ranks int) string {
	if d.View.Epoch == 0 {
		return fmt.Sprintf("%d of %d ranks are there: %v", len(d.Cards), ranks, slices.Sorted(maps.Keys(d.Cards)))
	}
	return fmt.Sprintf("view %d is without this engine", d.View.Epoch)
}
