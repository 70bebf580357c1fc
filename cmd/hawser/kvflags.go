package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/kv/trace"
	"github.com/hawser-project/hawser/provider"
)

// kvFlags are common to both sides.
type kvFlags struct {
	Geometry string  `default:"mini" placeholder:"NAME" help:"Shape of the KV cache: mini, qwen3-8b, qwen3-235b-tp4 (default: ${default})."`
	Scale    float64 `default:"1" help:"Keep this share of the layers, at least one (default: ${default})."`
	Provider string  `enum:",shm,tcp" default:"" placeholder:"NAME" help:"Network: shm or tcp (default: the best that works)."`
	Pool     size    `default:"1GiB" help:"KV memory of a process (default: ${default})."`
	Log      string  `placeholder:"FILE" help:"Append what the engines log to FILE."`
}

func (f *kvFlags) geometry() (kv.Geometry, error) {
	g, err := kv.BuiltinGeometry(f.Geometry)
	if err != nil {
		return g, &usageError{fmt.Errorf("--geometry: %w", err)}
	}
	if g, err = g.Scale(f.Scale); err != nil {
		return g, &usageError{fmt.Errorf("--scale: %w", err)}
	}
	return g, nil
}

// args passes the flags on to a child.
func (f *kvFlags) args() []string {
	return []string{
		"--geometry", f.Geometry, "--scale", strconv.FormatFloat(f.Scale, 'g', -1, 64), "--provider", f.Provider,
		"--pool", f.Pool.arg(), "--log", f.Log,
	}
}

// open opens the engine of a process. Its log goes to --log; the function that it returns closes both.
func (f *kvFlags) open(ctx context.Context, name, listen string, rails int) (*hawser.Engine, func() error, error) {
	o := hawser.Options{Name: name, Listen: listen, Require: f.Provider}
	closeLog := func() error { return nil }
	if f.Log != "" {
		file, err := os.OpenFile(f.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, nil, &usageError{fmt.Errorf("--log: %w", err)}
		}
		o.Log, closeLog = slog.New(slog.NewTextHandler(file, nil)).With("process", name), file.Close
	}
	if network, err := f.network(ctx, rails); err != nil {
		return nil, nil, err
	} else if network != nil {
		o.Providers = []provider.Provider{network}
		for range rails {
			o.Rails = append(o.Rails, hawser.Rail{Provider: network.Name()})
		}
	}
	eng, err := hawser.Open(ctx, o)
	if err != nil {
		_ = closeLog()
		return nil, nil, err
	}
	return eng, func() error {
		// The context of the command may have ended: that is why the engine closes.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err := eng.Close(closing)
		_ = closeLog()
		return err
	}, nil
}

// closeTimeout bounds the drain of an engine at the end.
const closeTimeout = 5 * time.Second

// network is the provider to open rails of, nil for the engine's defaults.
func (f *kvFlags) network(ctx context.Context, rails int) (provider.Provider, error) {
	if f.Provider != "" {
		return bench.Provider(f.Provider)
	}
	if rails == 1 {
		return nil, nil
	}
	for _, p := range builtin() {
		if devices, err := p.Devices(ctx); err == nil && len(devices) > 0 {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no network can be used here: hawser topo says why: %w", hawser.ErrUnavailable)
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
		err = &usageError{fmt.Errorf("--layer-time: %w", err)}
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
	Cancel    percent       `default:"0" placeholder:"P%" help:"Share of the requests that are cancelled at a random time."`
	CancelN   int           `hidden:""`
	Verify    simllm.Verify `enum:"all,sample,off" default:"all" help:"How much of the content to check: all, sample (every 16th page), off (default: ${default})."`
}

// generatedRequests is about a minute of the generated trace.
const generatedRequests = 200

func (f *decodeFlags) check() error {
	switch {
	case f.Requests < 0:
		return &usageError{fmt.Errorf("--requests: %d, want 0 or more", f.Requests)}
	case f.Duration < 0:
		return &usageError{fmt.Errorf("--duration: %v, want 0 or more", f.Duration)}
	case !(f.Speed > 0):
		return &usageError{fmt.Errorf("--speed: %v, want more than 0", f.Speed)}
	case f.TokenTime < 0:
		return &usageError{fmt.Errorf("--token-time: %v, want 0 or more", f.TokenTime)}
	}
	return nil
}

func (f *decodeFlags) requests() ([]trace.Request, error) {
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

// childFlag makes a command the child of another one: it talks to it instead of to a person.
type childFlag struct {
	Child bool `hidden:""`
}

// attach returns nil for a command that a person has started.
func (f childFlag) attach(ctx context.Context) (*proc.Parent, context.Context) {
	if !f.Child {
		return nil, ctx
	}
	return proc.Attach(ctx)
}
