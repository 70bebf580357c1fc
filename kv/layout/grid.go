package layout

import (
	"fmt"
	"sort"
)

// maxPeriod bounds the units of a period: page sizes that need more have nothing to do with each other.
const maxPeriod = 1024

// grid is how the pages of the two sides of a group cut the tokens into units. The cuts repeat every period.
type grid struct {
	srcPage, dstPage int // tokens
	period           int // tokens, the least common multiple
	cells            []cell
	uniform          bool // all units have the same length
}

// cell is a unit of the first period.
type cell struct {
	first, tokens int
	src, dst      spot
}

// spot is where a unit lies on one side.
type spot struct {
	page int // of the period
	sub  int // number of the unit in its page
	off  int // tokens from the page's beginning
}

func newGrid(srcPage, dstPage int) (*grid, error) {
	g := &grid{srcPage: srcPage, dstPage: dstPage, period: lcm(srcPage, dstPage)}
	if n := g.period/srcPage + g.period/dstPage - 1; n > maxPeriod {
		return nil, fmt.Errorf("pages of %d tokens on the prefill side and of %d on the decode side repeat after %d units, want at most %d: use sizes of which one divides the other",
			srcPage, dstPage, n, maxPeriod)
	}
	for t := 0; t < g.period; {
		c := cell{first: t, src: spot{page: t / srcPage, off: t % srcPage}, dst: spot{page: t / dstPage, off: t % dstPage}}
		c.tokens = min(srcPage-c.src.off, dstPage-c.dst.off)
		if n := len(g.cells); n > 0 {
			c.src.after(g.cells[n-1].src)
			c.dst.after(g.cells[n-1].dst)
		}
		g.cells = append(g.cells, c)
		t += c.tokens
	}
	g.uniform = g.period == max(srcPage, dstPage)
	return g, nil
}

// after numbers s, which follows last.
func (s *spot) after(last spot) {
	if s.page == last.page {
		s.sub = last.sub + 1
	}
}

// whole is the number of units that end at or before a token.
func (g *grid) whole(token int) int {
	rest := token % g.period
	n := sort.Search(len(g.cells), func(i int) bool { return g.cells[i].first+g.cells[i].tokens > rest })
	return token/g.period*len(g.cells) + n
}

// cover is the number of units that hold the first n tokens.
func (g *grid) cover(n int) int {
	if n == 0 {
		return 0
	}
	return g.whole(n-1) + 1
}

// start is the first token of a unit.
func (g *grid) start(unit int) int {
	return unit/len(g.cells)*g.period + g.cells[unit%len(g.cells)].first
}

// pages are the logical pages of one side, of the given size, that units [from, to) lie in.
func (g *grid) pages(from, to, size int) (first, end int) {
	if from >= to {
		return 0, 0
	}
	return g.start(from) / size, (g.start(to) + size - 1) / size
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

func lcm(a, b int) int { return a / gcd(a, b) * b }
