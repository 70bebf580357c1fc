package kv

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

// hostID tells hosts apart, boots too. Two processes with the same one read the same clock.
var hostID = sync.OnceValue(func() uint64 {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0 // then no two processes are known to be on one host
	}
	h := fnv.New64a()
	h.Write(boot)
	return h.Sum64()
})

// Timing is what a prefiller tells about a request after it has posted everything. It is statistics only.
type Timing struct {
	SameHost bool      // the prefiller runs on this host, so the times can be compared with times taken here
	Begun    time.Time // the first pass with the request began
	Computed time.Time // its last layer was computed
	Layers   int       // layers computed, over all passes
	Late     int       // of them, layers that took longer than they were meant to
}

// Timing waits for the prefiller's message, which comes about when the request becomes ready, and may be lost.
func (r Result) Timing(ctx context.Context) (Timing, error) {
	if r.p == nil {
		return Timing{}, fmt.Errorf("kv: timing: %w: the request did not become ready", hawser.ErrInvalid)
	}
	r.p.d.mu.Lock()
	told := ask(&r.p.told, r.p.timing != nil)
	r.p.d.mu.Unlock()
	select {
	case <-told:
		return times(r.p.timing), nil
	case <-ctx.Done():
		return Timing{}, fmt.Errorf("kv: timing of request %s: %w", r.p.id, context.Cause(ctx))
	}
}

// setTiming needs mu.
func (p *Pending) setTiming(t *proto.Timing) {
	if p.timing != nil {
		return
	}
	p.timing = t
	if p.told != nil {
		close(p.told)
	}
}

// times is the message as the caller sees it. The wall clock is good enough for statistics, and the only clock that
// processes of one host share and Go shows.
func times(m *proto.Timing) Timing {
	return Timing{
		SameHost: m.Host != 0 && m.Host == hostID(),
		Begun:    time.Unix(0, m.Begun),
		Computed: time.Unix(0, m.Computed),
		Layers:   m.Layers,
		Late:     m.Late,
	}
}
