package kv

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// chaos is a network, in one synctest bubble, that does to Decoders and Prefillers whatever the engine does not rule out: messages
// are lost, repeated, late and out of order, across sessions too; writes land late and in any order, count later still, and
// complete at their sender before or after that; sessions break, on the two sides at different times, and one side goes on
// writing until it is fenced; fences have no proof for a while; hosts die.
//
// It knows the attempt behind each write, and checks what lands where against what the pools lent to whom.
type chaos struct {
	t *testing.T

	mu     sync.Mutex // guards everything below, the hosts, the sessions and the counts; no kv code is called with it held
	rng    *rand.Rand
	calm   bool // no more faults: the end of a run
	hosts  map[string]*host
	story  []string // what happened last
	told   bool     // the story
	landed uint64   // writes
	faults map[string]int

	remotes map[*hawser.Remote]chaosRemote // a Remote of this network is a name only
}

// fault is true with probability p, unless the network is calm. Needs mu.
func (c *chaos) fault(name string, p float64) bool {
	if c.calm || c.rng.Float64() >= p {
		return false
	}
	c.faults[name]++
	return true
}

// delay is mostly short and sometimes very long. Needs mu.
func (c *chaos) delay() time.Duration {
	d := time.Duration(c.rng.Int64N(int64(3 * time.Millisecond)))
	switch {
	case c.fault("slow", 0.04):
		d += time.Duration(c.rng.Int64N(int64(200 * time.Millisecond)))
	case c.fault("very slow", 0.01):
		d += time.Duration(c.rng.Int64N(int64(4 * time.Second)))
	}
	return d
}

// later runs f with mu held after a delay.
func (c *chaos) later(f func()) {
	time.AfterFunc(c.delay(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		f()
	})
}

const storyLength = 3000

// note adds to the story. Needs mu.
func (c *chaos) note(format string, args ...any) {
	if len(c.story) == storyLength {
		c.story = c.story[1:]
	}
	c.story = append(c.story, time.Now().Format("05.000000 ")+fmt.Sprintf(format, args...))
}

// broken fails the test, with the story the first time. Needs mu.
func (c *chaos) broken(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf(format, args...)
	if !c.told {
		c.told = true
		c.t.Logf("what happened before:\n%s", strings.Join(c.story, "\n"))
	}
}

// log makes what a host logs a part of the story.
func (h *host) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(teller{h}, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type teller struct{ h *host }

func (t teller) Write(line []byte) (int, error) {
	t.h.c.mu.Lock()
	defer t.h.c.mu.Unlock()
	t.h.c.note("%s: %s", t.h.name, strings.TrimSpace(string(line)))
	return len(line), nil
}

// host is an engine: the network of one Decoder or Prefiller. A host that died never comes back; another takes its place.
type host struct {
	c    *chaos
	name string
	dead bool
	p    *Prefiller // set before use

	// knobs of scripts
	late       time.Duration // of its callbacks
	full       int           // WritePages that find no room
	slowImport time.Duration

	imports, mostImports int // under way

	peers    map[*host]*hawser.Peer // this host's name for others
	others   map[*hawser.Peer]*host
	sessions map[*host]*session // the last one with each
	fencedAt map[*host]uint64   // descriptors up to this one are stale for it
	serial   uint64             // of descriptors

	inbox    []hawser.Message
	mail     chan struct{} // capacity 1
	calls    []func()      // what waits for the callbacks goroutine
	news     chan struct{} // capacity 1
	observer func(hawser.PeerEvent)
	gone     chan struct{} // closed when dead
	values   []uint32      // immediates that are not lent, few, so that they are used again soon
	counts   map[uint32]*count

	ends   []hawser.Done
	ended  chan struct{} // capacity 1
	writes map[*chaosWrite]bool
	said   map[attemptID]bool // attempts that this prefiller said it has ended

	// of a decoder
	lent    uint64             // to whom the pool lent last
	owner   []uint64           // of each page: an attempt, or 0
	content map[cell]uint64    // which attempt wrote it
	shadows map[uint64]*shadow // live attempts
	final   map[uint64]uint64  // counts when the fence had its proof
	doubt   map[uint64]bool    // attempts whose fence had no proof at first
}

// cell is one page of one view.
type cell struct {
	view int
	page uint32
}

// attemptID names an attempt of a decoder: the epoch names the decoder too.
type attemptID struct{ epoch, seq uint64 }

// shadow is what the network knows of an attempt.
type shadow struct {
	imm    uint32
	landed map[cell]bool
}

func (c *chaos) host(name string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &host{
		c: c, name: name, peers: map[*host]*hawser.Peer{}, others: map[*hawser.Peer]*host{}, sessions: map[*host]*session{},
		fencedAt: map[*host]uint64{}, mail: make(chan struct{}, 1), news: make(chan struct{}, 1), gone: make(chan struct{}),
		values: []uint32{1, 2, 3, 4}, counts: map[uint32]*count{}, ended: make(chan struct{}, 1), writes: map[*chaosWrite]bool{}, said: map[attemptID]bool{},
		content: map[cell]uint64{}, shadows: map[uint64]*shadow{}, final: map[uint64]uint64{}, doubt: map[uint64]bool{},
	}
	c.hosts[name] = h
	return h
}

// set changes the knobs of scripts.
func (h *host) set(f func()) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	f()
}

