package simllm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/trace"
)

// Decode replays requests against one prefiller. It returns when all have ended, or when ctx ends: then it cancels what
// runs, and the error is ctx's. The report is valid in both cases. Requests that fail are no error; they are in the report.
func Decode(ctx context.Context, eng *hawser.Engine, cfg DecodeConfig) (Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Report{}, fmt.Errorf("simllm: %w", err)
	}
	mem, err := newCache(eng, cfg.Geometry, cfg.Pool, cfg.Seed)
	if err != nil {
		return Report{}, fmt.Errorf("simllm: decode: %w", err)
	}
	d, err := kv.NewDecoder(eng, kv.DecoderConfig{
		Geometry: cfg.Geometry, Views: mem.views, Pool: mem.pool,
		Queue: len(cfg.Requests), Deadline: cfg.Deadline, Log: cfg.Log,
	})
	if err != nil {
		return Report{}, fmt.Errorf("simllm: %w", errors.Join(err, mem.region.Close()))
	}
	r := &replay{cfg: cfg, mem: mem, d: d, run: strconv.FormatUint(rand.Uint64(), 36), life: firstLife}
	r.report = Report{Geometry: cfg.Geometry.Fingerprint, Verify: string(cfg.Verify), PoolBytes: cfg.Pool, Causes: map[string]int{}}
	unsubscribe := eng.OnPeer(r.peerEvent)
	err = d.Warm(ctx, cfg.From)
	if err == nil {
		err = r.all(ctx)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	closed := d.Close(closing)
	unsubscribe()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.QuarantinedPages = d.Stats().Quarantined
	r.report.LeakedPages = mem.pool.Pages() - mem.pool.Free() - r.report.QuarantinedPages
	r.summarize()
	if closed == nil {
		closed = mem.region.Close()
	}
	return r.report, errors.Join(err, closed)
}

// firstLife is the guess at how long a request lives before one has ended.
const firstLife = 20 * time.Millisecond

// replay is one run of Decode.
type replay struct {
	cfg   DecodeConfig
	mem   *cache
	d     *kv.Decoder
	run   string // random, so that request ids of two runs differ and with them their content
	start time.Time

	verifying sync.Mutex // held while a request is checked

	mu       sync.Mutex // guards the rest
	report   Report
	running  int
	life     time.Duration // moving average from arrival to ready
	ttft     []float64     // ms
	queue    []float64     // ms
	compute  []float64     // ms
	exposed  []float64     // us
	cancels  []float64     // ms
	claimed  int           // of CancelN
	layers   int
	late     int
	lastStop time.Time
}

// all lets the requests arrive and waits until they have ended.
func (r *replay) all(ctx context.Context) error {
	var wg, watch sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	r.start = time.Now()
	r.lastStop = r.start
	if r.cfg.Progress != nil {
		watch.Go(func() { every(watching, progressGap, func() { r.cfg.Progress(r.progress()) }) })
	}
	arrivals, endArrivals := context.WithCancel(ctx)
	if r.cfg.Duration > 0 {
		arrivals, endArrivals = context.WithTimeout(ctx, r.cfg.Duration)
	}
	first := r.cfg.Requests[0].Arrival
	for i, q := range r.cfg.Requests {
		due := r.start.Add(time.Duration(float64(q.Arrival-first) / r.cfg.Speed))
		if !sleep(arrivals, time.Until(due)) {
			break
		}
		r.mu.Lock()
		r.report.Requests++
		r.running++
		r.mu.Unlock()
		wg.Go(func() {
			r.one(ctx, i, q, due)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.running--
			r.lastStop = time.Now()
		})
	}
	endArrivals()
	wg.Wait()
	stop()
	watch.Wait()
	return context.Cause(ctx)
}

// sleep waits for d and reports true, or false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// one is the life of one request.
func (r *replay) one(ctx context.Context, i int, q trace.Request, due time.Time) {
	chance := rand.New(rand.NewPCG(r.cfg.Seed, uint64(i)))
	id := fmt.Sprintf("%s-%d", r.run, i)
	p, err := r.d.Fetch(ctx, kv.FetchRequest{ID: id, Tokens: q.Input, From: r.cfg.From})
	if err != nil {
		r.failed(err)
		return
	}
	var cancelled atomic.Pointer[time.Time] // by us
	drawn, at, claimed := chance.Float64() < r.cfg.Cancel, r.someTime(chance), r.claimCancel()
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
	if err != nil {
		select {
		case <-p.Quiesced():
			if at := cancelled.Load(); at != nil && errors.Is(err, kv.ErrCancelled) {
				r.cancelled(time.Since(*at))
				return
			}
		case <-ctx.Done():
		}
		r.failed(err)
		return
	}
	defer result.Release()
	if claimed {
		r.returnCancel()
	}
	r.ready(ctx, id, q, due, result)
}

// soon is a fraction of the compute time of any prompt worth cancelling.
const soon = time.Millisecond

