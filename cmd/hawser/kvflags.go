package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/kv/trace"
)

// modelFlags say what the KV cache looks like.
type modelFlags struct {
	Geometry string  `default:"mini" placeholder:"NAME|FILE.json" help:"Shape of the KV cache: mini, qwen3-8b, qwen3-235b-tp4, llama3-70b-tp8, deepseek-v3, or a geometry file (default: ${default})."`
	Scale    float64 `default:"1" help:"Keep this share of the layers, at least one (default: ${default})."`
}

// kvFlags are common to both sides.
type kvFlags struct {
	modelFlags

	Provider network `placeholder:"NAME" help:"Network: ${networks} (default: the best that works)."`
	Pool     size    `default:"1GiB" help:"KV memory of a process (default: ${default})."`
	Log      string  `placeholder:"FILE" help:"Append what the engine says, and why requests fail, to FILE."`
}

// model finds a geometry by its name or in a file.
func (f *modelFlags) model() (m layout.Model, err error) {
	if strings.HasSuffix(f.Geometry, ".json") {
		m, err = readModel(f.Geometry)
	} else {
		m, err = layout.BuiltinModel(f.Geometry)
	}
	if err != nil {
		return m, usage("--geometry: %w", err)
	}
	if m, err = m.Scale(f.Scale); err != nil {
		return m, usage("--scale: %w", err)
	}
	return m, nil
}

func readModel(path string) (layout.Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return layout.Model{}, err
	}
	defer f.Close()
	m, err := layout.ReadJSON(f)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// shape is what the flags ask for on one side.
func (f *kvFlags) shape(side string, tp, page int) (simllm.Shape, error) {
	m, err := f.model()
	if err != nil {
		return simllm.Shape{}, err
	}
	if tp < 0 || page < 0 {
		return simllm.Shape{}, usage("--%s-tp %d, --%[1]s-page %d: want 0 or more", side, tp, page)
	}
	s := simllm.Shape{Model: m, TP: tp, PageTokens: page, Pool: uint64(f.Pool)}
	_, bytes, err := s.Pages()
	if one, most := size(bytes), size(bytes)*layout.MaxPages; bytes > 0 && (f.Pool < one || f.Pool > most) {
		return s, usage("--pool: %v, want %v .. %v: from 1 to %d pages of all ranks and layers of %s", f.Pool, one, most, layout.MaxPages, m.Name)
	}
	if err != nil {
		return s, usage("--geometry, --%s-tp, --%[1]s-page: %w", side, err)
	}
	return s, nil
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
	SrcTP     int    `name:"src-tp" placeholder:"N" help:"Tensor-parallel ranks of the prefill side, all in one process (default: the geometry's)."`
	SrcPage   int    `placeholder:"TOKENS" help:"Tokens of a page of the prefill side (default: the geometry's)."`
	LayerTime string `placeholder:"T" help:"Compute time of a layer: a duration, or A,B,G in ms for A + B*c + G*c*(s+c/2) with c new tokens after s (default: fitted to published times; a tenth for mini)."`
	Calls     bool   `help:"Tell by calls that a layer is computed, not by progress words."`
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

func (f *prefillFlags) shape(k *kvFlags) (simllm.Shape, error) {
	return k.shape("src", f.SrcTP, f.SrcPage)
}

func (f *prefillFlags) args() []string {
	return []string{
		"--src-tp", positive(f.SrcTP), "--src-page", positive(f.SrcPage), "--layer-time", f.LayerTime, "--calls", strconv.FormatBool(f.Calls),
	}
}

// positive is empty for 0: compact drops the flag.
func positive(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// decodeFlags are of the decode side.
type decodeFlags struct {
	DstTP     int           `name:"dst-tp" placeholder:"N" help:"Tensor-parallel ranks of the decode side, all in one process (default: the geometry's)."`
	DstPage   int           `placeholder:"TOKENS" help:"Tokens of a page of the decode side (default: the geometry's)."`
	Trace     string        `placeholder:"FILE" help:"Trace to replay, JSON lines (default: generated with the statistics of a real conversation trace)."`
	Requests  int           `placeholder:"N" help:"Replay the first N requests (default: all of --trace; of generated ones ${requests}, or as many as --duration takes)."`
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
	case f.TokenTime <= 0: // 0 would be the default
		return usage("--token-time: %v, want more than 0, 1ns is allowed", f.TokenTime)
	}
	return nil
}

func (f *decodeFlags) shape(k *kvFlags) (simllm.Shape, error) {
	return k.shape("dst", f.DstTP, f.DstPage)
}

// requests are what to replay. Each of them fits into the pools.
func (f *decodeFlags) requests(pools ...simllm.Shape) ([]trace.Request, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	for i, r := range all {
		for _, s := range pools {
			if !s.Holds(r.Input) {
				return nil, usage("request %d of the trace has %d tokens, for which geometry %s takes more than --pool, %v: raise --pool, lower --scale, or replay fewer requests",
					i+1, r.Input, s.Model.Name, size(s.Pool))
			}
		}
	}
	return all, nil
}

func (f *decodeFlags) read() ([]trace.Request, error) {
	if f.Trace != "" {
		return trace.Open(f.Trace, f.Requests)
	}
	c := trace.Config{Seed: f.Seed, Requests: f.Requests}
	switch {
	case f.Requests > 0:
	case f.Duration > 0:
		c.Span = time.Duration(float64(f.Duration)*f.Speed) + time.Second
	default:
		c.Requests = generatedRequests
	}
	return trace.Generate(c), nil
}

func (f *decodeFlags) args() []string {
	return []string{
		"--dst-tp", positive(f.DstTP), "--dst-page", positive(f.DstPage),
		"--trace", f.Trace, "--requests", strconv.Itoa(f.Requests), "--duration", f.Duration.String(),
		"--seed", strconv.FormatUint(f.Seed, 10), "--speed", strconv.FormatFloat(f.Speed, 'g', -1, 64),
		"--token-time", f.TokenTime.String(), "--cancel", f.Cancel.arg(), "--cancel-n", strconv.Itoa(f.CancelN), "--verify", string(f.Verify),
	}
}

// serverFlags are of a process that others look at.
type serverFlags struct {
	Name     string `placeholder:"NAME" help:"What the process calls itself: the same after it was started again (default: its role and process id)."`
	Registry string `placeholder:"file:PATH" help:"File that lists prefillers: a prefiller enters itself, a decoder uses those that are there."`
	Admin    string `placeholder:"PATH" help:"Unix socket for hawser kv ps, drain and cancel (default: kv-PID.sock in the runtime folder of the user)."`
	Metrics  string `placeholder:"HOST:PORT" help:"Serve Prometheus metrics there; without a host on the loopback address."`
	TraceOut string `placeholder:"FILE" help:"Write what happens to all attempts as a trace for Perfetto or chrome://tracing."`
}
