package providertest

import (
	"fmt"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
)

// host is one open Domain and a strict reader of its completions. Owned by one goroutine.
type host struct {
	w    *world
	name string
	dev  provider.Device
	dom  provider.Domain
	caps provider.Caps
	bell *cpu.Parker

	maxPeers int           // of its Config
	patience time.Duration // how long await sleeps before its wake counts as lost

	paused bool // its owner has stopped polling
	closed bool

	cs    []provider.Completion
	token uint64
	out   map[uint64]pending         // by token
	done  map[uint64]provider.Status // by token
	peers map[provider.Peer]*peerState
	imms  []provider.Completion
	told  []provider.Completion // immediates and refusals, in the order of Poll

	immsPosted, immsOK int // writes with an immediate: accepted, and ended with ok

	msgs  []provider.Completion
	onImm func(c provider.Completion) error // sees an immediate at the moment Poll returns it

	onDone func(c provider.Completion) // sees the completion of a write or send

	ring  [8]provider.Completion // the latest completions, for messages
	nring int
}

type pending struct {
	op   provider.Op
	peer provider.Peer
}

type peerState struct {
	up, down, fenced        bool
	downStatus, fenceStatus provider.Status
	downAt                  time.Time
	out                     int // writes and sends outstanding
	lateOK                  int // of these, posted after KindPeerDown, when an error completion is all that can come
}

func newHost(name string, dev provider.Device, dom provider.Domain, cfg provider.Config, bell *cpu.Parker) *host {
	if cfg.MaxPeers == 0 {
		cfg.MaxPeers = provider.DefaultMaxPeers
	}
	return &host{
		name: name, dev: dev, dom: dom, caps: dom.Caps(), bell: bell, maxPeers: cfg.MaxPeers, patience: wakeGuard,
		cs: make([]provider.Completion, pollBatch), out: map[uint64]pending{}, done: map[uint64]provider.Status{},
		peers: map[provider.Peer]*peerState{},
	}
}

func (h *host) close() error {
	if h.closed {
		return nil
	}
	h.closed = true
	return h.dom.Close()
}

func (h *host) peer(p provider.Peer) *peerState {
	s := h.peers[p]
	if s == nil {
		s = &peerState{}
		h.peers[p] = s
	}
	return s
}

func (h *host) offer() (provider.Peer, provider.Addr) {
	h.w.Helper()
	p, a, err := h.dom.Offer()
	if err != nil {
		h.w.Fatalf("host %s: offer: %v", h.name, err)
	}
	if p>>provider.PeerIndexBits == 0 {
		h.w.Fatalf("host %s: offer returned handle %#x, whose generation is 0", h.name, p)
	}
	if p.Index() >= h.maxPeers {
		h.w.Fatalf("host %s: offer returned handle %#x with index %d, MaxPeers is %d", h.name, p, p.Index(), h.maxPeers)
	}
	if len(a) == 0 || len(a) > provider.MaxAddr {
		h.w.Fatalf("host %s: offer returned an address of %d bytes, want 1..%d", h.name, len(a), provider.MaxAddr)
	}
	if h.peers[p] != nil {
		h.w.Fatalf("host %s: offer returned handle %#x a second time", h.name, p)
	}
	h.peer(p)
	return p, a
}

func (h *host) mustConnect(p provider.Peer, a provider.Addr, active bool) {
	h.w.Helper()
	if err := h.dom.Connect(p, a, active); err != nil {
		h.w.Fatalf("host %s: connect (active %v): %v", h.name, active, err)
	}
}

// step polls once and checks what came.
func (h *host) step() (int, error) {
	n, err := h.dom.Poll(h.cs)
	if err != nil {
		return n, fmt.Errorf("host %s: poll: %w", h.name, err)
	}
	if n < 0 || n > len(h.cs) {
		return n, fmt.Errorf("host %s: poll returned n = %d for a slice of %d", h.name, n, len(h.cs))
	}
	for _, c := range h.cs[:n] {
		h.ring[h.nring%len(h.ring)] = c
		h.nring++
		if err := h.take(c); err != nil {
			return n, fmt.Errorf("host %s: %w: %s", h.name, err, show(c))
		}
	}
	return n, nil
}

