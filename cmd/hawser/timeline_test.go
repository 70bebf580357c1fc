package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/simllm"
)

// TestLayersLandInTheirOrder: a prompt of 10 pages, of which the decoder had 2 and the prefiller 3 more, in two passes over two layers;
// a page is two writes.
func TestLayersLandInTheirOrder(t *testing.T) {
	s := sighting{Tokens: 95, Prefix: 20, PageTokens: 10, Layers: 2, Expected: 32}
	for n := range int64(33) { // one write in each ns, from 100 on
		s.Landed = append(s.Landed, [2]int64{100 + n, n})
	}
	all := []computedLayer{
		{layer: 0, first: 50, end: 80, at: 90},
		{layer: 1, first: 50, end: 80, at: 120},
		{layer: 0, first: 80, end: 95, at: 121},
		{layer: 1, first: 80, end: 95, at: 140},
	}
	s.land(all)
	var got []int64
	for _, c := range all {
		got = append(got, c.landed)
	}
	// 12 writes are of the prefill side's cache and go first, then 6, 6, 4 and 4. Nothing lands before it is computed.
	if want := []int64{118, 124, 128, 140}; !slices.Equal(got, want) {
		t.Errorf("landed at %v, want %v", got, want)
	}
	s.Landed = s.Landed[:20]
	all[1].landed = 0
	if s.land(all); all[1].landed != 0 {
		t.Errorf("a layer of which writes are missing landed at %d", all[1].landed)
	}
}

func TestTraceTimesKeepTheirNanoseconds(t *testing.T) {
	for _, want := range []traceTime{0, 7, 1_000, 1_700_000_000_123_456_789} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got traceTime
		if err := json.Unmarshal(text, &got); err != nil || got != want {
			t.Errorf("%d is %s, which is %d: %v", want, text, got, err)
		}
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	var m metricWriter
	m.gauge("links", "Links that are up.", 3)
	m.counter("attempts_total", "Attempts.", 2, "role", "decode", "outcome", `a "b"`)
	h := simllm.Histogram{Help: "Times.", Counts: make([]uint64, len(simllm.HistogramBounds)+1), Sum: 1500 * time.Millisecond}
	h.Counts[0], h.Counts[len(simllm.HistogramBounds)] = 2, 1
	m.histogram("wait_seconds", &h)
	m.peers(func(f func(string, proto.LinkInfo)) {
		for i := range maxPeers + 2 {
			f(fmt.Sprint("peer-", i), proto.LinkInfo{Granted: 10, Used: 4})
		}
	})
	text := m.b.String()
	for _, want := range []string{
		"# HELP hawser_kv_links Links that are up.\n# TYPE hawser_kv_links gauge\nhawser_kv_links 3\n",
		`hawser_kv_attempts_total{role="decode",outcome="a \"b\""} 2` + "\n",
		`hawser_kv_wait_seconds_bucket{le="1e-05"} 2` + "\n", `hawser_kv_wait_seconds_bucket{le="30"} 2` + "\n", `hawser_kv_wait_seconds_bucket{le="+Inf"} 3` + "\n",
		"hawser_kv_wait_seconds_sum 1.5\nhawser_kv_wait_seconds_count 3\n",
		`hawser_kv_credits{peer="peer-0"} 6` + "\n", `hawser_kv_credits{peer="peer-254"} 6` + "\n", `hawser_kv_credits{peer="other"} 18` + "\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "hawser_kv_credits{"); n != maxPeers {
		t.Errorf("%d peers, want at most %d", n, maxPeers)
	}
}
