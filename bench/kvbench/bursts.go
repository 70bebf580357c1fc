package kvbench

import (
	"context"
	"fmt"
	"time"

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
	p, err := newPair(ctx, c, setup{Shape: s, Tokens: n * page, LayerTime: burstLead}, s, options{})
	if err != nil {
		return row, err
	}
	defer func() { _ = p.close() }()
	samples := max(3, min(30, (64<<20)/(n*bytes)))
	var rate, yard, ratio, told []float64
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		var ours, theirs []float64
		for i := range samples {
			step := sparse
			if round+i == 0 {
				step = 1
			}
			m, err := p.move(ctx, n*page, step, nil)
			if err != nil {
				return row, err
			}
			d, err := p.yardstick(ctx, c, 0, m.pages)
			if err != nil {
				return row, err
			}
			ours, theirs = append(ours, float64(m.exposed()+m.wake())), append(theirs, float64(d))
		}
		if round == 0 {
			continue
		}
		mine, other := quantile(ours, 0.5), quantile(theirs, 0.5)
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
	return row, nil
}
