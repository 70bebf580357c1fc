package kvbench

import (
	"context"
	"fmt"
	"slices"
	"time"

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
	p, err := newPair(ctx, c, setup{Shape: s, Tokens: tokens, LayerTime: layer}, s, options{})
	if err != nil {
		return row, err
	}
	defer func() { _ = p.close() }()
	var ratio, exposed, wake, yard, whole, hide, cpu []float64
	var all []*moved
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		step := sparse
		if round == 0 {
			step = 1
		}
		before, err := p.cpu(ctx)
		if err != nil {
			return row, err
		}
		f := &follower{}
		m, err := p.move(ctx, tokens, step, func(q *kv.Pending) (kv.Result, error) {
			stop := f.begin(q)
			defer stop()
			return q.Wait(ctx)
		})
		if err != nil {
			return row, err
		}
		m.landed = f.layers(len(m.computed)-1, m.told)
		after, err := p.cpu(ctx)
		if err != nil {
			return row, err
		}
		var y []float64
		for i := range 3 { // of the last layers, as one copy is short
			d, err := p.yardstick(ctx, c, max(0, s.Model.Layers-1-i), m.pages)
			if err != nil {
				return row, err
			}
			y = append(y, float64(d))
		}
		if round == 0 {
			continue
		}
		one := quantile(y, 0.5)
		ratio = append(ratio, float64(m.exposed())/one)
		exposed = append(exposed, micros(m.exposed()))
		wake = append(wake, micros(m.wake()))
		yard = append(yard, one/1e3)
		whole = append(whole, millis(time.Duration(m.ready-m.computed[0])))
		hide = append(hide, m.hidden())
		cpu = append(cpu, (after-before)/(float64(m.bytes)/(1<<30)))
		all = append(all, m)
	}
	r := value("exposed / yardstick", "", ratio)
	if layer > 5*time.Millisecond && c.Network == "shm" {
		r = r.most(1.3)
	}
	row.Values = []Value{
		r, value("exposed", "us", exposed), value("yardstick of a layer", "us", yard), value("wake", "us", wake),
		value("first layer begun to ready", "ms", whole), value("hidden share", "", hide), value("CPU", "s/GiB", cpu),
	}
	slices.SortFunc(all, func(a, b *moved) int { return int(a.exposed() - b.exposed()) })
	row.Layers = all[len(all)/2].layers()
	return row, nil
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
