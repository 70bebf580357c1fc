package bench

import (
	"slices"
	"time"
)

// Sample is one measurement of one side.
type Sample struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"` // user and system time of both processes
}

// Series is all samples of one side of a row, and what they come to. A zero field does not apply to the scenario.
type Series struct {
	Name    string   `json:"name"`
	Samples []Sample `json:"samples"` // of the rate; of Barrier, of its only measure

	GBPerS    Spread  `json:"gb_per_s"`      // 10^9 bytes
	OpsPerS   Spread  `json:"ops_per_s"`     // blocks, immediates, messages or barriers
	CPUPerGiB float64 `json:"cpu_s_per_gib"` // of all processes, median
	CPUPerOp  float64 `json:"cpu_us_per_op"` // the same
	Latency   Latency `json:"latency_us"`
}

// Spread is the median and the range of a value over the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Latency is the distribution over all rounds, in microseconds: of half a round trip for Imm and Message, of a whole barrier, and for
// the others of a request (which has many blocks, see Config.Batch) from the submit to the moment when the sender learns that it has been
// placed, with Config.Depth of them under way; of these only a sample is timed.
type Latency struct {
	Count  int       `json:"count"` // observations
	P50    float64   `json:"p50"`
	P99    float64   `json:"p99"`
	P999   float64   `json:"p999"`
	Rounds []float64 `json:"rounds,omitempty"` // median of each round

	// CDF is the distribution for plots: each point is a share of the observations and what they do not exceed.
	CDF []Point `json:"cdf,omitempty"`

	CPUPerTrip float64 `json:"cpu_us_per_trip"` // of all processes for a round trip or a barrier, median over the rounds
}

// Point is a point of a distribution.
type Point struct {
	Share float64 `json:"share"` // 0 .. 1
	Value float64 `json:"us"`
}

// Row is the result of one scenario at one size.
type Row struct {
	Config Config `json:"config"` // with all defaults: what was in effect
	Path   Path   `json:"path"`
	Ours   Series `json:"ours"`
	Yard   Series `json:"yardstick"`

	// Ratio is the median over the rounds of ours / yardstick: of throughput for Write, Pages and Scatter (higher is better), of the
	// median latency for Imm, Message and Barrier (lower is better). RatioSpread is its range.
	Ratio       float64 `json:"ratio"`
	RatioOf     string  `json:"ratio_of"` // "throughput" or "latency"
	RatioSpread Spread  `json:"ratio_spread"`
	RateRatio   float64 `json:"rate_ratio,omitempty"` // of Imm and Message: operations per second, ours / yardstick, higher is better

	CorruptBytes uint64 `json:"corrupt_bytes"` // in the receivers' memory after the last round
}

// Path is how the two sides were connected, as far as the config does not say.
type Path struct {
	Congestion string    `json:"congestion,omitempty"` // TCP congestion control of the yardstick's sockets; the engine picks by the same rule
	Wait       string    `json:"wait"`                 // how a receiver waits for data
	Devices    []string  `json:"devices,omitempty"`    // of the sender's rails, if they were named
	Receivers  []Machine `json:"receivers,omitempty"`  // of servers on other hosts
}

// What Row.RatioOf says.
const (
	OfThroughput = "throughput"
	OfLatency    = "latency"
)

// SpreadOf is the median and the range of values in any order; zeros of none.
func SpreadOf(xs []float64) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	xs = slices.Sorted(slices.Values(xs))
	return Spread{Median: median(xs), Min: xs[0], Max: xs[len(xs)-1]}
}

// median of sorted values.
func median(xs []float64) float64 {
	n := len(xs)
	if n%2 == 1 {
		return xs[n/2]
	}
	return (xs[n/2-1] + xs[n/2]) / 2
}

// quantile of sorted values: the smallest that at least a share q of them does not exceed.
func quantile(xs []time.Duration, q float64) time.Duration {
	if len(xs) == 0 {
		return 0
	}
	i := int(q*float64(len(xs))+0.999999) - 1
	return xs[min(max(i, 0), len(xs)-1)]
}

const gib = 1 << 30

// finish computes what the samples of a series come to: each moved the given bytes and operations.
func (s *Series) finish(bytes uint64, ops int) {
	var rate, opRate, cpu []float64
	for _, x := range s.Samples {
		rate = append(rate, float64(bytes)/x.Seconds/1e9)
		opRate = append(opRate, float64(ops)/x.Seconds)
		cpu = append(cpu, x.CPU)
	}
	s.GBPerS, s.OpsPerS = SpreadOf(rate), SpreadOf(opRate)
	used := SpreadOf(cpu).Median
	if bytes > 0 {
		s.CPUPerGiB = used / (float64(bytes) / gib)
	}
	s.CPUPerOp = used / float64(ops) * 1e6
}

// ratios divides the throughput of ours by that of the yardstick, round by round.
func ratios(ours, yard []Sample) []float64 {
	var rs []float64
	for i := range min(len(ours), len(yard)) {
		rs = append(rs, yard[i].Seconds/ours[i].Seconds)
	}
	return rs
}

// trips collects latencies.
type trips struct {
	all    []time.Duration
	rounds []float64 // medians in microseconds
	from   int       // where the observations of this round begin in all
}

// grow makes room, so that no memory is taken while a sample is measured.
func (t *trips) grow(n int) { t.all = slices.Grow(t.all, n) }

func (t *trips) add(d time.Duration) { t.all = append(t.all, d) }

// endRound ends a round, if it has brought anything.
func (t *trips) endRound() {
	round := slices.Sorted(slices.Values(t.all[t.from:]))
	if len(round) > 0 {
		t.rounds = append(t.rounds, micros(quantile(round, 0.5)))
	}
	t.from = len(t.all)
}

// latency is the distribution of all.
func (t *trips) latency() Latency {
	if len(t.all) == 0 {
		return Latency{}
	}
	xs := slices.Sorted(slices.Values(t.all))
	l := Latency{
		Count: len(xs), P50: micros(quantile(xs, 0.5)), P99: micros(quantile(xs, 0.99)), P999: micros(quantile(xs, 0.999)),
		Rounds: t.rounds,
	}
	for _, share := range cdfShares() {
		l.CDF = append(l.CDF, Point{share, micros(quantile(xs, share))})
	}
	return l
}

// cdfShares are the points of a distribution: percents, and the tail in finer steps.
func cdfShares() []float64 {
	shares := make([]float64, 0, 106)
	for i := range 100 {
		shares = append(shares, float64(i)/100)
	}
	return append(shares, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
