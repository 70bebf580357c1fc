package proto

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

// Requests without an attempt wait in one of two kinds of lists, both in the order of priority and arrival: in Decoder.queue when
// all that they may lack is pages, a tail slot or an immediate, which all share; in the list of their source while that has no link, or
// a link has no credits, so that they hold up nobody else. A retry keeps its place. A smaller request may go before one that lacks
// something, at most maxSkips times.

const (
	maxSkips = 16
	maxLook  = 32 // waiting requests that one event looks at beyond those that it starts
)

// fetchSource is a prefill instance, as the addresses of its members. It is there while requests use it or its links are up.
type fetchSource struct {
	key    string
	links  []*fetchLink // by member
	pair   *layout.Pair // nil: not all links are up, or err
	err    error        // the links are up, but this can never work
	topo   string       // the topology that last was made for
	last   *layout.Pair
	refs   int // requests
	parked []*fetchRequest
}

// up reports whether requests can be dispatched.
func (s *fetchSource) up() bool { return s.pair != nil }

func before(a, b *fetchRequest) int {
	if c := cmp.Compare(b.f.Priority, a.f.Priority); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}

func insert(list []*fetchRequest, r *fetchRequest) []*fetchRequest {
	i, _ := slices.BinarySearchFunc(list, r, before)
	return slices.Insert(list, i, r)
}

