package proto

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/pool"
)

// fetchRequest is one request, from Fetch until nobody needs it: the caller has its answer and has released the result, and nothing of
// any attempt can land any more.
type fetchRequest struct {
	d          *Decoder
	id         Request
	f          Fetch
	place      fetchPlace
	excluded   uint16 // of f.From, a set: sources that can never serve it
	from       int    // of f.From: the present source
	src        *fetchSource
	at         *fetchAttempt   // the present one, nil while it waits
	old        []*fetchAttempt // quarantined, while the request goes on without their pages
	unquiet    int             // attempts of which something may land
	tries      int             // attempts, and links that could not be made: what is bounded
	dispatched int             // attempts
	total      int             // pages that it needs, those in the cache too
	timer      timer

	arrived, deadline Time
	notBefore         Time // delayed: when it may go on
	skips             int  // how often smaller ones went first
	blocked           string

	// While it waits for credits of a link.
	short     *fetchLink
	shortCost uint64

	prefix pool.Prefix // pinned while it is the first in the queue, has an attempt, or is ready
	need   int         // pages that the cache did not have at the last look
	cause  error       // of the last attempt's end
	told   bool        // Ready or Ended was called, or will be by the timer: answer
	answer error       // the caller does not know the request's number yet
	held   bool        // ready and not released
	hushed bool        // Quiet was called
}

type fetchPlace uint8

const (
	placeNone    fetchPlace = iota // has an attempt, or has ended
	placeQueued                    // in Decoder.queue
	placeParked                    // in fetchSource.parked
	placeDelayed                   // until notBefore
)

const maxSources = 16

// Fetch asks for a prompt. Errors are immediate and nothing is held: ErrInvalid; ErrLimit when the prompt can never fit or too many wait;
// ErrBusy when a page of the caller's may still be written for an earlier request; ErrDraining; ErrClosed. Otherwise Ready or Ended follows, not before Fetch has returned.
func (d *Decoder) Fetch(now Time, f Fetch) (Request, error) {
	d.enter(now)
	r := &fetchRequest{d: d, f: f, arrived: d.now, deadline: f.Deadline}
	if r.deadline == 0 {
		r.deadline = d.now + d.cfg.Deadline
	}
	if err := d.accept(r); err != nil {
		return 0, fmt.Errorf("kv: request %s: %w", f.ID, err)
	}
	if err := d.borrow(r); err != nil {
		return 0, fmt.Errorf("kv: request %s: %w", f.ID, err)
	}
	d.lastRequest++
	r.id = d.lastRequest
	r.timer.owner = r
	d.requests[r.id] = r
	d.stats.Requests++
	d.budget.request(d.now)
	d.timers.set(&r.timer, r.deadline)
	d.entering = r
	d.choose(r, 0)
	d.wait(r)
	d.leave()
	d.entering = nil
	return r.id, nil
}

// accept checks what can be checked at once.
func (d *Decoder) accept(r *fetchRequest) error {
	f := &r.f
	switch {
	case d.closing:
		return fmt.Errorf("decoder: %w", hawser.ErrClosed)
	case d.draining:
		return fmt.Errorf("decoder: %w", ErrDraining)
	case f.ID == "" || len(f.ID) > MaxRequestID:
		return fmt.Errorf("%w: the id has %d bytes, want 1 .. %d", hawser.ErrInvalid, len(f.ID), MaxRequestID)
	case f.Prompt.Tokens < 1 || f.Prompt.Tokens > MaxTokens || len(f.Prompt.IDs) != 0 && len(f.Prompt.IDs) != f.Prompt.Tokens || len(f.Prompt.Key) > maxName:
		return fmt.Errorf("%w: prompt of %d tokens, %d ids, key of %d bytes", hawser.ErrInvalid, f.Prompt.Tokens, len(f.Prompt.IDs), len(f.Prompt.Key))
	case f.Tail && len(d.tails) == 0:
		return fmt.Errorf("%w: a tail is wanted, but there are no tail slots", hawser.ErrInvalid)
	case r.deadline <= d.now:
		return fmt.Errorf("%w: before it began", ErrDeadline)
	}
	if err := checkSources(f.From); err != nil {
		return err
	}
	if err := d.checkPages(r); err != nil {
		return err
	}
	if d.waiting >= d.cfg.Queue {
		return fmt.Errorf("%w: %d requests wait already", hawser.ErrLimit, d.waiting)
	}
	return nil
}

func checkSources(from []Source) error {
	if len(from) < 1 || len(from) > maxSources {
		return fmt.Errorf("%w: %d sources, want 1 .. %d", hawser.ErrInvalid, len(from), maxSources)
	}
	for _, s := range from {
		if len(s.Writers) < 1 || len(s.Writers) > MaxMembers {
			return fmt.Errorf("%w: a source of %d members, want 1 .. %d", hawser.ErrInvalid, len(s.Writers), MaxMembers)
		}
		for i, a := range s.Writers {
			if a == "" || slices.Contains(s.Writers[:i], a) {
				return fmt.Errorf("%w: source with an address %q that is empty, or there twice", hawser.ErrInvalid, short(a))
			}
		}
	}
	return nil
}

