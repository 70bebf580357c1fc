package simllm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/trace"
)

// networks are the two that every host has.
var networks = []string{"shm", "tcp"}

// hang bounds every wait of a test: it guards against hangs and asserts nothing.
const hang = time.Minute

// testLog shows what happens when HAWSER_TEST_LOG is set to a level.
func testLog() *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("HAWSER_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func openEngine(t *testing.T, name, network string) *hawser.Engine {
	t.Helper()
	eng, err := hawser.Open(t.Context(), hawser.Options{Name: name, Require: network, Log: testLog().With("engine", name)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := eng.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return eng
}

func model(t *testing.T, name string, scale float64) layout.Model {
	t.Helper()
	m, err := layout.BuiltinModel(name)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = m.Scale(scale); err != nil {
		t.Fatal(err)
	}
	return m
}

// serve runs a Prefiller until the returned function is called, which returns its report.
func serve(t *testing.T, network string, cfg PrefillConfig) (p *Prefiller, addr string, stop func() PrefillReport) {
	t.Helper()
	eng := openEngine(t, "prefill", network)
	cfg.Log = testLog().With("side", "P")
	p, err := NewPrefiller(eng, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan PrefillReport, 1)
	go func() {
		r, err := p.Run(ctx)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	stopped := false
	stop = func() PrefillReport {
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if !stopped {
			stop()
		}
	})
	return p, eng.Addr(), stop
}

func newDecoder(t *testing.T, network string, cfg DecodeConfig) *Decoder {
	t.Helper()
	cfg.Log = testLog().With("side", "D")
	d, err := NewDecoder(openEngine(t, "decode", network), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// replay runs a trace over each network and checks what both sides report.
func replay(t *testing.T, p PrefillConfig, cfg DecodeConfig, check func(t *testing.T, r Report, p PrefillReport)) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			_, addr, stop := serve(t, network, p)
			cfg := cfg
			cfg.From = []string{addr}
			tally, err := newDecoder(t, network, cfg).Run(t.Context(), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			r, p := tally.Report(), stop()
			t.Logf("decode: %+v", r)
			t.Logf("prefill: %+v", p)
			if n := len(cfg.Requests); r.Requests != n || r.Done+r.Failed+r.Cancelled != n || r.Failed != 0 || !r.Clean() {
				t.Errorf("want %d requests, each done or cancelled, nothing corrupt, leaked or quarantined", n)
			}
			if p.LeakedPages != 0 || p.Bytes < r.Bytes {
				t.Errorf("prefill side: want nothing leaked, at least %d bytes", r.Bytes)
			}
			check(t, r, p)
		})
	}
}

// testPool is small, so that making it is quick and requests wait for pages; generate leaves out prompts that it cannot hold.
const testPool = 128 << 20

func mini(t *testing.T) Shape { return Shape{Model: model(t, "mini", 1), Pool: testPool} }

func generate(n int, seed uint64) []trace.Request {
	all := trace.Generate(trace.Config{Seed: seed, Requests: 2 * n})
	return slices.DeleteFunc(all, func(r trace.Request) bool { return r.Input > 30000 })[:n]
}

func TestReplay(t *testing.T) {
	t.Parallel()
	for _, calls := range []bool{false, true} {
		replay(t, PrefillConfig{Shape: mini(t), Calls: calls}, DecodeConfig{Shape: mini(t), Requests: generate(40, 3), Speed: 20}, func(t *testing.T, r Report, _ PrefillReport) {
			if r.VerifiedRequests != r.Requests || r.TTFTp50 <= 0 || r.ExposedP50 <= 0 || r.TTFTComputeP50 <= 0 || r.NotifyP50 <= 0 {
				t.Errorf("want %d verified requests, and times", r.Requests)
			}
		})
	}
}

// TestReplayReusesPrefixes lets each conversation come twice, the second time longer, and long after the first was ready.
func TestReplayReusesPrefixes(t *testing.T) {
	if raced {
		t.Skip("not under the race detector: the second turn comes before the first is computed")
	}
	t.Parallel()
	var requests []trace.Request
	for i := range 6 {
		blocks := []uint64{0, uint64(10 + 3*i), uint64(11 + 3*i), uint64(12 + 3*i)}
		requests = append(requests,
			trace.Request{Arrival: time.Duration(i) * 100 * time.Millisecond, Input: 1500, Output: 1, Hashes: blocks[:3]},
			trace.Request{Arrival: time.Duration(i)*100*time.Millisecond + 4*time.Second, Input: 2048, Output: 1, Hashes: blocks})
	}
	slices.SortStableFunc(requests, func(a, b trace.Request) int { return int(a.Arrival - b.Arrival) })
	replay(t, PrefillConfig{Shape: mini(t)}, DecodeConfig{Shape: mini(t), Requests: requests}, func(t *testing.T, r Report, p PrefillReport) {
		if r.VerifiedRequests != len(requests) || r.ReusedShare < 0.4 || p.Cached == 0 {
			t.Errorf("%.2f of the tokens were here before, %d in the cache of the prefiller: want nearly half, and some", r.ReusedShare, p.Cached)
		}
		if all := uint64(6 * (1500 + 2048) * 4096); r.Bytes > all*6/10 {
			t.Errorf("%d bytes moved, without reuse it were %d", r.Bytes, all)
		}
	})
}

func TestReplayWithCancels(t *testing.T) {
	t.Parallel()
	cfg := DecodeConfig{Shape: mini(t), Requests: generate(60, 4), Speed: 30, Cancel: 0.5, Seed: 1}
	replay(t, PrefillConfig{Shape: mini(t)}, cfg, func(t *testing.T, r Report, _ PrefillReport) {
		if r.Cancelled < 5 || r.VerifiedRequests != r.Done || r.CancelP99 <= 0 {
			t.Errorf("want some cancelled, the others verified")
		}
	})
}

// TestReplayBetweenShapes has sides that differ, with digests as well.
func TestReplayBetweenShapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		model    layout.Model
		src, dst Shape
	}{
		{"TP 4 to 1", model(t, "llama3-70b-tp8", 0.02), Shape{TP: 4}, Shape{TP: 1}},
		{"TP 1 to 2, pages of 64 to 128", model(t, "mini", 0.5), Shape{TP: 1, PageTokens: 64}, Shape{TP: 2, PageTokens: 128}},
		{"latent, 8 copies to 1", model(t, "deepseek-v3", 0.02), Shape{TP: 8}, Shape{TP: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.src.Model, c.dst.Model, c.src.Pool, c.dst.Pool = c.model, c.model, 4*testPool, testPool
			p, d := PrefillConfig{Shape: c.src, Verify: true, Layer: LayerTime{A: 1}}, DecodeConfig{Shape: c.dst, Digests: true, Speed: 20}
			d.Requests = slices.DeleteFunc(generate(20, 5), func(r trace.Request) bool { return r.Input > 8000 })
			replay(t, p, d, func(t *testing.T, r Report, _ PrefillReport) {
				if r.VerifiedRequests != len(d.Requests) {
					t.Errorf("want %d verified requests", len(d.Requests))
				}
			})
		})
	}
}

