package simllm

import (
	"math"
	"slices"
	"time"
)

// Tally is what one Decoder has counted and measured, or several together. It is plain data and goes between processes as JSON.
type Tally struct {
	Geometry  string
	Verify    Verify
	PoolBytes uint64

	Requests, Done, Verified, Failed, Cancelled, Retried int

	Causes    map[string]int // of the failed ones
	Corrupt   uint64         // bytes
	FirstBad  string         // the first wrong byte
	Leaked    int            // pages, at the end
	Stuck     int            // pages that are quarantined at the end
	Bytes     uint64         // landed for requests that became ready, tails not counted
	Tokens    uint64         // of the prompts of requests that became ready
	Reused    uint64         // of them, that were in the prefix cache
	Attempts  uint64
	Began     int64 // Unix ns of the time at which requests may arrive
	Ended     int64 // Unix ns of the last end of a request
	PeerDowns []PeerDown

	// Samples: of requests that became ready, in ms but where another unit is said.
	TTFT, Queue, Compute []float64
	Exposed, Notify      []float64 // us
	Cancels              []float64 // cancel to quiet
}

// PeerDown is one peer-down event.
type PeerDown struct {
	Peer  string `json:"peer"`
	At    int64  `json:"at_unix_ns"` // wall clock of this host
	Cause string `json:"cause"`
}

// Add joins the tallies of two decoders of one run.
func (t *Tally) Add(o *Tally) {
	if t.Causes == nil {
		t.Causes = map[string]int{}
		t.Geometry, t.Verify, t.PoolBytes, t.Began, t.Ended = o.Geometry, o.Verify, o.PoolBytes, o.Began, o.Ended
	}
	t.Began, t.Ended = min(t.Began, o.Began), max(t.Ended, o.Ended)
	t.Requests += o.Requests
	t.Done += o.Done
	t.Verified += o.Verified
	t.Failed += o.Failed
	t.Cancelled += o.Cancelled
	t.Retried += o.Retried
	for cause, n := range o.Causes {
		t.Causes[cause] += n
	}
	t.Corrupt += o.Corrupt
	if t.FirstBad == "" {
		t.FirstBad = o.FirstBad
	}
	t.Leaked += o.Leaked
	t.Stuck += o.Stuck
	t.Bytes += o.Bytes
	t.Tokens += o.Tokens
	t.Reused += o.Reused
	t.Attempts += o.Attempts
	t.PeerDowns = append(t.PeerDowns, o.PeerDowns...)
	t.TTFT = append(t.TTFT, o.TTFT...)
	t.Queue = append(t.Queue, o.Queue...)
	t.Compute = append(t.Compute, o.Compute...)
	t.Exposed = append(t.Exposed, o.Exposed...)
	t.Notify = append(t.Notify, o.Notify...)
	t.Cancels = append(t.Cancels, o.Cancels...)
}

