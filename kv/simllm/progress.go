package simllm

import (
	"context"
	"time"
)

const progressGap = 500 * time.Millisecond

// every calls f at a distance until ctx ends.
func every(ctx context.Context, gap time.Duration, f func()) {
	tick := time.NewTicker(gap)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}
