package simllm

import (
	"context"
	"slices"
	"sync"

	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// sources are the prefillers of a Decoder. They come and go.
type sources struct {
	mu      sync.Mutex // guards the rest
	all     []source
	turn    int
	homes   homes
	changed chan struct{} // closed at the next change
}

// source is an address and how many requests use it as their first choice.
type source struct {
	addr string
	load int
}

// maxSources is how many prefillers a request names.
const maxSources = 16

// set replaces the list, and returns what is new in it.
func (s *sources) set(addrs []string) (added []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []source
	for _, a := range addrs {
		i := slices.IndexFunc(s.all, func(o source) bool { return o.addr == a })
		if i < 0 {
			added = append(added, a)
			all = append(all, source{addr: a})
		} else {
			all = append(all, s.all[i])
		}
	}
	s.all = all
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
	return added
}

// take returns the prefillers for one request, the best one first, and what to call when the request is over. blocks are those of its
// prompt. It waits until there is a prefiller.
func (s *sources) take(ctx context.Context, blocks []pool.Hash) (from []proto.Source, done func(), err error) {
	for {
		s.mu.Lock()
		if len(s.all) > 0 {
			defer s.mu.Unlock()
			from, done = s.order(blocks)
			return from, done, nil
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// homeLoad is how many more requests than the least busy one a prefiller may have, and still get a prompt because it has its beginning.
const homeLoad = 2

// order puts the prefiller with the fewest requests first, unless one that is hardly busier was first for at least half of the prompt
// before: that one is likely to have it in its cache. Needs mu, and a source.
func (s *sources) order(blocks []pool.Hash) ([]proto.Source, func()) {
	s.turn++
	n := len(s.all)
	order := make([]source, 0, n)
	for i := range s.all { // equals take turns
		order = append(order, s.all[(s.turn+i)%n])
	}
	slices.SortStableFunc(order, func(a, b source) int { return a.load - b.load })
	if i := slices.IndexFunc(order, func(o source) bool { return o.addr == s.homes.of(blocks) }); i > 0 && order[i].load <= order[0].load+homeLoad {
		home := order[i]
		copy(order[1:i+1], order[:i])
		order[0] = home
	}
	first := order[0].addr
	s.homes.note(blocks, first)
	s.add(first, 1)
	var from []proto.Source
	for _, o := range order[:min(n, maxSources)] {
		from = append(from, proto.Source{Writers: []string{o.addr}})
	}
	return from, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(first, -1)
	}
}

// add needs mu.
func (s *sources) add(addr string, n int) {
	for i := range s.all {
		if s.all[i].addr == addr {
			s.all[i].load += n
		}
	}
}

// homes is where the beginnings of prompts went lately. What it forgets costs a computation. Guarded by the lock of its sources.
type homes struct{ young, old map[pool.Hash]string }

// homeBlocks is how many blocks each of the two maps holds.
const homeBlocks = 1 << 16

// of is where the longest known beginning of at least half of the blocks went; empty: nowhere.
func (h *homes) of(blocks []pool.Hash) string {
	for i := len(blocks) - 1; i >= 0 && 2*(i+1) >= len(blocks); i-- {
		if addr, ok := h.young[blocks[i]]; ok {
			return addr
		}
		if addr, ok := h.old[blocks[i]]; ok {
			return addr
		}
	}
	return ""
}

func (h *homes) note(blocks []pool.Hash, addr string) {
	for _, b := range blocks {
		if h.young == nil || len(h.young) >= homeBlocks {
			h.young, h.old = map[pool.Hash]string{}, h.young
		}
		h.young[b] = addr
	}
}