// TestReplayRealTrace wants a directory with conversation_trace.jsonl, which the project does not ship.
func TestReplayRealTrace(t *testing.T) {
	dir := os.Getenv("HAWSER_TRACES")
	if dir == "" {
		t.Skip("HAWSER_TRACES is not set: no directory with the published traces")
	}
	requests, err := trace.Open(filepath.Join(dir, "conversation_trace.jsonl"), 500)
	if err != nil {
		t.Fatal(err)
	}
	shape := Shape{Model: model(t, "mini", 1)}
	replay(t, PrefillConfig{Shape: shape}, DecodeConfig{Shape: shape, Requests: requests, Speed: 20}, func(t *testing.T, r Report, _ PrefillReport) {
		if r.VerifiedRequests != 500 {
			t.Errorf("want 500 verified requests")
		}
	})
}

func TestDecodeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, addr, _ := serve(t, "shm", PrefillConfig{Shape: mini(t), Layer: LayerTime{A: 30}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := newDecoder(t, "shm", DecodeConfig{
		Shape: mini(t), From: []string{addr}, Requests: generate(60, 4),
		Progress: func(p DecodeProgress) {
			if p.Running > 0 {
				cancel()
			}
		},
	})
	tally, err := d.Run(ctx, time.Time{})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the end of the context", err)
	}
	if r := tally.Report(); r.Requests == 0 || r.Done+r.Failed+r.Cancelled != r.Requests || !r.Clean() {
		t.Errorf("got %+v, want every request that arrived ended, and nothing leaked", r)
	}
}