// claimCancel makes a request one of CancelN; returnCancel gives that to a later request, because this one was ready too soon.
func (r *replay) claimCancel() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed == r.cfg.CancelN {
		return false
	}
	r.claimed++
	return true
}

func (r *replay) returnCancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claimed--
}

// someTime is a random time in the life of a request: some end before it, and are not cancelled.
func (r *replay) someTime(chance *rand.Rand) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Duration(1.25 * chance.Float64() * float64(r.life))
}

// timingLimit is how long a request waits for the prefiller's timing, which has normally come before.
const timingLimit = 200 * time.Millisecond

// ready checks a request whose cache is here, and decodes it: holds its pages for as long as its output takes.
func (r *replay) ready(ctx context.Context, id string, q trace.Request, due time.Time, result kv.Result) {
	decodeEnd := result.Stats.Ready.Add(time.Duration(float64(q.Output) * float64(r.cfg.TokenTime) / r.cfg.Speed))
	corrupt := r.verify(id, result)
	timed, cancel := context.WithTimeout(ctx, timingLimit)
	timing, err := result.Timing(timed)
	cancel()

	r.mu.Lock()
	total := result.Stats.Ready.Sub(due)
	r.life += (total - r.life) / 8
	r.ttft = append(r.ttft, ms(total))
	if err == nil {
		r.layers += timing.Layers
		r.late += timing.Late
	}
	if err == nil && timing.SameHost {
		r.queue = append(r.queue, ms(timing.Begun.Sub(due)))
		r.compute = append(r.compute, ms(timing.Computed.Sub(timing.Begun)))
		r.exposed = append(r.exposed, 1e3*ms(result.Stats.Ready.Sub(timing.Computed)))
	}
	r.report.Bytes += result.Stats.Bytes
	r.report.CorruptBytes += uint64(corrupt)
	switch {
	case corrupt > 0:
		r.report.Failed++
		r.report.Causes["corrupt"]++
	case r.cfg.Verify != VerifyOff:
		r.report.VerifiedRequests++
		r.report.Done++
	default:
		r.report.Done++
	}
	r.mu.Unlock()
	sleep(ctx, time.Until(decodeEnd))
}

// verify returns the number of wrong bytes.
func (r *replay) verify(id string, result kv.Result) (corrupt int) {
	step := 1
	switch r.cfg.Verify {
	case VerifyOff:
		return 0
	case VerifySample:
		step = sampleEvery
	}
	// One at a time: checking must not take the processors from those who move bytes.
	r.verifying.Lock()
	defer r.verifying.Unlock()
	key, planes := RequestKey(id), r.cfg.Geometry.Group.Planes
	var polite yielder
	for view := range r.mem.views {
		for page := 0; page < len(result.Pages); page += step {
			corrupt += Corrupt(r.mem.page(view, result.Pages[page]), Key{key, view / planes, view % planes, page})
			polite.did(r.mem.size)
		}
	}
	return corrupt
}

func (r *replay) cancelled(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Cancelled++
	r.cancels = append(r.cancels, ms(after))
}

func (r *replay) failed(err error) {
	r.cfg.Log.Warn("request failed", "err", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Failed++
	r.report.Causes[cause(err)]++
}

// cause is a short name of an error, for counting.
func cause(err error) string {
	var rejected *kv.RejectedError
	var failed *kv.FailedError
	switch {
	case errors.As(err, &rejected):
		return "rejected: " + rejected.Code.String()
	case errors.As(err, &failed):
		return "failed there: " + failed.Code.String()
	}
	for _, c := range []struct {
		err  error
		name string
	}{
		{hawser.ErrPeerDown, "peer down"},
		{kv.ErrStalled, "stalled"},
		{kv.ErrDeadline, "deadline"},
		{kv.ErrProtocol, "protocol"},
		{kv.ErrCancelled, "interrupted"},
		{hawser.ErrUnfenced, "unfenced"},
		{hawser.ErrLimit, "limit"},
		{hawser.ErrClosed, "closed"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}

func (r *replay) peerEvent(e hawser.PeerEvent) {
	if e.Kind != hawser.PeerDown {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	down := PeerDown{Peer: e.Peer.String(), At: time.Now().UnixNano()}
	if e.Cause != nil {
		down.Cause = e.Cause.Error()
	}
	r.report.PeerDowns = append(r.report.PeerDowns, down)
}

func (r *replay) progress() DecodeProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return DecodeProgress{
		Total: len(r.cfg.Requests), Arrived: r.report.Requests, Done: r.report.Done, Failed: r.report.Failed, Cancelled: r.report.Cancelled,
		Running: r.running, PagesFree: r.mem.pool.Free(), Pages: r.mem.pool.Pages(),
		Bytes: r.report.Bytes, CorruptBytes: r.report.CorruptBytes, Elapsed: time.Since(r.start),
	}
}
