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
	Samples []Sample `json:"samples"`

	GBPerS    Spread  `json:"gb_per_s"`      // 10^9 bytes
	OpsPerS   Spread  `json:"ops_per_s"`     // blocks or immediates
	CPUPerGiB float64 `json:"cpu_s_per_gib"` // median
	CPUPerOp  float64 `json:"cpu_us_per_op"` // median
	Latency   Latency `json:"latency_us"`    // one way, of Imm
}

// Spread is the median and the range of a value over the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Latency is the distribution of all round trips, halved, in microseconds. Rounds are the medians of each round.
type Latency struct {
	P50    float64   `json:"p50"`
	P99    float64   `json:"p99"`
	P999   float64   `json:"p999"`
	Rounds []float64 `json:"rounds,omitempty"`

	CPUPerTrip float64 `json:"cpu_us_per_trip"` // of both processes, median over the rounds
}

// Row is the result of one scenario at one size.
type Row struct {
	Config Config `json:"config"`
	Ours   Series `json:"ours"`
	Yard   Series `json:"yardstick"`

	// Ratio is the median over the rounds of ours / yardstick: of throughput for write and pages (higher is better), of the
	// median latency for imm (lower is better). RatioSpread is its range.
	Ratio       float64 `json:"ratio"`
	RatioSpread Spread  `json:"ratio_spread"`
	RateRatio   float64 `json:"rate_ratio,omitempty"` // of imm: immediates per second, ours / yardstick, higher is better

	CorruptBytes uint64 `json:"corrupt_bytes"` // in the receiver's memory after the last round
}

func spread(xs []float64) Spread {
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
	s.GBPerS, s.OpsPerS = spread(rate), spread(opRate)
	used := spread(cpu).Median
	s.CPUPerGiB = used / (float64(bytes) / gib)
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

// trips collects round trips of Imm.
type trips struct {
	all    []time.Duration
	rounds []float64
	cpu    []float64 // seconds of both processes, for each round
}

// add takes the round trips of one round, which it sorts.
func (t *trips) add(round []time.Duration) {
	slices.Sort(round)
	t.rounds = append(t.rounds, oneWay(quantile(round, 0.5)))
	t.all = append(t.all, round...)
}

func (t *trips) latency() Latency {
	slices.Sort(t.all)
	return Latency{
		P50: oneWay(quantile(t.all, 0.5)), P99: oneWay(quantile(t.all, 0.99)), P999: oneWay(quantile(t.all, 0.999)),
		Rounds:     t.rounds,
		CPUPerTrip: spread(t.cpu).Median * 1e6 / (float64(len(t.all)) / float64(len(t.rounds))),
	}
}

// oneWay is half a round trip in microseconds.
func oneWay(trip time.Duration) float64 { return float64(trip.Nanoseconds()) / 2e3 }
