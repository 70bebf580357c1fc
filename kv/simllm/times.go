package simllm

import (
	"slices"
	"time"

	"github.com/hawser-project/hawser/kv/proto"
)

// HistogramBounds are the upper bounds of the buckets of a Histogram but for the last one, which has none.
var HistogramBounds = []time.Duration{
	10 * time.Microsecond, 30 * time.Microsecond, 100 * time.Microsecond, 300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond,
	10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second,
	30 * time.Second,
}

// Histogram counts durations.
type Histogram struct {
	Help   string
	Counts []uint64 // by bucket
	Sum    time.Duration
}

func (h *Histogram) add(d time.Duration) {
	if h.Counts == nil {
		h.Counts = make([]uint64, len(HistogramBounds)+1)
	}
	i, _ := slices.BinarySearch(HistogramBounds, d)
	h.Counts[i]++
	h.Sum += d
}

// times are the histograms of a Decoder, by the names of their metrics.
type times struct {
	ttft, exposed, cancel, fence, accept Histogram

	// When things began that have not ended.
	dispatched map[uint64]time.Time // by attempt
	fences     map[proto.Peer]time.Time
}

func newTimes() times {
	return times{
		ttft:       Histogram{Help: "Arrival of a request to its first token being possible."},
		exposed:    Histogram{Help: "Last layer computed to the request being ready, on one host."},
		cancel:     Histogram{Help: "Cancel to the pages being reusable."},
		fence:      Histogram{Help: "Begin of a fence to its proof."},
		accept:     Histogram{Help: "Dispatch to Accept."},
		dispatched: map[uint64]time.Time{}, fences: map[proto.Peer]time.Time{},
	}
}

// Times calls f for each histogram.
func (d *Decoder) Times(f func(name string, h *Histogram)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &d.times
	for _, h := range []struct {
		name string
		h    *Histogram
	}{
		{"ttft_seconds", &t.ttft},
		{"last_layer_to_ready_seconds", &t.exposed},
		{"cancel_to_quiet_seconds", &t.cancel},
		{"fence_seconds", &t.fence},
		{"dispatch_to_accept_seconds", &t.accept},
	} {
		if h.h.Counts == nil {
			h.h.Counts = make([]uint64, len(HistogramBounds)+1)
		}
		f(h.name, h.h)
	}
}

// Times calls f for each histogram.
func (p *Prefiller) Times(f func(name string, h *Histogram)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.post.Counts == nil {
		p.post.Counts = make([]uint64, len(HistogramBounds)+1)
	}
	f("layer_post_seconds", &p.post)
}

// note keeps the times between two notes.
func (t *times) note(n proto.Note, now func() time.Time) {
	switch n.Kind {
	case proto.NoteReserve:
		t.dispatched[n.Seq] = now()
	case proto.NoteAccept:
		if at, ok := t.dispatched[n.Seq]; ok {
			t.accept.add(now().Sub(at))
			delete(t.dispatched, n.Seq)
		}
	case proto.NoteEnd:
		delete(t.dispatched, n.Seq)
	case proto.NoteFence:
		t.fences[n.Peer] = now()
	case proto.NoteFenced:
		if at, ok := t.fences[n.Peer]; ok {
			t.fence.add(now().Sub(at))
			delete(t.fences, n.Peer)
		}
	}
}
