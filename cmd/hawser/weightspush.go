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
	Trace         string `placeholder:"FILE" help:"Write what each rank did when as Chrome trace events."`
}

// Help is shown below the first line of the help.
func (weightsPushCmd) Help() string {
	return "The exit status is 4 when the push was aborted, 5 when digests differ, 6 when it is not known whether it was committed. With --from all that " +
		"receivers then serve is compared with the checkpoint, resharded rank by rank without a plan, unless --verify is off."
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
	before, err := p.usage(ctx)
	if err != nil {
		return err
	}
	r, err := p.run(ctx, u)
	if r != nil {
		err = errors.Join(err, p.cost(ctx, r, before), p.trace(ctx), p.compare(ctx, u, r))
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
	began  time.Time
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
	p.began = time.Now()
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
