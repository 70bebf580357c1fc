package hawser_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

var (
	stressTime = flag.Duration("stress.time", 1500*time.Millisecond, "how long each network is stressed")
	stressSeed = flag.Uint64("stress.seed", 0, "seed of the choices, 0 for a new one; timing is not repeated")
)

// A world in which engines connect, write, signal, talk, fence, and close regions and themselves at random, checked against a
// model:
//
//   - A free cell of a target holds the mark. Who claims one finds the mark, writes a pattern of its own, and finds exactly
//     that after a write without error, and its immediates counted once each.
//   - A cell whose write failed is dirty: what was written may land yet. After a fence of the writer it gets the mark again, and
//     keeps it; the writer's part of the count stays, too.
//   - A descriptor from before a fence is of no use to the peer that was fenced.
//   - A message arrives at most once, whole, from who sent it.
//   - Events of a peer come in the order up, down, fenced.
//   - Everything ends, and with one of the errors that the calls announce.
type stress struct {
	*testing.T
	w     *world
	until time.Time
	imm   atomic.Uint32
	seq   atomic.Uint64
	done  atomic.Uint64 // writes that were verified

	mu    sync.Mutex
	nodes []*node // guarded by mu; index is its place
}

const (
	nodeCount   = 4
	actorCount  = 6
	targetCount = 2
	cellCount   = 8
	cellSize    = 48 << 10
	mark        = 0xa5
)

// node is an engine and what the model knows of it.
type node struct {
	*stress
	e      *hawser.Engine
	place  int
	src    *hawser.Region // a cell for each actor
	issued atomic.Uint64  // descriptors
	loops  sync.WaitGroup

	mu      sync.RWMutex // read: memory is looked at
	closed  bool
	targets [targetCount]*target // guarded by mu

	facts   sync.Mutex // guards what follows
	peers   map[hawser.ID]*hawser.Peer
	events  map[hawser.ID]hawser.PeerEventKind
	fences  map[hawser.ID]uint64 // descriptors up to this one are stale
	remotes map[*target]imported
	finals  []final
	seen    map[[24]byte]bool // sender and number of messages
}

// imported is a target as a writer knows it.
type imported struct {
	rem    *hawser.Remote
	serial uint64 // of the descriptor
}

// final is a count that a fence has made final.
type final struct {
	c *hawser.Counter
	p *hawser.Peer
	n uint64
}

// target is a region that others write to.
type target struct {
	h  *node
	r  *hawser.Region
	mu sync.RWMutex // read: memory is looked at

	// Guarded by mu.
	closed bool
	d      hawser.Descriptor
	serial uint64

	cells [cellCount]cell
}

type cell struct {
	state  atomic.Uint32 // free, busy, dirty
	writer hawser.ID     // of a dirty one
	imm    uint32        // of a dirty one
}

const (
	free uint32 = iota
	busy
	dirty
)

func TestStress(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		seed := *stressSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Logf("-stress.seed %d", seed)
		routines, fds := runtime.NumGoroutine(), countFDs(t)
		s := &stress{T: t, w: w, until: time.Now().Add(*stressTime), nodes: make([]*node, nodeCount)}
		for i := range s.nodes {
			s.nodes[i] = s.open(i)
		}
		var actors sync.WaitGroup
		for i := range actorCount {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			actors.Go(func() {
				for time.Now().Before(s.until) && !t.Failed() {
					s.act(rng, i)
				}
			})
		}
		actors.Wait() // each of their calls has its own limit
		for _, h := range s.nodes {
			h.close(false)
		}
		eventually(t, "goroutines and descriptors are back", func() bool {
			return runtime.NumGoroutine() <= routines && countFDs(t) <= fds
		})
		if t.Logf("%d writes verified", s.done.Load()); s.done.Load() == 0 {
			t.Error("no write was verified")
		}
	})
}

// allowed are the errors with which calls may end when others close and fence.
func (s *stress) allowed(what string, err error) {
	s.Helper()
	for _, ok := range []error{
		hawser.ErrClosed, hawser.ErrPeerDown, hawser.ErrStale, hawser.ErrAccess, hawser.ErrRefused, hawser.ErrLimit,
	} {
		if errors.Is(err, ok) {
			return
		}
	}
	s.Errorf("%s: %v", what, err)
}

func (s *stress) pick(rng *rand.Rand) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[rng.IntN(len(s.nodes))]
}

