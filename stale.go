package hawser

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// maxStale is how many stale immediates wait for their handlers. Those beyond are counted and not shown: a peer must not fill our
// memory faster than a handler reads.
const maxStale = 1024

// staleReports are the stale immediates that no handler has seen yet.
type staleReports struct {
	count atomic.Uint64 // all there were

	mu       sync.Mutex
	handlers map[int]func(*Peer, uint32) // guarded by mu
	next     int                         // number of the next handler; guarded by mu
	waiting  []staleImm                  // guarded by mu
	underway bool                        // a callback that shows them is queued; guarded by mu
}

type staleImm struct {
	from *Peer
	imm  uint32
}

// OnStale calls f for each stale immediate from now on, as OnReach calls its function. When they come faster than f returns, some are
// left out; Stats counts all. stop ends it; a call may be under way when stop returns.
func (m *Imms) OnStale(f func(from *Peer, imm uint32)) (stop func()) {
	s := &m.stale
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handlers == nil {
		s.handlers = map[int]func(*Peer, uint32){}
	}
	n := s.next
	s.next++
	s.handlers[n] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.handlers, n)
	}
}

// arrived is called by the worker for a stale immediate.
func (m *Imms) arrived(from *Peer, imm uint32) {
	s := &m.stale
	s.count.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handlers) > 0 && len(s.waiting) < maxStale {
		s.waiting = append(s.waiting, staleImm{from, imm})
		m.e.notes.leave(&m.note)
	}
}

// fire is called by the dispatcher when stale immediates wait.
func (m *Imms) fire() {
	s := &m.stale
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.underway {
		s.underway = true
		m.e.calls.add(s.show)
	}
}

// show runs as a callback.
func (s *staleReports) show() {
	s.mu.Lock()
	waiting, handlers := s.waiting, slices.Collect(maps.Values(s.handlers))
	s.waiting, s.underway = nil, false
	s.mu.Unlock()
	for _, w := range waiting {
		for _, f := range handlers {
			f(w.from, w.imm)
		}
	}
}
