package weights

import (
	"context"
	"fmt"
	"sync"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/schedule"
)

// arena is a schedule.Arena that one goroutine takes from and another gives back to. Its size is the publisher's watermark.
type arena struct {
	freed chan struct{} // capacity 1: something came back

	mu   sync.Mutex
	lend *schedule.Arena
}

func newArena(size int64) *arena {
	return &arena{lend: schedule.NewArena(size), freed: make(chan struct{}, 1)}
}

// take waits for n bytes and returns where they are. One goroutine may take.
func (a *arena) take(ctx context.Context, n int64) (int64, error) {
	if n > a.lend.Size() {
		return 0, fmt.Errorf("staging: %w: a task of %d bytes, the watermark is %d", hawser.ErrLimit, n, a.lend.Size())
	}
	for {
		if off, ok := a.try(n); ok {
			return off, nil
		}
		select {
		case <-a.freed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (a *arena) try(n int64) (int64, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lend.Take(n)
}

// give takes back the piece at off.
func (a *arena) give(off int64) {
	a.mu.Lock()
	a.lend.Give(off)
	a.mu.Unlock()
	signal(a.freed)
}

// most is the largest number of bytes that were in use at once.
func (a *arena) most() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lend.Peak()
}
