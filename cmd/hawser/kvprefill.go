package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv/simllm"
)

type prefillCmd struct {
	kvFlags
	prefillFlags
	serverFlags
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
	shape, err := c.prefillFlags.shape(&c.kvFlags)
	if err != nil {
		return err
	}
	layer, err := c.layer()
	if err != nil {
		return err
	}
	n, err := open(ctx, "prefill", &c.kvFlags, &c.serverFlags, &c.hostFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	cfg := simllm.PrefillConfig{Shape: shape, Name: n.name, Layer: layer, Calls: c.Calls, Log: n.log}
	n.rec.watchPrefill(&cfg)
	if parent == nil {
		cfg.Progress = func(p simllm.PrefillProgress) {
			u.status.show("prefill %s: %d done, %d live, %d queued, %d of %d pages free", shape.Model.Name, p.Served.Done, p.Served.Attempts, p.Engine.Queued, p.Pool.Free+p.Pool.Cached, pagesOf(p.Pool))
		}
	}
	p, err := simllm.NewPrefiller(n.eng, cfg)
	if err != nil {
		return err
	}
	down, err := serveOthers(&c.serverFlags, prefillTarget{p, n.name})
	var leave func() error
	if err == nil {
		defer func() { err = errors.Join(err, down()) }()
		leave, err = c.enlist(n)
	}
	if err == nil {
		defer func() { err = errors.Join(err, leave()) }()
		err = announce(u, parent, n.eng.Addr())
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	if err != nil {
		stop() // Run takes it down
	}
	r, failed := p.Run(running)
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	return c.report(u, parent, shape.Model.Name, r)
}

func (c *prefillCmd) report(u *ui, parent *proc.Parent, geometry string, r simllm.PrefillReport) error {
	if parent != nil {
		return parent.Send(msgReport, r)
	}
	u.printf("prefill %s: %d of %d attempts done, %d stopped, %.2f GB sent, %d pages leaked\n",
		geometry, r.Done, r.Attempts, r.Stopped, float64(r.Bytes)/1e9, r.LeakedPages)
	if err := u.line(r); err != nil {
		return err
	}
	if r.LeakedPages > 0 {
		return fmt.Errorf("kv prefill: %d pages leaked", r.LeakedPages)
	}
	return nil
}

// enlist enters the prefiller into the registry, if there is one.
func (c *prefillCmd) enlist(n *node) (leave func() error, err error) {
	if c.Registry == "" {
		return func() error { return nil }, nil
	}
	reg, err := openRegistry(c.Registry)
	if err != nil {
		return nil, err
	}
	if err := reg.put(instance{Name: n.name, Address: n.eng.Addr(), PID: os.Getpid()}); err != nil {
		return nil, err
	}
	return func() error { return reg.remove(n.name, os.Getpid()) }, nil
}

// announce tells whoever started the prefiller where it is.
func announce(u *ui, parent *proc.Parent, addr string) error {
	if parent != nil {
		return parent.Send(msgListening, addr)
	}
	u.printf("%s\n", addr)
	return u.line(map[string]string{"address": addr})
}
