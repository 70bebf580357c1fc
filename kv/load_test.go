package kv_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// outcome counts how requests of a load ended.
type outcome struct {
	ready, cancelled, failed, wrong atomic.Int64

	mu    sync.Mutex
	quiet []time.Duration // from Cancel to Quiesced
	errs  []error
}

// one runs one request until nothing of it can land any more.
func (o *outcome) one(ctx context.Context, d *kv.Decoder, m *side, r kv.FetchRequest, cancel, hold time.Duration) {
	if p, cancelled := o.answer(ctx, d, m, r, cancel, hold); p != nil {
		o.calm(ctx, r, p, cancelled)
	}
}

// answer runs one request until its caller knows how it ended: pages that are ready are checked, and once more after hold, when a late
// write would have hit them. cancelled is when it was cancelled, if that is how it ended.
func (o *outcome) answer(ctx context.Context, d *kv.Decoder, m *side, r kv.FetchRequest, cancel, hold time.Duration) (p *kv.Pending, cancelled time.Time) {
	p, err := d.Fetch(ctx, r)
	if err != nil {
		o.fail(err)
		return nil, cancelled
	}
	if cancel > 0 {
		select {
		case <-time.After(cancel):
			cancelled = time.Now()
			p.Cancel("test")
		case <-p.Done():
		}
	}
	res, err := p.Wait(ctx)
	switch {
	case err == nil:
		o.check(m, r, res)
		if hold > 0 {
			time.Sleep(hold)
			o.check(m, r, res)
		}
		res.Release()
		o.ready.Add(1)
		return p, time.Time{}
	case errors.Is(err, proto.ErrCancelled) && !cancelled.IsZero():
		o.cancelled.Add(1)
	default:
		o.fail(err)
	}
	return p, cancelled
}

// calm waits until nothing of a request can land any more.
func (o *outcome) calm(ctx context.Context, r kv.FetchRequest, p *kv.Pending, cancelled time.Time) {
	select {
	case <-p.Quiesced():
	case <-ctx.Done():
		o.fail(fmt.Errorf("request %s is never quiet: %w", r.ID, ctx.Err()))
		return
	}
	if !cancelled.IsZero() {
		o.mu.Lock()
		o.quiet = append(o.quiet, time.Since(cancelled))
		o.mu.Unlock()
	}
}

func (o *outcome) check(m *side, r kv.FetchRequest, res kv.Result) {
	if n, first := m.wrong(contentOf(r.Prompt), res.Spans, res.Pages); n > 0 {
		o.wrong.Add(int64(n))
		o.fail(fmt.Errorf("request %s: %d rows are wrong: %s", r.ID, n, first))
	}
}

func (o *outcome) fail(err error) {
	o.failed.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

// clean fails the test for everything that went wrong.
func (o *outcome) clean(t *testing.T) {
	t.Helper()
	for _, err := range o.errs[:min(len(o.errs), 5)] {
		t.Error(err)
	}
	if len(o.errs) > 5 {
		t.Errorf("and %d more errors", len(o.errs)-5)
	}
}

// quantile is of a list that it sorts.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[int(q*float64(len(all)-1))]
}

// idle checks that neither side holds anything.
func idle(t testing.TB, d *kv.Decoder, dst *side, e *llm) {
	t.Helper()
	allFree(t, "decoder", dst.pools)
	allFree(t, "prefiller", e.pools)
	eventually(t, func() error {
		ds, ps := d.Stats(), e.p.Stats()
		if ds.Live != 0 || ds.Waiting != 0 || ds.Held != 0 || ds.Fencing != 0 || ps.Jobs != 0 || ps.Attempts != 0 || ps.Outstanding != 0 {
			return fmt.Errorf("not idle at the end: %+v, %+v", ds, ps)
		}
		return nil
	})
	if n := e.p.Stats().AfterClose; n != 0 {
		t.Errorf("%d writes were submitted after the gate was closed", n)
	}
}

