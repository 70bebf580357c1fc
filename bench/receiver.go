package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/mem"
)

// receiver is a receiving process, for one config. Owned by the goroutine that calls serve.
type receiver struct {
	up     uplink
	host   Host
	served bool   // by a server: the sender is on another host, maybe
	limit  uint64 // of Config.Pool

	config   Config
	scenario *scenario
	index    int
	order    order
	dock     *dock
	eng      *engine
	pool     *hawser.Region // of ours
	word     *hawser.Region // what answers are written from
	answer   *hawser.Remote // where they go, nil before the run has been joined
	group    *hawser.Group  // of all others
	stream   stream         // to the sender
	mesh     []stream       // to all others
	yard     *mem.Span      // pool of the yardstick
	count    uint64         // immediates expected so far
	wrong    uint64         // bytes of messages
}

// Serve is the receiving process of Run: it calls proc.Attach, does what the sender asks, and returns when the sender is gone.
func Serve(ctx context.Context) error {
	parent, ctx := proc.Attach(ctx)
	r := &receiver{up: parent, limit: math.MaxUint64}
	err := r.serve(ctx)
	if errors.Is(err, proc.ErrParentGone) { // it has ended the run
		err = nil
	}
	if err = errors.Join(err, r.close(ctx)); err != nil {
		parent.Fail(err)
	}
	return err
}

// serve answers the sender until it is gone, or something fails.
func (r *receiver) serve(ctx context.Context) error {
	for {
		m, err := r.up.Next(ctx)
		if err != nil {
			return err
		}
		if err := r.answerTo(ctx, m); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
	}
}

// close frees everything.
func (r *receiver) close(ctx context.Context) error {
	var errs []error
	if r.dock != nil {
		errs = append(errs, r.dock.close())
	}
	hangUp(r.mesh...)
	errs = append(errs, r.eng.close(ctx))
	if r.yard != nil {
		errs = append(errs, r.yard.Free())
	}
	return errors.Join(errs...)
}

func (r *receiver) answerTo(ctx context.Context, m proc.Message) error {
	opened, joined := r.eng != nil, r.answer != nil
	switch {
	case m.Kind == msgOpen && !opened:
		var v struct {
			Version int `json:"version"`
		}
		if err := m.Decode(&v); err != nil {
			return err
		}
		if v.Version != protocolVersion {
			return fmt.Errorf("bench: the client speaks version %d of this protocol, the server %d: use one release on both sides", v.Version, protocolVersion)
		}
		var q openRequest
		if err := m.Decode(&q); err != nil {
			return err
		}
		return r.open(ctx, q)
	case m.Kind == msgJoin && opened && !joined:
		var q joinRequest
		if err := m.Decode(&q); err != nil {
			return err
		}
		return r.join(ctx, q)
	case m.Kind == msgWork && joined:
		var q workRequest
		if err := m.Decode(&q); err != nil {
			return err
		}
		return r.work(ctx, q)
	case m.Kind == msgVerify && joined:
		var moved uint64
		if err := m.Decode(&moved); err != nil {
			return err
		}
		return r.up.Send(msgResult, r.corrupt(moved))
	}
	return fmt.Errorf("bench: request %q is unknown, or out of order", m.Kind)
}

func (r *receiver) corrupt(moved uint64) uint64 {
	if r.scenario.corrupt != nil {
		return r.scenario.corrupt(r, moved)
	}
	return r.order.corrupt(r.pool.Bytes(), r.config.Size, r.config.Seed, moved, r.index, r.config.Peers)
}