// checkPages checks the caller's pages, or that the pools can ever hold the prompt.
func (d *Decoder) checkPages(r *fetchRequest) error {
	f := &r.f
	if f.Pages == nil {
		if d.cfg.Pools == nil {
			return fmt.Errorf("%w: no pages given, and there is no pool", hawser.ErrInvalid)
		}
		for i, p := range d.cfg.Pools {
			n := d.pagesOf(i, d.span(i, 0, f.end()))
			if n > p.Pages() {
				return fmt.Errorf("%w: prompt needs %d pages, pool has %d: raise the pool or lower the maximum length", hawser.ErrLimit, n, p.Pages())
			}
			r.total += n
		}
		return nil
	}
	if len(f.Pages) != len(d.groups) || f.Spans != nil && len(f.Spans) != len(d.groups) {
		return fmt.Errorf("%w: pages of %d groups and %d spans, there are %d groups", hawser.ErrInvalid, len(f.Pages), len(f.Spans), len(d.groups))
	}
	for i := range d.groups {
		s := d.spanOf(f, i, 0)
		if s.First < 0 || s.First > s.N || s.N > f.Prompt.Tokens || s.First%d.groups[i].PageTokens != 0 && s.First != s.N {
			return fmt.Errorf("%w: span of group %d is [%d, %d) of %d tokens, want a beginning of a page of %d",
				hawser.ErrInvalid, i, s.First, s.N, f.Prompt.Tokens, d.groups[i].PageTokens)
		}
		if n := d.pagesOf(i, s); len(f.Pages[i]) != n {
			return fmt.Errorf("%w: group %d has %d pages, span [%d, %d) needs %d", hawser.ErrInvalid, i, len(f.Pages[i]), s.First, s.N, n)
		}
		most := d.mine.Members[0].PoolPages(i)
		for _, p := range f.Pages[i] {
			if int(p) >= most {
				return fmt.Errorf("%w: page %d of group %d, the views have %d", hawser.ErrInvalid, p, i, most)
			}
		}
		r.total += len(f.Pages[i])
	}
	return nil
}

// borrow marks the caller's pages as those of r, until nothing of it can land. What an earlier request may still write into is refused:
// after a cancellation that is easily forgotten, and would put one request's cache into another's pages.
func (d *Decoder) borrow(r *fetchRequest) error {
	if d.borrowed == nil {
		d.borrowed = make([][]uint64, len(d.groups))
	}
	for i, pages := range r.f.Pages {
		if d.borrowed[i] == nil {
			d.borrowed[i] = make([]uint64, (d.mine.Members[0].PoolPages(i)+63)/64)
		}
		for k, p := range pages {
			if bits := &d.borrowed[i][p/64]; *bits&(1<<(p%64)) == 0 {
				*bits |= 1 << (p % 64)
				continue
			}
			d.unborrow(r.f.Pages[:i])
			d.unborrow(append(make([][]uint32, i, i+1), pages[:k]))
			return fmt.Errorf("%w: page %d of group %d is there twice, or an earlier request with it is not quiet yet", hawser.ErrBusy, p, i)
		}
	}
	return nil
}

func (d *Decoder) unborrow(pages [][]uint32) {
	for i := range pages {
		for _, p := range pages[i] {
			d.borrowed[i][p/64] &^= 1 << (p % 64)
		}
	}
}

// end is the end of the span: without a tail D computes the last token itself.
func (f *Fetch) end() int {
	if f.Tail {
		return f.Prompt.Tokens
	}
	return f.Prompt.Tokens - 1
}

// spanOf is what a request needs of a group when the first tokens are here.
func (d *Decoder) spanOf(f *Fetch, group, first int) Span {
	if f.Spans != nil {
		return f.Spans[group]
	}
	return d.span(group, first, f.end())
}

// span is that of one group in layout.Pair.Spans, without the pair, and empty when all tokens are here.
func (d *Decoder) span(group, first, n int) Span {
	g := &d.groups[group]
	if first >= n {
		return Span{First: n, N: n}
	}
	if g.Window > 0 {
		first = max(first, n-g.Window)
	}
	return Span{First: first - first%g.PageTokens, N: n}
}

func (d *Decoder) pagesOf(group int, s Span) int {
	if s.First >= s.N {
		return 0
	}
	size := d.groups[group].PageTokens
	return (s.N+size-1)/size - s.First/size
}

// lookup pins what the cache has of the prompt.
func (d *Decoder) lookup(r *fetchRequest) {
	size := d.groups[0].PageTokens
	if !d.cache || r.f.Pages != nil {
		r.need = r.total
		return
	}
	if r.prefix.ID == 0 {
		blocks := r.f.Blocks[:min(len(r.f.Blocks), r.f.end()/size)]
		r.prefix = d.cfg.Pools[0].Lookup(blocks)
	}
	r.need = d.pagesOf(0, d.span(0, len(r.prefix.Pages)*size, r.f.end()))
}

func (d *Decoder) unpin(r *fetchRequest) {
	if r.prefix.ID != 0 {
		d.defect(d.cfg.Pools[0].Unpin(r.prefix))
		r.prefix = pool.Prefix{}
	}
}

