package weights

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// ControllerOptions is what NewController needs.
type ControllerOptions struct {
	// StateDir holds the log of decisions, which must survive the process: without it a controller that is started again cannot say how
	// epochs of the one before ended. Empty: the log is in memory, for tests.
	StateDir string
	Registry Registry // hands out terms; nil: terms come from what members have seen

	Rules []reshard.Rule
	Plan  reshard.Options

	JoinWindow    time.Duration // a term begins so long after the last member has joined; default 1 s
	Expect        int           // members that are expected: when so many have joined nobody waits for JoinWindow; 0: not known
	MinInstances  int           // fewer do not commit; default 1
	Repairs       int           // of one update; default 3
	Copy          bool          // fill instances without a version from others that serve one, between updates
	SkipSuspended bool          // updates leave suspended instances out, instead of failing
	Limits        Limits
	Log           *slog.Logger // discarded when nil
}

// Registry is a service that many processes agree on. Any that can compare and swap will do.
type Registry interface {
	// Raise makes the number of a name larger than least, and than any that it has returned for it, and returns it.
	Raise(ctx context.Context, name string, least uint64) (uint64, error)
}

// Controller runs updates. It takes all messages of its engine: nothing else may call Receive on it. Safe for concurrent use, one operation at a
// time.
type Controller struct {
	station
	o       ControllerOptions
	m       *proto.Controller
	journal *journal // nil: in memory

	plans planner

	// guarded by mu
	refused error // the last plan that was not found: why
	ops     map[uint64]chan proto.Outcome
	early   map[uint64]proto.Outcome // outcomes that came before the operation's number was known here
	records chan proto.Record        // to be made durable, in order
	clock   clock
	asks    uint64
	asking  map[uint64]*asked
}

// NewController starts a controller on an engine. Close ends it, before the engine is closed.
func NewController(eng *hawser.Engine, o ControllerOptions) (*Controller, error) {
	o.Limits = o.Limits.withDefaults()
	c := &Controller{
		station: newStation(eng, o.Log), o: o, ops: map[uint64]chan proto.Outcome{}, early: map[uint64]proto.Outcome{},
		records: make(chan proto.Record, 1024), asking: map[uint64]*asked{},
	}
	c.plans.rules, c.plans.options = o.Rules, o.Plan
	cfg := proto.ControllerConfig{
		ID: eng.ID(), JoinWindow: o.JoinWindow, Expect: o.Expect, MinInstances: o.MinInstances, Repairs: o.Repairs, Copy: o.Copy,
		Limits: proto.Limits{
			Return: o.Limits.Return, Pause: o.Limits.Pause, Push: o.Limits.Push, PostLoad: o.Limits.PostLoad,
			Commit: 2 * max(o.Limits.Commit, o.Limits.Pause),
		},
	}
	err := c.recall(&cfg)
	if err == nil {
		c.m, err = proto.NewController(cfg, controllerOut{c})
	}
	if err != nil {
		c.stop()
		if c.journal != nil {
			_ = c.journal.close()
		}
		return nil, fmt.Errorf("weights: controller: %w", err)
	}
	c.other = c.message
	c.begin(c.m)
	c.wg.Go(c.write)
	return c, nil
}

// recall reads the log, and asks the registry for a term.
func (c *Controller) recall(cfg *proto.ControllerConfig) error {
	_, _ = rand.Read(cfg.Log[:])
	if c.o.StateDir != "" {
		j, records, err := openJournal(c.o.StateDir)
		if err != nil {
			return err
		}
		c.journal, cfg.Log = j, j.id
		for i, b := range records {
			r, err := decodeRecord(b)
			if err != nil {
				return fmt.Errorf("record %d: %w", i, err)
			}
			cfg.Records = append(cfg.Records, r)
			cfg.MinTerm = max(cfg.MinTerm, r.Term.Number, r.Decision.Of.Number, r.By.Number)
		}
	}
	if c.o.Registry == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, connectLimit)
	defer cancel()
	term, err := c.o.Registry.Raise(ctx, "weights-term", cfg.MinTerm)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	cfg.MinTerm = max(cfg.MinTerm, term-1)
	return nil
}

