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
	hostFlags
	childFlag
}

// Help is shown below the first line of the help.
func (prefillCmd) Help() string {
	return "With --json it writes a line with the address when it is ready, and a line with a report at the end.\n" + otherHosts
}

// Run serves until it is interrupted.
func (c *prefillCmd) Run(ctx context.Context, u *ui) error {
	parent, ctx := c.attach(ctx)
	return tell(parent, c.serve(ctx, u, parent))
}

func (c *prefillCmd) serve(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	g, err := c.shape()
	if err != nil {
		return err
	}
	layer, err := c.layer()
	if err != nil {
		return err
	}
	n, err := open(ctx, "prefiller", &c.kvFlags, &c.hostFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	if err := announce(u, parent, n.eng.Addr()); err != nil {
		return err
	}
	cfg := simllm.PrefillConfig{Geometry: g, Pool: uint64(c.Pool), Layer: layer, Log: n.log}
	if parent == nil {
		cfg.Progress = func(p simllm.PrefillProgress) {
			u.status.show("prefill %s: %d done, %d stopped, %d queued, %d of %d pages free", g.Fingerprint, p.Done, p.Stopped, p.Queued, p.PagesFree, p.Pages)
		}
	}
	r, err := simllm.Prefill(ctx, n.eng, cfg)
	if err != nil {
		return err
	}
	if parent != nil {
		return parent.Send(msgReport, r)
	}
	u.printf("prefill %s: %d of %d prompts done, %d stopped, %.2f GB sent, %d pages leaked\n",
		g.Fingerprint, r.Done, r.Jobs, r.Stopped, float64(r.Bytes)/1e9, r.LeakedPages)
	if err := u.line(r); err != nil {
		return err
	}
	if r.LeakedPages > 0 {
		return fmt.Errorf("kv prefill: %d pages leaked", r.LeakedPages)
	}
	return nil
}

// announce tells whoever started the prefiller where it is.
func announce(u *ui, parent *proc.Parent, addr string) error {
	if parent != nil {
		return parent.Send(msgListening, addr)
	}
	u.printf("%s\n", addr)
	return u.line(map[string]string{"address": addr})
}

type decodeCmd struct {
	kvFlags
	decodeFlags
	hostFlags
	childFlag
	From string `required:"" placeholder:"ADDR" help:"Address that the prefiller printed, or the host:port at which it listens."`
}

// Help is shown below the first line of the help.
func (decodeCmd) Help() string { return otherHosts }

// Run replays and reports.
func (c *decodeCmd) Run(ctx context.Context, u *ui) error {
	parent, ctx := c.attach(ctx)
	return tell(parent, c.replay(ctx, u, parent))
}

func (c *decodeCmd) replay(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	if c.From == "" {
		return usage("--from is empty: want the address that the prefiller printed")
	}
	g, err := c.shape()
	if err != nil {
		return err
	}
	requests, err := c.requests(g, c.Pool)
	if err != nil {
		return err
	}
	n, err := open(ctx, "decoder", &c.kvFlags, &c.hostFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	cfg := simllm.DecodeConfig{
		Geometry: g, Pool: uint64(c.Pool), From: c.From, Requests: requests, Speed: c.Speed, TokenTime: c.TokenTime,
		Duration: c.Duration, Cancel: float64(c.Cancel), CancelN: c.CancelN, Seed: c.Seed, Verify: c.Verify, Log: n.log,
	}
	cfg.Progress = func(p simllm.DecodeProgress) {
		if parent != nil {
			_ = parent.Send(msgProgress, p) // a parent that is gone ends the context
			return
		}
		showProgress(u, "kv decode", p)
	}
	var path atomic.Pointer[string]
	defer n.eng.OnPeer(func(e hawser.PeerEvent) {
		if e.Kind == hawser.PeerUp {
			p := e.Peer.Path()
			path.Store(&p)
		}
	})()
	r, err := simllm.Decode(ctx, n.eng, cfg)
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
	full := newReport(d, &c.kvFlags, fmt.Sprint(c.Rails*max(1, len(c.Device))))
	printReport(u, "kv decode", full)
	return errors.Join(u.result(full), full.verdict())
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