func (s *stress) act(rng *rand.Rand, actor int) {
	from, to := s.pick(rng), s.pick(rng)
	if from == to {
		return
	}
	switch n := rng.IntN(200); {
	case n < 150:
		s.write(rng, actor, from, to)
	case n < 170:
		s.talk(rng, from, to)
	case n < 180:
		s.connect(from, to)
	case n < 190:
		to.fence(rng, from.e.ID())
	case n < 197:
		to.renew(rng)
	default:
		s.restart(rng, to)
	}
}

func (s *stress) open(place int) *node {
	h := &node{
		stress: s, place: place, peers: map[hawser.ID]*hawser.Peer{}, events: map[hawser.ID]hawser.PeerEventKind{},
		fences: map[hawser.ID]uint64{}, remotes: map[*target]imported{}, seen: map[[24]byte]bool{},
	}
	var err error
	if h.e, err = hawser.Open(testContext(s), s.w.options(place, 1+place%3)); err != nil {
		s.Fatal(err)
	}
	h.src = s.w.alloc(s, h.e, actorCount*cellSize)
	for i := range h.targets {
		h.targets[i] = h.target()
	}
	h.e.OnPeer(h.event)
	h.loops.Go(h.listen)
	return h
}

func (h *node) target() *target {
	t := &target{h: h, r: h.w.alloc(h, h.e, cellCount*cellSize)}
	for i := range t.r.Bytes() {
		t.r.Bytes()[i] = mark
	}
	t.issue()
	return t
}

// issue makes a new descriptor.
func (t *target) issue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.d = t.r.Descriptor(t.r.All(), hawser.RightWrite)
		t.serial = t.h.issued.Add(1)
	}
}

// look calls f while the memory of the target is there, between what its worker did before and what it does from now on: that
// order is there anyway, through the network, but the race detector does not see networks.
func (t *target) look(f func()) {
	t.h.mu.RLock()
	defer t.h.mu.RUnlock()
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.h.closed && !t.closed {
		t.h.e.Stats()
		f()
		t.h.e.Stats()
	}
}

func (t *target) bytes(i int) []byte { return t.r.Bytes()[i*cellSize:][:cellSize] }

func (t *target) fill(i int) {
	b := t.bytes(i)
	for k := range b {
		b[k] = mark
	}
}

// claim takes a free cell, which holds the mark; -1 when there is none.
func (t *target) claim(rng *rand.Rand) int {
	i := rng.IntN(cellCount)
	if !t.cells[i].state.CompareAndSwap(free, busy) {
		return -1
	}
	t.look(func() {
		for k, b := range t.bytes(i) {
			if b != mark {
				t.h.Errorf("a free cell was written to at byte %d", k)
				return
			}
		}
	})
	return i
}

// write writes to a cell and verifies what has become of it.
func (s *stress) write(rng *rand.Rand, actor int, from, to *node) {
	to.mu.RLock()
	t := to.targets[rng.IntN(targetCount)]
	to.mu.RUnlock()
	i := t.claim(rng)
	if i < 0 {
		return
	}
	c := &t.cells[i]
	n := uint64(rng.IntN(cellSize + 1))
	imm := s.imm.Add(1)
	want := make([]byte, n)
	fill(want, rng.Uint64())
	if !from.put(actor, want) {
		c.state.Store(free)
		return
	}
	rem, stale := from.remote(t)
	if rem == nil {
		c.state.Store(free)
		return
	}
	src, dst := from.src.Slice(uint64(actor*cellSize), n), rem.Slice(uint64(i*cellSize), n)
	count, tr, err := submit(rng, from.e, src, dst, imm)
	if err != nil {
		s.allowed("submit", err)
		from.drop(t)
		c.state.Store(free)
		return
	}
	if err = finish(rng, s, tr); err != nil {
		s.allowed("write", err)
		from.drop(t)
		c.writer, c.imm = from.e.ID(), imm
		c.state.Store(dirty)
		return
	}
	if stale {
		s.Error("a write through a descriptor from before the fence succeeded")
	}
	s.verify(t, i, want, from.e.ID(), imm, count)
	c.state.Store(free)
}

// put fills the source cell of an actor.
func (h *node) put(actor int, b []byte) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.closed {
		copy(h.src.Bytes()[actor*cellSize:], b)
	}
	return !h.closed
}

