package providertest

import (
	"math/rand/v2"

	"github.com/hawser-project/hawser/provider"
)

// heldLimit bounds the completions that a decorator holds back, and so its memory.
const heldLimit = 256

// holding is a Domain whose completions are held back for a while.
type holding struct {
	powered
	held []provider.Completion // in the order of the network
	ends int                   // KindPeerDown among them
	in   [64]provider.Completion
}

// Post refuses requests to a peer whose KindPeerDown is held back: the network would complete them after it.
func (h *holding) Post(wrs []provider.WR) (int, error) {
	if h.ends > 0 {
		for i := range wrs {
			if wrs[i].Op != provider.OpRecv && h.ending(wrs[i].Peer) {
				wrs = wrs[:i]
				break
			}
		}
	}
	return h.Domain.Post(wrs)
}

func (h *holding) ending(p provider.Peer) bool {
	for i := range h.held {
		if h.held[i].Kind == provider.KindPeerDown && h.held[i].Peer == p {
			return true
		}
	}
	return false
}

// fetch polls the network, while there is room, and returns how many completions came.
func (h *holding) fetch() (int, error) {
	if len(h.held) >= heldLimit {
		return 0, nil
	}
	n, err := h.Domain.Poll(h.in[:])
	h.held = append(h.held, h.in[:n]...)
	for i := range h.in[:n] {
		if h.in[i].Kind == provider.KindPeerDown {
			h.ends++
		}
	}
	return n, err
}

// take removes the i-th that is held.
func (h *holding) take(i int) provider.Completion {
	c := h.held[i]
	if c.Kind == provider.KindPeerDown {
		h.ends--
	}
	h.held = append(h.held[:i], h.held[i+1:]...)
	return c
}

// Arm is true while something is held back.
func (h *holding) Arm() bool { return len(h.held) > 0 || h.Domain.Arm() }

// Reordering returns d with completions delivered late and in another order: whatever the contract allows and a network that is
// ordered by nature never does. What it keeps is what the contract says: KindPeerUp comes first, KindPeerDown and
// KindFenced come last. It allocates nothing after the first calls. Equal seeds and equal calls give equal orders.
func Reordering(d provider.Domain, seed uint64) provider.Domain {
	return &reordering{holding: holding{powered: powered{d}}, rng: rand.New(rand.NewPCG(seed, 1))}
}

type reordering struct {
	holding
	rng *rand.Rand
}

// Caps says that nothing is ordered any more.
func (r *reordering) Caps() provider.Caps {
	c := r.Domain.Caps()
	c.Ordered = false
	return c
}

// Poll fills cs with a random part of what is there.
func (r *reordering) Poll(cs []provider.Completion) (int, error) {
	fresh, err := r.fetch()
	want := min(len(cs), len(r.held))
	if fresh > 0 && err == nil { // more may be coming: keep some for later
		want = r.rng.IntN(want + 1)
	}
	for n := range want {
		cs[n] = r.take(r.pick())
	}
	return want, err
}

// pick chooses a completion that may come next: for each peer, events of the connection stay where they are among the others.
func (r *reordering) pick() int {
	i := r.rng.IntN(len(r.held))
	for {
		j := r.before(i)
		if j < 0 {
			return i
		}
		i = j
	}
}

// before returns a completion that has to come before i, -1 when there is none.
func (r *reordering) before(i int) int {
	for j := range i {
		if r.held[j].Peer == r.held[i].Peer && (ofConnection(r.held[i].Kind) || ofConnection(r.held[j].Kind)) {
			return j
		}
	}
	return -1
}

func ofConnection(k provider.Kind) bool {
	return k == provider.KindPeerUp || k == provider.KindPeerDown || k == provider.KindFenced
}

// Slow returns d with completions that come late and in bursts: a Poll delivers nothing in polls-1 of polls calls. Order, and what
// is promised of it, stay. The queues of the network fill up behind it. It allocates nothing after the first calls.
func Slow(d provider.Domain, polls int) provider.Domain {
	return &slowed{holding: holding{powered: powered{d}}, polls: polls}
}

type slowed struct {
	holding
	polls, calls int
}

// Poll delivers the oldest now and then.
func (s *slowed) Poll(cs []provider.Completion) (int, error) {
	s.calls++
	_, err := s.fetch()
	if err != nil || s.calls%s.polls != 0 {
		return 0, err
	}
	n := min(len(cs), len(s.held))
	for i := range n {
		cs[i] = s.take(0)
	}
	return n, nil
}

// Limited returns d with a bandwidth: each Poll delivers completions of as many bytes of its own writes and messages as one call allows, and
// what came before and after them in order. What was not used is not saved up, but for one call. Polls are its clock, so that rails of
// one owner, who polls them all, have speeds in the same relation however busy the machine is.
func Limited(d provider.Domain, bytesPerPoll uint64) provider.Domain {
	return &limited{holding: holding{powered: powered{d}}, rate: bytesPerPoll, lens: map[uint64]uint64{}}
}

type limited struct {
	holding
	rate, budget uint64
	lens         map[uint64]uint64 // of requests under way, by token
}

// Post remembers how long each request is; tokens of what is under way must differ.
func (l *limited) Post(wrs []provider.WR) (int, error) {
	n, err := l.holding.Post(wrs)
	for i := range wrs[:n] {
		if wrs[i].Op != provider.OpRecv {
			l.lens[wrs[i].Token] = wrs[i].Len
		}
	}
	return n, err
}

// Poll delivers what there is budget for.
func (l *limited) Poll(cs []provider.Completion) (int, error) {
	_, err := l.fetch()
	l.budget += l.rate
	n := 0
	for n < len(cs) && len(l.held) > 0 {
		c := l.held[0]
		if c.Kind == provider.KindWrite || c.Kind == provider.KindSend {
			if l.lens[c.Token] > l.budget {
				return n, err // the budget grows until it is enough
			}
			l.budget -= l.lens[c.Token]
			delete(l.lens, c.Token)
		}
		cs[n] = l.take(0)
		n++
	}
	if len(l.held) == 0 {
		l.budget = min(l.budget, l.rate)
	}
	return n, err
}