// TestDrain drains the decoder under load, then the prefiller: what had arrived is done, and both Runs end.
func TestDrain(t *testing.T) {
	t.Parallel()
	p, addr, stop := serve(t, "shm", PrefillConfig{Shape: mini(t)})
	running := make(chan struct{})
	first := true
	d := newDecoder(t, "shm", DecodeConfig{
		Shape: mini(t), From: []string{addr}, Requests: generate(200, 4), Speed: 2,
		Progress: func(p DecodeProgress) {
			if p.Done > 0 && first {
				first = false
				close(running)
			}
		},
	})
	ended := make(chan Report, 1)
	go func() {
		tally, err := d.Run(context.Background(), time.Time{})
		if err != nil {
			t.Error(err)
		}
		ended <- tally.Report()
	}()
	<-running
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if err := d.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.VerifiedRequests != r.Requests || r.Requests == 0 || r.Requests == 200 || !d.Draining() {
		t.Errorf("%d of 200 requests arrived, %d are verified: want some, and all of these", r.Requests, r.VerifiedRequests)
	}
	if err := p.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if r := stop(); r.LeakedPages != 0 || !p.Draining() {
		t.Errorf("%+v: want nothing leaked", r)
	}
}

// TestDrainEndsThePrefillerLater: whoever asked for it does not wait.
func TestDrainEndsThePrefillerLater(t *testing.T) {
	t.Parallel()
	eng := openEngine(t, "prefill", "shm")
	p, err := NewPrefiller(eng, PrefillConfig{Shape: mini(t), Layer: LayerTime{A: 30}, Log: testLog()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	served, replayed := make(chan PrefillReport, 1), make(chan Report, 1)
	go func() {
		r, err := p.Run(ctx)
		if err != nil {
			t.Error(err)
		}
		served <- r
	}()
	d := newDecoder(t, "shm", DecodeConfig{Shape: mini(t), From: []string{eng.Addr()}, Requests: generate(1, 4)})
	go func() {
		tally, err := d.Run(ctx, time.Time{})
		if err != nil {
			t.Error(err)
		}
		replayed <- tally.Report()
	}()
	for p.Progress().Engine.Queued == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond) // between two looks
	}
	asking, leave := context.WithCancel(ctx)
	leave()
	if err := p.Drain(asking); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("got %v, want what still runs", err)
	}
	r := <-served
	if ctx.Err() != nil || r.Done != 1 || !r.Drained {
		t.Errorf("%+v, %v: want the job done, and then the end", r, ctx.Err())
	}
	if r := <-replayed; r.VerifiedRequests != 1 {
		t.Errorf("%+v: want the request verified", r)
	}
}

// TestSourcesComeLater starts a decoder that knows no prefiller.
func TestSourcesComeLater(t *testing.T) {
	t.Parallel()
	_, one, _ := serve(t, "shm", PrefillConfig{Shape: mini(t), Name: "one"})
	_, two, _ := serve(t, "shm", PrefillConfig{Shape: mini(t), Name: "two"})
	d := newDecoder(t, "shm", DecodeConfig{Shape: mini(t), Requests: generate(30, 6), Speed: 30})
	done := make(chan Report, 1)
	go func() {
		tally, err := d.Run(context.Background(), time.Time{})
		if err != nil {
			t.Error(err)
		}
		done <- tally.Report()
	}()
	for d.Progress().Running == 0 {
		time.Sleep(time.Millisecond) // between two looks
	}
	d.SetSources([]string{one})
	for d.Progress().Done == 0 {
		time.Sleep(time.Millisecond)
	}
	d.SetSources([]string{one, two})
	if r := <-done; r.VerifiedRequests != 30 {
		t.Errorf("%+v: want 30 verified requests", r)
	}
}