func (r *receiver) open(ctx context.Context, q openRequest) error {
	c, err := q.Config.WithDefaults()
	switch {
	case err != nil:
		return err
	case q.Index < 0 || q.Index >= c.Peers:
		return fmt.Errorf("bench: receiver %d of %d", q.Index, c.Peers)
	case c.Pool > r.limit:
		return fmt.Errorf("bench: a pool of %d bytes, and the server grants %d: raise its --max-pool", c.Pool, r.limit)
	}
	r.config, r.scenario, r.index, r.order = c, scenarios[c.Kind], q.Index, newOrder(c.slots(), c.Seed)
	if !r.served && q.Host != nil {
		r.host = *q.Host
	}
	var a openAnswer
	if r.served {
		m := ThisMachine()
		a.Machine = &m
	}
	// The engine is opened last: its presence says that all the rest is there.
	if r.dock, err = openDock(c, r.host.ip()); err != nil {
		return err
	}
	if r.yard == nil && !c.local() {
		if r.yard, err = mem.New(c.Pool, mem.Shared); err != nil { // of the same kind as the engine's memory
			return err
		}
	}
	if r.eng, err = r.host.open(ctx, c, fmt.Sprintf("receiver %d", r.index)); err != nil {
		return err
	}
	if r.pool, err = r.eng.pool(c, true); err != nil {
		return err
	}
	if r.word, err = r.eng.Alloc(immSize, hawser.MemOptions{}); err != nil {
		return err
	}
	if a.Descriptor, err = export(r.pool); err != nil {
		return err
	}
	a.Member = member{Engine: r.eng.Addr(), Stream: r.dock.endpoint}
	return r.up.Send(msgReady, a)
}

// join connects this receiver with the others. The sender is connected already.
func (r *receiver) join(ctx context.Context, q joinRequest) error {
	if len(q.Members) != r.config.Peers {
		return fmt.Errorf("bench: %d members, want %d", len(q.Members), r.config.Peers)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, errors.New("bench: the processes of the run did not connect in time"))
	defer cancel()
	answer, err := importText(ctx, r.eng, q.Descriptor)
	if err != nil {
		return err
	}
	// Only a barrier needs all to be connected with all.
	others := q.Members[:0:0]
	if r.config.Kind == Barrier {
		others = q.Members
	}
	peers := []*hawser.Peer{answer.Peer()}
	for i, m := range others {
		if i == r.index {
			continue
		}
		p, err := r.eng.Connect(ctx, m.Engine)
		if err != nil {
			return err
		}
		peers = append(peers, p)
		if i < r.index {
			c, err := m.Stream.dial(ctx, r.index+1)
			if err != nil {
				return err
			}
			r.mesh = append(r.mesh, c)
		}
	}
	if r.group, err = r.eng.NewGroup(peers); err != nil {
		return err
	}
	// Those with a higher number dial, and so does the sender, which is 0.
	accepted, err := r.dock.accept(ctx, len(peers)-len(r.mesh), func(n int) bool { return n == 0 || n > r.index+1 && n <= len(others) })
	for _, c := range accepted {
		r.mesh = append(r.mesh, c)
	}
	if err != nil {
		return err
	}
	r.stream, r.answer = accepted[0], answer
	return r.up.Send(msgJoined, nil)
}

// work takes part in one sample.
func (r *receiver) work(ctx context.Context, q workRequest) error {
	if q.Measure < 0 || q.Measure >= len(r.scenario.measures) || q.Task.Count < 0 || q.Task.Count > math.MaxInt32 {
		return fmt.Errorf("bench: measure %d with %d operations is not within bounds", q.Measure, q.Task.Count)
	}
	m := r.scenario.measures[q.Measure]
	does := m.ours
	if q.Yard {
		does = m.yard(r.config)
	}
	if does.receive == nil {
		return fmt.Errorf("bench: measure %d needs no receiver", q.Measure)
	}
	stop := context.AfterFunc(ctx, func() { hangUp(r.mesh...) }) // reads of the streams do not know of contexts
	defer stop()
	if err := r.up.Send(msgGo, nil); err != nil {
		return err
	}
	before := cpuTime()
	if err := does.receive(ctx, r, q.Task); err != nil {
		return fmt.Errorf("bench: %s: %w", r.config.Kind, err)
	}
	return r.up.Send(msgDone, workDone{CPU: cpuTime() - before})
}

// signal tells the sender that everything is there.
func (r *receiver) signal(ctx context.Context) error {
	t, err := r.eng.Signal(hawser.Signal{To: r.answer.Peer(), Imm: immAnswer})
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

// confirm is signal for the stream.
func (r *receiver) confirm() error {
	_, err := r.stream.Write(confirmation)
	return err
}
