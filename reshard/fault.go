package reshard

import (
	"fmt"
	"slices"
	"strings"
)

// faults collects what is wrong with a pair of layouts.
type faults struct {
	cover, layout Fault
	said          map[string]bool // lines that hold for many tensors
}

// err prefers faults of layouts: coverage often follows from them.
func (f *faults) err() error {
	if err := f.layout.err(); err != nil {
		return err
	}
	return f.cover.err()
}

// gaps notes boxes that no source has, for each member of the class.
func (f *faults) gaps(p *Plan, c *class, gaps []gap) {
	slices.SortFunc(gaps, func(a, b gap) int { return compareBoxes(a.lo, a.hi, b.lo, b.hi) })
	gaps = slices.CompactFunc(gaps, func(a, b gap) bool { return compareBoxes(a.lo, a.hi, b.lo, b.hi) == 0 })
	shape := p.dst.Tensors[c.link.dst].Shape
	bytes := int64(0)
	for _, g := range gaps {
		bytes += boxVolume(g.lo, g.hi) * c.to.Size()
	}
	have := ""
	for _, l := range c.members {
		f.cover.Bytes += bytes
		if f.cover.Total < maxOffenders && have == "" {
			have = c.holding(shape)
		}
		f.cover.add("%s %s: no source rank holds them%s; %d %s, %d bytes", p.dst.Tensors[l.dst].Name, boxText(gaps[0].lo, gaps[0].hi, shape), have,
			len(gaps), plural(len(gaps), "gap"), bytes)
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// holding says which source ranks hold what.
func (c *class) holding(shape []int64) string {
	var ranks []int
	var boxes []string
	for i := range c.src {
		for _, h := range c.src[i].holders {
			ranks = append(ranks, h.rank)
		}
		boxes = append(boxes, boxIntervals(c.src[i].lo, c.src[i].hi, shape))
	}
	if len(ranks) == 0 {
		return ""
	}
	slices.Sort(ranks)
	word, verb := "ranks", "hold"
	if ranks = slices.Compact(ranks); len(ranks) == 1 {
		word, verb = "rank", "holds"
	}
	return fmt.Sprintf(" (%s %s %s %s)", word, rankText(ranks), verb, strings.Join(joined(boxes, c.src, shape), " "))
}

// joined puts intervals that touch together, if all cells are intervals of one dimension.
func joined(texts []string, cells []cell, shape []int64) []string {
	dim := -1
	for i := range cells {
		d := cutDim(cells[i].lo, cells[i].hi, shape)
		if d < 0 || dim >= 0 && d != dim {
			return texts[:min(len(texts), maxOffenders)]
		}
		dim = d
	}
	var out [][2]int64
	for i := range cells {
		lo, hi := cells[i].lo[dim], cells[i].hi[dim]
		if n := len(out); n > 0 && out[n-1][1] >= lo {
			out[n-1][1] = max(out[n-1][1], hi)
			continue
		}
		out = append(out, [2]int64{lo, hi})
	}
	texts = texts[:0]
	for _, x := range out[:min(len(out), maxOffenders)] {
		texts = append(texts, fmt.Sprintf("[%d,%d)", x[0], x[1]))
	}
	return texts
}

// cutDim is the one dimension that a box has in part; -1 if there are none or several.
func cutDim(lo, hi, shape []int64) int {
	dim := -1
	for d := range shape {
		if lo[d] == 0 && hi[d] == shape[d] {
			continue
		}
		if dim >= 0 {
			return -1
		}
		dim = d
	}
	return dim
}

// boxText names a box: "rows [448,512) of 2048" if only one dimension is cut, else all intervals.
func boxText(lo, hi, shape []int64) string {
	d := cutDim(lo, hi, shape)
	if d < 0 || d > 1 {
		return boxIntervals(lo, hi, shape) + " of " + shapeText(shape)
	}
	return fmt.Sprintf("%s [%d,%d) of %d", [...]string{"rows", "columns"}[d], lo[d], hi[d], shape[d])
}

func boxIntervals(lo, hi, shape []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for d := range lo {
		if d > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d:%d", lo[d], hi[d])
	}
	b.WriteByte(']')
	return b.String()
}

func shapeText(shape []int64) string {
	return strings.Join(strings.Fields(fmt.Sprint(shape)), "x")
}

// rankText writes sorted ranks as ranges: "0-15 20".
func rankText(ranks []int) string {
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(ranks[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	if len(parts) > maxOffenders {
		parts = append(parts[:maxOffenders], "...")
	}
	return strings.Join(parts, " ")
}
