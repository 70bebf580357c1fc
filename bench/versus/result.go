package versus

import (
	"slices"
	"time"

	"github.com/hawser-project/hawser/bench"
)

// Sample is one measurement.
type Sample struct {
	Round   int     `json:"round"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"` // user and system time of all processes of the driver
	P50     float64 `json:"p50_us,omitempty"`
	P99     float64 `json:"p99_us,omitempty"`
	P999    float64 `json:"p999_us,omitempty"`
}

// Row is what one peer, or ours, came to in one case. With a Why it has no numbers.
type Row struct {
	Peer     string   `json:"peer"`
	Version  string   `json:"version,omitempty"`
	Settings string   `json:"settings,omitempty"`
	Why      string   `json:"why,omitempty"` // it could not be installed, run or believed
	Samples  []Sample `json:"samples,omitempty"`

	Unit  string       `json:"unit"`  // of Value: GB/s (10^9 bytes), us one way, or M/s (10^6 messages, or blocks of less than 64 bytes)
	Value bench.Spread `json:"value"` // over the rounds; of Latency the p50
	// CPU is the median over the rounds: seconds per GiB where Unit is GB/s, microseconds per round trip, message or block otherwise.
	CPU float64 `json:"cpu"`

	// Ratio is the median over the rounds of ours / theirs: higher is better, but for Latency lower is. 0 for ours. With Beside it is
	// this row's to that of the peer of this name, which does the same work in C.
	Beside      string       `json:"beside,omitempty"`
	Ratio       float64      `json:"ratio,omitempty"`
	RatioSpread bench.Spread `json:"ratio_spread"`

	CorruptBytes uint64 `json:"corrupt_bytes"`
}

// Result is a case with its rows, ours first.
type Result struct {
	Case Case  `json:"case"`
	Rows []Row `json:"rows"`
}

// Report is what the tool writes as JSON.
type Report struct {
	Machine    bench.Machine `json:"machine"`
	Revision   string        `json:"revision"`
	Command    []string      `json:"command"`
	Began      time.Time     `json:"began"`
	Rounds     int           `json:"rounds"`
	Seed       uint64        `json:"seed"`
	Congestion string        `json:"congestion"`
	Results    []Result      `json:"results"`
}

// value is what a sample of a case comes to in the row's unit.
func (c Case) value(s Sample) float64 {
	switch {
	case c.Scenario == Latency:
		return s.P50
	case c.counted():
		return float64(c.Count) / s.Seconds / 1e6
	}
	return float64(c.bytes()) / s.Seconds / 1e9
}

func (c Case) unit() string {
	switch {
	case c.Scenario == Latency:
		return "us"
	case c.counted():
		return "M/s"
	}
	return "GB/s"
}

// counted reports whether the result is messages or blocks a second: bytes say nothing of small ones.
func (c Case) counted() bool { return c.Scenario == Rate || c.Size < countedBelow }

// cpu is the processor time of a sample per GiB, or in microseconds per message.
func (c Case) cpu(s Sample) float64 {
	switch {
	case c.Scenario == Latency:
		return s.CPU / float64(c.Pings) * 1e6
	case c.counted():
		return s.CPU / float64(c.Count) * 1e6
	}
	return s.CPU / (float64(c.bytes()) / (1 << 30))
}

// finish computes what the samples of all rows come to. ours is nil when it has failed: then there are no ratios to it.
func (c Case) finish(rows []Row, ours *Row) {
	for i := range rows {
		r := &rows[i]
		r.Unit = c.unit()
		if r.Why != "" {
			r.Samples = nil
			continue
		}
		var values, cpu, ratios []float64
		for _, s := range r.Samples {
			values, cpu = append(values, c.value(s)), append(cpu, c.cpu(s))
			if mine, theirs := c.pair(rows, r, ours, s.Round); mine != nil && theirs != nil {
				ratios = append(ratios, c.value(*mine)/c.value(*theirs))
			}
		}
		r.Value, r.CPU = bench.SpreadOf(values), bench.SpreadOf(cpu).Median
		r.RatioSpread = bench.SpreadOf(ratios)
		r.Ratio = r.RatioSpread.Median
	}
}

// pair is the two samples of a round whose ratio is r's, nil where one is missing.
func (c Case) pair(rows []Row, r, ours *Row, round int) (mine, theirs *Sample) {
	if r == ours {
		return nil, nil
	}
	if r.Beside == "" {
		return ours.of(round), r.of(round)
	}
	i := slices.IndexFunc(rows, func(x Row) bool { return x.Peer == r.Beside })
	if i < 0 {
		return nil, nil
	}
	return r.of(round), rows[i].of(round)
}

// of is the sample of a round, nil when there is none.
func (r *Row) of(round int) *Sample {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Samples, func(s Sample) bool { return s.Round == round })
	if i < 0 {
		return nil
	}
	return &r.Samples[i]
}
