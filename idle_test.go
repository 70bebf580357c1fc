package hawser_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
)

const (
	idlePeers = 100 // peers

	// peerBytes bounds what one more peer costs on the Go heap and in stacks, both sides together, because they are in one process
	// here; seen: 33 KiB over shm, 81 over tcp, of which 2 x 16 are the streams' buffers. 64 MiB for a thousand on one side
	// leave 64 KiB each.
	peerBytes = 2 * 64 << 10

	// peerGoroutines are a reader and a writer of the control connection on each side.
	peerGoroutines = 4
)

// A peer at rest costs each side two goroutines and a bounded amount of memory: a server has thousands of them.
func TestMemoryOfIdlePeers(t *testing.T) {
	for _, network := range []string{"shm", "tcp"} {
		t.Run(network, func(t *testing.T) {
			w := newWorld(t, network)
			center := w.engine(t, 0, 1)
			others := make([]*hawser.Engine, idlePeers)
			var opening sync.WaitGroup
			for i := range others {
				others[i] = w.engine(t, i+1, 1)
			}
			bytes, goroutines := footprint()
			for first := 0; first < idlePeers; first += idlePeers / 10 {
				for _, e := range others[first : first+idlePeers/10] {
					opening.Go(func() {
						if _, err := e.Connect(testContext(t), center.Addr()); err != nil {
							t.Error(err)
						}
					})
				}
				opening.Wait()
			}
			eventually(t, "all are up on both sides, and nobody else is at work", func() bool {
				_, g := footprint()
				return g-goroutines == idlePeers*peerGoroutines
			})
			after, _ := footprint()
			each := (int64(after) - int64(bytes)) / idlePeers
			t.Logf("%d bytes a peer, both sides together", each)
			if each > peerBytes {
				t.Errorf("a peer costs %d bytes, want at most %d", each, peerBytes)
			}
		})
	}
}

// footprint is what lives on the Go heap and in stacks.
func footprint() (bytes uint64, goroutines int) {
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc + ms.StackInuse, runtime.NumGoroutine()
}
