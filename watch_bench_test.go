package hawser_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// From a store to its callback, while words change often. Goal: p50 of 1 us with a processor for the watcher.
func BenchmarkWatch(b *testing.B) {
	for _, m := range []hawser.PollMode{hawser.PollAdaptive, hawser.PollBusy} {
		b.Run(m.String(), func(b *testing.B) {
			e := newWorld(b, "sim").mode(b, m)
			base := time.Now()
			var seen atomic.Int64 // when the callback ran, after base
			w := watch(b, e, func(uint64, uint64) { seen.Store(int64(time.Since(base))) })
			defer w.Close()
			var times []time.Duration
			for b.Loop() {
				seen.Store(0)
				stored := time.Since(base)
				w.Word().Add(1)
				for seen.Load() == 0 {
				}
				times = append(times, time.Duration(seen.Load())-stored)
			}
			report(b, times, 1)
		})
	}
}

// From a store to its callback, when the word has not changed for so long that looks are rare; by itself, and with Kick.
func BenchmarkWatchIdle(b *testing.B) {
	for _, kick := range []bool{false, true} {
		b.Run(map[bool]string{false: "store", true: "kick"}[kick], func(b *testing.B) {
			e := newWorld(b, "sim").mode(b, hawser.PollAdaptive)
			base := time.Now()
			seen := make(chan time.Duration, 1)
			w := watch(b, e, func(uint64, uint64) { seen <- time.Since(base) })
			defer w.Close()
			var times []time.Duration
			for b.Loop() {
				time.Sleep(5 * time.Millisecond)
				stored := time.Since(base)
				w.Word().Add(1)
				if kick {
					w.Kick()
				}
				times = append(times, <-seen-stored)
			}
			report(b, times, 1)
		})
	}
}