func (h *host) take(c provider.Completion) error {
	switch c.Kind {
	case provider.KindWrite, provider.KindSend, provider.KindRecv:
		return h.takeWR(c)
	case provider.KindImm:
		if err := h.alive(c.Peer, "immediate"); err != nil {
			return err
		}
		if c.Status != provider.StatusOK || c.Token != 0 {
			return fmt.Errorf("an immediate has status ok and token 0")
		}
		h.imms = append(h.imms, c)
		h.told = append(h.told, c)
		if h.onImm != nil {
			return h.onImm(c)
		}
		return nil
	case provider.KindRefused:
		if err := h.alive(c.Peer, "refusal"); err != nil {
			return err
		}
		if !h.caps.Refusals || c.Status != provider.StatusAccess || c.Token != 0 {
			return fmt.Errorf("a refusal has status access and token 0, and comes only where Caps.Refusals is true")
		}
		h.told = append(h.told, c)
		return nil
	case provider.KindPeerUp:
		s := h.peers[c.Peer]
		if s == nil || s.up || s.down {
			return fmt.Errorf("KindPeerUp of a handle that is unknown, up or down")
		}
		s.up = true
		return nil
	case provider.KindPeerDown:
		s := h.peers[c.Peer]
		if s == nil || s.down {
			return fmt.Errorf("KindPeerDown of a handle that is unknown or down already")
		}
		if s.out > 0 {
			return fmt.Errorf("KindPeerDown while %d WRs of that peer are outstanding", s.out)
		}
		s.down, s.downStatus, s.downAt = true, c.Status, time.Now()
		return nil
	case provider.KindFenced:
		s := h.peers[c.Peer]
		if s == nil || !s.down || s.fenced && s.fenceStatus == provider.StatusOK {
			return fmt.Errorf("KindFenced of a handle that is unknown, not down, or fenced already")
		}
		s.fenced, s.fenceStatus = true, c.Status
		return nil
	}
	return fmt.Errorf("unknown kind")
}

// alive: only peers that are up and not down can cause completions.
func (h *host) alive(p provider.Peer, what string) error {
	s := h.peers[p]
	switch {
	case s == nil:
		return fmt.Errorf("%s of an unknown peer", what)
	case s.down:
		return fmt.Errorf("%s after KindPeerDown of its peer", what)
	}
	return nil
}

func (h *host) takeWR(c provider.Completion) error {
	wr, ok := h.out[c.Token]
	if !ok {
		if st, was := h.done[c.Token]; was {
			return fmt.Errorf("token completed a second time, first with %v", st)
		}
		return fmt.Errorf("token was never posted")
	}
	delete(h.out, c.Token)
	h.done[c.Token] = c.Status
	want := provider.KindWrite
	switch wr.op {
	case provider.OpSend:
		want = provider.KindSend
	case provider.OpRecv:
		want = provider.KindRecv
	}
	if c.Kind != want && known(wr.op) {
		return fmt.Errorf("completion of a %v has kind %v, want %v", wr.op, c.Kind, want)
	}
	if wr.op == provider.OpRecv {
		switch c.Status {
		case provider.StatusOK, provider.StatusTruncated:
			h.msgs = append(h.msgs, c)
			return h.alive(c.Peer, "message")
		case provider.StatusFlushed, provider.StatusLocal:
			return nil
		}
		return fmt.Errorf("status of a receive")
	}
	if h.onDone != nil {
		h.onDone(c)
	}
	if c.Peer != wr.peer {
		return fmt.Errorf("completion of a WR to peer %#x names another peer", wr.peer)
	}
	if s := h.peers[wr.peer]; s != nil {
		if s.down && s.lateOK == 0 {
			return fmt.Errorf("completion after KindPeerDown of its peer")
		}
		if s.down {
			s.lateOK--
		}
		s.out--
	}
	switch c.Status {
	case provider.StatusOK:
		if wr.op == provider.OpWriteImm {
			h.immsOK++
		}
		return nil
	case provider.StatusFlushed, provider.StatusAccess, provider.StatusLocal:
		return nil
	}
	return fmt.Errorf("status of a write or send")
}

