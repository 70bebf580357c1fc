package kvbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

const (
	loadTokens   = 4096                   // of a prompt under load
	loadRequests = 16                     // at once
	loadLayer    = 200 * time.Microsecond // computation of a layer under load
)

func loadShape() (shape, error) {
	model, err := layout.BuiltinModel("mini")
	return shape{Model: model, Pages: 2 * loadRequests * loadTokens / 128}, err
}

// load asks again and again until stop is closed or ctx ends. each gets every request that was begun, and waits until it is over.
func (p *pair) load(ctx context.Context, stop <-chan struct{}, each func(*kv.Pending, *rand.Rand) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, loadRequests)
	for i := range loadRequests {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				q, err := p.d.Fetch(ctx, p.request(loadTokens))
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					err = each(q, r)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs // nil when there is none
}

// free says what is still held although everything is over.
func (p *pair) free() error {
	c := p.pool.Counts()
	if c.Leased+c.Pinned+c.Quarantined > 0 {
		return fmt.Errorf("pages are held at the end: %+v", c)
	}
	return p.pool.Check()
}

// runCancels is B4.
func runCancels(ctx context.Context, c Config) ([]Row, error) {
	row := Row{Name: fmt.Sprintf("mini, %d tokens, %d at once, 30%% cancelled", loadTokens, loadRequests)}
	s, err := loadShape()
	if err != nil {
		return nil, err
	}
	p, err := newPair(ctx, c, setup{Shape: s, Tokens: loadTokens, LayerTime: loadLayer}, s, options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.close() }()
	var p50, p99, rate []float64
	total := 0
	for round := range c.Rounds + 1 {
		c.Tell(fmt.Sprintf("%s: round %d of %d", row.Name, round, c.Rounds))
		t := cancelRound{pair: p, ctx: ctx}
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		if err := p.load(ctx, stop, t.one); err != nil {
			return nil, err
		}
		if err := p.free(); err != nil {
			return nil, err
		}
		if round > 0 {
			total += len(t.took)
			p50, p99 = append(p50, quantile(t.took, 0.5)), append(p99, quantile(t.took, 0.99))
			rate = append(rate, float64(t.done+len(t.took)))
		}
	}
	row.Values = []Value{value("cancel to free, p99", "ms", p99).most(20), value("p50", "ms", p50), value("requests", "1/s", rate)}
	row.Note = fmt.Sprintf("%d were cancelled before they were ready; no corrupt byte, no page held", total)
	return []Row{row}, nil
}

type cancelRound struct {
	*pair
	ctx context.Context

	mu   sync.Mutex
	took []float64
	done int
}

// one cancels some requests at a time by chance within what a request takes under load, and checks the others.
func (t *cancelRound) one(q *kv.Pending, r *rand.Rand) error {
	cancel := r.IntN(10) < 3
	if cancel {
		select {
		case <-q.Done():
		case <-time.After(time.Duration(r.Int64N(int64(loadRequests * 8 * loadLayer)))):
		}
	}
	start := time.Now()
	if cancel {
		q.Cancel("measured")
	}
	res, err := q.Wait(t.ctx)
	switch {
	case errors.Is(err, proto.ErrCancelled):
		<-q.Quiesced()
		t.mu.Lock()
		t.took = append(t.took, millis(time.Since(start)))
		t.mu.Unlock()
		return nil
	case err != nil:
		return err
	}
	err = t.check(res.Pages[0], loadTokens, sparse)
	t.clear(res.Pages[0], loadTokens, sparse)
	res.Release()
	t.mu.Lock()
	t.done++
	t.mu.Unlock()
	return err
}

// runDeaths is B5.
func runDeaths(ctx context.Context, c Config) (rows []Row, err error) {
	for _, f := range []struct {
		name   string
		signal syscall.Signal
		goal   float64
	}{{"killed", syscall.SIGKILL, 10}, {"stopped", syscall.SIGSTOP, 1500}} {
		var gone, known, quiet, failed []float64
		for round := range c.Rounds {
			c.Tell(fmt.Sprintf("%s: round %d of %d", f.name, round+1, c.Rounds))
			d, err := death(ctx, c, f.signal)
			if err != nil {
				return rows, err
			}
			known, quiet, failed = append(known, millis(d.known)), append(quiet, millis(d.quiet)), append(failed, float64(d.hit))
			gone = append(gone, millis(d.gone))
		}
		values := []Value{value("decoder knows", "ms", known).most(f.goal), value("all pages free", "ms", quiet), value("requests hit", "", failed)}
		if f.signal == syscall.SIGKILL {
			values = append(values, value("kernel has ended the process", "ms", gone))
		}
		rows = append(rows, Row{
			Name: fmt.Sprintf("prefiller %s under load", f.name), Note: "no corrupt byte, no page held at the end",
			Values: values,
		})
	}
	return rows, nil
}

// mortality is how long things took after a signal.
type mortality struct {
	gone  time.Duration // until the kernel had ended the process: its memory goes before its connections
	known time.Duration // until the decoder knew
	quiet time.Duration // until all pages were free
	hit   int           // requests that did not become ready
}

// death is one: until the decoder knows, and until all pages are free. A prefiller that was stopped goes on when the decoder knows.
func death(ctx context.Context, c Config, sig syscall.Signal) (m mortality, err error) {
	s, err := loadShape()
	if err != nil {
		return m, err
	}
	down := make(chan time.Time, 16)
	watch := func(n proto.Note) {
		if n.Kind == proto.NoteLinkDown {
			select {
			case down <- time.Now():
			default:
			}
		}
	}
	p, err := newPair(ctx, c, setup{Shape: s, Tokens: loadTokens, LayerTime: loadLayer}, s, options{observer: watch})
	if err != nil {
		return m, err
	}
	defer func() { _ = p.close() }() // the child has failed
	loaded, end := context.WithCancel(ctx)
	defer end()
	t := deathRound{pair: p, ctx: ctx}
	ended, gone := make(chan error, 1), make(chan time.Duration, 1)
	go func() { ended <- p.load(loaded, nil, t.one) }()
	time.Sleep(200 * time.Millisecond) // so that there is load
	at := time.Now()
	if err := p.child.Signal(sig); err != nil {
		return m, err
	}
	if sig == syscall.SIGKILL {
		go func() {
			<-p.child.Done()
			gone <- time.Since(at)
		}()
	}
	select {
	case seen := <-down:
		m.known = seen.Sub(at)
	case err := <-ended:
		return m, fmt.Errorf("the load ended by itself: %w", err)
	case <-ctx.Done():
		return m, context.Cause(ctx)
	}
	end()
	if sig == syscall.SIGKILL {
		m.gone = <-gone
	}
	if err := <-ended; err != nil {
		return m, err
	}
	if sig == syscall.SIGSTOP {
		if err := p.child.Signal(syscall.SIGCONT); err != nil {
			return m, err
		}
	}
	for p.free() != nil {
		if time.Since(at) > time.Minute {
			return m, p.free()
		}
		time.Sleep(time.Millisecond)
	}
	m.quiet, m.hit = time.Since(at), t.hit
	return m, nil
}

type deathRound struct {
	*pair
	ctx context.Context

	mu  sync.Mutex
	hit int
}

func (t *deathRound) one(q *kv.Pending, _ *rand.Rand) error {
	res, err := q.Wait(t.ctx)
	if err != nil {
		t.mu.Lock()
		t.hit++
		t.mu.Unlock()
		return context.Cause(t.ctx)
	}
	defer res.Release()
	err = t.check(res.Pages[0], loadTokens, sparse)
	t.clear(res.Pages[0], loadTokens, sparse)
	return err
}
