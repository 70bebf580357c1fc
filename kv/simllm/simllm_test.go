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
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/trace"
)

// networks are the two that every host has.
var networks = []string{"shm", "tcp"}

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
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a guard against hanging
		defer cancel()
		if err := eng.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return eng
}

func geometry(t *testing.T, name string, scale float64) kv.Geometry {
	t.Helper()
	g, err := kv.BuiltinGeometry(name)
	if err != nil {
		t.Fatal(err)
	}
	if g, err = g.Scale(scale); err != nil {
		t.Fatal(err)
	}
	return g
}

// serve runs Prefill until the returned function is called, which returns its report.
func serve(t *testing.T, network string, cfg PrefillConfig) (addr string, stop func() PrefillReport) {
	t.Helper()
	eng := openEngine(t, "prefill", network)
	cfg.Log = testLog().With("side", "P")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan PrefillReport, 1)
	go func() {
		r, err := Prefill(ctx, eng, cfg)
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
	return eng.Addr(), stop
}

// replayBoth replays requests over each network and checks what both sides report.
func replayBoth(t *testing.T, cfg DecodeConfig, check func(t *testing.T, r Report)) {
	g := geometry(t, "mini", 1)
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			addr, stop := serve(t, network, PrefillConfig{Geometry: g, Pool: cfg.Pool})
			cfg := cfg
			cfg.Geometry, cfg.From, cfg.Log = g, addr, testLog().With("side", "D")
			r, err := Decode(t.Context(), openEngine(t, "decode", network), cfg)
			if err != nil {
				t.Fatal(err)
			}
			p := stop()
			t.Logf("decode: %+v", r)
			t.Logf("prefill: %+v", p)
			if n := len(cfg.Requests); r.Requests != n || r.Done+r.Failed+r.Cancelled != n || r.Failed != 0 || !r.Clean() {
				t.Errorf("want %d requests, each done or cancelled, nothing corrupt, leaked or quarantined", n)
			}
			if p.LeakedPages != 0 || p.Bytes < r.Bytes {
				t.Errorf("prefill side: want nothing leaked, at least %d bytes", r.Bytes)
			}
			check(t, r)
		})
	}
}

// testPool is small, so that making it is quick and requests wait for pages; generate leaves out prompts that it cannot hold.
const testPool = 128 << 20

func generate(n int, seed uint64) []trace.Request {
	all := trace.Generate(trace.Config{Seed: seed, Requests: 2 * n})
	return slices.DeleteFunc(all, func(r trace.Request) bool { return r.Input > 30000 })[:n]
}

func TestReplay(t *testing.T) {
	t.Parallel()
	cfg := DecodeConfig{Pool: testPool, Requests: generate(40, 3), Speed: 20}
	replayBoth(t, cfg, func(t *testing.T, r Report) {
		if r.VerifiedRequests != r.Requests || r.TTFTp50 <= 0 || r.ExposedP50 <= 0 || r.TTFTComputeP50 <= 0 {
			t.Errorf("want %d verified requests, and times", r.Requests)
		}
	})
}

func TestReplayWithCancels(t *testing.T) {
	t.Parallel()
	cfg := DecodeConfig{Pool: testPool, Requests: generate(60, 4), Speed: 30, Cancel: 0.5, Seed: 1}
	replayBoth(t, cfg, func(t *testing.T, r Report) {
		if r.Cancelled < 5 || r.VerifiedRequests != r.Done || r.CancelP99 <= 0 {
			t.Errorf("want some cancelled, the others verified")
		}
	})
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
	replayBoth(t, DecodeConfig{Requests: requests, Speed: 20}, func(t *testing.T, r Report) {
		if r.VerifiedRequests != 500 {
			t.Errorf("want 500 verified requests")
		}
	})
}

func TestDecodeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := geometry(t, "mini", 1)
	addr, _ := serve(t, "shm", PrefillConfig{Geometry: g, Pool: testPool, Layer: LayerTime{A: 30}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := Decode(ctx, openEngine(t, "decode", "shm"), DecodeConfig{
		Geometry: g, Pool: testPool, From: addr, Requests: generate(60, 4),
		Progress: func(p DecodeProgress) {
			if p.Running > 0 {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the end of the context", err)
	}
	if r.Requests == 0 || r.Done+r.Failed+r.Cancelled != r.Requests || !r.Clean() {
		t.Errorf("got %+v, want every request that arrived ended, and nothing leaked", r)
	}
}

func TestDecodeNamesBadSettings(t *testing.T) {
	g := geometry(t, "mini", 1)
	_, err := Decode(t.Context(), nil, DecodeConfig{Geometry: g, Pool: 1000, Speed: -1, Cancel: 2, Verify: "some"})
	for _, want := range []string{
		"no prefill address", "no requests", "speed is -1", "cancelled share is 2", `verify is "some"`,
		"a pool of 1000 bytes does not hold one page of geometry mini (524288 bytes over all layers)",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to contain %q", err, want)
		}
	}
	if _, err := Prefill(t.Context(), nil, PrefillConfig{Geometry: g, Layer: LayerTime{A: -1}}); err == nil || !strings.Contains(err.Error(), "want 0 or more") {
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

func TestKillIsPairedWithTheNextDeath(t *testing.T) {
	at := time.Unix(100, 0)
	r := Report{PeerDowns: []PeerDown{{At: at.Add(-time.Second).UnixNano()}, {At: at.Add(30 * time.Millisecond).UnixNano()}}}
	if !r.SetKill(at) || r.PeerDeath != 30 {
		t.Errorf("got %v ms, want 30", r.PeerDeath)
	}
	if r.SetKill(at.Add(time.Second)) {
		t.Error("found a death after the last one")
	}
}
