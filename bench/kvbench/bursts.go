package kvbench

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/kv/layout"
)

// runBursts is B1.
func runBursts(ctx context.Context, c Config) (rows []Row, err error) {
	counts, sizes := []int{64, 256, 1024}, []int{8, 16, 32, 64}
	if c.Short {
		counts, sizes = []int{64}, []int{8, 64}
	}
	for _, kib := range sizes {
		for _, n := range counts {
			row, err := burst(ctx, c, n, kib<<10)
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// burstLead is when the layer comes after its request, so that the request is no part of what is measured.
const burstLead = 2 * time.Millisecond

// burst moves one layer of n pages of one plane.
func burst(ctx context.Context, c Config, n, bytes int) (Row, error) {
	row := Row{Name: fmt.Sprintf("%d pages of %d KiB", n, bytes>>10)}
	const page = 16
	model := layout.Model{
		Name: "burst", Layers: 1, TP: 1,
		Groups: []layout.Group{{PageTokens: page, KVHeads: 1, HeadDim: bytes / page / 2, ElemSize: 2, Planes: 1}},
	}
	s := shape{Model: model, Pages: n}
	if !c.wants(row) {
		return row, nil
	}
	from := setup{Shape: s, Tokens: n * page, LayerTime: burstLead}
	p, err := newPair(ctx, c, from, s, options{})
	if err != nil {
		return row, err
	}
	defer func() { _ = p.close() }()
	others, err := c.rivals(ctx, from, s, scattered(n), false)
	if err != nil {
		return row, err
	}
	defer others.close()
	samples := max(3, min(30, (64<<20)/(n*bytes)))
	var rate, yard, ratio, told []float64
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		var mine, other float64
		exposed := func(m versus.Moved) time.Duration { return m.Exposed }
		if err := others.turn(ctx, c, samples, burstLead, exposed, func() (_ float64, err error) {
			mine, other, err = p.bursts(ctx, c, n*page, samples, round == 0)
			return mine, err
		}); err != nil {
			return row, err
		}
		if round == 0 {
			continue
		}
		total := float64(n * bytes)
		rate, yard, ratio, told = append(rate, total/mine), append(yard, total/other), append(ratio, other/mine), append(told, mine/1e3)
	}
	r := value("rate / yardstick", "", ratio)
	if bytes == 32<<10 && c.Network == "shm" {
		r = r.least(0.85)
	} else if bytes == 32<<10 && c.Network == "tcp" {
		r = r.least(0.90)
	}
	row.Values = []Value{r, value("rate", "GB/s", rate), value("yardstick", "GB/s", yard), value("layer to caller", "us", told)}
	goal := 1.
	if bytes <= 32<<10 {
		goal = 1.5
	}
	others.add(&row, "layer to application", goal)
	return row, nil
}

// bursts is so many of them, each beside its yardstick: the medians, in nanoseconds. all: the first one is checked byte by byte.
func (p *pair) bursts(ctx context.Context, c Config, tokens, samples int, all bool) (ours, yardstick float64, err error) {
	var mine, other []float64
	for i := range samples {
		step := sparse
		if all && i == 0 {
			step = 1
		}
		m, err := p.move(ctx, tokens, step, nil)
		if err != nil {
			return 0, 0, err
		}
		d, err := p.yardstick(ctx, c, 0, m.pages)
		if err != nil {
			return 0, 0, err
		}
		mine, other = append(mine, float64(m.exposed()+m.wake())), append(other, float64(d))
	}
	return quantile(mine, 0.5), quantile(other, 0.5), nil
}
