package kv

import (
	"hash/fnv"
	"os"
	"sync"
	"time"
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

// times is the message as the caller sees it. The wall clock is good enough for statistics, and the only clock that
// processes of one host share and Go shows.
func (m *timing) times() Timing {
	return Timing{
		SameHost: m.host != 0 && m.host == hostID(),
		Begun:    time.Unix(0, m.begun),
		Computed: time.Unix(0, m.done),
		Layers:   int(m.layers),
		Late:     int(m.late),
	}
}
