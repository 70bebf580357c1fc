package kvbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/provider"
)

// pair is a decoder in this process and a prefiller in a child. Owned by one goroutine, which calls close; request may be called by many.
type pair struct {
	*memory
	child *proc.Child
	addr  string // of the prefiller
	eng   *hawser.Engine
	pool  *pool.Pool
	tails *hawser.Region
	d     *kv.Decoder
	last  atomic.Int64 // request
	conn  net.Conn     // of the yardstick
	stop  func()       // the profile
}

// options of a decoder that most measurements leave as they are.
type options struct {
	tails    int // slots
	queue    int
	rails    int
	noPool   bool
	observer func(proto.Note)
}

func providerOf(network string) ([]provider.Provider, error) {
	p, err := bench.Provider(network)
	return []provider.Provider{p}, err
}

// newPair starts both sides and connects them.
func newPair(ctx context.Context, c Config, s setup, dst shape, o options) (p *pair, err error) {
	p = &pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
			p = nil
		}
	}()
	s.Network = c.Network
	if c.Profile != "" {
		s.Profile = filepath.Join(c.Profile, "prefiller.pprof")
		if p.stop, err = profile(filepath.Join(c.Profile, "decoder.pprof")); err != nil {
			return p, err
		}
	}
	if p.child, err = proc.Start(c.Child); err != nil {
		return p, err
	}
	var st state
	if st, err = p.call(ctx, "setup", s); err != nil {
		return p, err
	}
	p.addr = st.Addr
	if err = p.open(ctx, c.Network, dst, o); err != nil {
		return p, err
	}
	return p, p.d.Warm(ctx, p.addr)
}

// open opens this side.
func (p *pair) open(ctx context.Context, network string, dst shape, o options) (err error) {
	if p.eng, err = openEngine(ctx, "decoder", network, o.rails); err != nil {
		return err
	}
	if p.memory, err = newMemory(p.eng, dst); err != nil {
		return err
	}
	cfg := kv.DecoderConfig{
		Instance: "d", Topology: &layout.Topology{Members: []layout.Geometry{p.g}}, Regions: p.regions, Queue: o.queue,
		Options: layout.Options{AllowSmallWrites: true}, Observer: o.observer,
	}
	if !o.noPool {
		if p.pool, err = pool.New(dst.Pages, 1); err != nil {
			return err
		}
		cfg.Pools = []*pool.Pool{p.pool}
	}
	if o.tails > 0 {
		if p.tails, err = p.eng.Alloc(uint64(o.tails)*tailBytes, hawser.MemOptions{}); err != nil {
			return err
		}
		cfg.Tails, cfg.TailBytes = p.tails, tailBytes
	}
	p.d, err = kv.NewDecoder(p.eng, cfg)
	return err
}

func (p *pair) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var errs []error
	if p.d != nil {
		errs = append(errs, p.d.Close(ctx))
	}
	if p.eng != nil {
		errs = append(errs, p.eng.Close(ctx))
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	if p.child != nil {
		errs = append(errs, p.child.Stop(closeLimit))
	}
	if p.stop != nil {
		p.stop()
	}
	return errors.Join(errs...)
}

// call asks the child.
func (p *pair) call(ctx context.Context, kind string, q any) (st state, err error) {
	if err := p.child.Send(kind, q); err != nil {
		return st, err
	}
	m, err := p.child.Next(ctx)
	if errors.Is(err, io.EOF) {
		err = errors.New("the prefilling process has ended")
	}
	if err != nil {
		return st, err
	}
	return st, m.Decode(&st)
}

// request is for so many tokens of the prompt, whose last one is not computed here.
func (p *pair) request(tokens int) kv.FetchRequest {
	return kv.FetchRequest{
		ID: fmt.Sprint(p.last.Add(1)), Prompt: proto.Prompt{Key: "prompt", Tokens: tokens}, From: []proto.Source{{Writers: []string{p.addr}}},
	}
}

