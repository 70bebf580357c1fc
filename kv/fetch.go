package kv

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
)

// This file is the shell around fetchStep: messages, counts, time and the caller go in, effects come out.

// admit dispatches waiting requests, oldest first, as long as there are pages. Needs mu.
func (d *Decoder) admit() {
	for len(d.queue) > 0 {
		p := d.queue[0]
		if h := d.head(p.link); h.next-h.lowWater >= maxSeqWindow {
			return
		}
		pages, err := d.cfg.Pool.Reserve(p.n, d.nextSeq)
		if err != nil {
			return // goes on when pages come back
		}
		counter, err := d.net.Take()
		if err != nil {
			d.free(pages, d.nextSeq)
			if errors.Is(err, hawser.ErrLimit) {
				return // goes on when an attempt ends
			}
			d.drop(p, err)
			continue
		}
		d.queue = d.queue[1:]
		d.start(p, counter, pages)
	}
}

// free gives pages back.
func (d *Decoder) free(pages []uint32, owner uint64) {
	if err := d.cfg.Pool.Return(pages, owner); err != nil {
		d.log.Error("pages are lost", "attempt", owner, "err", err) // somebody else returned them: they are free, or another's
	}
}

// start dispatches a request that has its pages. Needs mu.
func (d *Decoder) start(p *Pending, counter counter, pages []uint32) {
	now := time.Now()
	a := &attempt{
		p: p, link: p.link, seq: d.nextSeq, counter: counter, pages: pages, extents: extentsOf(pages),
		timing: make(chan Timing, 1), step: fetchStep{expected: d.cfg.Geometry.Writes(p.req.Tokens)},
		since: now, life: now, repeat: now.Add(repeatFirst), pause: 2 * repeatFirst,
	}
	d.nextSeq++
	p.attempt = a
	p.result.Stats.Arrived, p.result.Stats.Dispatched = p.arrived, now
	d.attempts[a.seq] = a
	a.link.live[a.seq] = a
	a.link.seqs = append(a.link.seqs, a.seq)
	d.writing++
	d.await(a)
	d.dispatch(a)
}

// extentsOf joins physical pages that follow each other.
func extentsOf(pages []uint32) []extent {
	var all []extent
	for i, page := range pages {
		if n := len(all); n > 0 && all[n-1].physical+all[n-1].n == page {
			all[n-1].n++
			continue
		}
		all = append(all, extent{logical: uint32(i), physical: page, n: 1})
	}
	return all
}

// dispatch sends Dispatch, in as many parts as the page list needs. Needs mu.
func (d *Decoder) dispatch(a *attempt) {
	parts := (len(a.extents) + d.partExtents - 1) / d.partExtents
	for part := range parts {
		first := part * d.partExtents
		d.send(a.link, &dispatch{
			seq: a.seq, id: a.p.req.ID, imm: a.counter.Imm(), tokens: a.p.req.Tokens, expected: a.step.expected,
			parts: parts, part: part, extents: a.extents[first:min(first+d.partExtents, len(a.extents))],
		})
	}
}

// await looks at the attempt again when the count that it awaits is there. Needs mu.
func (d *Decoder) await(a *attempt) {
	want := a.step.awaited()
	if want == 0 {
		return
	}
	// Others may have counted on the same value; only this peer's count matters. The whole is read first: if a write is counted
	// in between, the look comes too early, and there is another one, and never too late.
	whole := a.counter.Load()
	a.counter.OnReach(want+whole-min(whole, a.landed()), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.ctx.Err() != nil || a.step.awaited() == 0 {
			return // in the meantime
		}
		d.step(a, fetchEvent{kind: evCount, from: a.landed()})
		if a.step.awaited() == want {
			d.await(a)
		}
	})
}

// landed is how many writes of the attempt are here.
func (a *attempt) landed() uint64 { return a.counter.From(a.link.peer) }

