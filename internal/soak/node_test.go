//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
)

const (
	actorCount = 6
	mark       = 0xa5 // what a cell holds that nobody has written to
	spoiled    = 0x5a // what a source holds that must not be read any more
)

// node is an engine, what it lends to others, and those who use it.
type node struct {
	m      *member
	e      *hawser.Engine
	id     string
	src    *hawser.Region // a place of maxCell bytes for each actor
	gate   *gate
	actors sync.WaitGroup
	mail   *mailroom

	memory sync.RWMutex // read: memory is looked at
	closed bool         // guarded by memory

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	fields [len(fieldKinds)]*field
	leases map[uint64]*lease
	last   uint64 // lease
	imm    uint32 // last
	checks int    // leases that are looked at
	peers  map[string]*hawser.Peer
	events map[string]hawser.PeerEventKind
	asks   map[uint64]asked
	asking uint64 // last
	ending bool
	known  map[string]map[int]imported
}

func newNode(m *member, o hawser.Options, src *rand.PCG) (*node, error) {
	ctx, cancel := patience()
	defer cancel()
	e, err := hawser.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	n := &node{
		m: m, e: e, id: e.ID().String(), gate: newGate(), rng: rand.New(src),
		leases: map[uint64]*lease{}, peers: map[string]*hawser.Peer{}, events: map[string]hawser.PeerEventKind{},
		asks: map[uint64]asked{}, known: map[string]map[int]imported{}, mail: newMailroom(),
	}
	if n.src, err = e.Alloc(actorCount*maxCell, hawser.MemOptions{}); err != nil {
		return nil, err
	}
	for i := range n.fields {
		if n.fields[i], err = n.newField(i); err != nil {
			return nil, err
		}
	}
	e.OnPeer(n.event)
	n.actors.Go(n.listen)
	n.actors.Go(n.keep)
	for i := range actorCount {
		rng := rand.New(rand.NewPCG(n.rng.Uint64(), uint64(i)))
		n.actors.Go(func() { n.act(rng, i) })
	}
	return n, nil
}

// close closes the engine under its users, without giving what is in flight any time when rude.
func (n *node) close(rude bool) {
	n.memory.Lock()
	n.closed = true
	n.memory.Unlock()
	n.gate.end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // operations may wait for members that are stopped
	defer cancel()
	if rude {
		cancel()
	}
	if err := n.e.Close(ctx); err != nil {
		n.m.wrong("close: %v", err)
	}
	n.dropAsks("")
	n.actors.Wait()
	n.m.say(kindShut, n.id)
}

// gone is called when the engine of another member is: nobody there reports any more.
func (n *node) gone(id string) {
	n.dropAsks(id)
	n.mail.gone(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, id)
	for _, l := range n.leases {
		if l.writer == id && l.state == granted {
			l.state = dirty
		}
	}
}

// receive handles what another engine says.
func (n *node) receive(p *packet) {
	switch {
	case p.Ask != nil:
		n.route(packet{To: p.From, Grant: n.lend(p.From, p.Ask)})
	case p.Grant != nil:
		n.granted(p.Grant)
	case p.Report != nil:
		n.reported(p.From, p.Report)
	}
}

func (n *node) route(p packet) {
	p.From = n.id
	n.m.say(kindRoute, p)
}

// event checks the order of events and learns who is there.
func (n *node) event(ev hawser.PeerEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := ev.Peer.ID().String()
	if ev.Kind == hawser.PeerReplaced {
		n.m.counts.add("replacements", 1)
		return
	}
	if want := n.events[id]%3 + 1; ev.Kind != want {
		n.m.wrong("event %v of %s, want %v", ev.Kind, ev.Peer, want)
	}
	if p := n.peers[id]; p != nil && p != ev.Peer {
		n.m.wrong("two peers with identity %s", id)
	}
	n.events[id], n.peers[id] = ev.Kind, ev.Peer
}

// expected are the errors with which operations may end when others die, close, fence and are cut off.
var expected = []struct {
	err  error
	name string
}{
	{hawser.ErrClosed, "closed"},
	{hawser.ErrStale, "stale"},
	{hawser.ErrAccess, "access"},
	{hawser.ErrRefused, "refused"},
	{hawser.ErrPeerDown, "peer down"},
}

// failed counts an error, and complains when it is not one that the call announces.
func (n *node) failed(what string, err error) {
	if n.m.strict.Load() {
		n.m.wrong("%s, while one rail of two is cut: %v", what, err)
	}
	for _, x := range expected {
		if errors.Is(err, x.err) {
			n.m.counts.add("error "+x.name, 1)
			return
		}
	}
	n.m.wrong("%s: %v\n%s%s", what, err, n.state(), stacks())
}

// state is what the engine knows of its peers, for whoever looks for an error.
func (n *node) state() string {
	text := ""
	for _, p := range n.e.Stats().Peers {
		text += fmt.Sprintf("%s: %+v\n", p.ID, p)
	}
	return text
}

// connectAll connects to everybody; the others do the same at the same time.
func (n *node) connectAll() error {
	ctx, cancel := patience()
	defer cancel()
	for _, o := range n.m.others() {
		for {
			_, err := n.e.Connect(ctx, o.Addr)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("nothing is broken, but: %w", err)
			}
		}
	}
	return nil
}

// barrierImms are the values of barriers: those of leases begin at 1.
const barrierImms = 1 << 31

// barrier waits for all others, who do the same.
func (n *node) barrier(round uint32) error {
	ctx, cancel := patience()
	defer cancel()
	var peers []*hawser.Peer
	for _, o := range n.m.others() {
		p, err := n.e.Connect(ctx, o.Addr)
		if err != nil {
			return err
		}
		peers = append(peers, p)
	}
	g, err := n.e.NewGroup(peers)
	if err != nil {
		return err
	}
	err = n.e.Barrier(ctx, g, barrierImms+round)
	n.e.Counter(barrierImms + round).Close()
	return err
}

// gate lets actors in, one operation at a time, or not.
type gate struct {
	mu     sync.Mutex
	change *sync.Cond
	shut   bool // guarded by mu
	ended  bool // guarded by mu
	inside int  // guarded by mu
}

func newGate() *gate {
	g := &gate{shut: true}
	g.change = sync.NewCond(&g.mu)
	return g
}

// enter waits until the gate is open; false when it has ended.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.shut && !g.ended {
		g.change.Wait()
	}
	if g.ended {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.change.Broadcast()
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	g.change.Broadcast()
}

// close waits until nobody is inside.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for g.inside > 0 {
		g.change.Wait()
	}
}

func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.change.Broadcast()
}
