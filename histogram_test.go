package hawser_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/record"
)

// A quantile lies in the bucket of the duration that it estimates: it is off by less than a factor of 2.
func TestHistogramEstimatesQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var r record.Histogram
		var all []time.Duration
		for range 1 + rng.IntN(1000) {
			d := time.Duration(rng.Uint64N(1 << rng.IntN(38)))
			all = append(all, d)
			r.Add(int64(d))
		}
		slices.Sort(all)
		h := hawser.Histogram(r)
		for _, q := range []float64{-1, 0, 0.01, 0.5, 0.9, 0.99, 1, 2} {
			rank := int(min(max(q, 0), 1)*float64(len(all))+0.999999) - 1
			want, got := all[max(rank, 0)], h.Quantile(q)
			if got < want/2 || got > 2*want {
				t.Fatalf("quantile %v of %d durations is %v, estimated as %v", q, len(all), want, got)
			}
		}
		sum := time.Duration(0)
		for _, d := range all {
			sum += d
		}
		if h.Count != uint64(len(all)) || h.Mean() != sum/time.Duration(len(all)) {
			t.Fatalf("%d durations, mean %v; want %d, %v", h.Count, h.Mean(), len(all), sum/time.Duration(len(all)))
		}
	}
}

func TestHistogramAtTheEnds(t *testing.T) {
	var r record.Histogram
	if h := hawser.Histogram(r); h.Quantile(0.5) != 0 || h.Mean() != 0 || h.String() != "none" {
		t.Fatalf("an empty one: %v, %v, %s", h.Quantile(0.5), h.Mean(), h)
	}
	r.Add(-5)
	r.Add(0)
	r.Add(1 << 62)
	h := hawser.Histogram(r)
	if h.Buckets[0] != 2 || h.Buckets[hawser.HistogramBuckets-1] != 1 || h.Sum != 1<<62 {
		t.Fatalf("%+v", h)
	}
}

// A snapshot is a copy, differences are what came in between, and all of it survives JSON.
func TestHistogramSnapshots(t *testing.T) {
	var r record.Histogram
	r.Add(100)
	before := hawser.Histogram(r)
	r.Add(1000)
	r.Add(1000)
	if before.Count != 1 {
		t.Fatal("a snapshot has changed")
	}
	after := hawser.Histogram(r)
	diff := after.Since(&before)
	if diff.Count != 2 || diff.Sum != 2000 || diff.Buckets[10] != 2 || diff.Quantile(0.01) < 512 {
		t.Fatalf("%+v", diff)
	}
	text, err := json.Marshal(after)
	if err != nil {
		t.Fatal(err)
	}
	var back hawser.Histogram
	if err := json.Unmarshal(text, &back); err != nil || back != after {
		t.Fatalf("%s: %v", text, err)
	}
	r.Merge(&r)
	if r.Count != 6 || r.Sum != 4200 {
		t.Fatalf("%+v", r)
	}
}
