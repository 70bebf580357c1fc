package weights

import (
	"context"
	"fmt"
	"sync"

	"github.com/hawser-project/hawser"
)

// arena lends pieces of the staging memory in the order in which they are asked for. They may come back in any order; memory is free
// again when all that was lent before it has come back. Its size is the publisher's watermark: what is in flight never exceeds it.
type arena struct {
	size  int64
	freed chan struct{} // capacity 1: something came back

	mu    sync.Mutex
	lent  []loan // oldest first
	head  int64  // where the next piece begins
	inUse int64  // with what is lost at the end of the memory
	peak  int64
}

// loan is a piece that is lent, or given back behind one that is not.
type loan struct {
	off, len int64
	skipped  int64 // bytes before it that are lost: the end of the memory was too short
	back     bool
}

// stagingAlign keeps tasks on cache lines of their own.
const stagingAlign = 64

func newArena(size int64) *arena {
	return &arena{size: size / stagingAlign * stagingAlign, freed: make(chan struct{}, 1)}
}

// take waits for n bytes and returns where they are. One goroutine may take.
func (a *arena) take(ctx context.Context, n int64) (int64, error) {
	n = (n + stagingAlign - 1) / stagingAlign * stagingAlign
	if n > a.size {
		return 0, fmt.Errorf("staging: %w: a task of %d bytes, the watermark is %d", hawser.ErrLimit, n, a.size)
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
	if len(a.lent) == 0 {
		a.head = 0
	}
	l := loan{off: a.head, len: n}
	if l.off+n > a.size { // a piece is in one place
		l.skipped, l.off = a.size-l.off, 0
	}
	if a.inUse+l.skipped+n > a.size {
		return 0, false
	}
	a.lent = append(a.lent, l)
	a.head = l.off + n
	a.inUse += l.skipped + n
	a.peak = max(a.peak, a.inUse)
	return l.off, true
}

// give takes back the piece at off.
func (a *arena) give(off int64) {
	a.mu.Lock()
	for i := range a.lent {
		if l := &a.lent[i]; l.off == off && !l.back {
			l.back = true
			break
		}
	}
	n := 0
	for n < len(a.lent) && a.lent[n].back {
		a.inUse -= a.lent[n].skipped + a.lent[n].len
		n++
	}
	a.lent = append(a.lent[:0], a.lent[n:]...)
	a.mu.Unlock()
	if n > 0 {
		signal(a.freed)
	}
}

// most is the largest number of bytes that were in use at once.
func (a *arena) most() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peak
}
