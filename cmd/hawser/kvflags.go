package main

import (
	"strconv"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/kv/trace"
)

// kvFlags are common to both sides.
type kvFlags struct {
	Geometry string  `default:"mini" placeholder:"NAME" help:"Shape of the KV cache: mini, qwen3-8b, qwen3-235b-tp4 (default: ${default})."`
	Scale    float64 `default:"1" help:"Keep this share of the layers, at least one (default: ${default})."`
	Provider network `placeholder:"NAME" help:"Network: ${networks} (default: the best that works)."`
	Pool     size    `default:"1GiB" help:"KV memory of a process (default: ${default})."`
	Log      string  `placeholder:"FILE" help:"Append what the engine says, and why requests fail, to FILE."`
}

// shape is the geometry that the flags ask for. The pool holds at least one of its pages.
func (f *kvFlags) shape() (kv.Geometry, error) {
	g, err := kv.BuiltinGeometry(f.Geometry)
	if err != nil {
		return g, usage("--geometry: %w", err)
	}
	if g, err = g.Scale(f.Scale); err != nil {
		return g, usage("--scale: %w", err)
	}
	if page := size(g.BytesPerPage()); f.Pool < page || f.Pool/page > kv.MaxPages {
		return g, usage("--pool: %v, want %v .. %v: from 1 to %d pages of all layers of %s", f.Pool, page, page*kv.MaxPages, kv.MaxPages, g.Fingerprint)
	}
	return g, nil
}

// args passes the flags on to a child.
func (f *kvFlags) args() []string {
	return []string{
		"--geometry", f.Geometry, "--scale", strconv.FormatFloat(f.Scale, 'g', -1, 64), "--provider", string(f.Provider),
		"--pool", f.Pool.arg(), "--log", f.Log,
	}
}

// prefillFlags are of the prefill side.
type prefillFlags struct {
	LayerTime string `placeholder:"T" help:"Compute time of a layer: a duration, or A,B,G in ms for A + B*c + G*c*(s+c/2) with c new tokens after s (default: fitted to published times; a tenth for mini)."`
}

func (f *prefillFlags) layer() (t simllm.LayerTime, err error) {
	if f.LayerTime == "" {
		return t, nil
	}
	if t, err = simllm.ParseLayerTime(f.LayerTime); err != nil {
		err = usage("--layer-time: %w", err)
	}
	return t, err
}

func (f *prefillFlags) args() []string { return []string{"--layer-time", f.LayerTime} }

// decodeFlags are of the decode side.
type decodeFlags struct {
	Trace     string        `placeholder:"FILE" help:"Trace to replay, JSON lines (default: generated with the statistics of a real conversation trace)."`
	Requests  int           `placeholder:"N" help:"Replay the first N requests (default: all of --trace, ${requests} generated ones)."`
	Duration  time.Duration `placeholder:"DUR" help:"Let no request arrive after this time; those that run finish."`
	Seed      uint64        `default:"1" help:"Seed of all chance (default: ${default})."`
	Speed     float64       `default:"1" help:"Divides arrival times and token times, not compute times (default: ${default})."`
	TokenTime time.Duration `default:"10ms" help:"Decode time of a token, for which the pages stay held (default: ${default})."`
	Cancel    percent       `default:"0" placeholder:"P%" help:"Share of the requests that are cancelled at a random time, unless they are ready before."`
	CancelN   int           `hidden:""`
	Verify    simllm.Verify `enum:"all,sample,off" default:"all" help:"How much of the content to check: all, sample (every 16th page), off (default: ${default})."`
}

const (
	// generatedRequests is about a minute of the generated trace.
	generatedRequests = 200
	// Beyond these speeds a trace of an hour takes months, or microseconds.
	minSpeed, maxSpeed = 1e-3, 1e6
)

func (f *decodeFlags) check() error {
	switch {
	case f.Requests < 0:
		return usage("--requests: %d, want 0 or more", f.Requests)
	case f.Duration < 0:
		return usage("--duration: %v, want 0 or more", f.Duration)
	case !(f.Speed >= minSpeed && f.Speed <= maxSpeed):
		return usage("--speed: %v, want %v .. %v", f.Speed, minSpeed, maxSpeed)
	case f.TokenTime < 0:
		return usage("--token-time: %v, want 0 or more", f.TokenTime)
	}
	return nil
}

// requests are what to replay. Each of them fits into a pool.
func (f *decodeFlags) requests(g kv.Geometry, pool size) ([]trace.Request, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	for i, r := range all {
		if need := size(g.Bytes(r.Input)); need > pool {
			return nil, usage("request %d of the trace has %d tokens, which take %v of geometry %s, and --pool is %v: raise --pool, lower --scale, or replay fewer requests",
				i+1, r.Input, need, g.Fingerprint, pool)
		}
	}
	return all, nil
}

func (f *decodeFlags) read() ([]trace.Request, error) {
	if f.Trace != "" {
		return trace.Open(f.Trace, f.Requests)
	}
	n := f.Requests
	if n == 0 {
		n = generatedRequests
	}
	return trace.Generate(trace.Config{Seed: f.Seed, Requests: n}), nil
}

func (f *decodeFlags) args() []string {
	return []string{
		"--trace", f.Trace, "--requests", strconv.Itoa(f.Requests), "--duration", f.Duration.String(),
		"--seed", strconv.FormatUint(f.Seed, 10), "--speed", strconv.FormatFloat(f.Speed, 'g', -1, 64),
		"--token-time", f.TokenTime.String(), "--cancel", f.Cancel.arg(), "--cancel-n", strconv.Itoa(f.CancelN), "--verify", string(f.Verify),
	}
}
