package kvbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/kv/layout"
)

// unequal is a row of B8: two sides, and the sides that it is compared with.
type unequal struct {
	name     string
	model    string
	tp       [2]int // prefiller, decoder
	page     [2]int
	rails    [2]int
	tpEqual  [2]int
	pageSame int
}

// runShapes is B8.
func runShapes(ctx context.Context, c Config) (rows []Row, err error) {
	const gqa, mla = "qwen3-235b-tp4", "deepseek-v3"
	all := []unequal{
		{"ranks 4 to 1", gqa, [2]int{4, 1}, [2]int{128, 128}, [2]int{1, 1}, [2]int{4, 4}, 128},
		{"ranks 1 to 4", gqa, [2]int{1, 4}, [2]int{128, 128}, [2]int{1, 1}, [2]int{4, 4}, 128},
		{"ranks 4 to 2", gqa, [2]int{4, 2}, [2]int{128, 128}, [2]int{1, 1}, [2]int{4, 4}, 128},
		{"latent, ranks 8 to 1", mla, [2]int{8, 1}, [2]int{64, 64}, [2]int{1, 1}, [2]int{1, 1}, 64},
		{"pages of 16 to 128 tokens", gqa, [2]int{1, 1}, [2]int{16, 128}, [2]int{1, 1}, [2]int{1, 1}, 128},
		{"pages of 64 to 128 tokens", gqa, [2]int{1, 1}, [2]int{64, 128}, [2]int{1, 1}, [2]int{1, 1}, 128},
		{"rails 3 to 2", gqa, [2]int{1, 1}, [2]int{128, 128}, [2]int{3, 2}, [2]int{1, 1}, 128},
	}
	if c.Short {
		all = all[:2]
	}
	for _, u := range all {
		row, err := u.run(ctx, c)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", u.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

const shapeTokens = 4096

// run alternates the unequal sides with the equal ones. All layers are there when the request comes, so the time is that of the transfer
// from the first layer to the last write.
func (u unequal) run(ctx context.Context, c Config) (row Row, err error) {
	row.Name = u.name
	if !c.wants(row) {
		return row, nil
	}
	model, err := layout.BuiltinModel(u.model)
	if err != nil {
		return row, err
	}
	if model, err = model.Scale(8. / float64(model.Layers)); err != nil {
		return row, err
	}
	side := func(tp, page int) shape {
		return shape{Model: model, TP: tp, PageTokens: page, Pages: shapeTokens / page}
	}
	one := c
	one.Profile = ""
	from, to := setup{Shape: side(u.tp[0], u.page[0]), Tokens: shapeTokens, Rails: u.rails[0]}, side(u.tp[1], u.page[1])
	differ, err := newPair(ctx, c, from, to, options{rails: u.rails[1]})
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, differ.close()) }()
	same, err := newPair(ctx, one, setup{Shape: side(u.tpEqual[0], u.pageSame), Tokens: shapeTokens}, side(u.tpEqual[1], u.pageSame), options{})
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, same.close()) }()
	others, err := c.rivals(ctx, from, to, scattered(to.Pages), false)
	if err != nil {
		return row, err
	}
	defer others.close()
	var ratio, rate, equal, pieces []float64
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", u.name, round, c.Rounds))
		whole := func(m versus.Moved) time.Duration { return m.Whole }
		if err := others.turn(ctx, c, 1, 0, whole, func() (float64, error) {
			rates, took, bytes, err := shapeRound(ctx, differ, same, round)
			if round > 0 && err == nil {
				ratio, rate, equal = append(ratio, rates[0]/rates[1]), append(rate, rates[0]), append(equal, rates[1])
			}
			if c.Network != "shm" || err != nil {
				return took, err
			}
			st, err := differ.call(ctx, "pieces", question{Dst: to})
			if round > 0 && err == nil {
				pieces = append(pieces, rates[0]*float64(st.Took)/float64(bytes))
			}
			return took, err
		}); err != nil {
			return row, err
		}
	}
	row.Values = []Value{value("rate / equal sides", "", ratio).least(0.9), value("rate", "GB/s", rate), value("equal sides", "GB/s", equal)}
	if len(pieces) > 0 {
		row.Values = append(row.Values, value("rate / copy of the same pieces", "", pieces))
	}
	row.Note = "every byte checked in the warm-up, every sixteenth token in the rounds"
	others.add(&row, "begun to application", 1)
	return row, nil
}

// shapeRound is one round of both, which take turns in going first: their rates in GB/s, and how long it took the sides that differ
// until the caller knew, in nanoseconds, for so many bytes.
func shapeRound(ctx context.Context, differ, same *pair, round int) (rates [2]float64, took float64, bytes uint64, err error) {
	for i := range 2 {
		which := (round + i) % 2
		p, step := []*pair{differ, same}[which], sparse
		if round == 0 {
			step = 1
		}
		m, err := p.move(ctx, shapeTokens, step, nil)
		if err != nil {
			return rates, 0, 0, err
		}
		rates[which] = float64(m.bytes) / float64(m.ready-m.computed[0])
		if which == 0 {
			took, bytes = float64(m.told-m.computed[0]), m.bytes
		}
	}
	return rates, took, bytes, nil
}