// Report is a Tally as people want it. Its JSON form is stable: a field may be added, none changes its meaning. Quantiles are 0 where
// there was nothing to measure.
type Report struct {
	Geometry  string `json:"geometry"`
	Verify    string `json:"verify"`
	PoolBytes uint64 `json:"pool_bytes"`

	Requests         int `json:"requests"` // all that arrived: done, failed and cancelled add up to it
	Done             int `json:"done"`
	VerifiedRequests int `json:"verified_requests"` // done, with the content checked and found right
	Failed           int `json:"failed"`
	Cancelled        int `json:"cancelled"`
	Retried          int `json:"retried"` // with more than one try, whatever their end
	// Causes counts the failed requests by cause, the cancelled ones not.
	Causes map[string]int `json:"causes"`

	CorruptBytes     uint64 `json:"corrupt_bytes"`
	FirstCorrupt     string `json:"first_corrupt,omitempty"`
	LeakedPages      int    `json:"leaked_pages"`      // held by nobody's request after the end
	QuarantinedPages int    `json:"quarantined_pages"` // out of service after the end: a peer may still write them

	Bytes       uint64  `json:"bytes"`        // landed for requests that became ready
	ReusedShare float64 `json:"reused_share"` // of the tokens of their prompts: they were in the decoder's prefix cache
	Wall        float64 `json:"wall_s"`       // begin of the arrivals to last end
	GBPerS      float64 `json:"gb_per_s"`     // Bytes per wall second, 10^9
	Attempts    uint64  `json:"attempts"`
	AttemptsPS  float64 `json:"attempts_per_s"`

	// Time to first token: arrival to the prompt's cache and tail being here. Its parts are queue (arrival until the first pass that
	// holds the request begins), compute (until the last layer of the prompt is computed) and exposed (until Ready).
	// The parts need both sides on one host; they are 0 otherwise.
	TTFTp50        float64 `json:"ttft_p50_ms"`
	TTFTp99        float64 `json:"ttft_p99_ms"`
	TTFTQueueP50   float64 `json:"ttft_queue_p50_ms"`
	TTFTComputeP50 float64 `json:"ttft_compute_p50_ms"`
	TTFTExposedP50 float64 `json:"ttft_exposed_p50_ms"`

	ExposedP50 float64 `json:"exposed_p50_us"` // last layer computed to Ready
	ExposedP99 float64 `json:"exposed_p99_us"`
	NotifyP50  float64 `json:"notify_p50_us"` // last immediate counted to the waiting caller running
	NotifyP99  float64 `json:"notify_p99_us"`

	CancelP50 float64 `json:"cancel_p50_ms"` // cancel to pages reusable
	CancelP99 float64 `json:"cancel_p99_ms"`

	// PeerDowns are the peers that went down meanwhile, in order.
	PeerDowns []PeerDown `json:"peer_downs,omitempty"`
}

// Report sums up.
func (t *Tally) Report() Report {
	r := Report{
		Geometry: t.Geometry, Verify: string(t.Verify), PoolBytes: t.PoolBytes, Requests: t.Requests, Done: t.Done, VerifiedRequests: t.Verified,
		Failed: t.Failed, Cancelled: t.Cancelled, Retried: t.Retried, Causes: t.Causes, CorruptBytes: t.Corrupt, FirstCorrupt: t.FirstBad,
		LeakedPages: t.Leaked, QuarantinedPages: t.Stuck, Bytes: t.Bytes, Attempts: t.Attempts, PeerDowns: t.PeerDowns,
		TTFTp50: quantile(t.TTFT, 0.5), TTFTp99: quantile(t.TTFT, 0.99), TTFTQueueP50: quantile(t.Queue, 0.5), TTFTComputeP50: quantile(t.Compute, 0.5),
		ExposedP50: quantile(t.Exposed, 0.5), ExposedP99: quantile(t.Exposed, 0.99), NotifyP50: quantile(t.Notify, 0.5), NotifyP99: quantile(t.Notify, 0.99),
		CancelP50: quantile(t.Cancels, 0.5), CancelP99: quantile(t.Cancels, 0.99),
	}
	r.TTFTExposedP50 = r.ExposedP50 / 1e3
	if t.Tokens > 0 {
		r.ReusedShare = float64(t.Reused) / float64(t.Tokens)
	}
	if r.Wall = time.Duration(t.Ended - t.Began).Seconds(); r.Wall > 0 {
		r.GBPerS = float64(t.Bytes) / 1e9 / r.Wall
		r.AttemptsPS = float64(t.Attempts) / r.Wall
	}
	return r
}

// Clean reports whether nothing went wrong that no fault explains: no corrupt byte, no leaked or quarantined page. Failed
// requests are the caller's to judge.
func (r *Report) Clean() bool {
	return r.CorruptBytes == 0 && r.LeakedPages == 0 && r.QuarantinedPages == 0
}

// NoticedAfter is the time from at, when somebody on this host killed or stopped a peer, to the first peer-down event of that peer after it; false
// when there was none.
func (r *Report) NoticedAfter(peer string, at time.Time) (time.Duration, bool) {
	for _, d := range r.PeerDowns {
		if d.At >= at.UnixNano() && d.Peer == peer {
			return time.Duration(d.At - at.UnixNano()), true
		}
	}
	return 0, false
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile sorts values and returns one of them; 0 when there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(math.Ceil(q*float64(len(values))))-1]
}
