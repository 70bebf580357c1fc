package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/mem"
)

// ErrCorrupt: a receiver's memory does not hold what was sent.
var ErrCorrupt = errors.New("content differs")

// Site says where the receiving processes of a run are.
type Site struct {
	// Spec starts a receiving process on this host, which must call Serve. Ignored when there are Servers.
	Spec proc.Spec

	// Servers are the control addresses (host:port) of servers, one for each receiving process of the config.
	Servers []string

	// Host is this process, and those that Spec starts. Devices default to the address from which the first server is reached.
	Host Host
}

// Run measures one row with receivers that spec starts; see Site.Run.
func Run(ctx context.Context, c Config, spec proc.Spec, progress func(round, rounds int)) (Row, error) {
	return Site{Spec: spec}.Run(ctx, c, progress)
}

// Run measures one row. progress is called after each round, with round 0 while it warms up, and may be nil. The row is valid also when the error
// is ErrCorrupt.
func (w Site) Run(ctx context.Context, c Config, progress func(round, rounds int)) (row Row, err error) {
	if progress == nil {
		progress = func(int, int) {}
	}
	s, err := w.Open(ctx, c)
	if err != nil {
		return Row{}, err
	}
	defer func() { err = joinEnd(err, s.Close(ctx)) }()
	rounds := s.config.Rounds
	if err := s.Warm(ctx, func() { progress(0, rounds) }); err != nil {
		return Row{}, err
	}
	for i := range rounds {
		if err := s.Round(ctx); err != nil {
			return Row{}, err
		}
		progress(i+1, rounds)
	}
	return s.Finish(ctx)
}

// Session is a run under way: who measures something else in turn with it calls Round himself. One goroutine uses it. After an error of any
// method but Finish only Close is left.
type Session struct {
	config   Config
	scenario *scenario
	site     Site
	peers    []*peer
	box      *mailbox // of calls to servers, nil without
	eng      *engine
	group    *hawser.Group // of all receivers
	order    order
	pool     *hawser.Region // source
	word     *hawser.Region // answers of the receivers are written here
	yard     *mem.Span      // destination of memcpy, nil when the yardstick is a stream
	flow     *flow
	answers  uint64 // immediates with answers so far

	moved   uint64 // blocks so far
	round   int    // rounds so far, with those of the warm-up
	results []result
}

// peer is a receiver as the sender sees it.
type peer struct {
	line    line
	remote  *hawser.Remote // its pool
	stream  stream
	machine *Machine
}

// result is what a measure has brought.
type result struct {
	samples [2][]Sample // of ours, of the yardstick
	lat     [2]trips
}

const ours, yard = 0, 1

// Open starts, or calls, the receivers and makes everything ready. Close frees it.
func (w Site) Open(ctx context.Context, c Config) (_ *Session, err error) {
	if len(w.Servers) > 0 && c.Peers == 0 {
		c.Peers = len(w.Servers)
	}
	if c, err = c.WithDefaults(); err != nil {
		return nil, err
	}
	s := &Session{config: c, scenario: scenarios[c.Kind], site: w, order: newOrder(c.slots(), c.Seed)}
	s.results = make([]result, len(s.scenario.measures))
	if err := s.open(ctx); err != nil {
		return nil, joinEnd(err, s.Close(ctx))
	}
	return s, nil
}

func (s *Session) open(ctx context.Context) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.during(ctx, func(ctx context.Context) error {
		if err := s.prepare(ctx); err != nil {
			return err
		}
		return s.join(ctx)
	})
}

// reach starts the receivers or calls the servers.
func (s *Session) reach(ctx context.Context) (err error) {
	c, w := s.config, &s.site
	if len(w.Servers) == 0 {
		for range c.Peers {
			spec := w.Spec
			spec.Name = "receiver"
			child, err := proc.Start(spec)
			if err != nil {
				return err
			}
			s.peers = append(s.peers, &peer{line: child})
		}
		return nil
	}
	if len(w.Servers) != c.Peers {
		return fmt.Errorf("bench: %d servers for %d receiving processes", len(w.Servers), c.Peers)
	}
	for _, addr := range w.Servers {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("bench: server %q: want host:port: %w", addr, err)
		}
	}
	address := w.Host.address()
	if address == "" {
		if address, err = addressTowards(w.Servers[0]); err != nil {
			return err
		}
		if c.Provider == tcpName {
			w.Host.Devices = []string{address}
		}
	}
	if s.box, err = openMailbox(ctx, w.Host, address, "client", false); err != nil {
		return err
	}
	for _, addr := range w.Servers {
		call, err := s.box.dial(ctx, addr)
		if err != nil {
			return err
		}
		s.peers = append(s.peers, &peer{line: call})
	}
	return nil
}