// cpu is the processor time of both processes.
func (p *pair) cpu(ctx context.Context) (float64, error) {
	st, err := p.call(ctx, "cpu", question{})
	return st.CPU + cpuTime(), err
}

// moved is one prompt that was moved.
type moved struct {
	pages       []uint32
	bytes       uint64
	computed    []int64 // the beginning, and then each layer
	ready, told int64
	landed      []int64 // of B2: when all of each layer had landed
}

// exposed is the time from the last layer to the end of the transfer.
func (m *moved) exposed() time.Duration {
	return time.Duration(m.ready - m.computed[len(m.computed)-1])
}

// wake is the time from the end of the transfer until its caller ran.
func (m *moved) wake() time.Duration { return time.Duration(m.told - m.ready) }

// move fetches one prompt and checks every step-th token. wait waits for it.
func (p *pair) move(ctx context.Context, tokens, step int, wait func(*kv.Pending) (kv.Result, error)) (*moved, error) {
	pages := make([]uint32, p.pool.Pages())
	for i := range pages {
		pages[i] = uint32(i)
	}
	p.clear(pages, len(pages)*p.g.Groups[0].PageTokens, step)
	r := p.request(tokens)
	pending, err := p.d.Fetch(ctx, r)
	if err != nil {
		return nil, err
	}
	if wait == nil {
		wait = func(p *kv.Pending) (kv.Result, error) { return p.Wait(ctx) }
	}
	res, err := wait(pending)
	m := &moved{told: clock()}
	if err != nil {
		return nil, err
	}
	defer res.Release()
	m.ready, m.pages, m.bytes = onClock(res.Ready), res.Pages[0], res.Bytes
	if err := p.check(m.pages, tokens, step); err != nil {
		return nil, err
	}
	// The pass may end a little after its last write has been counted.
	for m.computed == nil {
		st, err := p.call(ctx, "times", question{Request: r.ID})
		if err != nil {
			return nil, err
		}
		m.computed = st.Times
	}
	return m, nil
}

// copyLayer is the yardstick on shared memory: how long the prefiller needs to copy the pages of a layer.
func (p *pair) copyLayer(ctx context.Context, layer int, pages []uint32) (time.Duration, error) {
	st, err := p.call(ctx, "copy", question{Layer: layer, Pages: pages})
	return st.Took, err
}

// dial connects the yardstick on TCP.
func (p *pair) dial(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	if err := p.child.Send("dial", question{Addr: l.Addr().String()}); err != nil {
		return err
	}
	if p.conn, err = l.Accept(); err != nil {
		return err
	}
	_, err = p.child.Next(ctx)
	return err
}

// socketLayer is the yardstick on TCP: the same pages through a socket, page by page into this side's memory.
func (p *pair) socketLayer(ctx context.Context, layer int, pages []uint32) (time.Duration, error) {
	if p.conn == nil {
		if err := p.dial(ctx); err != nil {
			return 0, err
		}
	}
	if err := p.child.Send("socket", question{Layer: layer, Pages: pages}); err != nil {
		return 0, err
	}
	for r := range p.g.Ranks {
		for _, v := range p.g.Ranks[r].Views[layer] {
			memory := p.regions[v.Region].Bytes()
			for _, n := range pages {
				at := v.Base + int64(n)*v.Page
				if _, err := io.ReadFull(p.conn, memory[at:at+v.Page]); err != nil {
					return 0, err
				}
			}
		}
	}
	end := clock()
	m, err := p.child.Next(ctx)
	if err != nil {
		return 0, err
	}
	var st state
	if err := m.Decode(&st); err != nil {
		return 0, err
	}
	return time.Duration(end - st.Times[0]), nil
}

// yardstick is the one of the network.
func (p *pair) yardstick(ctx context.Context, c Config, layer int, pages []uint32) (time.Duration, error) {
	if c.Network == "tcp" {
		return p.socketLayer(ctx, layer, pages)
	}
	return p.copyLayer(ctx, layer, pages)
}
