package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights"
)

type weightsServeCmd struct {
	weightsNodeFlags
	verifyFlag
	childFlag

	Role       string `enum:"receiver,publisher,controller" default:"receiver" placeholder:"ROLE" help:"receiver: an inference rank; publisher: a training rank that pushes when it is asked; controller (default: ${default})."`
	Controller string `placeholder:"ADDR" help:"The controller: what it printed, which is good while it lives, HOST:PORT where it listens, @FILE with either, or file:PATH, its registry."`
	Layout     string `placeholder:"FILE" help:"Layout of this side."`
	Rank       int    `default:"-1" placeholder:"R" help:"Which rank of the layout this is."`
	Instance   int    `default:"-1" placeholder:"I" help:"Check that the rank belongs to this instance."`
	Leader     int    `placeholder:"N" help:"Receiver: which rank of an instance, counted in it, pauses and resumes the engine; the same on all of them (default: the first)."`
	Shadow     bool   `help:"Receiver: take new versions into a second copy of the memory, and stop for the switch only."`
	From       string `placeholder:"DIR" help:"Publisher: the checkpoint that is pushed; {version} stands for the version. Receiver: what it serves at the start, as --serving."`
	Serving    uint64 `placeholder:"N" help:"Receiver: the version of --from."`

	State        string `placeholder:"DIR" help:"Controller: where decisions are kept. Without it, epochs that a crash leaves undecided need the operator."`
	MinInstances int    `default:"1" placeholder:"N" help:"Controller: fewer instances do not commit (default: ${default})."`
	Expect       int    `placeholder:"N" help:"Controller: members that will join; then nobody waits for more (default: until no one has joined for a second)."`
	Registry     string `placeholder:"file:PATH" help:"Controller: file that names it and counts its terms."`
	AddrFile     string `placeholder:"FILE" help:"Write the address there when it is ready."`
	Copy         bool   `help:"Controller: give instances that have no version the one that another serves, between pushes."`
	Dump         string `hidden:"" placeholder:"FILE"`

	StagePause time.Duration `hidden:"" placeholder:"TIME" help:"Publisher: pause before each stage of a push, as a trainer does that is still computing the next one."`
}

// serverState is what a serving process tells, as a line of JSON each time that it changes.
type serverState struct {
	Role    string `json:"role"`
	Rank    int    `json:"rank"`
	State   string `json:"state"`
	Version uint64 `json:"version"`
	Epoch   uint64 `json:"epoch"`
	InDoubt bool   `json:"in_doubt"`
}

// Messages between hawser demo and its weight servers, beside msgListening.
const msgState = "state"

// Help is shown below the first line of the help.
func (weightsServeCmd) Help() string {
	return "It prints its address, then a line for each change of its state, until it is interrupted. A controller without members does nothing; members " +
		"join it when it comes back."
}

// Run serves until a signal.
func (c *weightsServeCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	parent, ctx := c.attach(ctx)
	if parent != nil {
		u.out = io.Discard // the parent reads messages there
	}
	return tell(parent, c.serve(ctx, u, parent))
}

func (c *weightsServeCmd) serve(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	if c.Role == "controller" {
		return c.control(ctx, u, parent)
	}
	l, rules, addr, err := c.side(ctx)
	if err != nil {
		return err
	}
	n, err := c.open(ctx, fmt.Sprintf("%s-%d", c.Role, c.Rank))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	memory, err := n.memory(l.Buffers[c.Rank])
	if err != nil {
		return err
	}
	if c.Role == "publisher" {
		return c.publish(ctx, u, parent, n, weights.PublisherOptions{
			Controller: addr, Name: n.name, Rank: c.Rank, Layout: l, Rules: rules, Regions: memory, Verify: c.mode(), Log: n.log,
		})
	}
	o := weights.ReceiverOptions{
		Controller: addr, Name: n.name, Rank: c.Rank, Leader: c.Leader, Layout: l, Rules: rules, Regions: memory, Verify: c.mode(), Log: n.log,
	}
	if c.Shadow {
		if o.Shadow, err = n.memory(l.Buffers[c.Rank]); err != nil {
			return err
		}
	}
	return c.receive(ctx, u, parent, n, o)
}

