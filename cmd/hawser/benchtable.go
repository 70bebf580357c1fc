package main

import (
	"fmt"

	"github.com/hawser-project/hawser/bench"
)

// printRows prints the rows of one scenario.
func printRows(u *ui, rows []bench.Row) {
	if rows[0].RateRatio == 0 && rows[0].RatioOf == "throughput" {
		printThroughput(u, rows)
		return
	}
	printLatency(u, rows)
}

func printThroughput(u *ui, rows []bench.Row) {
	kind := rows[0].Config.Kind
	header := []string{"block", "network", "pool"}
	if kind == bench.Scatter {
		header = append(header, "targets", "receivers")
	}
	header = append(header, "hawser GB/s", "yardstick GB/s", "ratio", "hawser M op/s", "p50 us", "p99 us", "p99.9 us", "hawser CPU s/GiB", "yardstick CPU s/GiB", "yardstick")
	var cells [][]string
	for _, r := range rows {
		memory := "hot, "
		if r.Config.Cold {
			memory = "cold, "
		}
		line := []string{size(r.Config.Size).String(), r.Config.Provider, memory + size(r.Config.Pool).String()}
		if kind == bench.Scatter {
			line = append(line, fmt.Sprint(r.Config.Batch), fmt.Sprint(r.Config.Peers))
		}
		l := r.Ours.Latency
		cells = append(cells, append(line,
			spreadText(r.Ours.GBPerS, "%.2f"), spreadText(r.Yard.GBPerS, "%.2f"), spreadText(r.RatioSpread, "%.2f"),
			fmt.Sprintf("%.3g", r.Ours.OpsPerS.Median/1e6), micros(l.P50), micros(l.P99), micros(l.P999),
			fmt.Sprintf("%.3f", r.Ours.CPUPerGiB), fmt.Sprintf("%.3f", r.Yard.CPUPerGiB), r.Yard.Name,
		))
	}
	u.table(string(kind)+"; ratio: hawser / yardstick, higher is better; us: of an operation, from the submit until the sender sees its end, with the window full",
		header, cells)
}

// latencyTitles explain the tables of printLatency.
var latencyTitles = map[bench.Kind]string{
	bench.Imm:     "8 bytes and an immediate; latency is one way, half a round trip",
	bench.Message: "Send and Receive; latency is one way, half a round trip",
	bench.Barrier: "all with all; latency is from the call to the return",
}

func printLatency(u *ui, rows []bench.Row) {
	kind := rows[0].Config.Kind
	header := []string{"", "p50 us", "p99 us", "p99.9 us", "CPU us/trip", "latency ratio", "M op/s", "CPU us/op"}
	switch kind {
	case bench.Imm:
		header = append(header, "rate ratio")
	case bench.Message:
		header = append(header, "rate ratio", "GB/s", "message")
	case bench.Barrier:
		header = append(header, "processes")
	}
	var cells [][]string
	for _, r := range rows {
		for _, s := range []bench.Series{r.Ours, r.Yard} {
			ratio, rate := "", ""
			if s.Name == r.Ours.Name {
				ratio = spreadText(r.RatioSpread, "%.2f")
				rate = fmt.Sprintf("%.2f", r.RateRatio)
			}
			line := []string{
				s.Name, micros(s.Latency.P50), micros(s.Latency.P99), micros(s.Latency.P999), fmt.Sprintf("%.1f", s.Latency.CPUPerTrip), ratio,
				spreadText(scaled(s.OpsPerS, 1e-6), "%.3f"), fmt.Sprintf("%.2f", s.CPUPerOp),
			}
			switch kind {
			case bench.Imm:
				line = append(line, rate)
			case bench.Message:
				line = append(line, rate, fmt.Sprintf("%.2f", s.GBPerS.Median), size(r.Config.Size).String())
			case bench.Barrier:
				line = append(line, fmt.Sprint(r.Config.Peers+1))
			}
			cells = append(cells, line)
		}
	}
	u.table(string(kind)+": "+latencyTitles[kind]+"; ratio: hawser / yardstick, of latency lower is better, of rate higher", header, cells)
}

// micros has as many digits as a person reads.
func micros(us float64) string {
	if us < 100 {
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}

func spreadText(s bench.Spread, format string) string {
	return fmt.Sprintf(format+" ("+format+" .. "+format+")", s.Median, s.Min, s.Max)
}

func scaled(s bench.Spread, f float64) bench.Spread {
	return bench.Spread{Median: s.Median * f, Min: s.Min * f, Max: s.Max * f}
}
