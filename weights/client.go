package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// Client gives orders to a controller from another process. It takes all messages of its engine: nothing else may call Receive on it. Safe for
// concurrent use.
type Client struct {
	eng  *hawser.Engine
	p    *hawser.Peer
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	calls map[uint64]chan answer // guarded by mu
	last  uint64                 // guarded by mu
}

// Messages that begin with orderMagic are orders, those with answerMagic answers, both in JSON.
const (
	orderMagic  = "hwO1"
	answerMagic = "hwA1"
)

// order is what a Client wants.
type order struct {
	ID      uint64
	Op      string // "update", "rollback", "decide", "status", "contents", "spans", "usage", "layout"
	Version Version
	Skip    bool // update
	Epoch   uint64
	Commit  bool
	Force   bool
}

type answer struct {
	ID      uint64
	Err     *remoteError
	Report  *Report
	Cluster *Cluster
	// Of contents, spans, usage and layout.
	Contents []Content
	Usage    []Usage
	Spans    []Span
	Layout   []byte
}

// Dial connects to a controller.
func Dial(ctx context.Context, eng *hawser.Engine, controller string) (*Client, error) {
	p, err := eng.Connect(ctx, controller)
	if err != nil {
		return nil, fmt.Errorf("weights: controller: %w", err)
	}
	c := &Client{eng: eng, p: p, calls: map[uint64]chan answer{}}
	in, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.wg.Go(func() { c.receive(in) })
	return c, nil
}

func (c *Client) receive(ctx context.Context) {
	for {
		m, err := c.eng.Receive(ctx)
		if err != nil {
			return
		}
		var a answer
		if m.From != c.p || !has(m.Data, answerMagic) || json.Unmarshal(m.Data[len(answerMagic):], &a) != nil {
			continue
		}
		c.mu.Lock()
		if call := c.calls[a.ID]; call != nil {
			call <- a
			delete(c.calls, a.ID)
		}
		c.mu.Unlock()
	}
}

// Close ends the calls that are under way, and not what they have ordered.
func (c *Client) Close() {
	c.stop()
	c.wg.Wait()
}

// Update is Controller.Update. skip leaves suspended instances out. When ctx ends the update goes on.
func (c *Client) Update(ctx context.Context, v Version, skip bool) (*Report, error) {
	a, err := c.call(ctx, order{Op: "update", Version: v, Skip: skip})
	return a.Report, err
}

// Rollback is Controller.Rollback.
func (c *Client) Rollback(ctx context.Context, v Version) (*Report, error) {
	a, err := c.call(ctx, order{Op: "rollback", Version: v})
	return a.Report, err
}

// Decide is Controller.Decide.
func (c *Client) Decide(ctx context.Context, epoch uint64, commit, force bool) (*Report, error) {
	a, err := c.call(ctx, order{Op: "decide", Epoch: epoch, Commit: commit, Force: force})
	return a.Report, err
}

// Status is Controller.Status.
func (c *Client) Status(ctx context.Context) (*Cluster, error) {
	a, err := c.call(ctx, order{Op: "status"})
	return a.Cluster, err
}

// Contents is Controller.Contents.
func (c *Client) Contents(ctx context.Context) ([]Content, error) {
	a, err := c.call(ctx, order{Op: "contents"})
	return a.Contents, err
}

// Spans is Controller.Spans.
func (c *Client) Spans(ctx context.Context) ([]Span, error) {
	a, err := c.call(ctx, order{Op: "spans"})
	return a.Spans, err
}

// Usage is Controller.Usage.
func (c *Client) Usage(ctx context.Context) ([]Usage, error) {
	a, err := c.call(ctx, order{Op: "usage"})
	return a.Usage, err
}

// Layout is that of the receivers that have joined, whoever has it: it must not be changed.
func (c *Client) Layout(ctx context.Context) (*reshard.Layout, error) {
	a, err := c.call(ctx, order{Op: "layout"})
	if err != nil {
		return nil, err
	}
	l, _, err := decodeLayout(a.Layout)
	return l, err
}

// alivePause is how often a call that waits looks whether the controller is there.
const alivePause = 100 * time.Millisecond