// addressTowards is the address of this host from which another one is reached. Nothing is sent.
func addressTowards(addr string) (string, error) {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return "", fmt.Errorf("bench: server %s: %w", addr, err)
	}
	return c.LocalAddr().(*net.UDPAddr).IP.String(), c.Close()
}

// prepare makes what this side needs by itself.
func (s *Session) prepare(ctx context.Context) (err error) {
	c := s.config
	if s.eng, err = s.site.Host.open(ctx, c, "sender"); err != nil {
		return err
	}
	if s.pool, err = s.eng.pool(c, false); err != nil {
		return err
	}
	stamp(s.pool.Bytes(), c.Size, c.Seed)
	if s.word, err = s.eng.Alloc(immSize, hawser.MemOptions{}); err != nil {
		return err
	}
	if s.usesYardPool() {
		s.yard, err = mem.New(c.Pool, mem.Shared) // of the same kind as the engine's memory
	}
	s.flow = newFlow(s.eng, c.Depth)
	return err
}

// usesYardPool reports whether a yardstick of the scenario copies in this process.
func (s *Session) usesYardPool() bool {
	for _, m := range s.scenario.measures {
		if m.yard(s.config).receive == nil {
			return true
		}
	}
	return false
}

// join connects all processes with each other.
func (s *Session) join(ctx context.Context) error {
	c := s.config
	for i, p := range s.peers {
		q := openRequest{Version: protocolVersion, Config: c, Index: i}
		if s.box == nil {
			q.Host = &s.site.Host
		}
		if err := p.line.Send(msgOpen, q); err != nil {
			return err
		}
	}
	text, err := export(s.word)
	if err != nil {
		return err
	}
	j := joinRequest{Descriptor: text}
	var peers []*hawser.Peer
	for _, p := range s.peers {
		var a openAnswer
		if err := expect(ctx, p.line, msgReady, &a); err != nil {
			return err
		}
		if p.remote, err = importText(ctx, s.eng, a.Descriptor); err != nil {
			return err
		}
		if p.stream, err = a.Member.Stream.dial(ctx, 0); err != nil {
			return err
		}
		p.machine = a.Machine
		peers, j.Members = append(peers, p.remote.Peer()), append(j.Members, a.Member)
	}
	if s.group, err = s.eng.NewGroup(peers); err != nil {
		return err
	}
	return s.askAll(ctx, msgJoin, j, msgJoined)
}

// askAll sends all receivers a request and waits for their answers.
func (s *Session) askAll(ctx context.Context, kind string, request any, want string) error {
	for _, p := range s.peers {
		if err := p.line.Send(kind, request); err != nil {
			return err
		}
	}
	for _, p := range s.peers {
		if err := expect(ctx, p.line, want, nil); err != nil {
			return err
		}
	}
	return nil
}

var errReceiverEnded = errors.New("bench: a receiver ended")

// during calls f with a context that ends when a receiver does: waits for immediates, and reads of streams, do not know of it.
func (s *Session) during(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	var watching sync.WaitGroup
	defer watching.Wait()
	defer close(ended)
	for _, p := range s.peers {
		watching.Go(func() {
			select {
			case <-p.line.Done():
				cancel(errors.Join(errReceiverEnded, p.line.Err()))
			case <-ended:
			}
		})
	}
	stop := context.AfterFunc(ctx, s.hangUp)
	defer stop()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *Session) hangUp() {
	for _, p := range s.peers {
		hangUp(p.stream)
	}
}

// Config is the session's, with all defaults.
func (s *Session) Config() Config { return s.config }

// Warm writes the whole pool once: memory that nobody has touched since it was mapped costs a page fault. step is called before each part of it.
func (s *Session) Warm(ctx context.Context, step func()) error {
	for touched := 0; touched < s.config.slots(); touched += s.config.blocks() {
		step()
		if err := s.Round(ctx); err != nil {
			return err
		}
	}
	s.round = 0
	clear(s.results)
	return nil
}

