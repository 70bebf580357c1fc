package moebench

import (
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/moe"
)

// Schema is the version of Report. It changes when a field goes, or means something else; fields may be added.
const Schema = 1

// Row is what a benchmark came to. Times are microseconds, medians of all rounds; null: not measured.
type Row struct {
	Ranks           int      `json:"ranks"`
	Steps           int      `json:"steps"` // that count, of whole steps
	VerifiedSteps   *int     `json:"verified_steps"`
	MismatchedBytes *int64   `json:"mismatched_bytes"`
	Dispatch        *float64 `json:"dispatch_p50_us"`
	Combine         *float64 `json:"combine_p50_us"`
	Step            *float64 `json:"step_p50_us"`
	Exchange        *float64 `json:"exchange_p50_us"`
	Bytes           float64  `json:"bytes"`    // to other ranks, of a rank in a step
	Posts           float64  `json:"posts"`    // to the engine, likewise
	Overflow        float64  `json:"overflow"` // records beyond the first chunks, likewise
	RatioMPI        *float64 `json:"ratio_mpi"`
	RatioGloo       *float64 `json:"ratio_gloo"`
	StepRatioMPI    *float64 `json:"step_ratio_mpi"`
	Floor           float64  `json:"floor_us"`
	DispatchFloor   float64  `json:"dispatch_floor_us"`
	CombineFloor    float64  `json:"combine_floor_us"`

	Memory int64 `json:"memory"` // bytes of a rank and lane
}

// Distribution is of the times of steps.
type Distribution struct {
	Min    float64      `json:"min"`
	P50    float64      `json:"p50"`
	P90    float64      `json:"p90"`
	P99    float64      `json:"p99"`
	Rounds bench.Spread `json:"p50_of_rounds"`
	CPU    float64      `json:"cpu_s_per_gib"` // of all ranks, median of the rounds
	rounds []float64    // median of each
	all    []float64
	cpu    []float64
}

// Times are those of all steps, the shortest first. They are not part of the JSON.
func (d *Distribution) Times() []float64 { return d.all }

// Peer is another system that exchanged the same rows.
type Peer struct {
	Name     string       `json:"name"`
	Version  string       `json:"version,omitempty"`
	Settings string       `json:"settings,omitempty"`
	Why      string       `json:"why,omitempty"` // it has no numbers
	Exchange Distribution `json:"exchange_us"`
	Ratio    bench.Spread `json:"exchange_ratio"` // ours / its, of the same round
	Step     bench.Spread `json:"step_ratio"`     // likewise, its step being its exchange and our stages
}

// Report is a benchmark. With Rows it is a simulation, and the Row is empty.
type Report struct {
	Schema   int           `json:"schema"`
	Command  []string      `json:"command"`
	Machine  bench.Machine `json:"machine"`
	Revision string        `json:"revision"`
	Began    time.Time     `json:"began"`
	Provider string        `json:"provider"`
	Shape    Shape         `json:"shape"`
	Routing  string        `json:"routing"`
	Seed     uint64        `json:"seed"`
	Rounds   int           `json:"rounds"`

	*Row
	Samples map[string]*Distribution `json:"samples,omitempty"` // of ours, by what was timed
	Peers   []Peer                   `json:"peers,omitempty"`
	Sizes   *moe.SizeReport          `json:"sizes,omitempty"`

	Profile     string   `json:"profile,omitempty"`
	Simulated   bool     `json:"simulated,omitempty"`
	Rows        []SimRow `json:"rows,omitempty"`
	Assumptions []string `json:"assumptions,omitempty"`
}