// submit writes src to dst in one of several ways; count is the number of immediates, 0 for none.
func submit(rng *rand.Rand, e *hawser.Engine, src hawser.Slice, dst hawser.RemoteSlice, imm uint32) (count uint64, tr *hawser.Transfer, err error) {
	switch parts := 1 + rng.IntN(5); {
	case rng.IntN(4) == 0:
		tr, err = e.Write(hawser.Write{Src: src, Dst: dst})
	case src.Len%8 == 0: // eight pages, backwards
		idx := []uint32{7, 6, 5, 4, 3, 2, 1, 0}
		count = 8
		tr, err = e.WritePages(hawser.WritePages{
			PageLen: src.Len / 8, Imm: hawser.Imm(imm),
			Src: hawser.Pages{Region: src.Region, Indices: idx, Stride: src.Len / 8, Offset: src.Off},
			Dst: hawser.RemotePages{Remote: dst.Remote, Indices: idx, Stride: src.Len / 8, Offset: dst.Off},
		})
	default:
		count = uint64(parts)
		tr, err = e.Write(hawser.Write{Src: src, Dst: dst, Imm: hawser.Imm(imm), Parts: parts})
	}
	return count, tr, err
}

// finish waits for a transfer in one of two ways.
func finish(rng *rand.Rand, t testing.TB, tr *hawser.Transfer) error {
	if rng.IntN(2) == 0 {
		return tr.Wait(testContext(t))
	}
	select {
	case <-tr.Done():
		return tr.Err()
	case <-time.After(hang):
		return errors.New("the transfer does not end")
	}
}

// verify checks a cell after a write without error and marks it again.
func (s *stress) verify(t *target, i int, want []byte, writer hawser.ID, imm uint32, count uint64) {
	c := t.h.e.Counter(imm)
	if err := c.Wait(testContext(s), count); err != nil {
		s.allowed("count", err)
		return
	}
	if count == 0 {
		t.h.e.Stats() // the network orders the bytes and us; the race detector does not see that
	}
	t.look(func() {
		got := t.bytes(i)
		if k := len(want); !bytes.Equal(got[:k], want) || k < cellSize && got[k] != mark {
			s.Errorf("imm %d: a cell of %d bytes differs from what was written", imm, k)
		}
		t.fill(i)
	})
	if n := c.Load(); n != count {
		s.Errorf("imm %d counted %d times, want %d", imm, n, count)
	}
	t.h.facts.Lock()
	p := t.h.peers[writer]
	t.h.facts.Unlock()
	if p != nil && c.From(p) != count {
		s.Errorf("imm %d counted %d times from its writer, want %d", imm, c.From(p), count)
	}
	c.Close()
	s.done.Add(1)
}

// remote imports a target, or finds it imported; nil when that did not work. stale: the target's node has fenced us since it issued
// the descriptor, so no write may succeed.
func (h *node) remote(t *target) (rem *hawser.Remote, stale bool) {
	h.facts.Lock()
	im, found := h.remotes[t]
	h.facts.Unlock()
	t.mu.RLock()
	d := t.d
	if !found {
		im.serial = t.serial
	}
	t.mu.RUnlock()
	t.h.facts.Lock()
	stale = im.serial <= t.h.fences[h.e.ID()]
	t.h.facts.Unlock()
	if found {
		return im.rem, stale
	}
	rem, err := h.e.Import(testContext(h), d)
	if err != nil {
		h.allowed("import", err)
		return nil, stale
	}
	if stale {
		h.Error("a descriptor from before the fence was accepted")
	}
	im.rem = rem
	h.facts.Lock()
	h.remotes[t] = im
	h.facts.Unlock()
	return rem, stale
}

// drop forgets an imported target that does not work.
func (h *node) drop(t *target) {
	h.facts.Lock()
	delete(h.remotes, t)
	h.facts.Unlock()
}

func (s *stress) connect(from, to *node) *hawser.Peer {
	p, err := from.e.Connect(testContext(s), to.e.Addr())
	if err != nil {
		s.allowed("connect", err)
		return nil
	}
	if p.ID() != to.e.ID() {
		s.Errorf("connected to %s, want %s", p.ID(), to.e.ID())
	}
	return p
}

// talk sends a message: sender, number, and a body that follows from the number.
func (s *stress) talk(rng *rand.Rand, from, to *node) {
	p := s.connect(from, to)
	if p == nil {
		return
	}
	id, seq := from.e.ID(), s.seq.Add(1)
	m := binary.LittleEndian.AppendUint64(id[:], seq)
	body := make([]byte, rng.IntN(4000))
	fill(body, seq)
	if _, err := from.e.Send(p, append(m, body...)); err != nil { // nobody waits: it may have to wait for its reader for long
		s.allowed("send", err)
	}
}

