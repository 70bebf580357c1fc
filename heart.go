package hawser

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
)

// How peers are found that have died without a word. The side that wants to know asks: a beat with a number is answered by one without.
// It asks every beatInterval when something depends on the answer, or has until lately, and hardly ever when nothing does: a thousand
// peers with nothing to say would keep an eighth of a core busy otherwise. What either side says is a sign of life, so of two sides that
// want to know one asks.
const (
	// heartTick is the resolution of liveness.
	heartTick = time.Second / rail.TicksPerSecond

	// beatInterval is how long a peer that is watched closely may be silent until it is asked.
	beatInterval = 300 * time.Millisecond

	// restInterval is the same for others.
	restInterval = 10 * time.Second

	// watchTime is for how long a peer is watched closely after the last reason to: whoever waits for what comes next may not have said so.
	watchTime = 10 * time.Second
)

// beatAsk is the request number of a beat that wants an answer; answers have none.
const beatAsk = 1

// pulse is what the heart knows of a session. Owned by the heart, except heard and talks.
type pulse struct {
	heard  atomic.Bool // something came since the last tick
	talks  atomic.Bool // and it was not a beat
	silent int         // ticks since the last one in which something came
	asked  int         // ticks since the first question without an answer, counted from 1; 0: there is none
	watch  int         // ticks for which the peer is watched closely
}

// beat moves on by a tick. busy: there is a reason to watch closely. ask: the peer is to be asked; dead: it has not answered for so long that,
// watched closely, it would have been silent for limit ticks.
func (p *pulse) beat(busy bool, limit int) (ask, dead bool) {
	const often, rare = int(beatInterval / heartTick), int(restInterval / heartTick)
	switch {
	case busy:
		p.watch = int(watchTime / heartTick)
	case p.watch > 0:
		p.watch--
	}
	p.silent++
	if p.asked > 0 {
		p.asked++
	}
	if p.heard.Load() {
		p.heard.Store(false)
		p.silent, p.asked = 0, 0
	}
	if p.asked > limit-often+1 {
		return false, true
	}
	every := rare
	if p.watch > 0 || p.asked > 0 {
		every = often
	}
	if p.silent < every || p.asked > 0 && p.asked%often != 1 {
		return false, false
	}
	p.asked = max(p.asked, 1)
	return true, false
}

// heart sends beats and finds peers that have fallen silent. It counts its own ticks instead of reading the clock: when this
// process was stopped, or starved, no ticks passed, and nobody is blamed for the silence.
func (e *Engine) heart() {
	tick := time.NewTicker(heartTick)
	defer tick.Stop()
	limit := int(min(e.opts.PeerTimeout/heartTick, math.MaxInt32))
	var sessions []*session
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			return
		}
		sessions = e.sessions(sessions[:0])
		if len(sessions) > 0 {
			e.worker.group.Tick()
		}
		e.worker.crowded.Store(len(sessions) >= e.worker.cores)
		waits := e.waits.Load() > 0
		for _, s := range sessions {
			switch s.state.Load() {
			case stateUp:
				s.beat(waits, limit)
			case stateDown:
				if n%rail.TicksPerSecond == 0 {
					s.retryFence()
				}
			}
		}
		clear(sessions) // those that end are not kept
	}
}

// beat is one tick in the life of a session that is up. waits: somebody waits for a counter, of whatever peer.
func (s *session) beat(waits bool, limit int) {
	busy, stalled := s.busy(waits)
	ask, dead := s.pulse.beat(busy, limit)
	switch {
	case dead:
		s.fail(ErrPeerDown, fmt.Errorf("silent for %v", time.Duration(s.pulse.silent-1)*heartTick))
	case stalled:
		s.fail(ErrPeerDown, fmt.Errorf("offered a bulk message and sent nothing of it for %v", bulkStall))
	case ask:
		s.tellBeat(beatAsk)
	}
	s.checkLinkless()
}

// busy reports whether there is a reason to watch the peer closely, and whether it holds up a bulk message.
func (s *session) busy(waits bool) (busy, stalled bool) {
	carries, stalled := s.bulk.beat()
	stirred := s.links.Load().Stirred()
	talks := s.pulse.talks.Load() && s.pulse.talks.Swap(false)
	return waits || carries || stirred || talks || s.asks(), stalled
}

// asks reports whether the peer owes an answer to a question.
func (s *session) asks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked) > 0
}

// tellBeat queues a beat, unless the queue is full: then something else is on its way to the peer.
func (s *session) tellBeat(request uint64) {
	select {
	case s.out <- wire.AppendFrame(nil, wire.TypeBeat, request, nil):
	default:
	}
}

// sessions appends the latest session of each peer to out, and those before it that are not over.
func (e *Engine) sessions(out []*session) []*session {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.peers {
		for s := p.cur.Load(); s != nil; s = s.prev.Load() {
			out = append(out, s)
		}
	}
	return out
}
