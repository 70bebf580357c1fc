package hawser

import (
	"context"
	"sync"
	"time"
)

// What those who are not peers, or behave badly, may make an engine do, in connections of the TCP control listener. In the long run
// all of that takes a few percent of a processor, however much time an attacker has: peers that are there keep theirs. What comes too
// fast waits in the listener's queue, in the kernel.
const (
	newcomerRate  = 250           // a second: each costs some 100 µs
	newcomerBurst = 1280          // at once: 256 peers that connect at the same time do not wait
	sessionCost   = 4             // more for a connection that becomes a session
	offenceCost   = newcomerBurst // for a session that ended because its peer broke a rule: creating 65,536 counters takes 100 ms
)

// What a peer may ask for over its control connection: it is not read for a while when it asks faster.
const (
	questionRate  = 4000 // a second: each costs some 10 µs
	questionBurst = 128  // at once; what a client gets that comes again and again
)

// pacer counts how much of something there may be: rate a second in the long run, and burst at once. The zero value with rate and
// burst is full.
type pacer struct {
	rate, burst float64

	mu   sync.Mutex
	used float64   // of burst; beyond it when there is debt; guarded by mu
	at   time.Time // of used; guarded by mu
}

// take takes n and returns how long to wait before going on. Debts are limited to another burst, so that nobody waits for ever.
func (p *pacer) take(n float64) time.Duration { return p.takeAt(time.Now(), n) }

func (p *pacer) takeAt(now time.Time, n float64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = max(0, p.used-p.rate*now.Sub(p.at).Seconds())
	p.at = now
	p.used = min(p.used+n, 2*p.burst)
	return time.Duration(max(0, p.used-p.burst) / p.rate * float64(time.Second))
}

// pause waits, if there is anything to wait for.
func pause(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
