package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/hawser-project/hawser/bench/chart"
	"github.com/hawser-project/hawser/bench/moebench"
)

// drawMoE draws a report as SVG: a simulation by the number of ranks, a measurement as the distribution of its times.
func drawMoE(w io.Writer, r *moebench.Report) error {
	title := fmt.Sprintf("%d tokens, %s", r.Shape.Tokens, r.Routing)
	if r.Simulated {
		return chart.Scaling(w, "simulated on "+r.Profile+", "+title, byRanks(r))
	}
	return chart.Latency(w, fmt.Sprintf("%d ranks over %s, %s", r.Shape.Ranks, r.Provider, title), distributions(r))
}

// byRanks are what was simulated, the floor, and what was published.
func byRanks(r *moebench.Report) (lines []chart.Line) {
	add := func(name string, ranks int, us float64) {
		if us == 0 {
			return
		}
		i := slices.IndexFunc(lines, func(l chart.Line) bool { return l.Name == name })
		if i < 0 {
			i, lines = len(lines), append(lines, chart.Line{Name: name})
		}
		lines[i].Points = append(lines[i].Points, chart.Point{X: float64(ranks), Y: us})
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		add("dispatch, simulated", x.Ranks, *x.Dispatch)
		add("combine, simulated", x.Ranks, *x.Combine)
		add("dispatch, floor", x.Ranks, x.DispatchFloor)
		add("combine, floor", x.Ranks, x.CombineFloor)
		for _, who := range []string{"reference", "deepep"} {
			p := x.Published[who]
			add("dispatch, "+who, x.Ranks, p.Dispatch)
			add("combine, "+who, x.Ranks, p.Combine)
		}
	}
	return lines
}

// distributions are what was timed here, and the exchanges of others.
func distributions(r *moebench.Report) (lines []chart.Line) {
	add := func(name string, d *moebench.Distribution) {
		all := d.Times()
		l := chart.Line{Name: name}
		for i, us := range all {
			l.Points = append(l.Points, chart.Point{X: us, Y: float64(i) / float64(len(all))})
		}
		lines = append(lines, l)
	}
	for _, name := range moebench.Measured() {
		if d := r.Samples[name]; d != nil {
			add(name, d)
		}
	}
	for i := range r.Peers {
		add(r.Peers[i].Name+" exchange", &r.Peers[i].Exchange)
	}
	return lines
}