// immLen is what KindImm says of a write of n bytes.
func (h *host) immLen(n int) uint64 {
	if h.caps.NoImmLen {
		return 0
	}
	return uint64(n)
}

func known(op provider.Op) bool { return op >= provider.OpWrite && op <= provider.OpRecv }

// tryPost gives the WRs tokens and calls Post once; the tokens of the accepted prefix are outstanding afterwards.
func (h *host) tryPost(wrs []provider.WR) ([]uint64, error) {
	for i := range wrs {
		h.token++
		wrs[i].Token = h.token
	}
	n, err := h.dom.Post(wrs)
	if err != nil {
		return nil, fmt.Errorf("host %s: post: %w", h.name, err)
	}
	if n < 0 || n > len(wrs) {
		return nil, fmt.Errorf("host %s: post returned n = %d for %d WRs", h.name, n, len(wrs))
	}
	toks := make([]uint64, n)
	for i, wr := range wrs[:n] {
		toks[i] = wr.Token
		h.out[wr.Token] = pending{wr.Op, wr.Peer}
		if wr.Op == provider.OpWriteImm {
			h.immsPosted++
		}
		if s := h.peers[wr.Peer]; s != nil && wr.Op != provider.OpRecv {
			s.out++
			if s.down {
				s.lateOK++
			}
		}
	}
	return toks, nil
}

// post posts all WRs, pumping the world while the domain is full.
func (h *host) post(wrs ...provider.WR) []uint64 {
	h.w.Helper()
	var toks []uint64
	h.w.until(fmt.Sprintf("host %s accepts %d WRs", h.name, len(wrs)), func() bool {
		got, err := h.tryPost(wrs[len(toks):])
		if err != nil {
			h.w.Fatal(err)
		}
		toks = append(toks, got...)
		return len(toks) == len(wrs)
	})
	return toks
}

// recv is a WR that posts n bytes at offset o of a region for one message.
func recv(r *region, o, n int) provider.WR {
	return provider.WR{Op: provider.OpRecv, LocalKey: r.key.ID, LocalAddr: r.key.Base + uint64(o), Len: uint64(n)}
}

// send is a WR that sends n bytes at offset o of a region.
func send(p provider.Peer, r *region, o, n int) provider.WR {
	wr := recv(r, o, n)
	wr.Op, wr.Peer = provider.OpSend, p
	return wr
}

func (h *host) isDone(toks ...uint64) bool {
	for _, t := range toks {
		if _, ok := h.out[t]; ok {
			return false
		}
	}
	return true
}

// finish pumps until all tokens are done.
func (h *host) finish(toks ...uint64) {
	h.w.Helper()
	h.w.until(fmt.Sprintf("%d WRs of host %s complete", len(toks), h.name), func() bool { return h.isDone(toks...) })
}

// wantStatus fails the test when one of the tokens ended with a status that is not want.
func (h *host) wantStatus(want provider.Status, toks ...uint64) {
	h.w.Helper()
	h.wantOneOf([]provider.Status{want}, toks...)
}

func (h *host) wantOneOf(want []provider.Status, toks ...uint64) {
	h.w.Helper()
next:
	for i, t := range toks {
		got, ok := h.done[t]
		if !ok {
			h.w.Fatalf("host %s: WR %d of %d has not completed", h.name, i, len(toks))
		}
		for _, s := range want {
			if got == s {
				continue next
			}
		}
		h.w.Fatalf("host %s: WR %d of %d ended with status %v, want %v", h.name, i, len(toks), got, want)
	}
}

func (h *host) last() []provider.Completion {
	n := min(h.nring, len(h.ring))
	out := make([]provider.Completion, 0, n)
	for i := h.nring - n; i < h.nring; i++ {
		out = append(out, h.ring[i%len(h.ring)])
	}
	return out
}

func show(c provider.Completion) string {
	return fmt.Sprintf("{%v %v peer %#x token %d len %d imm %#x detail %d}", c.Kind, c.Status, c.Peer, c.Token, c.Len, c.Imm, c.Detail)
}