// Cancel ends a request that is not ready, with ErrCancelled and the cause. Quiet tells when its pages are reusable. It does nothing to a
// request that is ready or has ended.
func (d *Decoder) Cancel(now Time, id Request, cause error) {
	d.enter(now)
	if r := d.requests[id]; r != nil {
		if cause == nil {
			cause = ErrCancelled
		} else if !errors.Is(cause, ErrCancelled) {
			cause = fmt.Errorf("%w: %w", ErrCancelled, cause)
		}
		d.stop(r, cause)
	}
	d.leave()
}

// stop ends a request for a reason of D's own.
func (d *Decoder) stop(r *fetchRequest, cause error) {
	if r.at != nil {
		d.count(r.at) // it may be ready, or a peer may have written too much
	}
	switch {
	case r.told:
	case r.at != nil:
		r.at.cause = cause
		d.stepFetch(r.at, fetchEvent{kind: evStop, writers: r.at.writersAre()})
	default:
		d.drop(r, cause)
	}
}

// drop ends a request that has no attempt now.
func (d *Decoder) drop(r *fetchRequest, cause error) {
	src := r.src
	d.unwait(r)
	d.unpin(r)
	if r.dispatched == 0 {
		d.detach(r, cause)
	}
	if r.cause != nil && !errors.Is(cause, r.cause) {
		cause = fmt.Errorf("%w (the last attempt: %w)", cause, r.cause)
	}
	d.end(r, fmt.Errorf("kv: request %s: waiting for %s: %w", r.f.ID, cmp.Or(r.blocked, "its turn"), cause))
	d.kick = true // it may have held up others
	d.unpark(src)
}

// end tells the caller why the request will not become ready.
func (d *Decoder) end(r *fetchRequest, err error) {
	if r.told {
		return
	}
	r.told = true
	if errors.Is(err, ErrCancelled) {
		d.stats.Cancelled++
	} else {
		d.stats.Failed++
	}
	if d.entering == r {
		r.answer = err
		d.timers.set(&r.timer, d.now)
		return
	}
	d.out.Ended(r.id, err)
	d.retire(r)
}

// retire tells Quiet when the request has its answer and nothing of it can land, and forgets it when the caller needs it no more.
func (d *Decoder) retire(r *fetchRequest) {
	if !r.told || r.answer != nil || r.unquiet > 0 {
		return
	}
	if !r.hushed {
		r.hushed = true
		d.unborrow(r.f.Pages)
		d.out.Quiet(r.id)
	}
	if !r.held {
		delete(d.requests, r.id)
		d.timers.clear(&r.timer)
		d.leaveSource(r)
	}
}

// due does what time has made due for a request.
func (r *fetchRequest) due(now Time) {
	d := r.d
	if err := r.answer; err != nil {
		r.answer = nil
		d.out.Ended(r.id, err)
		d.retire(r)
		return
	}
	if !r.told && now >= r.deadline {
		d.stop(r, fmt.Errorf("%w: not ready %v after it arrived", ErrDeadline, now-r.arrived))
	}
	for _, a := range slices.Clone(r.old) {
		d.dueAttempt(a)
	}
	switch {
	case r.at != nil:
		d.dueAttempt(r.at)
	case r.place == placeDelayed && now >= r.notBefore:
		d.unwait(r)
		d.wait(r)
	case r.place == placeQueued: // nothing is missing, but the caller did not know the number
		d.kick = true
	}
	d.arm(r)
}

// arm sets the timer of a request to the first thing that time can change.
func (d *Decoder) arm(r *fetchRequest) {
	if d.requests[r.id] == nil || r.answer != nil {
		return
	}
	at, some := r.deadline, !r.told
	if r.place == placeDelayed {
		at, some = earlier(at, some, r.notBefore, true)
	}
	for _, a := range r.old {
		at, some = a.next(at, some)
	}
	if r.at != nil {
		at, some = r.at.next(at, some)
	}
	if !some {
		d.timers.clear(&r.timer)
		return
	}
	d.timers.set(&r.timer, max(at, d.now+1))
}

// earlier is the first of two times, each of which may be none.
func earlier(at Time, some bool, other Time, too bool) (Time, bool) {
	if too && (!some || other < at) {
		return other, true
	}
	return at, some
}

// ready tells the caller.
func (d *Decoder) ready(r *fetchRequest, res Result) {
	r.told, r.held = true, true
	d.held++
	d.stats.Ready++
	res.Arrived, res.Ready = r.arrived, d.now
	r.f.Prompt.IDs, r.f.Blocks = nil, nil // the caller may hold the result for long
	d.out.Ready(r.id, res)
	d.retire(r)
}

// Release gives back what a ready request holds. For others, and a second time, it does nothing.
func (d *Decoder) Release(now Time, id Request) {
	d.enter(now)
	if r := d.requests[id]; r != nil && r.held {
		r.held = false
		d.held--
		if r.at != nil {
			d.stepFetch(r.at, fetchEvent{kind: evRelease})
		}
		d.unpin(r)
		d.retire(r)
		d.kick = true
	}
	d.leave()
}
