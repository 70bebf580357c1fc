package simllm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
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
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
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

func TestReplay(t *testing.T) {
	requests := trace.Generate(trace.Config{Seed: 3, Requests: 40})
	name := "generated"
	if dir := os.Getenv("HAWSER_TRACES"); dir != "" && !testing.Short() {
		var err error
		if requests, err = trace.Open(filepath.Join(dir, "conversation_trace.jsonl"), 500); err != nil {
			t.Fatal(err)
		}
		name = dir
	}
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			g := geometry(t, "mini", 1)
			addr, stop := serve(t, network, PrefillConfig{Geometry: g})
			r, err := Decode(t.Context(), openEngine(t, "decode", network), DecodeConfig{
				Geometry: g, From: addr, Requests: requests, Speed: 20, Log: testLog().With("side", "D"),
			})
			if err != nil {
				t.Fatal(err)
			}
			p := stop()
			t.Logf("%s trace: %+v", name, r)
			t.Logf("prefill: %+v", p)
			if r.Requests != len(requests) || r.VerifiedRequests != len(requests) || r.Failed+r.Cancelled != 0 || !r.Clean() {
				t.Errorf("want %d requests, all verified, nothing corrupt, leaked or quarantined", len(requests))
			}
			if p.Jobs != len(requests) || p.Done != p.Jobs || p.Bytes != r.Bytes || p.LeakedPages != 0 {
				t.Errorf("want %d jobs, all done, %d bytes, nothing leaked", len(requests), r.Bytes)
			}
		})
	}
}

var _ = errors.Is
