package simllm

import (
	"math"
	"slices"
	"time"
)

// Report is what Decode returns. Its JSON form is stable: a field may be added, none changes its meaning. Quantiles are 0
// where there was nothing to measure.
type Report struct {
	Geometry  string `json:"geometry"`
	Verify    string `json:"verify"`
	PoolBytes uint64 `json:"pool_bytes"`

	Requests         int `json:"requests"` // all that arrived: done, failed and cancelled add up to it
	Done             int `json:"done"`
	VerifiedRequests int `json:"verified_requests"` // done, with the content checked and found right
	Failed           int `json:"failed"`
	Cancelled        int `json:"cancelled"`
	// Causes counts the failed requests by cause, the cancelled ones not.
	Causes map[string]int `json:"causes"`

	CorruptBytes     uint64 `json:"corrupt_bytes"`
	LeakedPages      int    `json:"leaked_pages"`      // held by nobody's request after the end
	QuarantinedPages int    `json:"quarantined_pages"` // out of service after the end: a peer may still write them

	Bytes     uint64  `json:"bytes"`         // landed for requests that became ready
	Wall      float64 `json:"wall_s"`        // first arrival to last end
	GBPerS    float64 `json:"gb_per_s"`      // Bytes per wall second, 10^9
	PeerDeath float64 `json:"peer_death_ms"` // kill to the peer-down event here; set by SetKill

	// Time to first token: arrival to the prompt's cache being here. Its parts are queue (arrival until the first pass that
	// holds the request begins), compute (until the last layer of the prompt is computed) and exposed (until Ready).
	// The parts need both sides on one host; they are 0 otherwise.
	TTFTp50        float64 `json:"ttft_p50_ms"`
	TTFTp99        float64 `json:"ttft_p99_ms"`
	TTFTQueueP50   float64 `json:"ttft_queue_p50_ms"`
	TTFTComputeP50 float64 `json:"ttft_compute_p50_ms"`
	TTFTExposedP50 float64 `json:"ttft_exposed_p50_ms"`

	ExposedP50 float64 `json:"exposed_p50_us"` // last layer computed to the decoder being told
	ExposedP99 float64 `json:"exposed_p99_us"`

	// FillBound is the share of the layers of the verified requests whose content took longer to write than their compute time:
	// where it is high, compute is slower than LayerTime says.
	FillBound float64 `json:"fill_bound_share"`

	CancelP99 float64 `json:"cancel_p99_ms"` // cancel to pages reusable

	// PeerDowns are the peers that went down while Decode ran, in order.
	PeerDowns []PeerDown `json:"peer_downs,omitempty"`
}

// PeerDown is one peer-down event.
type PeerDown struct {
	Peer  string `json:"peer"`
	At    int64  `json:"at_unix_ns"` // wall clock of this host
	Cause string `json:"cause"`
}

// SetKill sets PeerDeath from the time at which somebody on this host killed or stopped a peer of this Decode: the distance to
// the first peer-down event after it. It reports false when there was none.
func (r *Report) SetKill(at time.Time) bool {
	for _, d := range r.PeerDowns {
		if d.At >= at.UnixNano() {
			r.PeerDeath = float64(d.At-at.UnixNano()) / 1e6
			return true
		}
	}
	return false
}

// Clean reports whether nothing went wrong that no fault explains: no corrupt byte, no leaked or quarantined page. Failed
// requests are the caller's to judge.
func (r *Report) Clean() bool {
	return r.CorruptBytes == 0 && r.LeakedPages == 0 && r.QuarantinedPages == 0
}

// PrefillReport is what Prefill returns.
type PrefillReport struct {
	Jobs        int     `json:"jobs"` // dispatched and accepted
	Done        int     `json:"done"` // everything posted and completed
	Stopped     int     `json:"stopped"`
	Bytes       uint64  `json:"bytes"` // posted and completed
	LeakedPages int     `json:"leaked_pages"`
	Passes      uint64  `json:"passes"`
	Layers      uint64  `json:"layers"`           // layers computed over all passes
	FillBound   float64 `json:"fill_bound_share"` // share of the layers whose content took longer than their time
}

// quantile sorts values and returns one of them; 0 when there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(math.Ceil(q*float64(len(values))))-1]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// summarize fills the report from the samples. Needs mu.
func (r *replay) summarize() {
	p := &r.report
	p.Wall = r.lastStop.Sub(r.start).Seconds()
	if p.Wall > 0 {
		p.GBPerS = float64(p.Bytes) / 1e9 / p.Wall
	}
	p.TTFTp50, p.TTFTp99 = quantile(r.ttft, 0.5), quantile(r.ttft, 0.99)
	p.TTFTQueueP50, p.TTFTComputeP50 = quantile(r.queue, 0.5), quantile(r.compute, 0.5)
	p.ExposedP50, p.ExposedP99 = quantile(r.exposed, 0.5), quantile(r.exposed, 0.99)
	p.TTFTExposedP50 = p.ExposedP50 / 1e3
	p.CancelP99 = quantile(r.cancels, 0.99)
	if r.layers > 0 {
		p.FillBound = float64(r.late) / float64(r.layers)
	}
}