// TestCancelUnderLoad cancels requests at random times while the pools are short of pages, so that what one gives back the next
// gets at once.
func TestCancelUnderLoad(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 400})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 200})
		e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
			e.wait = func(*kv.Job, int) bool { time.Sleep(100 * time.Microsecond); return true }
		})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		o, ctx := &outcome{}, limit(t)
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(w)))
				for i := range 40 {
					key := fmt.Sprint(w, " ", i)
					r := kv.FetchRequest{ID: key, Prompt: prompt(key, 1+rng.IntN(300)), From: from(src.eng), Tail: i%3 == 0}
					cancel := time.Duration(0)
					if rng.IntN(2) == 0 {
						cancel = time.Duration(1 + rng.IntN(8_000_000))
					}
					o.one(ctx, d, dst, r, cancel, time.Duration(rng.IntN(500_000)))
				}
			})
		}
		wg.Wait()
		o.clean(t)
		if o.ready.Load() == 0 || o.cancelled.Load() == 0 {
			t.Errorf("%d ready, %d cancelled: want some of both", o.ready.Load(), o.cancelled.Load())
		}
		idle(t, d, dst, e)
		t.Logf("%d ready, %d cancelled; cancel to quiet: p50 %v, p99 %v", o.ready.Load(), o.cancelled.Load(), quantile(o.quiet, .5), quantile(o.quiet, .99))
	})
}

// TestAbortStorm cancels a thousand requests within a second while others go on.
func TestAbortStorm(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		const aborted, kept = 1000, 100
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 8000})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 8000})
		e := newLLM(t, src, kv.PrefillerConfig{Jobs: aborted + kept})
		d := newDecoder(t, dst, kv.DecoderConfig{Queue: aborted + kept})
		o, ctx := &outcome{}, limit(t)
		var wg sync.WaitGroup
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range aborted + kept {
			key, cancel := fmt.Sprint(i), time.Duration(0)
			r := kv.FetchRequest{ID: key, Prompt: prompt(key, 1+rng.IntN(60)), From: from(src.eng)}
			if i%11 != 0 {
				cancel = time.Duration(1 + rng.IntN(int(time.Second)))
				r.Prompt.Tokens = 200
			}
			wg.Go(func() { o.one(ctx, d, dst, r, cancel, 0) })
		}
		wg.Wait()
		o.clean(t)
		idle(t, d, dst, e)
		t.Logf("%d ready, %d cancelled; cancel to quiet: p50 %v, p99 %v", o.ready.Load(), o.cancelled.Load(), quantile(o.quiet, .5), quantile(o.quiet, .99))
	})
}

// TestCloseUnderWork closes either side while requests are under way: all of them end, and no goroutine is left.
func TestCloseUnderWork(t *testing.T) {
	for _, first := range []string{"decoder", "prefiller"} {
		t.Run(first, func(t *testing.T) {
			onNetworks(t, func(t *testing.T, network string) {
				before := ours()
				t.Run("work", func(t *testing.T) { closeUnderWork(t, network, first) })
				eventually(t, func() error {
					if left := ours(); len(left) > len(before) {
						return fmt.Errorf("%d goroutines of the project before, %d after:\n%s", len(before), len(left), strings.Join(left, "\n\n"))
					}
					return nil
				})
			})
		})
	}
}

func closeUnderWork(t *testing.T, network, first string) {
	src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 2000})
	dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 500})
	e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
		e.wait = func(j *kv.Job, _ int) bool {
			if j.ID() == "99" { // the last one is under way whenever Close comes
				<-j.Done()
				return false
			}
			time.Sleep(time.Millisecond)
			return true
		}
	})
	d := newDecoder(t, dst, kv.DecoderConfig{})
	var all []*kv.Pending
	for i := range 100 {
		key := fmt.Sprint(i)
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 100), From: from(src.eng), Tail: i%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if _, err := all[0].Wait(limit(t)); err != nil {
		t.Fatal(err)
	}
	var err error
	if first == "decoder" {
		err = d.Close(limit(t))
	} else {
		err = e.p.Close(limit(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	if first == "prefiller" { // nobody else can serve what is left
		for _, p := range all {
			p.Cancel("test")
		}
	}
	ready := 0
	for _, p := range all {
		res, err := p.Wait(limit(t))
		switch {
		case err == nil:
			ready++
			res.Release()
		case !errors.Is(err, hawser.ErrClosed) && !errors.Is(err, proto.ErrCancelled) && !errors.Is(err, hawser.ErrPeerDown):
			var failed *proto.FailedError
			var rejected *proto.RejectedError
			if !errors.As(err, &failed) && !errors.As(err, &rejected) {
				t.Error(err)
			}
		}
		quiet(t, p)
	}
	allFree(t, "decoder", dst.pools)
	allFree(t, "prefiller", src.pools)
}

// ours are the goroutines with a function of the project on their stack, without those of tests.
func ours() (all []string) {
	buf := make([]byte, 4<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "hawser-project") && !strings.Contains(g, "testing.tRunner") && !strings.Contains(g, "kv_test.TestMain(") {
			all = append(all, g)
		}
	}
	return all
}