// Round takes one sample of both sides for each figure of the scenario. Which side comes first depends on the round, so that neither profits from
// what the other leaves in the caches.
func (s *Session) Round(ctx context.Context) error {
	return s.during(ctx, func(ctx context.Context) error {
		for i, m := range s.scenario.measures {
			t := task{First: s.moved, Count: m.count(s.config)}
			if !m.latency {
				s.moved += uint64(t.Count)
			}
			sides := []int{ours, yard}
			if s.round%2 == 1 {
				sides = []int{yard, ours}
			}
			for _, side := range sides {
				if err := s.sample(ctx, i, side, t); err != nil {
					return err
				}
			}
		}
		s.round++
		return nil
	})
}

// sample measures one side.
func (s *Session) sample(ctx context.Context, measure, which int, t task) error {
	m := s.scenario.measures[measure]
	does := m.ours
	if which == yard {
		does = m.yard(s.config)
		t.First = s.order.away(t.First)
	}
	if does.receive != nil {
		if err := s.askAll(ctx, msgWork, workRequest{measure, which == yard, t}, msgGo); err != nil {
			return err
		}
	}
	r := &s.results[measure]
	r.lat[which].grow(max(t.Count, sampledOps))
	cpu, start := cpuTime(), time.Now()
	if err := does.send(ctx, s, t, &r.lat[which]); err != nil {
		return fmt.Errorf("bench: %s: %s: %w", s.config.Kind, sideName(which), err)
	}
	sample := Sample{Seconds: time.Since(start).Seconds(), CPU: cpuTime() - cpu}
	if does.receive != nil {
		for _, p := range s.peers {
			var d workDone
			if err := expect(ctx, p.line, msgDone, &d); err != nil {
				return err
			}
			sample.CPU += d.CPU
		}
	}
	r.samples[which] = append(r.samples[which], sample)
	r.lat[which].endRound()
	return nil
}

func sideName(which int) string { return [...]string{"hawser", "yardstick"}[which] }

// answered waits until all receivers have signalled once more.
func (s *Session) answered(ctx context.Context) error {
	s.answers += uint64(len(s.peers))
	return s.eng.Counter(immAnswer).Wait(ctx, s.answers)
}

// confirmed is answered for streams.
func (s *Session) confirmed() error {
	var b [1]byte
	for _, p := range s.peers {
		if _, err := io.ReadFull(p.stream, b[:]); err != nil {
			return err
		}
	}
	return nil
}

// Finish checks the content and returns the row. The error is ErrCorrupt when content is wrong.
func (s *Session) Finish(ctx context.Context) (row Row, err error) {
	err = s.during(ctx, func(ctx context.Context) error {
		for _, p := range s.peers {
			if err := p.line.Send(msgVerify, s.moved); err != nil {
				return err
			}
		}
		for _, p := range s.peers {
			var bad uint64
			if err := expect(ctx, p.line, msgResult, &bad); err != nil {
				return err
			}
			row.CorruptBytes += bad
		}
		return nil
	})
	if err != nil {
		return Row{}, err
	}
	s.fill(&row)
	if c := row.Config; row.CorruptBytes > 0 {
		return row, fmt.Errorf("bench: %s of %d bytes: %w: %d bytes of the receivers' memory are wrong", c.Kind, c.Size, ErrCorrupt, row.CorruptBytes)
	}
	return row, nil
}

// Close ends the receivers, then frees everything here. It may be called once.
func (s *Session) Close(ctx context.Context) error {
	var errs []error
	for _, p := range s.peers {
		errs = append(errs, p.line.Stop(2*closeTimeout))
	}
	s.hangUp()
	errs = append(errs, s.box.close(ctx), s.eng.close(ctx))
	if s.yard != nil {
		errs = append(errs, s.yard.Free())
	}
	return errors.Join(errs...)
}

// joinEnd adds what went wrong at the end of a run to what ended it, unless that was it already.
func joinEnd(err, end error) error {
	var said, again *proc.ExitError
	switch {
	case !errors.As(end, &again):
	case errors.As(err, &said) && *said == *again:
		return err
	case said == nil && errors.Is(err, hawser.ErrPeerDown):
		return end // the receiver's last word says why
	}
	return errors.Join(err, end)
}
