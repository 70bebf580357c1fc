package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights"
)

type weightsPushCmd struct {
	weightsNodeFlags
	controllerFlag
	verifyFlag

	Version       uint64 `required:"" placeholder:"N" help:"The version that is pushed."`
	From          string `placeholder:"DIR" help:"Serve the training ranks from this checkpoint; {version} stands for the version. Without it the publishers that have joined push."`
	Layout        string `placeholder:"FILE" help:"How the training ranks hold the checkpoint (default: one rank that has all of it)."`
	Ranks         string `placeholder:"0-3" help:"Training ranks of this process (default: all). The process with the lowest rank of all orders the push, the others wait for it."`
	SkipSuspended bool   `help:"Leave suspended instances out, instead of failing."`
}

// pushed is the result in JSON.
type pushed struct {
	weightsHead

	Version    uint64     `json:"version"`
	Epoch      uint64     `json:"epoch"`
	Bytes      int64      `json:"bytes"`
	Writes     uint64     `json:"writes"`
	WallMS     float64    `json:"wall_ms"` // BEGIN to the last DONE
	GBPerS     float64    `json:"gb_per_s"`
	Phases     phasesJSON `json:"phases"`
	WrongBytes *int64     `json:"wrong_bytes"` // null: not compared
	Repairs    int        `json:"repairs"`
	Staging    int64      `json:"peak_staging_bytes"`
	Serving    []int      `json:"serving"` // instances
	Out        []outJSON  `json:"out"`     // instances that were part of it and do not serve it
	Error      string     `json:"error,omitempty"`
}

