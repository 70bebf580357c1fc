package kv

import (
	"hash/fnv"
	"os"
	"sync"
	"time"

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