func (h *host) peer(other *host) *hawser.Peer {
	p := h.peers[other]
	if p == nil {
		p = new(hawser.Peer)
		h.peers[other], h.others[p] = p, other
	}
	return p
}

// die ends a host. Its writes under way land, or not. Needs mu.
func (h *host) die() {
	h.c.note("%s dies", h.name)
	h.dead = true
	close(h.gone)
	delete(h.c.hosts, h.name)
	for _, s := range h.sessions {
		s.leave(h)
	}
}

// session is a session of two hosts. Each side finds out by itself that it has ended.
type session struct {
	c        *chaos
	up       map[*host]bool
	fenced   map[*host]bool // nothing of the other side lands on that host any more
	unproven time.Time      // until when fences have no proof
	pending  map[*landing]bool
}

// landing is a write that has landed and is not counted yet.
type landing struct {
	on  *host
	imm uint32
	seq uint64
	by  *hawser.Peer
}

func (c *chaos) session(a, b *host) *session {
	s := &session{c: c, up: map[*host]bool{a: true, b: true}, fenced: map[*host]bool{}, pending: map[*landing]bool{}}
	a.sessions[b], b.sessions[a] = s, s
	c.note("session of %s and %s", a.name, b.name)
	a.tell(hawser.PeerEvent{Peer: a.peer(b), Kind: hawser.PeerUp})
	b.tell(hawser.PeerEvent{Peer: b.peer(a), Kind: hawser.PeerUp})
	return s
}

func (s *session) other(h *host) *host {
	for o := range s.up {
		if o != h {
			return o
		}
	}
	return nil
}

// leave ends the session on the side of h, which then fences by itself. The other side notices soon, or much later, as if it had
// been stopped. Needs mu.
func (s *session) leave(h *host) {
	if !s.up[h] {
		return
	}
	s.up[h] = false
	o := s.other(h)
	s.c.note("%s sees %s go down", h.name, o.name)
	h.tell(hawser.PeerEvent{Peer: h.peer(o), Kind: hawser.PeerDown, Cause: hawser.ErrPeerDown})
	for w := range h.writes {
		if w.s == s {
			s.c.later(func() { w.complete(hawser.ErrPeerDown) })
		}
	}
	s.c.later(func() { s.fence(h) })
	var stopped time.Duration
	if s.c.fault("stopped", 0.3) {
		stopped = time.Duration(s.c.rng.Int64N(int64(5 * time.Second)))
	}
	time.AfterFunc(stopped+s.c.delay(), func() {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.leave(o)
	})
}

// fence is a try of the engine of h to fence the other side, repeated until there is proof. Needs mu.
func (s *session) fence(h *host) {
	if wait := time.Until(s.unproven); wait > 0 {
		time.AfterFunc(min(wait, time.Second), func() {
			s.c.mu.Lock()
			defer s.c.mu.Unlock()
			s.fence(h)
		})
		return
	}
	for l := range s.pending {
		if l.on == h {
			s.count(l)
		}
	}
	s.fenced[h] = true
	s.c.note("%s has fenced %s", h.name, s.other(h).name)
	h.tell(hawser.PeerEvent{Peer: h.peer(s.other(h)), Kind: hawser.PeerFenced})
}

// over is true when no side has anything left of the session.
func (s *session) over() bool {
	for h, up := range s.up {
		if !h.dead && (up || !s.fenced[h]) {
			return false
		}
	}
	return true
}

// tell queues an event of the engine. Needs mu.
func (h *host) tell(e hawser.PeerEvent) {
	h.call(func() {
		h.c.mu.Lock()
		f := h.observer
		h.c.mu.Unlock()
		if f != nil {
			f(e)
		}
	})
}

// call queues a callback. Needs mu.
func (h *host) call(f func()) {
	h.calls = append(h.calls, f)
	signal(h.news)
}