func (c *Client) call(ctx context.Context, o order) (answer, error) {
	call := make(chan answer, 1)
	c.mu.Lock()
	c.last++
	o.ID = c.last
	c.calls[o.ID] = call
	c.mu.Unlock()
	data, err := json.Marshal(o)
	if err == nil {
		_, err = c.eng.Send(c.p, append([]byte(orderMagic), data...))
	}
	if err != nil {
		return answer{}, fmt.Errorf("weights: %s: %w", o.Op, err)
	}
	for alive := time.NewTicker(alivePause); ; {
		defer alive.Stop()
		select {
		case a := <-call:
			if a.Err != nil {
				return a, a.Err
			}
			return a, nil
		case <-alive.C:
			if !c.p.Up() {
				return answer{}, o.lost()
			}
		case <-ctx.Done():
			return answer{}, fmt.Errorf("weights: %s: %w", o.Op, context.Cause(ctx))
		}
	}
}

// lost is the error of an order whose controller is gone.
func (o *order) lost() error {
	switch o.Op {
	case "update", "rollback", "decide":
		return fmt.Errorf("weights: %s: controller: %w, what it has begun may go on: %w", o.Op, hawser.ErrPeerDown, ErrInDoubt)
	}
	return fmt.Errorf("weights: %s: controller: %w", o.Op, hawser.ErrPeerDown)
}

func has(data []byte, magic string) bool {
	return len(data) >= len(magic) && string(data[:len(magic)]) == magic
}

// obey runs an order of a Client on a goroutine of its own.
func (c *Controller) obey(from *hawser.Peer, data []byte) {
	var o order
	if json.Unmarshal(data, &o) != nil {
		return
	}
	c.wg.Go(func() {
		a := answer{ID: o.ID}
		var err error
		switch o.Op {
		case "update":
			a.Report, err = c.update(c.ctx, o.Version, o.Skip)
		case "rollback":
			a.Report, err = c.Rollback(c.ctx, o.Version)
		case "decide":
			a.Report, err = c.Decide(c.ctx, o.Epoch, o.Commit, o.Force)
		case "status":
			s := c.Status()
			a.Cluster = &s
		case "contents":
			a.Contents, err = c.Contents(c.ctx)
		case "spans":
			a.Spans, err = c.Spans(c.ctx)
		case "usage":
			a.Usage, err = c.Usage(c.ctx)
		case "layout":
			a.Layout, err = c.layout()
		default:
			err = fmt.Errorf("order %q: %w", o.Op, hawser.ErrInvalid)
		}
		if err != nil {
			a.Err = toRemote(err)
		}
		reply, err := json.Marshal(a)
		if err != nil {
			c.log.Error("answer to a client", "err", err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.met(from)
		c.deliver(c.known(from.ID()), append([]byte(answerMagic), reply...))
	})
}

// layout is the encoded one of the receivers.
func (c *Controller) layout() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.m.Status().Members {
		if blob := c.blobs[j.Member.Layout]; j.Member.Role == proto.RoleReceiver && blob != nil {
			return blob, nil
		}
	}
	return nil, fmt.Errorf("weights: no receiver has joined: %w", ErrLayout)
}

// remoteError is an error of a controller at a client: errors.Is finds what it found there.
type remoteError struct {
	Text  string
	Kinds []string
}

// kinds are the errors that travel.
var kinds = map[string]error{
	"aborted": ErrAborted, "in doubt": ErrInDoubt, "suspended": ErrSuspended, "version": ErrVersion, "no replica": ErrNoReplica, "digest": ErrDigest,
	"coverage": ErrCoverage, "layout": ErrLayout, "busy": hawser.ErrBusy, "stale": hawser.ErrStale, "closed": hawser.ErrClosed, "invalid": hawser.ErrInvalid,
	"log": proto.ErrLog,
}

func toRemote(err error) *remoteError {
	e := &remoteError{Text: err.Error()}
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			e.Kinds = append(e.Kinds, name)
		}
	}
	return e
}

func (e *remoteError) Error() string { return e.Text }

// Is finds the kinds.
func (e *remoteError) Is(target error) bool {
	for _, name := range e.Kinds {
		if kinds[name] == target {
			return true
		}
	}
	return false
}
