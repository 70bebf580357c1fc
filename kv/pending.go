package kv

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
)

// Pending is a request under way. Safe for concurrent use.
type Pending struct {
	d        *Decoder
	req      FetchRequest
	n        int // pages
	link     *fetchLink
	arrived  time.Time
	deadline time.Time
	done     chan struct{} // closed when result or err is set
	quiet    chan struct{}

	stopWatch func() bool // of the context of Fetch

	// guarded by Decoder.mu until done is closed
	attempt *attempt // nil while it waits for pages
	result  Result
	err     error
}

// attempt is one try to get the pages of a Pending.
type attempt struct {
	p       *Pending
	link    *fetchLink
	seq     uint64
	counter counter  // of a value that nobody else uses; closed when nothing can land any more
	pages   []uint32 // physical page of each logical one
	extents []extent
	timing  chan Timing // capacity 1

	// guarded by Decoder.mu
	step      fetchStep
	since     time.Time     // of the state
	repeat    time.Time     // when the message of this state goes out again
	pause     time.Duration // until the repetition after that
	life      time.Time     // last sign of life: an answer, or a write
	seen      uint64        // count at the last look
	withdrawn bool          // its pages are counted as quarantined
}

// Result is a prompt whose cache is here.
type Result struct {
	Pages []uint32 // physical page of each logical page of the prompt; of the pool, until Release
	Stats FetchStats
	a     *attempt
}

// FetchStats says how a request went.
type FetchStats struct {
	Arrived    time.Time // Fetch was called
	Dispatched time.Time // it had its pages
	Ready      time.Time // the last write was counted
	Bytes      uint64
	Writes     uint64
}

// Wait waits for the pages. The error wraps an *AttemptError when the request had been dispatched. A context that ends first
// only ends the waiting: use Cancel, or the context of Fetch, to end the request.
func (p *Pending) Wait(ctx context.Context) (Result, error) {
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return Result{}, fmt.Errorf("kv: wait for request %s: %w", p.req.ID, context.Cause(ctx))
	}
}

// Cancel ends a request that is not ready; Wait returns ErrCancelled at once. Its pages are reusable when Quiesced is closed. It does
// nothing to a request that is ready: release its Result.
func (p *Pending) Cancel(reason string) {
	p.d.cancel(p, fmt.Errorf("%w: %s", ErrCancelled, reason))
}

// Quiesced is closed when no write of the request can land any more. That never comes while the pages are quarantined.
func (p *Pending) Quiesced() <-chan struct{} { return p.quiet }

// Release gives the pages back to the pool. Calling it again does nothing.
func (r Result) Release() {
	if r.a == nil {
		return
	}
	d := r.a.p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.a.step.state == fetchReady {
		d.step(r.a, fetchEvent{kind: evRelease})
	}
}

// Timing is what the prefiller tells about a request after it has posted everything. It is statistics only.
type Timing struct {
	SameHost bool      // the prefiller runs on this host, so the times can be compared with times taken here
	Begun    time.Time // the first pass with the request began
	Computed time.Time // its last layer was computed
	Layers   int       // layers computed, over all passes
	Late     int       // of them, layers that took longer than the inference engine meant them to
}

// Timing waits for the prefiller's message, which comes about when the request becomes ready, and may be lost.
func (r Result) Timing(ctx context.Context) (Timing, error) {
	if r.a == nil {
		return Timing{}, fmt.Errorf("kv: timing: %w: the request did not become ready", hawser.ErrInvalid)
	}
	select {
	case t := <-r.a.timing:
		r.a.timing <- t // for the next caller
		return t, nil
	case <-ctx.Done():
		return Timing{}, fmt.Errorf("kv: timing of request %s: %w", r.a.p.req.ID, context.Cause(ctx))
	}
}