// step feeds one event to an attempt and carries the effects out. Needs mu.
func (d *Decoder) step(a *attempt, e fetchEvent) {
	next, fx, ok := a.step.step(e)
	if !ok {
		d.unexpected++
		d.log.Debug("unexpected event", "attempt", a.seq, "state", a.step.state, "event", e.kind)
	}
	before := a.step
	a.step = next
	if next.state != before.state {
		a.since = time.Now()
		d.log.Debug("attempt", "request", a.p.req.ID, "attempt", a.seq, "from", before.state, "event", e.kind, "to", next.state)
	}
	if next.awaited() != before.awaited() {
		d.await(a)
	}
	p := a.p
	if fx&fxReady != 0 {
		p.result.Pages, p.result.a = a.pages, a
		p.result.Stats.Ready = a.since
		p.result.Stats.Writes = next.expected
		p.result.Stats.Bytes = next.expected * d.cfg.Geometry.Group.PageBytes()
		close(p.done)
	}
	if fx&fxTell != 0 {
		p.err = &AttemptError{
			Request: p.req.ID, Attempt: a.seq, Peer: a.link.peer.String(),
			Arrived: a.landed(), Expected: next.expected, Err: next.cause,
		}
		close(p.done)
	}
	if fx&fxCancel != 0 {
		a.repeat, a.pause = a.since.Add(cancelFirst), 2*cancelFirst
		d.send(a.link, &cancel{a.seq, next.cause.Error()})
	}
	if fx&fxFence != 0 {
		d.endLink(a.link, next.cause)
	}
	if fx&fxQuarantine != 0 {
		a.withdrawn = true
		d.quarantined += len(a.pages)
	}
	if fx&fxQuiet != 0 {
		d.quiet(a)
	}
	if fx&fxFree != 0 {
		delete(d.attempts, a.seq)
		d.free(a.pages, a.seq)
	}
	if fx&fxQuiet != 0 {
		close(p.quiet) // after the pages are free: whoever waits for it may reserve them
	}
	if fx&fxFree != 0 {
		d.admit()
	}
}

// quiet ends what the attempt holds beside its pages: nothing can land any more. Needs mu.
func (d *Decoder) quiet(a *attempt) {
	a.counter.Close()
	delete(a.link.live, a.seq)
	a.p.stopWatch()
	if a.withdrawn {
		d.quarantined -= len(a.pages)
	}
	if d.writing--; d.writing == 0 && d.closing {
		d.rest()
	}
}

// drop ends a request that still waits for pages. Needs mu.
func (d *Decoder) drop(p *Pending, cause error) {
	d.queue = slices.DeleteFunc(d.queue, func(q *Pending) bool { return q == p })
	p.stopWatch()
	p.err = fmt.Errorf("kv: request %s: waiting for %d pages: %w", p.req.ID, p.n, cause)
	close(p.done)
	close(p.quiet)
}

// cancel ends a request for the caller's sake.
func (d *Decoder) cancel(p *Pending, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.attempt != nil {
		d.step(p.attempt, fetchEvent{kind: evCancel, cause: cause})
		return
	}
	if slices.Contains(d.queue, p) {
		d.drop(p, cause)
		d.admit() // it may have held up smaller ones
	}
}

// receive takes the engine's messages.
func (d *Decoder) receive() {
	for {
		m, err := d.net.Receive(d.ctx)
		if err != nil {
			return // closing: the engine or the Decoder
		}
		h, b, err := decode(m.Data)
		d.mu.Lock()
		if l := d.peers[m.From]; l == nil {
			d.unexpected++ // of a link that has ended, or of a stranger
		} else if err != nil {
			d.endLink(l, err)
		} else if h.epoch == l.epoch {
			d.handle(l, h.ticket, b)
		}
		d.mu.Unlock()
	}
}

// handle takes one message of a link. Needs mu.
func (d *Decoder) handle(l *fetchLink, ticket uint64, b body) {
	switch m := b.(type) {
	case *helloAck:
		if !l.up {
			l.up, l.ticket = true, ticket
			close(l.ready)
			d.log.Info("link up", "peer", l.peer, "epoch", l.epoch, "path", l.peer.Path())
		}
	case *helloReject:
		if l.up {
			d.unexpected++
			return
		}
		d.endLink(l, fmt.Errorf("hello with %s: %w", l.peer, m.err()))
	case *accept:
		d.answered(l, m.seq, fetchEvent{kind: evAccept})
	case *reject:
		d.answered(l, m.seq, fetchEvent{kind: evAnswer, exact: true, cause: &RejectedError{m.code, m.text}})
	case *failed:
		d.answered(l, m.seq, fetchEvent{kind: evAnswer, posted: m.posted, exact: m.exact, cause: &FailedError{m.code, m.text}})
	case *cancelAck:
		d.answered(l, m.seq, fetchEvent{kind: evAnswer, posted: m.posted, exact: m.exact, cause: ErrCancelled})
	case *timing:
		if a := d.attempts[m.seq]; a != nil && a.link == l {
			select {
			case a.timing <- m.times():
			default: // a second one
			}
		}
	case *bye:
		d.endLink(l, fmt.Errorf("%w: %s ended the link: %s", hawser.ErrPeerDown, l.peer, m.text))
	default:
		d.endLink(l, fmt.Errorf("%w: %v message from a prefiller", ErrProtocol, b.kind()))
	}
}

