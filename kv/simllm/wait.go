package simllm

import (
	"context"
	"syscall"
	"time"
)

// coarse is the part of a pause that is not left to the runtime's timers. They are late by up to a millisecond when the process is
// idle (it sleeps in epoll_wait, which counts in milliseconds); nanosleep is late by some 60 us.
const coarse = 1500 * time.Microsecond

// pause returns at the given time, or soon after ctx ends.
func pause(ctx context.Context, until time.Time) {
	if d := time.Until(until); d > coarse {
		timer := time.NewTimer(d - coarse)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
	if d := time.Until(until); d > 0 {
		ts := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, which makes one layer a little short
	}
}
