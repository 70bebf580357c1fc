package kvbench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
)

// runHidden is B2.
func runHidden(ctx context.Context, c Config) (rows []Row, err error) {
	model, err := layout.BuiltinModel("qwen3-235b-tp4")
	if err != nil {
		return nil, err
	}
	tokens := 16384
	if c.Short {
		if model, err = model.Scale(4. / float64(model.Layers)); err != nil {
			return nil, err
		}
		tokens = 2048
	}
	s := shape{Model: model, TP: 4, Ranks: 1, Pages: tokens / model.Groups[0].PageTokens}
	for _, layer := range []time.Duration{0, time.Millisecond, 9860 * time.Microsecond} {
		row, err := hidden(ctx, c, s, tokens, layer)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func hidden(ctx context.Context, c Config, s shape, tokens int, layer time.Duration) (Row, error) {
	row := Row{Name: fmt.Sprintf("%s, rank 0 of 4, %d tokens, layers of %v", s.Model.Name, tokens, layer)}
	if !c.wants(row) {
		return row, nil
	}
	from := setup{Shape: s, Tokens: tokens, LayerTime: layer}
	p, err := newPair(ctx, c, from, s, options{})
	if err != nil {
		return row, err
	}
	defer func() { _ = p.close() }()
	others, err := c.rivals(ctx, from, s, scattered(s.Pages), true)
	if err != nil {
		return row, err
	}
	defer others.close()
	h := hiddenRow{pair: p, c: c, last: s.Model.Layers - 1, tokens: tokens}
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		exposed := func(m versus.Moved) time.Duration { return m.Exposed }
		if err := others.turn(ctx, c, 1, layer, exposed, func() (float64, error) { return h.one(ctx, round) }); err != nil {
			return row, err
		}
	}
	r := value("exposed / yardstick", "", h.ratio)
	if layer > 5*time.Millisecond && c.Network == "shm" {
		r = r.most(1.3)
	}
	row.Values = []Value{
		r, value("exposed", "us", h.exposed), value("yardstick of a layer", "us", h.yard), value("wake", "us", h.wake),
		value("first layer begun to ready", "ms", h.whole), value("hidden share", "", h.hide), value("CPU", "s/GiB", h.cpu),
	}
	slices.SortFunc(h.all, func(a, b *moved) int { return int(a.exposed() - b.exposed()) })
	row.Layers = h.all[len(h.all)/2].layers()
	others.add(&row, "exposed", 1)
	return row, nil
}

// hiddenRow is what the rounds of a row of B2 come to.
type hiddenRow struct {
	*pair
	c            Config
	last, tokens int // layer, of the prompt

	ratio, exposed, wake, yard, whole, hide, cpu []float64
	all                                          []*moved
}

// one is one round, of which number 0 does not count. It returns how long after the last layer the caller knew, in nanoseconds.
func (h *hiddenRow) one(ctx context.Context, round int) (float64, error) {
	step := sparse
	if round == 0 {
		step = 1
	}
	before, err := h.pair.cpu(ctx)
	if err != nil {
		return 0, err
	}
	f := &follower{}
	m, err := h.move(ctx, h.tokens, step, func(q *kv.Pending) (kv.Result, error) {
		stop := f.begin(q)
		defer stop()
		return q.Wait(ctx)
	})
	if err != nil {
		return 0, err
	}
	m.landed = f.layers(len(m.computed)-1, m.told)
	after, err := h.pair.cpu(ctx)
	if err != nil {
		return 0, err
	}
	var y []float64
	for i := range 3 { // of the last layers, as one copy is short
		d, err := h.yardstick(ctx, h.c, max(0, h.last-i), m.pages)
		if err != nil {
			return 0, err
		}
		y = append(y, float64(d))
	}
	if round == 0 {
		return 0, nil
	}
	one := quantile(y, 0.5)
	h.ratio = append(h.ratio, float64(m.exposed())/one)
	h.exposed, h.wake = append(h.exposed, micros(m.exposed())), append(h.wake, micros(m.wake()))
	h.yard, h.hide = append(h.yard, one/1e3), append(h.hide, m.hidden())
	h.whole = append(h.whole, millis(time.Duration(m.ready-m.computed[0])))
	h.cpu = append(h.cpu, (after-before)/(float64(m.bytes)/(1<<30)))
	h.all = append(h.all, m)
	return float64(m.exposed() + m.wake()), nil
}

// follower notes how the count of a request grows. Checking its content and the yardstick are no part of what is measured, so it may
// take a little processor time.
type follower struct {
	at    []int64  // when a look showed another count
	count []uint64 // that it showed
	want  uint64
	done  chan struct{}
}

func (f *follower) begin(p *kv.Pending) (stop func()) {
	end := make(chan struct{})
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		for {
			n, want := p.Landed()
			if want > 0 && (len(f.count) == 0 || n != f.count[len(f.count)-1]) {
				f.at, f.count, f.want = append(f.at, clock()), append(f.count, n), want
			}
			select {
			case <-end:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	return func() {
		close(end)
		<-f.done
	}
}

// layers is when each of so many layers had landed: layers follow each other, and each has as many writes.
func (f *follower) layers(n int, end int64) []int64 {
	all := make([]int64, n)
	for l := range all {
		all[l] = end
		need := f.want * uint64(l+1) / uint64(n)
		for i, k := range f.count {
			if k >= need && need > 0 {
				all[l] = f.at[i]
				break
			}
		}
	}
	return all
}

// hidden is the share of the layers that had landed when the last one was computed.
func (m *moved) hidden() float64 {
	last, n := m.computed[len(m.computed)-1], 0
	for _, at := range m.landed {
		if at <= last {
			n++
		}
	}
	return float64(n) / float64(len(m.landed))
}

func (m *moved) layers() (all []Layer) {
	since := func(t int64) float64 { return millis(time.Duration(t - m.computed[0])) }
	for l, at := range m.landed {
		all = append(all, Layer{Layer: l, Computed: since(m.computed[l+1]), Landed: since(at)})
	}
	return all
}