// TestWarmNeedsOnePrefiller of several.
func TestWarmNeedsOnePrefiller(t *testing.T) {
	_, addr, _ := serve(t, "shm", PrefillConfig{Shape: mini(t)})
	for _, c := range []struct {
		from []string
		ok   bool
	}{{[]string{"127.0.0.1:1"}, false}, {[]string{"127.0.0.1:1", addr}, true}, {nil, true}} {
		d := newDecoder(t, "shm", DecodeConfig{Shape: mini(t), From: c.from, Requests: generate(1, 1)})
		if err := d.Warm(t.Context()); (err == nil) != c.ok {
			t.Errorf("%d prefillers: %v", len(c.from), err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Run(ended, time.Time{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestDecodeNamesBadSettings(t *testing.T) {
	small := Shape{Model: model(t, "mini", 1), Pool: 1000}
	_, err := NewDecoder(nil, DecodeConfig{Shape: small, Speed: -1, Cancel: 2, Verify: "some"})
	for _, want := range []string{
		"no requests", "speed is -1", "cancelled share is 2", `verify is "some"`,
		"a pool of 1000 bytes does not hold one page of geometry mini (524288 bytes over all ranks and layers)",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to contain %q", err, want)
		}
	}
	if _, err := NewPrefiller(nil, PrefillConfig{Shape: mini(t), Layer: LayerTime{A: -1}}); err == nil || !strings.Contains(err.Error(), "want 0 or more") {
		t.Errorf("got %v, want a fault of the layer time", err)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{{nil, 0.5, 0}, {[]float64{7}, 0.99, 7}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{4, 3, 2, 1}, 0.5, 2}, {[]float64{4, 3, 2, 1}, 0.99, 4}} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %v of %v is %v, want %v", c.q, c.values, got, c.want)
		}
	}
}

func TestKillIsPairedWithTheNextDeathOfThatPeer(t *testing.T) {
	at := time.Unix(100, 0)
	r := Report{PeerDowns: []PeerDown{
		{Peer: "a", At: at.Add(-time.Second).UnixNano()}, {Peer: "b", At: at.Add(time.Millisecond).UnixNano()}, {Peer: "a", At: at.Add(30 * time.Millisecond).UnixNano()},
	}}
	if d, ok := r.NoticedAfter("a", at); !ok || d != 30*time.Millisecond {
		t.Errorf("got %v, want 30 ms", d)
	}
	if _, ok := r.NoticedAfter("a", at.Add(time.Second)); ok {
		t.Error("found a death after the last one")
	}
}

func TestTalliesAddUp(t *testing.T) {
	a := Tally{Requests: 3, Done: 2, Failed: 1, Causes: map[string]int{"x": 1}, Began: 10, Ended: 2e9, Bytes: 1e9, TTFT: []float64{1, 2}}
	b := Tally{Requests: 2, Cancelled: 2, Causes: map[string]int{"x": 2, "y": 1}, Began: 0, Ended: 1e9, Bytes: 3e9, TTFT: []float64{3}}
	var sum Tally
	sum.Add(&a)
	sum.Add(&b)
	r := sum.Report()
	if r.Requests != 5 || r.Done != 2 || r.Cancelled != 2 || r.Causes["x"] != 3 || r.Causes["y"] != 1 || r.Wall != 2 || r.GBPerS != 2 || r.TTFTp50 != 2 || r.TTFTp99 != 3 {
		t.Errorf("got %+v", r)
	}
	if a.Causes["x"] != 1 {
		t.Error("a tally that was added has changed")
	}
}

// TestSourcesAreChosenByLoad also shows that equals take turns.
func TestSourcesAreChosenByLoad(t *testing.T) {
	var s sources
	s.set([]string{"a", "b", "c"})
	taken := map[string]func(){}
	for range 3 {
		from, done, err := s.take(t.Context(), nil)
		if err != nil || len(from) != 3 {
			t.Fatalf("%v, %v", from, err)
		}
		taken[from[0].Writers[0]] = done
	}
	if len(taken) != 3 {
		t.Fatalf("three requests went to %d prefillers", len(taken))
	}
	taken["b"]()
	if from, _, _ := s.take(t.Context(), nil); from[0].Writers[0] != "b" {
		t.Errorf("got %s, want the idle one", from[0].Writers[0])
	}
	if added := s.set([]string{"b", "d"}); !slices.Equal(added, []string{"d"}) {
		t.Errorf("%v is new, want d", added)
	}
	taken["a"]() // it is gone
	if from, _, _ := s.take(t.Context(), nil); from[0].Writers[0] != "d" || len(from) != 2 {
		t.Errorf("got %v, want the new one", from)
	}
}