// listen reads messages until the engine closes.
func (h *node) listen() {
	for {
		m, err := h.e.Receive(context.Background())
		if err != nil {
			h.allowed("receive", err)
			return
		}
		if len(m.Data) < 24 {
			h.Errorf("message of %d bytes", len(m.Data))
			return
		}
		key := [24]byte(m.Data)
		body := make([]byte, len(m.Data)-len(key))
		fill(body, binary.LittleEndian.Uint64(key[16:]))
		if m.From.ID() != hawser.ID(key[:16]) || !bytes.Equal(body, m.Data[24:]) {
			h.Errorf("message of %d bytes from %s is another's, or damaged", len(m.Data), m.From)
		}
		if h.seen[key] {
			h.Errorf("message %x came twice", key)
		}
		h.seen[key] = true
		if key[16]%16 == 0 {
			runtime.Gosched() // a reader that is not always quick
		}
	}
}

// event checks the order of events and learns who is there.
func (h *node) event(ev hawser.PeerEvent) {
	h.facts.Lock()
	defer h.facts.Unlock()
	id := ev.Peer.ID()
	if want := h.events[id]%3 + 1; ev.Kind != want {
		h.Errorf("event %v of %s, want %v", ev.Kind, ev.Peer, want)
	}
	if p := h.peers[id]; p != nil && p != ev.Peer {
		h.Errorf("two peers with identity %s", id)
	}
	h.events[id], h.peers[id] = ev.Kind, ev.Peer
}

// fence fences a peer and cleans what it has left behind.
func (h *node) fence(rng *rand.Rand, id hawser.ID) {
	h.facts.Lock()
	p := h.peers[id]
	h.facts.Unlock()
	if p == nil {
		return
	}
	issued := h.issued.Load()
	left := h.dirt(id)
	if err := h.e.Fence(testContext(h), p); err != nil {
		h.allowed("fence", err) // all are in one process: nobody is stopped in mid-copy
		return
	}
	h.facts.Lock()
	h.fences[id] = max(h.fences[id], issued)
	h.facts.Unlock()
	for _, d := range left {
		d.t.look(func() {
			c := &d.t.cells[d.i]
			counter := h.e.Counter(c.imm)
			h.facts.Lock()
			h.finals = append(h.finals, final{counter, p, counter.From(p)})
			h.facts.Unlock()
			d.t.fill(d.i)
			c.state.Store(free)
		})
	}
	h.mu.RLock()
	t := h.targets[rng.IntN(targetCount)]
	h.mu.RUnlock()
	t.issue()
}

type dirt struct {
	t *target
	i int
}

// dirt takes the cells in which writes of a peer have failed.
func (h *node) dirt(id hawser.ID) (out []dirt) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, t := range h.targets {
		for i := range t.cells {
			c := &t.cells[i]
			if c.state.Load() == dirty && c.writer == id && c.state.CompareAndSwap(dirty, busy) {
				out = append(out, dirt{t, i})
			}
		}
	}
	return out
}

// renew closes a target under its writers and makes another one, probably at the same address.
func (h *node) renew(rng *rand.Rand) {
	i := rng.IntN(targetCount)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	old := h.targets[i]
	old.mu.Lock()
	old.closed = true
	old.mu.Unlock()
	if err := old.r.Close(); err != nil {
		h.Error(err)
	}
	h.targets[i] = h.target()
}

// restart closes an engine and puts another one in its place.
func (s *stress) restart(rng *rand.Rand, h *node) {
	s.mu.Lock()
	mine := s.nodes[h.place] == h
	if mine {
		s.nodes[h.place] = s.open(h.place)
	}
	s.mu.Unlock()
	if mine {
		h.close(rng.IntN(2) == 0)
	}
}

// close closes an engine, without giving what is in flight any time when rude.
func (h *node) close(rude bool) {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.facts.Lock()
	for _, f := range h.finals {
		if n := f.c.From(f.p); n != f.n {
			h.Errorf("the count of %s went from %d to %d after its fence", f.p, f.n, n)
		}
	}
	h.facts.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // messages may wait for readers
	defer cancel()
	if rude {
		cancel()
	}
	soon(h, "close", func() {
		if err := h.e.Close(ctx); err != nil {
			h.Error(err)
		}
	})
	h.loops.Wait()
}