// answered feeds an answer of the peer to the attempt it is about, if that is still live. Needs mu.
func (d *Decoder) answered(l *fetchLink, seq uint64, e fetchEvent) {
	a := l.live[seq]
	if a == nil {
		return // to a message that was repeated, or overtaken by the last write
	}
	a.life = time.Now()
	e.from = a.landed()
	d.step(a, e)
}

// timers runs while there is something that time can change.
func (d *Decoder) timers() {
	tick := time.NewTicker(decoderTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.ctx.Done():
			return
		}
		d.mu.Lock()
		sleep := d.tick(time.Now())
		d.mu.Unlock()
		if !sleep {
			continue
		}
		tick.Stop()
		select {
		case <-d.busy:
			tick.Reset(decoderTick)
		case <-d.ctx.Done():
			return
		}
	}
}

// tick does what is due. It reports true when nothing can become due until the next Fetch. Needs mu.
func (d *Decoder) tick(now time.Time) (sleep bool) {
	late := func(p *Pending) error {
		if now.Before(p.deadline) {
			return nil
		}
		return fmt.Errorf("%w: not ready %v after it arrived", ErrDeadline, now.Sub(p.arrived).Round(time.Millisecond))
	}
	for _, p := range slices.Clone(d.queue) {
		if err := late(p); err != nil {
			d.drop(p, err)
		}
	}
	for _, a := range d.attempts {
		if a.step.state.writing() {
			d.due(a, now, late(a.p))
		}
	}
	d.admit()
	return d.writing == 0 && len(d.queue) == 0
}

// due does what is due for one attempt; late is the cause when its deadline is over. Needs mu.
func (d *Decoder) due(a *attempt, now time.Time, late error) {
	if n := a.landed(); n != a.seen {
		a.seen, a.life = n, now
	}
	switch a.step.state {
	case fetchAsked, fetchActive:
		stalled := now.Sub(a.life)
		switch {
		case late != nil:
			d.step(a, fetchEvent{kind: evCancel, cause: late})
		case stalled > d.cfg.Stall:
			d.step(a, fetchEvent{kind: evCancel, cause: fmt.Errorf("%w for %v", ErrStalled, stalled.Round(time.Millisecond))})
		case a.step.state == fetchAsked && now.After(a.repeat):
			a.repeat, a.pause = now.Add(a.pause), min(2*a.pause, repeatMost)
			d.dispatch(a)
		case a.step.state == fetchActive && stalled > d.probe() && now.After(a.repeat):
			// The answer to the repetition shows that the peer has not forgotten the attempt, or brings a Failed that was lost.
			a.repeat = now.Add(d.probe())
			d.dispatch(a)
		}
	case fetchStopping:
		if now.Sub(a.since) > d.cfg.Stall {
			d.step(a, fetchEvent{kind: evUnsure, cause: errors.New("no answer to cancel")})
		} else if now.After(a.repeat) {
			a.repeat, a.pause = now.Add(a.pause), min(2*a.pause, repeatMost)
			d.send(a.link, &cancel{a.seq, a.step.cause.Error()})
		}
	case fetchSettling:
		if now.Sub(a.since) > settleLimit {
			d.step(a, fetchEvent{kind: evUnsure, cause: fmt.Errorf("%w: %d writes are said to be posted, %d came",
				ErrProtocol, a.step.settle, a.landed())})
		}
	}
}

// probe is how long an accepted attempt may be silent before the peer is asked about it.
func (d *Decoder) probe() time.Duration { return min(repeatMost, d.cfg.Stall/4) }
