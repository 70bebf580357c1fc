package kv

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

// decoderOut carries out what D's machine wants. All methods need mu, which the machine's caller holds.
type decoderOut struct{ *Decoder }

// Time limits of single calls of the engine. Safety does not depend on them: they bound waits.
const (
	connectLimit = 5 * time.Second
	fenceLimit   = time.Second
)

// Connect has a goroutine of its own: one slow peer holds up nobody else.
func (d decoderOut) Connect(l proto.Link, addr string) {
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, connectLimit)
		defer cancel()
		p, err := d.eng.Connect(ctx, addr)
		d.mu.Lock()
		defer d.unlock()
		if err != nil {
			d.m.ConnectFailed(d.now(), l, err)
			return
		}
		n := d.number(p)
		if !d.met(n) {
			d.m.ConnectFailed(d.now(), l, fmt.Errorf("%w: as soon as it was up", hawser.ErrPeerDown))
			return
		}
		d.m.Connected(d.now(), l, n)
	})
}

func (d decoderOut) Describe(proto.Peer) ([][]byte, error) {
	regions := d.cfg.Regions
	if d.cfg.Tails != nil {
		regions = append(regions[:len(regions):len(regions)], d.cfg.Tails)
	}
	all := make([][]byte, len(regions))
	for i, r := range regions {
		var err error
		if all[i], err = descriptor(r); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Fence asks the engine once; the machine asks again after Unfenced.
func (d decoderOut) Fence(n proto.Peer) {
	p := d.peer(n)
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, fenceLimit)
		defer cancel()
		err := d.eng.Fence(ctx, p)
		if err != nil && d.ctx.Err() != nil {
			return // closing: nobody waits for it any more
		}
		d.mu.Lock()
		defer d.unlock()
		if err != nil {
			d.log.Warn("fence has no proof, retrying", "peer", p, "err", err)
			d.m.Unfenced(d.now(), n, err)
			return
		}
		d.m.Fenced(d.now(), n)
	})
}

func (d decoderOut) Take(seq uint64) (uint32, error) {
	c, err := d.eng.Imms().Take()
	if err != nil {
		return 0, err
	}
	d.counters[seq] = &awaited{seq: seq, c: c}
	return c.Imm(), nil
}

// Expect needs nothing of the engine: the machine compares what has landed with what it expects.
func (d decoderOut) Expect(uint64, proto.Peer, uint64) {}

func (d decoderOut) Await(seq, more uint64) {
	a := d.counters[seq]
	if a == nil {
		return
	}
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
	if more == 0 {
		a.want.Store(0)
		return
	}
	want := a.c.Load() + more
	a.want.Store(want)
	a.stop = a.c.OnReach(want, func() { d.counted(a) })
}

// counted tells the machine that an immediate has come as far as it wanted, unless somebody else was faster.
func (d *Decoder) counted(a *awaited) {
	d.mu.Lock()
	defer d.unlock()
	if d.ctx.Err() == nil && d.counters[a.seq] == a && a.reached() {
		d.m.Counted(d.now(), a.seq)
	}
}

func (d decoderOut) Landed(seq uint64, p proto.Peer) uint64 {
	if a := d.counters[seq]; a != nil {
		return a.c.From(d.peer(p))
	}
	return 0
}

func (d decoderOut) Put(seq uint64) {
	if a := d.counters[seq]; a != nil {
		a.want.Store(0)
		a.c.Close()
		delete(d.counters, seq)
	}
}

// Verify has a goroutine of its own: it reads all that was written. If the attempt ends meanwhile the answer means nothing.
func (d decoderOut) Verify(seq uint64, p proto.Peer, sums []uint64) {
	w, ok := d.m.Written(seq, p)
	if !ok {
		return
	}
	d.wg.Go(func() {
		err := compare(w, d.cfg.Regions, sums)
		d.mu.Lock()
		defer d.unlock()
		d.m.Verified(d.now(), seq, p, err)
	})
}

func (d decoderOut) Ready(r proto.Request, res proto.Result) {
	p := d.pending(r)
	p.result = &Result{Result: res, p: p, Arrived: d.time(res.Arrived), Dispatched: d.time(res.Dispatched), Ready: d.time(res.Ready)}
	p.finish()
}

func (d decoderOut) Ended(r proto.Request, err error) {
	p := d.pending(r)
	p.err = err
	p.finish()
}

func (d decoderOut) Quiet(r proto.Request) {
	p := d.pending(r)
	p.setQuiet()
	d.forget(p)
}

// pending is the request of a number. The machine may speak of one before Fetch has returned it.
func (d *Decoder) pending(r proto.Request) *Pending {
	p := d.requests[r]
	if p == nil {
		p = d.starting
		p.number = r
		d.requests[r] = p
	}
	return p
}

// forget drops a request that can bring no more news. Of one that is ready the timing may still come, until it is released.
func (d *Decoder) forget(p *Pending) {
	if p.isQuiet && p.isDone() && (p.err != nil || p.released) {
		delete(d.requests, p.number)
	}
}

func (d decoderOut) Note(n proto.Note) {
	switch n.Kind {
	case proto.NoteTiming:
		if p := d.requests[n.Request]; p != nil {
			p.setTiming(n.Timing)
		}
	case proto.NoteReserve:
		d.pending(n.Request).at.Store(d.counters[n.Seq])
	case proto.NoteLinkUp:
		d.log.Info("link up", "peer", d.peer(n.Peer), "path", d.peer(n.Peer).Path())
	case proto.NoteLinkDown:
		d.log.Info("link down", "link", n.Link, "cause", n.Err)
	case proto.NoteUnexpected:
		d.log.Debug("unexpected event", "attempt", n.Seq, "state", n.From, "event", n.To)
	}
	if d.cfg.Observer != nil {
		d.cfg.Observer(n)
	}
}

// minted is the last number that mint returned.
var minted atomic.Uint64

// mint returns numbers that grow, far apart. An engine may serve one Decoder or Prefiller after the other, and a message for the one
// before must not mean anything to the next.
func mint() uint64 { return minted.Add(1) << 32 }

// short is an address as people want to see it in an error.
func short(addr string) string {
	const most = 32
	if len(addr) <= most {
		return addr
	}
	return addr[:most] + "..."
}