// side reads what a member needs.
func (c *weightsServeCmd) side(ctx context.Context) (l *reshard.Layout, rules []reshard.Rule, addr string, err error) {
	if c.Controller == "" || c.Layout == "" || c.Rank < 0 {
		return nil, nil, "", usage("a %s needs --controller, --layout and --rank", c.Role)
	}
	if c.Role == "publisher" && c.From == "" {
		return nil, nil, "", usage("a publisher needs --from, the checkpoint that it pushes")
	}
	if l, rules, err = readLayout(c.Layout); err != nil {
		return nil, nil, "", err
	}
	if c.Rank >= len(l.Buffers) {
		return nil, nil, "", usage("--rank %d: the layout has ranks 0 to %d", c.Rank, len(l.Buffers)-1)
	}
	if i := l.Topo.Instance; c.Instance >= 0 && i != nil && i[c.Rank] != c.Instance {
		return nil, nil, "", usage("--instance %d: in the layout rank %d belongs to instance %d", c.Instance, c.Rank, i[c.Rank])
	}
	at := controllerFlag{c.Controller}
	addr, err = at.address(ctx)
	return l, rules, addr, err
}

// ready tells where the process is, once it takes part.
func (c *weightsServeCmd) ready(u *ui, parent *proc.Parent, addr string) error {
	if c.AddrFile != "" {
		if err := replaceFile(c.AddrFile, []byte(addr+"\n")); err != nil {
			return usage("--addr-file: %w", err)
		}
	}
	return announce(u, parent, addr)
}

// statePause is how often a serving process looks at its own state.
const statePause = 20 * time.Millisecond

// watch tells each change of a state until ctx ends.
func (c *weightsServeCmd) watch(ctx context.Context, u *ui, parent *proc.Parent, state func() serverState) error {
	var last serverState
	for tick := time.NewTicker(statePause); ; {
		defer tick.Stop()
		if s := state(); s != last {
			last = s
			doubt := ""
			if s.InDoubt {
				doubt = ", in doubt"
			}
			var err error
			if parent != nil {
				err = parent.Send(msgState, s)
			} else {
				u.printf("%s %s %d: %s, version %d, epoch %d%s\n", time.Now().Format("15:04:05.000"), s.Role, s.Rank, s.State, s.Version, s.Epoch, doubt)
				err = u.line(s)
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// receive is an inference rank.
func (c *weightsServeCmd) receive(ctx context.Context, u *ui, parent *proc.Parent, n *node, o weights.ReceiverOptions) (err error) {
	if c.Serving != 0 {
		if c.From == "" {
			return usage("--serving %d: give --from, the checkpoint of it", c.Serving)
		}
		if err := loadRank(c.From, weights.Version(c.Serving), o.Layout, o.Rank, bytesOf(o.Regions)); err != nil {
			return err
		}
		o.Serving = weights.Version(c.Serving)
	}
	r, err := weights.NewReceiver(n.eng, o)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, c.dump(r.Active()), closed(ctx, r.Close))
	}()
	watching, stop := context.WithCancel(ctx)
	at := controllerFlag{c.Controller}
	defer at.follow(watching, o.Controller, r.Rehome)()
	defer stop()
	if err := c.ready(u, parent, n.eng.Addr()); err != nil {
		return err
	}
	return c.watch(ctx, u, parent, func() serverState {
		s := r.State()
		return serverState{"receiver", c.Rank, s.State.String(), uint64(s.Version), s.Epoch, s.InDoubt}
	})
}

// closed closes what an engine carries; the context of the command has ended by then.
func closed(ctx context.Context, f func(context.Context) error) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return f(end)
}

// dump writes what the rank serves, for a comparison.
func (c *weightsServeCmd) dump(regions []*hawser.Region) error {
	if c.Dump == "" {
		return nil
	}
	f, err := os.Create(c.Dump)
	if err != nil {
		return err
	}
	for _, r := range regions {
		if _, err := f.Write(r.Bytes()); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// publish is a training rank: it loads a version when the controller wants it, and pushes it.
func (c *weightsServeCmd) publish(ctx context.Context, u *ui, parent *proc.Parent, n *node, o weights.PublisherOptions) (err error) {
	wanted := make(chan weights.Version, 1)
	var pushes atomic.Uint64 // the last version
	o.Wanted = func(v weights.Version) {
		select {
		case wanted <- v:
		default: // the controller asks again
		}
	}
	p, err := weights.NewPublisher(n.eng, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed(ctx, p.Close)) }()
	if err := c.ready(u, parent, n.eng.Addr()); err != nil {
		return err
	}
	watching, stop := context.WithCancelCause(ctx)
	at := controllerFlag{c.Controller}
	defer at.follow(watching, o.Controller, p.Rehome)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case v := <-wanted:
				pushes.Store(uint64(v))
				if err := c.pushOne(ctx, u, p, &o, v); err != nil {
					stop(err)
					return
				}
			case <-watching.Done():
				return
			}
		}
	}()
	err = c.watch(watching, u, parent, func() serverState {
		return serverState{Role: "publisher", Rank: c.Rank, State: p.State().String(), Version: pushes.Load()}
	})
	stop(nil)
	<-done
	if cause := context.Cause(watching); err == nil && ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// pushOne pushes a version. That it is aborted is not this process's end; a checkpoint that cannot be read is.
