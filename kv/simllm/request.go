package simllm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/trace"
)

// one is the life of one request.
func (d *Decoder) one(ctx context.Context, i int, q trace.Request, due time.Time) {
	chance := rand.New(rand.NewPCG(d.cfg.Seed, uint64(i)))
	id, tokens := fmt.Sprintf("%s-%d", d.run, i), q.Tokens()
	blocks := pool.Hashes(pool.Hash{}, tokens, d.mem.geometry.Groups[0].PageTokens)
	from, leave, err := d.sources.take(ctx, blocks)
	if err != nil {
		d.failed(err)
		return
	}
	defer leave()
	p, err := d.kv.Fetch(ctx, kv.FetchRequest{
		ID: id, Prompt: proto.Prompt{Tokens: len(tokens), IDs: tokens}, Blocks: blocks,
		From: from, Tail: true,
	})
	if err != nil {
		d.failed(err)
		return
	}
	if d.cfg.Fetched != nil {
		d.cfg.Fetched(p.Number(), id, q)
	}
	var cancelled atomic.Pointer[time.Time] // by us
	drawn, at, claimed := chance.Float64() < d.cfg.Cancel, d.someTime(chance), d.claimCancel()
	if claimed {
		at = soon
	}
	if drawn || claimed {
		timer := time.AfterFunc(at, func() {
			now := time.Now()
			cancelled.Store(&now)
			p.Cancel("replay cancels some")
		})
		defer timer.Stop()
	}
	result, err := p.Wait(ctx)
	woken := time.Now()
	if err != nil {
		if at := cancelled.Load(); at != nil {
			woken = *at
		}
		d.unready(ctx, p, woken, err)
		return
	}
	if d.cfg.Ready != nil {
		d.cfg.Ready(id, result)
	}
	defer result.Release()
	if claimed {
		d.returnCancel()
	}
	d.ready(ctx, NewContent(d.mem.geometry.Fingerprint, tokens), q, due, result, woken.Sub(result.Ready))
}

// unready is the end of a request that did not become ready.
func (d *Decoder) unready(ctx context.Context, p *kv.Pending, at time.Time, err error) {
	select {
	case <-p.Quiesced():
		if errors.Is(err, proto.ErrCancelled) && ctx.Err() == nil {
			d.cancelled(time.Since(at))
			return
		}
	case <-ctx.Done():
	case <-time.After(quietLimit):
		err = fmt.Errorf("%w: %w", hawser.ErrUnfenced, err)
	}
	d.failed(err)
}

// quietLimit is how long a request that has ended may keep its pages: longer than peers are stopped in a replay.
const quietLimit = 30 * time.Second

// soon is a fraction of the compute time of any prompt worth cancelling.
const soon = time.Millisecond

// claimCancel makes a request one of CancelN; returnCancel gives that to a later request, because this one was ready too soon.
func (d *Decoder) claimCancel() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claimed == d.cfg.CancelN {
		return false
	}
	d.claimed++
	return true
}

func (d *Decoder) returnCancel() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claimed--
}

// someTime is a random time in the life of a request: some end before it, and are not cancelled.
func (d *Decoder) someTime(chance *rand.Rand) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(1.25 * chance.Float64() * float64(d.life))
}

// timingLimit is how long a request waits for the prefiller's timing, which has normally come before.
const timingLimit = 200 * time.Millisecond

