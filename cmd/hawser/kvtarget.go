package main

import (
	"context"
	"os"
	"time"

	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/simllm"
)

// target is a prefiller or a decoder as its admin socket and its metrics see it.
type target interface {
	process() processRow
	attempts(f func(attemptRow))
	drain(ctx context.Context) error
	cancel(id string) int
	metrics(m *metricWriter)
}

// processRow is one process in the answer to "ps".
type processRow struct {
	Process string      `json:"process"`
	PID     int         `json:"pid"`
	Role    string      `json:"role"`
	Health  string      `json:"health"` // ok, degraded or draining
	Links   int         `json:"links"`
	Live    int         `json:"live"`    // attempts
	Waiting int         `json:"waiting"` // requests without pages, jobs that miss a half
	Pages   pool.Counts `json:"pages"`
}

// attemptRow is one attempt in the answer to "ps".
type attemptRow struct {
	Process     string   `json:"process,omitempty"`
	Request     string   `json:"request"`
	Seq         uint64   `json:"seq"` // 0: it waits
	State       string   `json:"state"`
	Try         int      `json:"try,omitempty"`
	Pages       int      `json:"pages,omitempty"`
	AgeMS       float64  `json:"age_ms,omitempty"`      // since the state began
	DeadlineMS  float64  `json:"deadline_ms,omitempty"` // that is left
	Waits       string   `json:"waits,omitempty"`       // for what
	Landed      uint64   `json:"landed,omitempty"`      // decoder: writes that were counted
	Expected    uint64   `json:"expected,omitempty"`
	Posted      uint64   `json:"posted,omitempty"` // prefiller: writes that have completed
	Outstanding uint64   `json:"outstanding,omitempty"`
	Left        uint64   `json:"left,omitempty"`
	Owes        []string `json:"owes,omitempty"` // who still owes writes
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

type prefillTarget struct {
	p    *simllm.Prefiller
	name string
}

func (t prefillTarget) process() processRow {
	p := t.p.Progress()
	health := "ok"
	if t.p.Draining() {
		health = "draining"
	}
	return processRow{
		Process: t.name, PID: os.Getpid(), Role: "prefill", Health: health, Links: p.Served.Links, Live: p.Served.Attempts, Waiting: p.Served.Waiting, Pages: p.Pool,
	}
}

func (t prefillTarget) attempts(f func(attemptRow)) {
	t.p.Attempts(func(i proto.ServeInfo) {
		f(attemptRow{Request: i.Request, Seq: i.Seq, State: i.State, Posted: i.Posted, Outstanding: i.Outstanding, Left: i.Left})
	})
}

func (t prefillTarget) drain(ctx context.Context) error { return t.p.Drain(ctx) }
func (t prefillTarget) cancel(id string) int            { return t.p.Cancel(id, "cancelled by its operator") }

func (t prefillTarget) metrics(m *metricWriter) {
	p := t.p.Progress()
	s := p.Served
	m.gauge("attempts", "Attempts by role and state.", float64(s.Attempts), "role", "prefill", "state", "live")
	m.pages(p.Pool)
	m.counter("attempts_total", "Attempts that ended, by outcome.", float64(s.Done), "role", "prefill", "outcome", "done")
	m.counter("attempts_total", "", float64(s.Cancelled), "role", "prefill", "outcome", "cancelled")
	m.counter("attempts_total", "", float64(s.Failed), "role", "prefill", "outcome", "failed")
	m.counter("attempts_total", "", float64(s.Silent), "role", "prefill", "outcome", "link_ended")
	m.counter("attempts_total", "", float64(s.Rejected), "role", "prefill", "outcome", "rejected")
	m.counter("bytes_total", "Bytes moved, by direction.", float64(s.Bytes), "dir", "out")
	m.counter("writes_total", "Writes that completed.", float64(s.Writes))
	m.counter("unexpected_events_total", "Events that mean nothing in their state.", float64(s.Unexpected))
	m.gauge("links", "Links that are up.", float64(s.Links))
	m.gauge("queue", "Jobs that are not computed to the end, or requests without pages.", float64(p.Engine.Queued))
	m.gauge("tombstones", "Attempts that have ended and are remembered.", float64(s.Tombs))
	m.gauge("outstanding", "Writes posted and not completed.", float64(s.Outstanding))
	m.counter("progress_words_bad_total", "Progress words that made no sense.", float64(s.BadWords))
	m.counter("computed_tokens_total", "Prompt tokens computed.", float64(p.Engine.Tokens))
	m.counter("cached_tokens_total", "Prompt tokens found in the prefix cache.", float64(p.Engine.Cached))
	m.peers(t.p.Links)
	t.p.Times(func(name string, h *simllm.Histogram) { m.histogram(name, h) })
}

type decodeTarget struct {
	d    *simllm.Decoder
	name string
}

func (t decodeTarget) process() processRow {
	s, p, h := t.d.Stats(), t.d.Progress(), t.d.Health()
	health := "ok"
	switch {
	case h.Draining || t.d.Draining():
		health = "draining"
	case h.Degraded():
		health = "degraded"
	}
	return processRow{Process: t.name, PID: os.Getpid(), Role: "decode", Health: health, Links: s.Links, Live: s.Live, Waiting: s.Waiting, Pages: p.Pool}
}

func (t decodeTarget) attempts(f func(attemptRow)) {
	t.d.Requests(func(i proto.AttemptInfo) {
		r := attemptRow{
			Request: i.Request, Seq: i.Seq, State: i.State, Try: i.Try, Pages: i.Pages, AgeMS: millis(i.Age), DeadlineMS: millis(i.Deadline), Waits: i.Waits,
		}
		for _, w := range i.Writers {
			r.Landed += w.Landed
			r.Expected += w.Expected
			if w.Landed < w.Expected {
				r.Owes = append(r.Owes, w.State)
			}
		}
		f(r)
	})
}

func (t decodeTarget) drain(ctx context.Context) error { return t.d.Drain(ctx) }
func (t decodeTarget) cancel(id string) int            { return t.d.Cancel(id, "cancelled by its operator") }

func (t decodeTarget) metrics(m *metricWriter) {
	s, p := t.d.Stats(), t.d.Progress()
	m.gauge("attempts", "Attempts by role and state.", float64(s.Live), "role", "decode", "state", "live")
	m.gauge("attempts", "", float64(s.Held), "role", "decode", "state", "held")
	m.pages(p.Pool)
	m.counter("attempts_total", "Requests that ended, by outcome.", float64(s.Ready), "role", "decode", "outcome", "ready")
	m.counter("attempts_total", "", float64(s.Cancelled), "role", "decode", "outcome", "cancelled")
	m.counter("attempts_total", "", float64(s.Failed), "role", "decode", "outcome", "failed")
	m.counter("bytes_total", "Bytes moved, by direction.", float64(p.Bytes), "dir", "in")
	m.counter("corrupt_bytes_total", "Bytes that were not what they must be.", float64(p.CorruptBytes))
	m.counter("retries_total", "Attempts after the first.", float64(s.Retries))
	m.counter("count_overrun_total", "Peers that wrote more than was expected.", float64(s.Overruns))
	m.counter("settle_timeouts_total", "Peers that did not write what they said.", float64(s.SettleTimeouts))
	m.counter("unexpected_events_total", "Events that mean nothing in their state.", float64(s.Unexpected))
	m.counter("fences_total", "Fences, by result of a try.", float64(s.Fences), "result", "begun")
	m.counter("fences_total", "", float64(s.Unfenced), "result", "unproven")
	m.gauge("links", "Links that are up.", float64(s.Links))
	m.gauge("queue", "Jobs that are not computed to the end, or requests without pages.", float64(s.Waiting))
	m.peers(t.d.Links)
	t.d.Times(func(name string, h *simllm.Histogram) { m.histogram(name, h) })
}
