package simllm

import (
	"context"
	"slices"
	"sync"

	"github.com/hawser-project/hawser/kv/proto"
)

// sources are the prefillers of a Decoder. They come and go.
type sources struct {
	mu      sync.Mutex // guards the rest
	all     []source
	turn    int
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

// take returns the prefillers for one request, that with the fewest requests first, and what to call when the request is over. It waits
// until there is one.
func (s *sources) take(ctx context.Context) (from []proto.Source, done func(), err error) {
	for {
		s.mu.Lock()
		if len(s.all) > 0 {
			defer s.mu.Unlock()
			from, done = s.order()
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

// order needs mu, and a source.
func (s *sources) order() ([]proto.Source, func()) {
	s.turn++
	n := len(s.all)
	order := make([]source, 0, n)
	for i := range s.all { // equals take turns
		order = append(order, s.all[(s.turn+i)%n])
	}
	slices.SortStableFunc(order, func(a, b source) int { return a.load - b.load })
	first := order[0].addr
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