// callbacks is the goroutine of an engine that runs callbacks, in order, and sometimes late.
func (h *host) callbacks() {
	for {
		h.c.mu.Lock()
		calls, d := h.calls, h.late+h.c.delay()
		h.calls = nil
		h.c.mu.Unlock()
		for _, f := range calls {
			time.Sleep(d) // virtual
			f()
		}
		if len(calls) > 0 {
			continue
		}
		select {
		case <-h.news:
		case <-h.gone:
			return
		}
	}
}

func (h *host) OnPeer(f func(hawser.PeerEvent)) (stop func()) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.observer = f
	return func() {
		h.c.mu.Lock()
		defer h.c.mu.Unlock()
		h.observer = nil
	}
}

func (h *host) Up(p *hawser.Peer) bool {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	s := h.sessions[h.others[p]]
	return s != nil && s.up[h]
}

func (h *host) Connect(ctx context.Context, addr string) (*hawser.Peer, error) {
	for {
		h.c.mu.Lock()
		o, wait := h.c.hosts[addr], h.c.delay()
		switch {
		case h.dead:
			h.c.mu.Unlock()
			return nil, hawser.ErrClosed
		case o == nil:
			h.c.mu.Unlock()
			return nil, fmt.Errorf("%w: nobody at %s", hawser.ErrPeerDown, addr)
		}
		s, p := h.sessions[o], h.peer(o)
		if s == nil || s.over() {
			s = h.c.session(h, o)
		}
		up := s.up[h]
		h.c.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if up {
			return p, nil
		}
	}
}

// sessionWith is the session with a peer that this side believes to be up.
func (h *host) sessionWith(p *hawser.Peer) (*session, *host, error) {
	o := h.others[p]
	switch s := h.sessions[o]; {
	case h.dead:
		return nil, nil, hawser.ErrClosed
	case s == nil || !s.up[h]:
		return nil, nil, hawser.ErrPeerDown
	default:
		return s, o, nil
	}
}

func (h *host) Send(to *hawser.Peer, data []byte) (*hawser.Transfer, error) {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	_, o, err := h.sessionWith(to)
	if err != nil {
		return nil, err
	}
	h.listen(data)
	copies := 1
	switch {
	case c.fault("lost", 0.1):
		copies = 0
	case c.fault("repeated", 0.1):
		copies += 1 + c.rng.IntN(2)
	}
	for range copies {
		c.later(func() {
			o.inbox = append(o.inbox, hawser.Message{From: o.peer(h), Data: slices.Clone(data)})
			signal(o.mail)
		})
	}
	return nil, nil
}

// listen hears what a prefiller promises. Needs mu.
func (h *host) listen(data []byte) {
	head, b, err := decode(data)
	if err != nil {
		return // a foe
	}
	h.c.note("%s says %v %+v of epoch %d", h.name, b.kind(), b, head.epoch)
	switch m := b.(type) {
	case *cancelAck:
		h.said[attemptID{head.epoch, m.seq}] = true
	case *failed:
		h.said[attemptID{head.epoch, m.seq}] = true
	case *reject:
		h.said[attemptID{head.epoch, m.seq}] = true
	}
}

func (h *host) Receive(ctx context.Context) (hawser.Message, error) {
	for {
		h.c.mu.Lock()
		if len(h.inbox) > 0 && !h.dead {
			m := h.inbox[0]
			h.inbox = h.inbox[1:]
			h.c.mu.Unlock()
			return m, nil
		}
		h.c.mu.Unlock()
		select {
		case <-h.mail:
		case <-h.gone:
			return hawser.Message{}, hawser.ErrClosed
		case <-ctx.Done():
			return hawser.Message{}, context.Cause(ctx)
		}
	}
}

func (h *host) Fence(ctx context.Context, p *hawser.Peer) error {
	h.c.mu.Lock()
	o := h.others[p]
	s := h.sessions[o]
	h.fencedAt[o] = h.serial
	s.leave(h)
	h.c.mu.Unlock()
	for {
		h.c.mu.Lock()
		fenced, stuck := s.fenced[h], time.Now().Before(s.unproven)
		for seq, a := range h.shadows {
			if n := h.counts[a.imm]; fenced {
				h.final[seq] = n.from[p]
			} else if stuck || ctx.Err() != nil {
				h.doubt[seq] = true
			}
		}
		h.c.mu.Unlock()
		switch {
		case fenced:
			return nil
		case stuck:
			return hawser.ErrUnfenced
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// living are the hosts whose names begin with prefix, in order.
func (c *chaos) living(prefix string) []*host {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*host
	for _, name := range slices.Sorted(maps.Keys(c.hosts)) {
		if strings.HasPrefix(name, prefix) {
			out = append(out, c.hosts[name])
		}
	}
	return out
}
