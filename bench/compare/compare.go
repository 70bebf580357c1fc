// Package compare tells what changed between two results of package bench from noise. It has no state.
//
//	c := compare.Reports(before, after)
//	for _, ch := range c.Changes {
//		fmt.Println(ch.Config.Kind, ch.Name, ch.Verdict)
//	}
package compare

import (
	"fmt"
	"slices"

	"golang.org/x/perf/benchmath"

	"github.com/hawser-project/hawser/bench"
)

// Measure is one quantity of a row, round by round.
type Measure struct {
	Name     string    `json:"name"`     // "GB/s", "op/s", "latency us", "ratio"
	Less     bool      `json:"less"`     // less is better
	Relative bool      `json:"relative"` // hawser / yardstick in the same round: what other machines and noise change least
	Values   []float64 `json:"-"`
}

// Names of measures.
const (
	measureBytes   = "GB/s"
	measureOps     = "op/s"
	measureLatency = "latency us" // the median of a round
	measureRatio   = "ratio"
)

// Measures are what two runs of a row can be compared by.
func Measures(r bench.Row) []Measure {
	var ms []Measure
	bytes := float64(r.Config.Bytes)
	switch {
	case r.RatioOf == bench.OfThroughput:
		m := Measure{Name: measureBytes}
		for _, s := range r.Ours.Samples {
			m.Values = append(m.Values, bytes/s.Seconds/1e9)
		}
		ms = append(ms, m, Measure{Name: measureRatio, Relative: true, Values: quotients(seconds(r.Yard), seconds(r.Ours))})
	default:
		ms = append(ms, Measure{Name: measureLatency, Less: true, Values: r.Ours.Latency.Rounds})
		ms = append(ms, Measure{Name: measureRatio, Relative: true, Less: true, Values: quotients(r.Ours.Latency.Rounds, r.Yard.Latency.Rounds)})
		if r.RateRatio > 0 {
			m := Measure{Name: measureOps}
			for _, s := range r.Ours.Samples {
				m.Values = append(m.Values, bytes/float64(r.Config.Size)/s.Seconds)
			}
			ms = append(ms, m, Measure{Name: measureRatio + " of op/s", Relative: true, Values: quotients(seconds(r.Yard), seconds(r.Ours))})
		}
	}
	return slices.DeleteFunc(ms, func(m Measure) bool { return len(m.Values) == 0 })
}

func seconds(s bench.Series) (all []float64) {
	for _, x := range s.Samples {
		all = append(all, x.Seconds)
	}
	return all
}

// quotients divides a by b, round by round.
func quotients(a, b []float64) (all []float64) {
	for i := range min(len(a), len(b)) {
		all = append(all, a[i]/b[i])
	}
	return all
}

// Change is one measure of a row in two reports.
type Change struct {
	Config bench.Config `json:"config"` // of A
	Measure
	A       bench.Spread `json:"a"`
	B       bench.Spread `json:"b"`
	Change  float64      `json:"change"` // median of B / median of A - 1
	P       float64      `json:"p"`      // chance of a difference as large between equal runs (Mann-Whitney U test, two-sided)
	Verdict Verdict      `json:"verdict"`
}

// Verdict is what a change means.
type Verdict string

// The verdicts. Same: P is not below Significance, or there are too few rounds to tell.
const (
	Better Verdict = "better"
	Worse  Verdict = "worse"
	Same   Verdict = "same"
)

// Significance is the P below which a change counts: the usual 1 in 20.
const Significance = 0.05

// Comparison is two reports, row by row.
type Comparison struct {
	A       Source         `json:"a"`
	B       Source         `json:"b"`
	Changes []Change       `json:"changes"`
	OnlyA   []bench.Config `json:"only_a,omitempty"` // of rows without a counterpart
	OnlyB   []bench.Config `json:"only_b,omitempty"`
	Note    string         `json:"note,omitempty"` // why only ratios compare
}

// Source is what a report says of itself.
type Source struct {
	Machine  bench.Machine `json:"machine"`
	Revision string        `json:"revision"`
}

// Reports finds the rows that two reports share and how their measures differ.
func Reports(a, b bench.Report) Comparison {
	c := Comparison{A: Source{a.Machine, a.Revision}, B: Source{b.Machine, b.Revision}}
	if a.Machine != b.Machine {
		c.Note = fmt.Sprintf("the machines differ, so only ratios compare: %+v and %+v", a.Machine, b.Machine)
	}
	seen := make(map[bench.Config]bool)
	for _, ra := range a.Rows {
		key := work(ra.Config)
		i := slices.IndexFunc(b.Rows, func(rb bench.Row) bool { return work(rb.Config) == key })
		if i < 0 || seen[key] {
			c.OnlyA = append(c.OnlyA, ra.Config)
			continue
		}
		seen[key] = true
		c.Changes = append(c.Changes, compareRows(ra, b.Rows[i])...)
	}
	for _, rb := range b.Rows {
		if !seen[work(rb.Config)] {
			c.OnlyB = append(c.OnlyB, rb.Config)
		}
	}
	return c
}

// work is the config without what does not change the work of a round.
func work(c bench.Config) bench.Config {
	c.Rounds, c.Seed = 0, 0
	return c
}

func compareRows(a, b bench.Row) []Change {
	theirs := Measures(b)
	var cs []Change
	for _, ma := range Measures(a) {
		i := slices.IndexFunc(theirs, func(mb Measure) bool { return mb.Name == ma.Name })
		if i < 0 {
			continue
		}
		ch := Change{Config: a.Config, Measure: ma, A: bench.SpreadOf(ma.Values), B: bench.SpreadOf(theirs[i].Values), Verdict: Same}
		ch.Change = ch.B.Median/ch.A.Median - 1
		t := benchmath.DefaultThresholds
		test := benchmath.AssumeNothing.Compare(benchmath.NewSample(slices.Clone(ma.Values), &t), benchmath.NewSample(slices.Clone(theirs[i].Values), &t))
		ch.P = test.P
		if len(test.Warnings) == 0 && ch.P < Significance {
			ch.Verdict = Better
			if (ch.Change > 0) == ma.Less {
				ch.Verdict = Worse
			}
		}
		cs = append(cs, ch)
	}
	return cs
}
