package weights

import (
	"errors"
	"testing"

	"github.com/hawser-project/hawser/weights/stage"
)

// TestWatermark: a watermark that has no room for a task, and one destination at a time: tasks are done in parts, every byte and every
// digest is right, staging stays below it, and what has no room at all is named.
func TestWatermark(t *testing.T) {
	if race && testing.Short() {
		t.Skip("it moves much: minutes under the race detector")
	}
	for name, c := range map[string]struct {
		m    toy
		mark int64
		net  string
	}{
		"raw":       {toy{rows: 1024, cols: 1024, trainers: 2, layers: 1}, 300 << 10, "shm"},
		"rows":      {toy{rows: 600, cols: 1500, trainers: 2, layers: 1}, 260 << 10, "shm"}, // rows are no divisors of portions
		"fp8":       {toy{rows: 1024, cols: 1024, trainers: 2, layers: 1, fp8: true}, 260 << 10, "shm"},
		"straddled": {toy{rows: 1024, cols: 1024, trainers: 3, layers: 1, fp8: true}, 560 << 10, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(t *testing.T, open network) {
				w := newWorld(t, open, c.m, change{
					publisher: func(o *PublisherOptions) {
						o.Watermark, o.Window, o.PerDest, o.Verify = c.mark, 1, 1, stage.All
					},
					receiver: func(o *ReceiverOptions) { o.Verify, o.Poison = stage.All, 0x1a5 },
				})
				for v := Version(1); v <= 2; v++ {
					r := w.mustPush(v)
					if r.Staging == 0 || r.Staging > c.mark {
						t.Errorf("v%d: %d bytes of staging, the watermark is %d", v, r.Staging, c.mark)
					}
				}
				largest := int64(0)
				for _, p := range w.pubs {
					p.mu.Lock()
					for _, a := range p.slices {
						for i := range a.slice.Tasks {
							largest = max(largest, a.slice.Tasks[i].Size)
						}
					}
					p.mu.Unlock()
				}
				if largest <= c.mark/2 {
					t.Errorf("the largest task has %d bytes: nothing was cut", largest)
				}
			}
			run(t, networks[c.net]())
		})
	}
	w := newWorld(t, networks["shm"](), toy{rows: 1024, cols: 1024, trainers: 2, layers: 1}, change{publisher: func(o *PublisherOptions) { o.Watermark = 8 << 10 }})
	if _, err := w.push(1); !errors.Is(err, ErrAborted) {
		t.Errorf("a watermark below a portion: %v", err)
	} else {
		t.Log(err)
	}
}
