package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/kv/trace"
)

type decodeCmd struct {
	kvFlags
	decodeFlags
	serverFlags
	hostFlags
	childFlag
	From     []string `placeholder:"ADDR" help:"Addresses that prefillers printed, or the host:port at which they listen."`
	Timeline string   `placeholder:"FILE" help:"Draw the longest request as SVG: writes landed, and, on one host, when it was computed; layer by layer hawser kv replay draws it."`
	Part     string   `hidden:"" placeholder:"I/N"`
}

// Help is shown below the first line of the help.
func (decodeCmd) Help() string {
	return "It takes --from, or --registry and the prefillers that come and go there.\n" + otherHosts
}

// Run replays and reports.
func (c *decodeCmd) Run(ctx context.Context, u *ui) error {
	parent, ctx := c.attach(ctx)
	return tell(parent, c.replay(ctx, u, parent))
}

func (c *decodeCmd) replay(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	if parent == nil && c.Registry == "" && (len(c.From) == 0 || c.From[0] == "") {
		return usage("no prefiller: give --from with the address that a prefiller printed, or --registry")
	}
	shape, err := c.decodeFlags.shape(&c.kvFlags)
	if err != nil {
		return err
	}
	all, err := c.requests(shape)
	if err != nil {
		return err
	}
	own, err := part(all, c.Part)
	if err != nil {
		return err
	}
	n, err := open(ctx, "decode", &c.kvFlags, &c.serverFlags, &c.hostFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	cfg := c.config(n, shape, own, all[0].Arrival)
	n.rec.watchDecode(&cfg)
	cfg.Progress = func(p simllm.DecodeProgress) {
		if parent != nil {
			_ = parent.Send(msgProgress, p) // a parent that is gone ends the context
			return
		}
		showProgress(u, "kv decode", p)
	}
	r, err := c.run(ctx, n, cfg, parent)
	if err != nil {
		return err
	}
	if parent != nil {
		return parent.Send(msgReport, r)
	}
	if c.Timeline != "" {
		if err := drawTimeline(c.Timeline, r.Longest, nil); err != nil {
			return err
		}
	}
	full := newReport(r, &c.kvFlags, fmt.Sprint(c.Rails*max(1, len(c.Device))))
	printReport(u, "kv decode", full)
	return errors.Join(u.result(full), full.verdict())
}

func (c *decodeCmd) config(n *node, shape simllm.Shape, own []trace.Request, origin time.Duration) simllm.DecodeConfig {
	return simllm.DecodeConfig{
		Shape: shape, Name: n.name, From: c.From, Requests: own, Origin: origin, Speed: c.Speed, TokenTime: c.TokenTime,
		Duration: c.Duration, Cancel: float64(c.Cancel), CancelN: c.CancelN, Seed: c.Seed, Verify: c.Verify, Log: n.log,
	}
}

// run replays; everything that it starts has ended when it returns.
func (c *decodeCmd) run(ctx context.Context, n *node, cfg simllm.DecodeConfig, parent *proc.Parent) (r decoded, err error) {
	line := newTimeline(c.Timeline != "", &cfg)
	d, err := simllm.NewDecoder(n.eng, cfg)
	if err != nil {
		return r, err
	}
	var path atomic.Pointer[string]
	defer n.eng.OnPeer(func(e hawser.PeerEvent) {
		if e.Kind == hawser.PeerUp {
			p := e.Peer.Path()
			path.Store(&p)
		}
	})()
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var begin time.Time
	down, err := serveOthers(&c.serverFlags, decodeTarget{d, n.name})
	if err == nil {
		defer func() { err = errors.Join(err, down()) }()
		err = d.Warm(ctx)
	}
	var feeders sync.WaitGroup
	defer feeders.Wait()
	feeding, enough := context.WithCancel(running)
	defer enough()
	if err == nil && parent != nil {
		begin, err = await(running, parent, d)
		feeders.Go(func() { feed(feeding, parent, d) })
	}
	if err == nil && c.Registry != "" {
		var reg *fileRegistry
		if reg, err = openRegistry(c.Registry); err == nil {
			feeders.Go(func() { reg.watch(feeding, d.SetSources) })
		}
	}
	if err != nil {
		stop(err) // Run takes it down
	}
	line.start(feeding, d)
	tally, failed := d.Run(running, begin)
	enough()
	if err := errors.Join(err, failed); err != nil {
		return r, err
	}
	r = decoded{Tally: tally, Longest: line.result()}
	if p := path.Load(); p != nil {
		r.Path = *p
	}
	return r, nil
}

// decoded is what a decoder reports.
type decoded struct {
	*simllm.Tally

	Path    string    // network that the engine chose for the prefillers
	Longest *sighting // nil without --timeline
}

// await tells the parent that the decoder is ready, and waits until all others are.
func await(ctx context.Context, parent *proc.Parent, d *simllm.Decoder) (begin time.Time, err error) {
	if err := parent.Send(msgReady, nil); err != nil {
		return begin, err
	}
	for {
		m, err := parent.Next(ctx)
		if err != nil {
			return begin, err
		}
		if m.Kind == msgBegin {
			var at int64
			err := m.Decode(&at)
			return time.Unix(0, at), err
		}
		if err := take(m, d); err != nil {
			return begin, err
		}
	}
}

// feed takes the parent's news until ctx ends.
func feed(ctx context.Context, parent *proc.Parent, d *simllm.Decoder) {
	for {
		m, err := parent.Next(ctx)
		if err != nil || take(m, d) != nil {
			return // the context of the command ends, too
		}
	}
}

func take(m proc.Message, d *simllm.Decoder) error {
	if m.Kind != msgSources {
		return nil
	}
	var addrs []string
	if err := m.Decode(&addrs); err != nil {
		return err
	}
	d.SetSources(addrs)
	return nil
}

// part is the share of one of several decoders. All turns of a conversation go to one, which has the cache of those before.
func part(all []trace.Request, spec string) ([]trace.Request, error) {
	if spec == "" {
		return all, nil
	}
	var i, n int
	if _, err := fmt.Sscanf(spec, "%d/%d", &i, &n); err != nil || n < 1 || i < 0 || i >= n {
		return nil, usage("--part: %q, want I/N", spec)
	}
	var own []trace.Request
	for k, r := range all {
		to := k // the first block is common to all
		if len(r.Hashes) > 1 {
			to = int(r.Hashes[1] % uint64(n))
		}
		if to%n == i {
			own = append(own, r)
		}
	}
	if len(own) == 0 {
		return nil, fmt.Errorf("decoder %d of %d has no request: replay more of them, or start fewer decoders", i+1, n)
	}
	return own, nil
}