func remove(list []*fetchRequest, r *fetchRequest) []*fetchRequest {
	if i, ok := slices.BinarySearchFunc(list, r, before); ok {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// wait puts a request where it waits for what it lacks.
func (d *Decoder) wait(r *fetchRequest) {
	d.waiting++
	switch {
	case r.notBefore > d.now:
		r.place, r.blocked = placeDelayed, "its next try"
		d.arm(r)
	case r.src.up():
		r.place = placeQueued
		d.queue = insert(d.queue, r)
		d.kick = true
	default:
		d.park(r, "a link to "+short(r.src.key))
		for _, l := range r.src.links {
			d.want(l)
		}
		if r.src.err != nil {
			d.sourceFailed(r, r.src.err, true)
		}
	}
}

func (d *Decoder) park(r *fetchRequest, why string) {
	r.place, r.blocked = placeParked, why
	r.src.parked = insert(r.src.parked, r)
	d.unpin(r)
}

// unwait takes a request out of whatever list it is in.
func (d *Decoder) unwait(r *fetchRequest) {
	switch r.place {
	case placeNone:
		return
	case placeQueued:
		d.queue = remove(d.queue, r)
	case placeParked:
		r.src.parked = remove(r.src.parked, r)
		if l := r.short; l != nil {
			r.short = nil
			d.wants(l)
		}
	}
	r.place = placeNone
	d.waiting--
}

// unpark lets requests of a source go on, as far as the links have credits for them. It is called when there are more credits, and when a
// request ends to which it may have promised some.
func (d *Decoder) unpark(s *fetchSource) {
	if s == nil || !s.up() {
		return
	}
	for i, looked := 0, 0; i < len(s.parked) && looked < maxSkips; {
		r := s.parked[i]
		if l := r.short; l != nil {
			if !l.takes(l.promised + r.shortCost) {
				if r.skips >= maxSkips {
					break
				}
				i++
				looked++
				continue
			}
			l.promised += r.shortCost
		}
		for _, ahead := range s.parked[:i] {
			ahead.skips++
		}
		d.unwait(r)
		d.waiting++
		r.place = placeQueued
		d.queue = insert(d.queue, r)
		d.kick = true
	}
	for _, l := range s.links {
		l.promised = 0
	}
}

// unparkAll does so for every source that a link belongs to.
func (d *Decoder) unparkAll(l *fetchLink) {
	for _, s := range l.sources {
		if len(s.parked) > 0 {
			d.unpark(s)
		}
	}
}

// started is what became of a try to start a request.
type started uint8

const (
	startNow    started = iota // it has its attempt, or is ready
	startEnded                 // it has ended, or waits for another source
	startPages                 // it lacks pages; a smaller one may go first
	startOther                 // it lacks something of which every request needs one
	startParked                // it went to its source's list
)

// admit starts waiting requests, first ones first, as long as there is what they need.
func (d *Decoder) admit() {
	if r := d.first; r != nil && (len(d.queue) == 0 || d.queue[0] != r) {
		d.first = nil
		if r.place != placeNone {
			d.unpin(r) // only the first may hold what others could need
		}
	}
	looked := 0
	for i := 0; i < len(d.queue) && looked < maxLook; {
		r := d.queue[i]
		if i > 0 && r.need > 0 && d.cfg.Pools != nil && r.f.Pages == nil && !d.roomFor(r) {
			i++
			looked++
			continue // as at the last look
		}
		switch d.try(r) {
		case startNow:
			for _, ahead := range d.queue[:min(i, len(d.queue))] {
				ahead.skips++
			}
		case startParked, startEnded:
			looked++
		case startPages:
			d.stays(r, i)
			if r.skips >= maxSkips {
				return
			}
			i++
			looked++
		case startOther:
			d.stays(r, i)
			return
		}
	}
}

// stays: r could not start. Only the first keeps what the cache has of its prompt: two could each hold what the other needs.
func (d *Decoder) stays(r *fetchRequest, i int) {
	if i == 0 {
		d.first = r
	} else {
		d.unpin(r)
	}
}

// roomFor reports whether the pools may have what the request lacked at the last look.
func (d *Decoder) roomFor(r *fetchRequest) bool {
	if len(d.cfg.Pools) == 1 {
		return r.need <= d.cfg.Pools[0].Room()
	}
	for i, p := range d.cfg.Pools {
		if d.pagesOf(i, d.span(i, 0, r.f.end())) > p.Room() {
			return false
		}
	}
	return true
}

// try starts a request of the queue if everything that it needs is there.
func (d *Decoder) try(r *fetchRequest) started {
	if !r.src.up() {
		d.unwait(r)
		d.wait(r)
		return startParked
	}
	d.lookup(r)
	if r.need == 0 && !r.f.Tail {
		return d.hit(r)
	}
	pools := d.cfg.Pools != nil && r.f.Pages == nil
	if pools && !d.roomFor(r) {
		r.blocked = "pages"
		return startPages
	}
	if r.f.Tail && len(d.freeTails) == 0 {
		r.blocked = "a tail slot"
		return startOther
	}
	a, err := d.plan(r)
	if err != nil {
		d.sourceFailed(r, fmt.Errorf("plan: %w", err), true)
		return startEnded
	}
	if len(a.writers) == 0 {
		return d.hit(r)
	}
	ahead := r.src.ahead(r)
	if ahead != nil && ahead.skips >= maxSkips {
		d.hold(r, ahead.short, ahead.blocked, a.cost)
		return startParked
	}
	if l, why := a.held(); l != nil {
		d.hold(r, l, why, a.cost)
		return startParked
	}
	imm, why := d.reserve(a, pools)
	if why != startNow {
		return why
	}
	d.unwait(r)
	if ahead != nil {
		ahead.skips++
	}
	d.start(a, imm)
	return startNow
}

// reserve takes pages and an immediate for an attempt, or nothing.
func (d *Decoder) reserve(a *fetchAttempt, pools bool) (imm uint32, why started) {
	r := a.r
	for i := range d.cfg.Pools {
		if !pools {
			break
		}
		lease, err := d.cfg.Pools[i].Reserve(d.pagesOf(i, a.span(i)))
		if err != nil {
			d.giveBack(a)
			r.blocked = "pages"
			return 0, startPages
		}
		a.leases = append(a.leases, lease)
	}
	imm, err := d.out.Take(d.lastSeq + 1)
	switch {
	case errors.Is(err, hawser.ErrLimit):
		d.giveBack(a)
		r.blocked = "an immediate"
		return 0, startOther
	case err != nil:
		d.giveBack(a)
		d.drop(r, err)
		return 0, startEnded
	}
	return imm, startNow
}

// ahead is the first request that waits for credits of the source and would be before r.
func (s *fetchSource) ahead(r *fetchRequest) *fetchRequest {
	if len(s.parked) > 0 && s.parked[0].short != nil && before(s.parked[0], r) < 0 {
		return s.parked[0]
	}
	return nil
}

// hold parks a request that a link has no credits, or no attempt numbers, for.
func (d *Decoder) hold(r *fetchRequest, l *fetchLink, why string, cost uint64) {
	d.unwait(r)
	d.waiting++
	r.short, r.shortCost = l, cost
	d.park(r, why)
	d.wants(l)
}

// giveBack undoes the reservation of an attempt that did not start.
func (d *Decoder) giveBack(a *fetchAttempt) {
	for i, l := range a.leases {
		d.defect(d.cfg.Pools[i].Drop(l, pool.OwnerRequest))
	}
	a.leases = a.leases[:0]
}

// hit ends a request of which everything is here already.
func (d *Decoder) hit(r *fetchRequest) started {
	if d.entering == r {
		d.timers.set(&r.timer, d.now) // as soon as the caller knows its number
		return startOther
	}
	src := r.src
	d.unwait(r)
	d.detach(r, errors.New("nothing is missing"))
	res := Result{Prefix: r.prefixTokens(), Spans: make([]Span, len(d.groups)), Pages: r.f.Pages}
	for i := range res.Spans {
		res.Spans[i] = d.spanOf(&r.f, i, 0)
	}
	if r.f.Pages == nil {
		res.Pages = make([][]uint32, len(d.groups))
		res.Pages[0] = r.prefix.Pages
	}
	d.ready(r, res)
	d.unpark(src)
	return startNow
}

// prefixTokens is how many tokens the cache had.
func (r *fetchRequest) prefixTokens() int {
	if r.prefix.ID == 0 {
		return 0
	}
	return len(r.prefix.Pages) * r.d.groups[0].PageTokens
}
