package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/chart"
)

type plotCmd struct {
	Results []string `arg:"" placeholder:"RESULT.json" help:"Results of hawser bench --json; several are drawn into the same charts."`
	Out     string   `default:"." placeholder:"DIR" help:"Where the charts go (default: the current folder)."`
}

// Run draws the throughput by size, and the latencies, of each scenario.
func (c *plotCmd) Run(u *ui) error {
	var rows []bench.Row
	for _, path := range c.Results {
		r, err := readReport(path)
		if err != nil {
			return err
		}
		rows = append(rows, r.Rows...)
	}
	charts := append(throughputCharts(rows), latencyCharts(rows)...)
	if len(charts) == 0 {
		return errors.New("bench plot: the results have no rows")
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return fmt.Errorf("bench plot: %w", err)
	}
	for _, one := range charts {
		path := filepath.Join(c.Out, one.file)
		if err := writeChart(path, one); err != nil {
			return fmt.Errorf("bench plot: %w", err)
		}
		u.printf("%s\n", path)
	}
	return nil
}

// picture is one chart: its file, and what is in it.
type picture struct {
	file, title string
	lines       []chart.Line
	draw        func(w io.Writer, title string, lines []chart.Line) error
}

func writeChart(path string, p picture) error {
	return drawInto(path, func(w io.Writer) error { return p.draw(w, p.title, p.lines) })
}

// drawInto makes a file of what draw draws.
func drawInto(path string, draw func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(draw(f), f.Close())
}

// throughputCharts makes a chart for each scenario that moves blocks, with a line for each network and yardstick.
func throughputCharts(rows []bench.Row) []picture {
	var all []picture
	for _, r := range rows {
		if r.RatioOf != bench.OfThroughput {
			continue
		}
		c := r.Config
		c.Provider, c.Size = "", 0
		p := pictureAt(&all, "throughput-"+fileName(c), titleOf(c), chart.Throughput)
		for _, s := range []bench.Series{r.Ours, r.Yard} {
			l := lineAt(p, seriesName(s, r))
			l.Points = append(l.Points, chart.Point{X: float64(r.Config.Size), Y: s.GBPerS.Median, Min: s.GBPerS.Min, Max: s.GBPerS.Max})
		}
	}
	return all
}

// latencyCharts makes a chart for each row's configuration but the network.
func latencyCharts(rows []bench.Row) []picture {
	var all []picture
	for _, r := range rows {
		c := r.Config
		c.Provider = ""
		for _, s := range []bench.Series{r.Ours, r.Yard} {
			if len(s.Latency.CDF) == 0 {
				continue
			}
			p := pictureAt(&all, "latency-"+fileName(c), titleOf(c), chart.Latency)
			l := lineAt(p, seriesName(s, r))
			for _, at := range s.Latency.CDF {
				l.Points = append(l.Points, chart.Point{X: at.Value, Y: at.Share})
			}
		}
	}
	return all
}

// seriesName tells the yardsticks of two networks apart.
func seriesName(s bench.Series, r bench.Row) string {
	if s.Name == r.Yard.Name && !strings.Contains(s.Name, r.Config.Provider) {
		return s.Name + " beside " + r.Config.Provider
	}
	return s.Name
}

func pictureAt(all *[]picture, file, title string, draw func(io.Writer, string, []chart.Line) error) *picture {
	i := slices.IndexFunc(*all, func(p picture) bool { return p.file == file })
	if i < 0 {
		i = len(*all)
		*all = append(*all, picture{file: file, title: title, draw: draw})
	}
	return &(*all)[i]
}

func lineAt(p *picture, name string) *chart.Line {
	i := slices.IndexFunc(p.lines, func(l chart.Line) bool { return l.Name == name })
	if i < 0 {
		i = len(p.lines)
		p.lines = append(p.lines, chart.Line{Name: name})
	}
	return &p.lines[i]
}

// titleOf is a row's name without what differs within the chart: an empty network, a size of 0.
func titleOf(c bench.Config) string {
	return strings.Join(strings.Fields(strings.TrimSuffix(strings.Replace(rowName(c)+" ", " "+size(0).String()+" ", " ", 1), " ")), " ")
}

func fileName(c bench.Config) string { return strings.ReplaceAll(titleOf(c), " ", "-") + ".svg" }
