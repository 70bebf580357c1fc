package kvbench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// runControl is B7, and the notification after the last layer.
func runControl(ctx context.Context, c Config) (rows []Row, err error) {
	row, err := attempts(ctx, c)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row)
	for _, poll := range []bool{false, true} {
		row, err := notification(ctx, c, poll)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// callers is how many goroutines ask at once.
const callers = 64

// attempts is the rate of requests that have nothing but a tail.
func attempts(ctx context.Context, c Config) (Row, error) {
	row := Row{Name: fmt.Sprintf("no pages, tail of %d bytes, %d at once", tailBytes, callers)}
	model, err := layout.BuiltinModel("mini")
	if err != nil {
		return row, err
	}
	s := shape{Model: model, Pages: 128}
	if !c.wants(row) {
		return row, nil
	}
	p, err := newPair(ctx, c, setup{Shape: s, Cached: true, Credits: 64 * callers}, s, options{tails: 2 * callers})
	if err != nil {
		return row, err
	}
	defer func() { _ = p.close() }()
	n := 40_000
	if c.Short {
		n = 400
	}
	var rate, p50, p99, cpu []float64
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		before, err := p.cpu(ctx)
		if err != nil {
			return row, err
		}
		start := time.Now()
		took, err := p.attempts(ctx, n)
		if err != nil {
			return row, err
		}
		wall := time.Since(start)
		after, err := p.cpu(ctx)
		if err != nil {
			return row, err
		}
		if round == 0 {
			continue
		}
		rate = append(rate, float64(n)/wall.Seconds())
		p50, p99 = append(p50, quantile(took, 0.5)), append(p99, quantile(took, 0.99))
		cpu = append(cpu, (after-before)/float64(n)*1e6)
	}
	r := value("attempts", "1/s", rate)
	switch c.Network {
	case "shm":
		r = r.least(20_000)
	case "tcp":
		r = r.least(5_000)
	}
	row.Values = []Value{r, value("p50", "us", p50), value("p99", "us", p99), value("CPU", "us/attempt", cpu)}
	return row, nil
}

// attempts makes n of them and returns how long each took, in microseconds.
func (p *pair) attempts(ctx context.Context, n int) ([]float64, error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	took := make([]float64, n)
	errs := make(chan error, callers)
	for range callers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				start := time.Now()
				if err := p.attempt(ctx); err != nil {
					errs <- err
					return
				}
				took[i] = micros(time.Since(start))
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return took, nil
	}
}

func (p *pair) attempt(ctx context.Context) error {
	r := p.request(128)
	r.Spans, r.Pages, r.Tail = []proto.Span{{First: 128, N: 128}}, [][]uint32{nil}, true
	q, err := p.d.Fetch(ctx, r)
	if err != nil {
		return err
	}
	res, err := q.Wait(ctx)
	if err != nil {
		return err
	}
	res.Release()
	return nil
}

// notification is the time from the last layer of a small prompt until the caller knows. Layers follow each other so fast that the engines
// of both sides stay awake. With poll the caller looks all the time, otherwise it waits, which it may do asleep.
func notification(ctx context.Context, c Config, poll bool) (Row, error) {
	const tokens = 512
	row := Row{Name: "mini, 512 tokens, caller waits"}
	if poll {
		row.Name = "mini, 512 tokens, caller polls"
	}
	model, err := layout.BuiltinModel("mini")
	if err != nil {
		return row, err
	}
	s := shape{Model: model, Pages: tokens / 128}
	if !c.wants(row) {
		return row, nil
	}
	p, err := newPair(ctx, c, setup{Shape: s, Tokens: tokens, LayerTime: 40 * time.Microsecond}, s, options{})
	if err != nil {
		return row, err
	}
	defer func() { _ = p.close() }()
	wait := func(q *kv.Pending) (kv.Result, error) { return q.Wait(ctx) }
	if poll {
		wait = func(q *kv.Pending) (kv.Result, error) {
			for !q.Poll() && ctx.Err() == nil {
				runtime.Gosched()
			}
			return q.Wait(ctx)
		}
	}
	n := 100
	if c.Short {
		n = 10
	}
	var over, told, p10, p99, yard, exposed []float64
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		var all, ready, copies []float64
		for i := range n {
			step := sparse
			if i == 0 {
				step = 1
			}
			m, err := p.move(ctx, tokens, step, wait)
			if err != nil {
				return row, err
			}
			d, err := p.yardstick(ctx, c, model.Layers-1, m.pages)
			if err != nil {
				return row, err
			}
			all = append(all, micros(m.exposed()+m.wake()))
			ready = append(ready, micros(m.exposed()))
			copies = append(copies, micros(d))
		}
		if round == 0 {
			continue
		}
		mid, one := quantile(all, 0.5), quantile(copies, 0.5)
		over, told, p99 = append(over, mid-one), append(told, mid), append(p99, quantile(all, 0.99))
		p10 = append(p10, quantile(all, 0.1))
		yard, exposed = append(yard, one), append(exposed, quantile(ready, 0.5))
	}
	v := value("notified p50 - yardstick", "us", over)
	if c.Network == "shm" && !poll {
		v = v.most(50)
	}
	row.Values = []Value{v, value("notified p50", "us", told), value("p10", "us", p10), value("p99", "us", p99), value("counted p50", "us", exposed), value("yardstick", "us", yard)}
	return row, nil
}
