package pool_test

import (
	"container/heap"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/trace"
)

// use is what one request of a trace holds until its output is decoded.
type use struct {
	until  time.Duration
	lease  pool.Lease
	prefix pool.Prefix
}

type uses []use

func (u uses) Len() int           { return len(u) }
func (u uses) Less(i, j int) bool { return u[i].until < u[j].until }
func (u uses) Swap(i, j int)      { u[i], u[j] = u[j], u[i] }
func (u *uses) Push(x any)        { *u = append(*u, x.(use)) }
func (u *uses) Pop() any {
	last := (*u)[len(*u)-1]
	*u = (*u)[:len(*u)-1]
	return last
}

// decoder is a pool under the requests of a trace: each holds its prompt's pages for 10 ms per output token.
type decoder struct {
	t       *testing.T
	pool    *pool.Pool
	running uses
}

// end ends the request that is done first.
func (d *decoder) end() {
	u := heap.Pop(&d.running).(use)
	if err := errors.Join(d.pool.Drop(u.lease, pool.OwnerRequest), d.pool.Unpin(u.prefix)); err != nil {
		d.t.Fatal(err)
	}
}

// run takes a request through its life, and returns how many of its tokens were cached.
func (d *decoder) run(r trace.Request, hashes []pool.Hash, pageTokens int) int {
	for len(d.running) > 0 && d.running[0].until <= r.Arrival {
		d.end()
	}
	x := d.pool.Lookup(hashes)
	missing := (r.Input+pageTokens-1)/pageTokens - len(x.Pages)
	l, err := d.pool.Reserve(missing)
	for ; errors.Is(err, hawser.ErrLimit) && len(d.running) > 0; l, err = d.pool.Reserve(missing) {
		d.end() // the request waits for pages
	}
	if err == nil {
		err = errors.Join(d.pool.Hold(l, pool.OwnerWriter), d.pool.Drop(l, pool.OwnerWriter), d.pool.Publish(l, hashes[len(x.Pages):]))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	heap.Push(&d.running, use{r.Arrival + time.Duration(r.Output)*10*time.Millisecond, l, x})
	return len(x.Pages) * pageTokens
}

// TestTrace holds some minutes of a service (an hour where the published trace is at hand) against pools of several sizes:
// nothing is lost, and a larger pool finds more of the prompts.
func TestTrace(t *testing.T) {
	const pageTokens = 128
	requests := trace.Generate(trace.Config{Seed: 1, Requests: 600})
	if dir := os.Getenv("HAWSER_TRACES"); dir != "" {
		var err error
		if requests, err = trace.Open(filepath.Join(dir, "conversation_trace.jsonl"), 0); err != nil {
			t.Fatal(err)
		}
	}
	hashes := make([][]pool.Hash, len(requests))
	for i, r := range requests {
		hashes[i] = pool.Hashes(pool.Hash{}, r.Tokens(), pageTokens)
	}
	all := trace.MeasureReuse(requests, pageTokens)
	last := 0
	for _, pages := range []int{1024, 4096, 16384, all.Pages} {
		p, err := pool.New(pages, 1)
		if err != nil {
			t.Fatal(err)
		}
		d := &decoder{t: t, pool: p}
		cached, began := 0, time.Now()
		for i, r := range requests {
			cached += d.run(r, hashes[i], pageTokens)
		}
		t.Logf("%7d pages: %.3f of the tokens were there; %v per request", pages, float64(cached)/float64(all.Tokens),
			(time.Since(began) / time.Duration(len(requests))).Round(time.Microsecond))
		if cached < last {
			t.Errorf("%d pages: %d tokens were there, %d in a smaller pool", pages, cached, last)
		}
		last = cached
		for len(d.running) > 0 {
			d.end()
		}
		if c := p.Counts(); p.Live() != 0 || c.Free+c.Cached != pages {
			t.Errorf("%d pages: %+v at the end", pages, c)
		}
		if err := p.Check(); err != nil {
			t.Error(err)
		}
	}
	if last != all.Reused {
		t.Errorf("a pool for all finds %d tokens, the trace has %d", last, all.Reused)
	}
}
