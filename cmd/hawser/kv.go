package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv/simllm"
)

// Messages of the children of a replay.
const (
	msgListening = "listening" // prefiller: its address
	msgProgress  = "progress"  // simllm.DecodeProgress
	msgReport    = "report"    // decoded or simllm.PrefillReport
)

type prefillCmd struct {
	kvFlags
	prefillFlags
	childFlag
	Rails  int    `default:"1" help:"Rails to open (default: ${default})."`
	Listen string `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address for peers that cannot use this host's unix sockets (default: ${default})."`
}

// Run serves until it is interrupted.
func (c *prefillCmd) Run(ctx context.Context, u *ui) error {
	parent, ctx := c.attach(ctx)
	err := c.serve(ctx, u, parent)
	return tell(parent, err)
}

func (c *prefillCmd) serve(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	g, err := c.geometry()
	if err != nil {
		return err
	}
	layer, err := c.layer()
	if err != nil {
		return err
	}
	eng, closeEngine, err := c.open(ctx, "prefiller", c.Listen, c.Rails)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeEngine()) }()
	cfg := simllm.PrefillConfig{Geometry: g, Pool: uint64(c.Pool), Layer: layer}
	if err := c.announce(u, parent, eng.Addr()); err != nil {
		return err
	}
	if parent == nil {
		cfg.Progress = func(p simllm.PrefillProgress) {
			u.status.show("prefill %s: %d done, %d stopped, %d queued, %d of %d pages free", g.Fingerprint, p.Done, p.Stopped, p.Queued, p.PagesFree, p.Pages)
		}
	}
	r, err := simllm.Prefill(ctx, eng, cfg)
	if err != nil {
		return err
	}
	if parent != nil {
		return parent.Send(msgReport, r)
	}
	u.status.clear()
	if err := u.line(r); err != nil {
		return err
	}
	if r.LeakedPages > 0 {
		return fmt.Errorf("kv prefill: %d pages leaked", r.LeakedPages)
	}
	return nil
}

// announce tells whoever started the prefiller where it is.
func (c *prefillCmd) announce(u *ui, parent *proc.Parent, addr string) error {
	switch {
	case parent != nil:
		return parent.Send(msgListening, addr)
	case u.json != nil:
		return u.line(map[string]string{"address": addr})
	}
	_, err := fmt.Fprintln(u.out, addr)
	return err
}

type decodeCmd struct {
	kvFlags
	decodeFlags
	childFlag
	Rails  int    `default:"1" help:"Rails to open (default: ${default})."`
	From   string `required:"" placeholder:"ADDR" help:"Address that the prefiller printed, or its host:port."`
	Listen string `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Own address (default: ${default})."`
}

// Run replays and reports.
func (c *decodeCmd) Run(ctx context.Context, u *ui) error {
	parent, ctx := c.attach(ctx)
	err := c.replay(ctx, u, parent)
	return tell(parent, err)
}

func (c *decodeCmd) replay(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	g, err := c.geometry()
	if err != nil {
		return err
	}
	requests, err := c.requests()
	if err != nil {
		return err
	}
	eng, closeEngine, err := c.open(ctx, "decoder", c.Listen, c.Rails)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeEngine()) }()
	cfg := simllm.DecodeConfig{
		Geometry: g, Pool: uint64(c.Pool), From: c.From, Requests: requests, Speed: c.Speed, TokenTime: c.TokenTime,
		Duration: c.Duration, Cancel: float64(c.Cancel), CancelN: c.CancelN, Seed: c.Seed, Verify: c.Verify,
	}
	cfg.Progress = func(p simllm.DecodeProgress) {
		if parent != nil {
			_ = parent.Send(msgProgress, p) // a parent that is gone ends the context
			return
		}
		showProgress(u, "kv decode", p)
	}
	var path atomic.Pointer[string]
	defer eng.OnPeer(func(e hawser.PeerEvent) {
		if e.Kind == hawser.PeerUp {
			p := e.Peer.Path()
			path.Store(&p)
		}
	})()
	r, err := simllm.Decode(ctx, eng, cfg)
	if err != nil {
		return err
	}
	d := decoded{Report: r}
	if p := path.Load(); p != nil {
		d.Path = *p
	}
	if parent != nil {
		return parent.Send(msgReport, d)
	}
	full := newReport(d, &c.kvFlags, railPair{0, c.Rails})
	printReport(u, "kv decode", full)
	return errors.Join(u.result(full), full.verdict(false))
}

// decoded is what a decoder reports.
type decoded struct {
	simllm.Report

	Path string `json:"path"` // network that the engine chose for the prefiller
}

// tell reports a child's failure to its parent, which then speaks for it.
func tell(parent *proc.Parent, err error) error {
	if parent != nil && err != nil && !errors.Is(err, proc.ErrParentGone) {
		parent.Fail(err)
	}
	return err
}

func showProgress(u *ui, what string, p simllm.DecodeProgress) {
	rate := 0.0
	if p.Elapsed > 0 {
		rate = float64(p.Bytes) / p.Elapsed.Seconds() / 1e9
	}
	u.status.show("%s: %s, %d of %d requests: %d done, %d failed, %d cancelled, %d running, %.2f GB/s",
		what, p.Elapsed.Round(time.Second), p.Arrived, p.Total, p.Done, p.Failed, p.Cancelled, p.Running, rate)
}
