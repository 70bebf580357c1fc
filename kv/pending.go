package kv

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// FetchRequest asks for the cache of one prompt.
type FetchRequest struct {
	ID     string // the same on both sides and on all members; at most proto.MaxRequestID bytes, opaque
	Prompt proto.Prompt
	Blocks []pool.Hash // of the prompt's full pages, for the prefix cache; nil: neither looked up nor published
	// Spans and Pages are for callers who bring their pages, one of each for each group of layers. Both nil: pages come from the pools.
	Spans    []proto.Span
	Pages    [][]uint32
	From     []proto.Source // the first is preferred, the others are alternatives for retries
	Tail     bool           // wait for the tail, too
	Priority int8           // higher goes first
	Deadline time.Duration  // from now; DecoderConfig.Deadline when 0
	Trace    [16]byte       // trace context, passed on
	Polled   bool           // Decoder.Poll tells of it; nobody else takes its events, which wait for that
}

// Pending is a request under way. Safe for concurrent use.
type Pending struct {
	d      *Decoder
	id     string
	polled bool
	number proto.Request // set by the machine before Fetch returns
	done   chan struct{} // closed when result or err is set

	unwatch func() bool // of the context of Fetch

	at atomic.Pointer[awaited] // the immediate of the latest attempt; nil before there is one

	// guarded by Decoder.mu until done is closed
	result *Result
	err    error

	// guarded by Decoder.mu. Few ask for the channels, and many requests wait at once, so they are made for those who ask.
	isQuiet, released bool
	quiet             chan struct{} // closed when isQuiet
	timing            *proto.Timing // does not change once it is set
	told              chan struct{} // closed when timing is set
}

// Result is a prompt whose cache is here.
type Result struct {
	proto.Result
	// When Fetch was called, the first attempt went out, and everything was here.
	Arrived, Dispatched, Ready time.Time

	p *Pending
}

// Fetch asks a prefiller for a prompt and returns at once; the request connects, waits for pages (all of them or none) and for the
// prefiller. When ctx ends before the pages are ready the request is cancelled. ErrLimit: the prompt can never fit, or too many
// requests wait. ErrBusy: a page that the caller brings may still be written for an earlier request, see Pending.Quiesced.
func (d *Decoder) Fetch(ctx context.Context, r FetchRequest) (*Pending, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("kv: request %s: %w: %w", r.ID, proto.ErrCancelled, context.Cause(ctx))
	}
	p := &Pending{d: d, id: r.ID, polled: r.Polled, done: make(chan struct{})}
	f := proto.Fetch{
		ID: r.ID, Prompt: r.Prompt, Blocks: r.Blocks, Spans: r.Spans, Pages: r.Pages, From: r.From, Tail: r.Tail,
		Priority: r.Priority, Trace: r.Trace,
	}
	d.mu.Lock()
	defer d.unlock()
	now := d.now()
	if r.Deadline > 0 {
		f.Deadline = now + r.Deadline
	}
	d.starting = p
	number, err := d.m.Fetch(now, f)
	d.starting = nil
	if err != nil {
		return nil, err
	}
	p.number = number
	d.requests[number] = p
	d.forget(p)
	if !p.isDone() && ctx.Done() != nil {
		p.unwatch = context.AfterFunc(ctx, func() { p.cancel(fmt.Errorf("%w: %w", proto.ErrCancelled, context.Cause(ctx))) })
	}
	return p, nil
}

// finish tells the caller. Needs mu.
func (p *Pending) finish() {
	if p.unwatch != nil {
		p.unwatch()
	}
	close(p.done)
	kind := EventReady
	if p.err != nil {
		kind = EventFailed
	}
	p.d.events.add(kind, p)
	p.d.forget(p)
}

func (p *Pending) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ID is that of the FetchRequest.
func (p *Pending) ID() string { return p.id }

// Number is how notes name the request.
func (p *Pending) Number() proto.Request { return p.number }

// Done is closed when Wait will not wait.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Poll reports whether Wait will not wait, for callers that look again and again instead of waiting: what has landed counts at once, and
// nobody has to be woken. It never blocks for longer than the Decoder is busy.
// hot:
func (p *Pending) Poll() bool {
	if p.isDone() {
		return true
	}
	a := p.at.Load()
	if a == nil || !a.reached() {
		return false
	}
	p.d.counted(a)
	return p.isDone()
}

// Landed is how many writes of the latest attempt are here, and how many have to be for what is awaited; 0 and 0 while there is nothing
// to await. Layers of a prompt arrive about in order.
func (p *Pending) Landed() (n, of uint64) {
	a := p.at.Load()
	if a == nil {
		return 0, 0
	}
	of = a.want.Load()
	return min(a.c.Load(), of), of
}

// Wait waits for the pages. A context that ends first only ends the waiting: use Cancel, or the context of Fetch, to end the request.
func (p *Pending) Wait(ctx context.Context) (Result, error) {
	select {
	case <-p.done:
		if p.err != nil {
			return Result{}, p.err
		}
		return *p.result, nil
	case <-ctx.Done():
		return Result{}, fmt.Errorf("kv: wait for request %s: %w", p.id, context.Cause(ctx))
	}
}

// Cancel ends a request that is not ready; Wait returns proto.ErrCancelled at once. Its pages are reusable when Quiesced is closed. It
// does nothing to a request that is ready: release its Result.
func (p *Pending) Cancel(reason string) { p.cancel(fmt.Errorf("%w: %s", proto.ErrCancelled, reason)) }

func (p *Pending) cancel(cause error) {
	d := p.d
	d.mu.Lock()
	defer d.unlock()
	if !p.isDone() {
		d.m.Cancel(d.now(), p.number, cause)
	}
}

// Quiesced is closed when no write of the request can land any more. That does not come while its pages are quarantined.
func (p *Pending) Quiesced() <-chan struct{} {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return ask(&p.quiet, p.isQuiet)
}

// setQuiet needs mu.
func (p *Pending) setQuiet() {
	p.isQuiet = true
	p.d.events.add(EventQuiet, p)
	if p.quiet != nil {
		close(p.quiet)
	}
}

// ask returns a channel that is made when somebody asks for it, closed when what it tells has happened before.
func ask(c *chan struct{}, happened bool) <-chan struct{} {
	if *c == nil {
		*c = make(chan struct{})
		if happened {
			close(*c)
		}
	}
	return *c
}

// Release gives the pages and the tail's slot back. Calling it again does nothing.
func (r Result) Release() {
	if r.p == nil {
		return
	}
	d := r.p.d
	d.mu.Lock()
	defer d.unlock()
	d.m.Release(d.now(), r.p.number)
	r.p.released = true
	d.forget(r.p)
}

// ReadTail copies the tail. ErrStale: the result has been released.
func (r Result) ReadTail(out []byte) (int, error) {
	if r.p == nil || r.Tail.Generation == 0 {
		return 0, fmt.Errorf("kv: tail: %w: the request asked for none", hawser.ErrInvalid)
	}
	d := r.p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.m.TailIs(r.Tail) {
		return 0, fmt.Errorf("kv: tail of request %s: %w: its slot has been given to another", r.p.id, hawser.ErrStale)
	}
	off := int(r.Tail.Slot) * d.cfg.TailBytes
	return copy(out, d.cfg.Tails.Bytes()[off:off+d.cfg.TailBytes]), nil
}
