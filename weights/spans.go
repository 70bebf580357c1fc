package weights

import (
	"sync"
	"time"
)

// maxSpans bounds what a member notes of a push.
const maxSpans = 4096

// spans are what a member did when, in its last push. Safe for concurrent use.
type spans struct {
	mu   sync.Mutex
	list []Span // guarded by mu
}

// begin forgets the push before.
func (s *spans) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = s.list[:0]
}

// note notes a step that has ended just now.
func (s *spans) note(step, name string, began time.Time) { s.between(step, name, began, time.Now()) }

func (s *spans) between(step, name string, from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) < maxSpans && !from.IsZero() {
		s.list = append(s.list, Span{Step: step, Name: name, Start: from.UnixNano(), Nanos: int64(to.Sub(from))})
	}
}

func (s *spans) all() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Span(nil), s.list...)
}
