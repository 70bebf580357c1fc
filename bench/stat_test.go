package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestSpreadOfOddAndEven(t *testing.T) {
	for _, tc := range []struct {
		xs   []float64
		want Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{9, 1, 5}, Spread{5, 1, 9}},
		{[]float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	} {
		if got := SpreadOf(tc.xs); got != tc.want {
			t.Errorf("SpreadOf(%v): got %v, want %v", tc.xs, got, tc.want)
		}
	}
}

func TestQuantileIsASample(t *testing.T) {
	xs := make([]time.Duration, 1000)
	for i := range xs {
		xs[i] = time.Duration(i + 1)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 500, 0.99: 990, 0.999: 999, 1: 1000} {
		if got := quantile(xs, q); got != want {
			t.Errorf("quantile %v of 1..1000: got %d, want %d", q, got, want)
		}
	}
	if got := quantile([]time.Duration{7}, 0.999); got != 7 {
		t.Errorf("quantile of one: got %d, want 7", got)
	}
}

func TestSeriesRates(t *testing.T) {
	s := Series{Samples: []Sample{{Seconds: 0.5, CPU: 1}, {Seconds: 0.25, CPU: 2}, {Seconds: 1, CPU: 3}}}
	s.finish(1<<30, 1000)
	if got, want := s.GBPerS.Median, float64(1<<30)/0.5/1e9; math.Abs(got-want) > 1e-9 {
		t.Errorf("GB/s: got %v, want %v", got, want)
	}
	if s.OpsPerS != (Spread{2000, 1000, 4000}) || s.CPUPerGiB != 2 || s.CPUPerOp != 2000 {
		t.Errorf("got %+v", s)
	}
}

func TestRatiosArePaired(t *testing.T) {
	got := SpreadOf(ratios([]Sample{{Seconds: 1}, {Seconds: 2}, {Seconds: 4}}, []Sample{{Seconds: 1}, {Seconds: 1}, {Seconds: 1}}))
	if got != (Spread{0.5, 0.25, 1}) {
		t.Errorf("got %v", got)
	}
}

func TestLatencyOfRounds(t *testing.T) {
	var l trips
	l.grow(4)
	for _, us := range []int{3, 1, 2} {
		l.add(time.Duration(us) * time.Microsecond)
	}
	l.endRound()
	l.endRound() // nothing was observed
	l.add(9 * time.Microsecond)
	l.endRound()
	got := l.latency()
	if got.Count != 4 || got.P50 != 2 || got.P999 != 9 || !slices.Equal(got.Rounds, []float64{2, 9}) {
		t.Errorf("got %+v", got)
	}
	if first, last := got.CDF[0], got.CDF[len(got.CDF)-1]; first != (Point{0, 1}) || last != (Point{1, 9}) {
		t.Errorf("distribution from %v to %v", first, last)
	}
	if l := (&trips{}).latency(); l.Count != 0 || l.CDF != nil {
		t.Errorf("of nothing: %+v", l)
	}
}