func (c *weightsServeCmd) pushOne(ctx context.Context, u *ui, p *weights.Publisher, o *weights.PublisherOptions, v weights.Version) error {
	if err := loadRank(c.From, v, o.Layout, o.Rank, bytesOf(o.Regions)); err != nil {
		return err
	}
	pushing, stop := context.WithCancel(ctx)
	defer stop()
	r, err := p.Push(ctx, v, c.stages(pushing))
	if err != nil {
		fmt.Fprintf(os.Stderr, "hawser: publisher %d: push v%d: %v\n", c.Rank, v, err)
		return nil
	}
	u.printf("%s publisher %d: pushed v%d, %s in %d writes, %v\n", time.Now().Format("15:04:05.000"), c.Rank, v, bytesText(r.Bytes), r.Writes, r.Wall.Round(time.Millisecond))
	return nil
}

// stages tells one stage after the other ready until ctx ends; nil: all are.
func (c *weightsServeCmd) stages(ctx context.Context) <-chan int {
	if c.StagePause == 0 {
		return nil
	}
	ready := make(chan int)
	go func() {
		for s := 0; ; s++ {
			select {
			case <-time.After(c.StagePause):
			case <-ctx.Done():
				return
			}
			select {
			case ready <- s:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ready
}

// control is the controller.
func (c *weightsServeCmd) control(ctx context.Context, u *ui, parent *proc.Parent) (err error) {
	if c.State != "" {
		if err := os.MkdirAll(c.State, 0o755); err != nil {
			return usage("--state: %w", err)
		}
	}
	o := weights.ControllerOptions{StateDir: c.State, MinInstances: c.MinInstances, Expect: c.Expect, Copy: c.Copy}
	var reg *termRegistry
	if c.Registry != "" {
		f, err := openRegistry(c.Registry)
		if err != nil {
			return err
		}
		reg = &termRegistry{f}
		o.Registry = reg
	}
	n, err := c.open(ctx, "controller")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	o.Log = n.log
	ctl, err := weights.NewController(n.eng, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed(ctx, ctl.Close)) }()
	if reg != nil {
		if err := reg.announce(n.eng.Addr()); err != nil {
			return err
		}
	}
	if err := c.ready(u, parent, n.eng.Addr()); err != nil {
		return err
	}
	return c.watch(ctx, u, parent, func() serverState {
		s := ctl.Status()
		return serverState{Role: "controller", Rank: len(s.Members), State: fmt.Sprintf("term %d", s.Term), Version: uint64(s.Version), Epoch: s.Epoch}
	})
}