// write makes records durable, one after the other.
func (c *Controller) write() {
	for {
		select {
		case r := <-c.records:
			var err error
			if c.journal != nil {
				err = c.journal.append(encodeRecord(&r))
			}
			c.event(func(now proto.Time) { c.m.Logged(now, r.Seq, err) })
		case <-c.ctx.Done():
			return
		}
	}
}

// Update pushes version v: it waits for the publishers to offer it, and returns when every instance that takes part has switched or is out.
func (c *Controller) Update(ctx context.Context, v Version) (*Report, error) {
	return c.update(ctx, v, c.o.SkipSuspended)
}

func (c *Controller) update(ctx context.Context, v Version, skip bool) (*Report, error) {
	return c.operate(ctx, "update", v, func(now proto.Time) (uint64, error) {
		return c.m.Update(now, v, proto.UpdateOptions{SkipSuspended: skip})
	})
}

// Rollback makes all instances serve version v again, where it is kept or still served by another instance.
func (c *Controller) Rollback(ctx context.Context, v Version) (*Report, error) {
	return c.operate(ctx, "rollback", v, func(now proto.Time) (uint64, error) { return c.m.Rollback(now, v) })
}

// Decide says how an epoch ended that members are in doubt about, when the log that says so is lost. It asks everybody first, and refuses if anybody knows the other
// decision, or, without force, if a member of the epoch is missing.
func (c *Controller) Decide(ctx context.Context, epoch uint64, commit, force bool) (*Report, error) {
	return c.operate(ctx, "decide", 0, func(now proto.Time) (uint64, error) { return c.m.Decide(now, epoch, commit, force) })
}

// operate runs an operation of the machine.
func (c *Controller) operate(ctx context.Context, what string, v Version, begin func(now proto.Time) (uint64, error)) (*Report, error) {
	over := make(chan proto.Outcome, 1)
	c.mu.Lock()
	c.clock = clock{}
	op, err := begin(c.now())
	if err == nil {
		if o, ok := c.early[op]; ok {
			over <- o
			delete(c.early, op)
		} else {
			c.ops[op] = over
		}
	}
	c.unlock()
	if err != nil {
		return nil, fmt.Errorf("weights: %s v%d: %w", what, v, err)
	}
	for done := ctx.Done(); ; {
		select {
		case o := <-over:
			return c.report(&o), c.typed(o.Err)
		case <-done:
			done = nil
			c.event(func(now proto.Time) { c.m.Cancel(now, op) }) // then it ends, and says how
		case <-c.ctx.Done():
			return nil, fmt.Errorf("weights: %s v%d: controller: %w, what it has begun is not decided by it: %w", what, v, hawser.ErrClosed, ErrInDoubt)
		}
	}
}

// typed is typed, and finds what the planner has said.
func (c *Controller) typed(err error) error {
	c.mu.Lock()
	cause := c.refused
	c.mu.Unlock()
	var e *EpochError
	if cause != nil && errors.As(err, &e) && e.Code == proto.CodePlan {
		return &kindError{err, cause}
	}
	return typed(err)
}

// message takes messages that are not the protocol's: orders of clients, and what members report.
func (c *Controller) message(from *hawser.Peer, data []byte) bool {
	switch {
	case has(data, orderMagic):
		c.obey(from, data[len(orderMagic):])
	case has(data, byeMagic):
		c.event(func(now proto.Time) { c.m.Left(now, from.ID()) })
	case has(data, replyMagic):
		c.replied(from, data[len(replyMagic):])
	case has(data, reportMagic):
		c.reported(from, data[len(reportMagic):])
	default:
		return false
	}
	return true
}

// Close ends the controller. An epoch that is under way stays undecided until a controller with the same log is started.
func (c *Controller) Close(context.Context) error {
	c.end()
	if c.journal != nil {
		return c.journal.close()
	}
	return nil
}
