package hawser

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// warmFanOut is how many peers Warm connects to at once: a handshake is mostly waiting, but each takes descriptors and memory of both
// sides while it lasts, and a listener has places for maxHandshakes.
const warmFanOut = 16

// Warm connects to all addresses at once, so that nothing has to be set up on first use. The peers are in the order of the addresses,
// nil for those that failed; the error joins one for each of these. PeerStats.ConnectTime tells what each took.
func (e *Engine) Warm(ctx context.Context, addrs ...string) ([]*Peer, error) {
	peers, errs := make([]*Peer, len(addrs)), make([]error, len(addrs))
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(warmFanOut, len(addrs)) {
		wg.Go(func() {
			for i := range next {
				p, err := e.Connect(ctx, addrs[i])
				if err != nil {
					errs[i] = fmt.Errorf("warm: address %d: %w", i, err)
				}
				peers[i] = p
			}
		})
	}
	for i := range addrs {
		next <- i
	}
	close(next)
	wg.Wait()
	return peers, errors.Join(errs...)
}
