// Package chart draws the results of package bench as SVG. It knows lines and points, not scenarios, and has no state.
//
//	f, _ := os.Create("pages.svg")
//	err := chart.Throughput(f, "pages, cold", []chart.Line{{Name: "hawser shm", Points: []chart.Point{{X: 65536, Y: 12.1, Min: 11.8, Max: 12.2}}}})
package chart

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Point is one measured value. Min and Max are the range over the rounds; both 0: none is drawn.
type Point struct{ X, Y, Min, Max float64 }

// Line is one series of a chart. Points need no order.
type Line struct {
	Name   string
	Points []Point
}

// ErrEmpty: there is no point that a chart could show.
var ErrEmpty = errors.New("nothing to draw")

// Size of a chart, the room beside the outermost points as a factor on a logarithmic axis, and that above the highest one, for the
// names of the lines.
const (
	width  = 20 * vg.Centimeter
	height = 12 * vg.Centimeter
	margin = 2
	above  = 1.25
)

// Throughput draws GB/s (10^9 bytes) by the size of a block in bytes, which is logarithmic, with the range over the rounds.
func Throughput(w io.Writer, title string, lines []Line) error {
	return draw(w, title, lines, func(p *plot.Plot, xs []float64) {
		p.X.Label.Text, p.Y.Label.Text = "block size", "GB/s"
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, sizeTicks(xs)
		p.X.Min, p.X.Max = slices.Min(xs)/margin, slices.Max(xs)*margin
		p.Y.Min, p.Y.Max = 0, p.Y.Max*above
		p.Legend.Top, p.Legend.Left = true, true
	})
}

// Latency draws the cumulative distribution of latencies: X in microseconds, logarithmic; Y is the share of operations that took at most
// that long, from 0 to below 1, on an axis that gives each further nine the same room.
func Latency(w io.Writer, title string, lines []Line) error {
	lines = slices.Clone(lines)
	for i, l := range lines {
		points := make([]Point, 0, len(l.Points))
		for _, p := range l.Points {
			if p.X > 0 && p.Y >= 0 && p.Y < 1 {
				points = append(points, Point{X: p.X, Y: nines(p.Y)})
			}
		}
		lines[i].Points = points
	}
	return draw(w, title, lines, func(p *plot.Plot, xs []float64) {
		p.X.Label.Text, p.Y.Label.Text = "latency, us", "share of operations"
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, latencyTicks{}
		p.X.Min, p.X.Max = slices.Min(xs)/margin, slices.Max(xs)*margin
		p.Y.Min = 0
		p.Y.Tick.Marker = plot.ConstantTicks(shareTicks())
	})
}

// Scaling draws microseconds by a number of ranks, which is logarithmic.
func Scaling(w io.Writer, title string, lines []Line) error {
	return draw(w, title, lines, func(p *plot.Plot, xs []float64) {
		p.X.Label.Text, p.Y.Label.Text = "ranks", "us"
		var ticks plot.ConstantTicks
		for _, x := range slices.Compact(slices.Sorted(slices.Values(xs))) {
			ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprintf("%g", x)})
		}
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
		p.X.Min, p.X.Max = slices.Min(xs)/margin, slices.Max(xs)*margin
		p.Y.Min, p.Y.Max = 0, p.Y.Max*above
		p.Legend.Top, p.Legend.Left = true, true
	})
}

// nines turns 0.9 into 1, 0.99 into 2.
func nines(share float64) float64 { return -math.Log10(1 - share) }

func shareTicks() []plot.Tick {
	var ts []plot.Tick
	for _, share := range []struct {
		at   float64
		name string
	}{{0, "0"}, {0.5, "50 %"}, {0.9, "90 %"}, {0.99, "99 %"}, {0.999, "99.9 %"}, {0.9999, "99.99 %"}} {
		ts = append(ts, plot.Tick{Value: nines(share.at), Label: share.name})
	}
	return ts
}

func draw(w io.Writer, title string, lines []Line, axes func(p *plot.Plot, xs []float64)) error {
	p := plot.New()
	p.Title.Text = title
	p.Add(plotter.NewGrid())
	var xs []float64
	for i, l := range lines {
		if len(l.Points) == 0 {
			continue
		}
		points := slices.SortedFunc(slices.Values(l.Points), func(a, b Point) int {
			switch {
			case a.X < b.X:
				return -1
			case a.X > b.X:
				return 1
			}
			return 0
		})
		for _, pt := range points {
			if pt.X <= 0 {
				return fmt.Errorf("draw %s: x of %s is %g, want above 0", title, l.Name, pt.X)
			}
			xs = append(xs, pt.X)
		}
		if err := add(p, i, l.Name, points); err != nil {
			return fmt.Errorf("draw %s: %s: %w", title, l.Name, err)
		}
	}
	if len(xs) == 0 {
		return fmt.Errorf("draw %s: %w", title, ErrEmpty)
	}
	axes(p, xs)
	to, err := p.WriterTo(width, height, "svg")
	if err == nil {
		_, err = to.WriteTo(w)
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", title, err)
	}
	return nil
}

// ranged is what gonum wants for error bars.
type ranged struct {
	plotter.XYs
	plotter.YErrors
}

func add(p *plot.Plot, i int, name string, points []Point) error {
	r := ranged{make(plotter.XYs, len(points)), make(plotter.YErrors, len(points))}
	bars := false
	for j, pt := range points {
		r.XYs[j] = plotter.XY{X: pt.X, Y: pt.Y}
		if pt.Min != 0 || pt.Max != 0 {
			bars = true
			r.YErrors[j] = struct{ Low, High float64 }{pt.Y - pt.Min, pt.Max - pt.Y}
		}
	}
	line, dots, err := plotter.NewLinePoints(r.XYs)
	if err != nil {
		return err
	}
	line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i)
	dots.Color, dots.Shape = plotutil.Color(i), plotutil.Shape(i)
	p.Add(line)
	if !bars { // a distribution: so many points would hide the line
		p.Legend.Add(name, line)
		return nil
	}
	p.Legend.Add(name, line, dots)
	p.Add(dots)
	e, err := plotter.NewYErrorBars(r)
	if err != nil {
		return err
	}
	e.Color = plotutil.Color(i)
	p.Add(e)
	return nil
}

// sizeTicks puts a tick at each measured size.
func sizeTicks(xs []float64) plot.ConstantTicks {
	var ts plot.ConstantTicks
	for _, x := range slices.Compact(slices.Sorted(slices.Values(xs))) {
		ts = append(ts, plot.Tick{Value: x, Label: sizeText(x)})
	}
	return ts
}

func sizeText(bytes float64) string {
	for _, u := range []struct {
		bytes float64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if bytes >= u.bytes {
			return fmt.Sprintf("%.4g %s", bytes/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%g B", bytes)
}

// latencyTicks are 1, 2, 5, 10 and so on.
type latencyTicks struct{}

// Ticks covers [lo, hi], both above 0.
func (latencyTicks) Ticks(lo, hi float64) []plot.Tick {
	var ts []plot.Tick
	for decade := math.Pow(10, math.Floor(math.Log10(lo))); decade <= hi; decade *= 10 {
		for _, step := range []float64{1, 2, 5} {
			if at := step * decade; at >= lo && at <= hi {
				ts = append(ts, plot.Tick{Value: at, Label: fmt.Sprintf("%.4g", at)})
			}
		}
	}
	return ts
}