// ready checks a request whose cache is here, and decodes it: holds its pages for as long as its output takes.
func (d *Decoder) ready(ctx context.Context, c *Content, q trace.Request, due time.Time, result kv.Result, notify time.Duration) {
	decodeEnd := result.Ready.Add(time.Duration(float64(q.Output) * float64(d.cfg.TokenTime) / d.cfg.Speed))
	v := d.verify(c, result)
	timed, cancel := context.WithTimeout(ctx, timingLimit)
	timing, err := result.Timing(timed)
	cancel()
	if v.Wrong > 0 {
		d.cfg.Log.Error("wrong content", "attempt", result.Seq, "bytes", v.Wrong, "first", v.First.String())
	}

	d.mu.Lock()
	t := &d.tally
	total := result.Ready.Sub(due)
	d.life += (total - d.life) / 8
	t.TTFT = append(t.TTFT, ms(total))
	d.times.ttft.add(total)
	t.Notify = append(t.Notify, 1e3*ms(notify))
	if err == nil && timing.SameHost && timing.Layers > 0 {
		t.Queue = append(t.Queue, ms(timing.Begun.Sub(due)))
		t.Compute = append(t.Compute, ms(timing.Computed.Sub(timing.Begun)))
		t.Exposed = append(t.Exposed, 1e3*ms(result.Ready.Sub(timing.Computed)))
		d.times.exposed.add(result.Ready.Sub(timing.Computed))
	}
	t.Bytes += result.Bytes
	t.Tokens += uint64(q.Input)
	t.Reused += uint64(result.Prefix)
	t.Corrupt += v.Wrong
	switch {
	case v.Wrong > 0:
		t.Failed++
		t.Causes["corrupt"]++
		if t.FirstBad == "" {
			t.FirstBad = v.First.String()
		}
	case d.cfg.Verify != VerifyOff:
		t.Verified++
		t.Done++
	default:
		t.Done++
	}
	d.mu.Unlock()
	sleep(ctx, time.Until(decodeEnd))
}

// verify checks the content.
func (d *Decoder) verify(c *Content, result kv.Result) (v Verdict) {
	step := 1
	switch d.cfg.Verify {
	case VerifyOff:
		return v
	case VerifySample:
		step = sampleEvery
	}
	// One at a time: checking must not take the processors from those who move bytes.
	d.verifying.Lock()
	defer d.verifying.Unlock()
	span := Span(result.Spans[0])
	// With a window the list begins in the middle of the prompt.
	pages := append(make([]uint32, span.First/d.mem.geometry.Groups[0].PageTokens), result.Pages[0]...)
	for _, r := range d.mem.rows {
		v.Add(c.Check(r, pages, span, step))
	}
	var tail [tailBytes]byte
	if _, err := result.ReadTail(tail[:]); err != nil {
		return Verdict{Bytes: v.Bytes, Wrong: v.Wrong + tailBytes}
	}
	v.Bytes += tailBytes
	if wrong := c.WrongTail(tail[:]); wrong > 0 {
		v.Add(Verdict{Wrong: uint64(wrong), First: Fault{Layer: -1}})
	}
	return v
}

func (d *Decoder) cancelled(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.Cancelled++
	d.tally.Cancels = append(d.tally.Cancels, ms(after))
	d.times.cancel.add(after)
}

func (d *Decoder) failed(err error) {
	d.cfg.Log.Warn("request failed", "err", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.Failed++
	d.tally.Causes[cause(err)]++
}

// cause is a short name of an error, for counting.
func cause(err error) string {
	var rejected *proto.RejectedError
	var failed *proto.FailedError
	var mismatch *proto.MismatchError
	switch {
	case errors.As(err, &rejected):
		return "rejected: " + rejected.Code.String()
	case errors.As(err, &failed):
		return "failed there: " + failed.Code.String()
	case errors.As(err, &mismatch):
		return "mismatch"
	}
	for _, c := range []struct {
		err  error
		name string
	}{
		{hawser.ErrUnfenced, "unfenced"},
		{hawser.ErrPeerDown, "peer down"},
		{proto.ErrStalled, "stalled"},
		{proto.ErrDeadline, "deadline"},
		{proto.ErrCorrupt, "digest"},
		{proto.ErrDraining, "draining"},
		{proto.ErrCancelled, "interrupted"},
		{context.Canceled, "interrupted"},
		{hawser.ErrLimit, "limit"},
		{hawser.ErrClosed, "closed"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}