type phasesJSON struct {
	Pause     float64 `json:"pause_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	LastByte  float64 `json:"last_byte_ms"`
	Verify    float64 `json:"verify_ms"`
	Commit    float64 `json:"commit_ms"`
	PostLoad  float64 `json:"post_load_ms"`
	Resume    float64 `json:"resume_ms"`
}

type outJSON struct {
	Instance int    `json:"instance"`
	Why      string `json:"why"`
}

// Help is shown below the first line of the help.
func (weightsPushCmd) Help() string {
	return "The exit status is 4 when the push was aborted, 5 when digests differ, 6 when it is not known whether it was committed."
}

// Run pushes.
func (c *weightsPushCmd) Run(ctx context.Context, u *ui) (err error) {
	c.hush(u)
	if c.Version == 0 {
		return usage("--version: 0 is no version: want 1 or more")
	}
	addr, err := c.address(ctx)
	if err != nil {
		return err
	}
	p := &pushing{cmd: c, addr: addr}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	if err := p.open(ctx, u); err != nil {
		return err
	}
	r, err := p.run(ctx, u)
	if r != nil {
		r.print(u, err)
		err = errors.Join(err, u.result(r))
	}
	return err
}

// pushing is one push. Owned by the goroutine that runs the command; it joins one for each publisher.
type pushing struct {
	cmd    *weightsPushCmd
	addr   string
	node   *node // of the client
	client *weights.Client
	ranks  []*pushRank
	orders bool // else another process does
}

// pushRank is a training rank of this process.
type pushRank struct {
	node *node
	pub  *weights.Publisher
	r    *weights.Report
	err  error
}

// open connects to the controller, and loads and joins the ranks.
func (p *pushing) open(ctx context.Context, u *ui) (err error) {
	if p.node, err = p.cmd.open(ctx, "push"); err != nil {
		return err
	}
	if p.client, err = weights.Dial(ctx, p.node.eng, p.addr); err != nil {
		return err
	}
	p.orders = true
	if p.cmd.From == "" {
		if p.cmd.Layout != "" || p.cmd.Ranks != "" {
			return usage("--layout and --ranks need --from")
		}
		return nil
	}
	l, rules, err := p.layout()
	if err != nil {
		return err
	}
	ranks, err := ranksOf(p.cmd.Ranks, len(l.Buffers))
	if err != nil {
		return err
	}
	p.orders = ranks[0] == 0
	for i, rank := range ranks {
		u.status.show("weights push: loading rank %d, %d of %d", rank, i+1, len(ranks))
		x := &pushRank{}
		p.ranks = append(p.ranks, x)
		if err := p.join(ctx, x, rank, l, rules); err != nil {
			return err
		}
	}
	return nil
}

// layout is that of the training side.
func (p *pushing) layout() (*reshard.Layout, []reshard.Rule, error) {
	if p.cmd.Layout != "" {
		return readLayout(p.cmd.Layout)
	}
	c, err := checkpointAt(p.cmd.From, weights.Version(p.cmd.Version))
	if err != nil {
		return nil, nil, err
	}
	return c.Layout(), nil, c.Close()
}

// join makes a publisher of a rank.
func (p *pushing) join(ctx context.Context, x *pushRank, rank int, l *reshard.Layout, rules []reshard.Rule) (err error) {
	flags := p.cmd.weightsNodeFlags
	flags.Name = fmt.Sprintf("publisher-%d", rank)
	if x.node, err = flags.open(ctx, "publisher"); err != nil {
		return err
	}
	memory, err := x.node.memory(l.Buffers[rank])
	if err != nil {
		return err
	}
	if err := loadRank(p.cmd.From, weights.Version(p.cmd.Version), l, rank, bytesOf(memory)); err != nil {
		return err
	}
	x.pub, err = weights.NewPublisher(x.node.eng, weights.PublisherOptions{
		Controller: p.addr, Name: flags.Name, Rank: rank, Layout: l, Rules: rules, Regions: memory, Verify: p.cmd.mode(), Log: x.node.log,
	})
	return err
}

// close closes everything, publishers before their engines.
func (p *pushing) close(ctx context.Context) (err error) {
	for _, x := range p.ranks {
		if x.pub != nil {
			err = errors.Join(err, closed(ctx, x.pub.Close))
		}
		if x.node != nil {
			err = errors.Join(err, x.node.close(ctx))
		}
	}
	if p.client != nil {
		p.client.Close()
	}
	if p.node != nil {
		err = errors.Join(err, p.node.close(ctx))
	}
	return err
}

// run offers the ranks, orders the push and waits for the decision.
func (p *pushing) run(ctx context.Context, u *ui) (*pushed, error) {
	v := weights.Version(p.cmd.Version)
	offering, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, x := range p.ranks {
		wg.Go(func() { x.r, x.err = x.pub.Push(offering, v, nil) })
	}
	var r *weights.Report
	var err error
	if p.orders {
		over := make(chan struct{})
		go func() {
			defer close(over)
			r, err = p.client.Update(ctx, v, p.cmd.SkipSuspended)
		}()
		p.progress(ctx, u, over)
		if err != nil {
			stop() // publishers that no epoch took would wait for ever
		}
	}
	wg.Wait()
	if !p.orders {
		r, err = p.ranks[0].r, p.ranks[0].err
	}
	if r == nil && err != nil {
		return nil, err
	}
	for _, x := range p.ranks {
		if err == nil && x.err != nil {
			err = x.err
		}
	}
	return newPushed(r, err), err
}

// progressPause is how often the controller is asked.
const progressPause = 100 * time.Millisecond

// progress shows how far the push is until it is over.
func (p *pushing) progress(ctx context.Context, u *ui, over <-chan struct{}) {
	began := time.Now()
	for tick := time.NewTicker(progressPause); ; {
		defer tick.Stop()
		select {
		case <-over:
			u.status.clear()
			return
		case <-tick.C:
		}
		s, err := p.client.Status(ctx)
		if err != nil {
			continue
		}
		u.status.show("push v%d %v: %s", p.cmd.Version, time.Since(began).Round(100*time.Millisecond), membersText(s))
	}
}

// membersText counts members by their state.
func membersText(s *weights.Cluster) string {
	type key struct{ role, state string }
	count := map[key]int{}
	var order []key
	for _, m := range s.Members {
		k := key{m.Role, m.State}
		if count[k] == 0 {
			order = append(order, k)
		}
		count[k]++
	}
	text := fmt.Sprintf("epoch %d", s.Epoch)
	for _, k := range order {
		text += fmt.Sprintf(", %d %s %s", count[k], plural(k.role, count[k]), k.state)
	}
	if s.Waits != "" {
		text += "; waits: " + s.Waits
	}
	return text
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func newPushed(r *weights.Report, err error) *pushed {
	out := &pushed{
		weightsHead: weightsResult("push"), Version: uint64(r.Version), Epoch: r.Epoch, Bytes: r.Bytes, Writes: r.Writes, WallMS: millis(r.Wall),
		Repairs: r.Repairs, Staging: r.Staging, Serving: r.Serving, Out: []outJSON{},
		Phases: phasesJSON{
			Pause: millis(r.Phases.Pause), FirstByte: millis(r.Phases.FirstByte), LastByte: millis(r.Phases.LastByte), Verify: millis(r.Phases.Verify),
			Commit: millis(r.Phases.Commit), PostLoad: millis(r.Phases.PostLoad), Resume: millis(r.Phases.Resume),
		},
	}
	if r.Wall > 0 {
		out.GBPerS = float64(r.Bytes) / r.Wall.Seconds() / 1e9
	}
	for _, o := range r.Out {
		out.Out = append(out.Out, outJSON{o.Instance, o.Why})
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func (r *pushed) print(u *ui, err error) {
	row := func(name, format string, args ...any) []string { return []string{name, fmt.Sprintf(format, args...)} }
	state := fmt.Sprintf("committed, instances %v serve it", r.Serving)
	if err != nil {
		state = "not committed"
	}
	rows := [][]string{
		row("version, epoch", "%d, %d: %s", r.Version, r.Epoch, state),
		row("moved", "%s in %d writes, %.0f ms, %.2f GB/s", bytesText(r.Bytes), r.Writes, r.WallMS, r.GBPerS),
		row("engines stopped", "%.1f ms at most", r.Phases.Pause),
		row("first, last byte", "%.1f ms, %.1f ms", r.Phases.FirstByte, r.Phases.LastByte),
		row("verify, post-load", "%.1f ms, %.1f ms", r.Phases.Verify, r.Phases.PostLoad),
		row("commit, resume", "%.1f ms, %.1f ms", r.Phases.Commit, r.Phases.Resume),
		row("repairs, staging", "%d, at most %s in flight", r.Repairs, bytesText(r.Staging)),
	}
	for _, o := range r.Out {
		rows = append(rows, row("instance out", "%d: %s", o.Instance, o.Why))
	}
	u.table("push", []string{"", ""}, rows)
}

// weightsClient opens an engine and a client of the controller for one command.
func weightsClient(ctx context.Context, f *weightsNodeFlags, at *controllerFlag, use func(*weights.Client) error) (err error) {
	addr, err := at.address(ctx)
	if err != nil {
		return err
	}
	n, err := f.open(ctx, "client")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	client, err := weights.Dial(ctx, n.eng, addr)
	if err != nil {
		return err
	}
	defer client.Close()
	return use(client)
}
