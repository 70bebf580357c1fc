package kvbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// runIdle is B6: attempts that wait for a computation which does not come.
func runIdle(ctx context.Context, c Config) ([]Row, error) {
	n, rest := 10_000, 6*time.Second
	if c.Short {
		n, rest = 100, 2500*time.Millisecond
	}
	const pages, atOnce = 104, 64 // 10,000 times as many pages are the most that a view may have
	row := Row{Name: fmt.Sprintf("%d attempts of %d pages", n, pages)}
	// Every attempt has pages of its own, so they are small; what is held for an attempt does not depend on their size.
	model := layout.Model{
		Name: "idle", Layers: 1, TP: 1, Groups: []layout.Group{{PageTokens: 16, KVHeads: 1, HeadDim: 4, ElemSize: 2, Planes: 1}},
	}
	src, dst := shape{Model: model, Pages: pages}, shape{Model: model, Pages: n * pages}
	var accepted atomic.Int64
	count := func(n proto.Note) {
		if n.Kind == proto.NoteAccept {
			accepted.Add(1)
		}
	}
	p, err := newPair(ctx, c, setup{Shape: src, Idle: true, Jobs: n + 1, Credits: 2 * n * pages}, dst, options{queue: n + 1, noPool: true, observer: count})
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.close() }()
	all, list := make([]*kv.Pending, 0, n), scattered(n*pages)
	before, mine, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	for i := range n {
		for int(accepted.Load()) < i-atOnce { // they do not all come in one moment: the engine keeps a buffer for each message under way
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			time.Sleep(100 * time.Microsecond)
		}
		r := p.request(pages * model.Groups[0].PageTokens)
		r.Pages = [][]uint32{list[i*pages : (i+1)*pages]}
		q, err := p.d.Fetch(ctx, r)
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	for int(accepted.Load()) < n && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(2 * time.Second) // the first questions come after a second of silence
	there, here, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	if c.Profile != "" {
		if err := heapProfile(filepath.Join(c.Profile, "decoder-heap.pprof")); err != nil {
			return nil, err
		}
	}
	time.Sleep(rest)
	later, now, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	if live := p.d.Stats().Live; live != n {
		return nil, fmt.Errorf("%d of %d attempts are live", live, n)
	}
	perD, perP := float64(here.Heap-mine.Heap)/float64(n), float64(there.Heap-before.Heap)/float64(n)
	row.Values = []Value{
		value("decoder, heap", "MB", []float64{perD * float64(n) / 1e6}).most(32 * float64(n) / 10_000),
		value("prefiller, heap", "MB", []float64{perP * float64(n) / 1e6}).most(32 * float64(n) / 10_000),
		value("decoder, resident", "MB", []float64{(float64(here.RSS) - float64(mine.RSS)) / 1e6}),
		value("prefiller, resident", "MB", []float64{(float64(there.RSS) - float64(before.RSS)) / 1e6}),
		value("decoder, heap of an attempt", "B", []float64{perD}), value("prefiller, heap of an attempt", "B", []float64{perP}),
		value("decoder, processor", "%", []float64{(now.CPU - here.CPU) / rest.Seconds() * 100}),
		value("prefiller, processor", "%", []float64{(later.CPU - there.CPU) / rest.Seconds() * 100}),
	}
	start := time.Now()
	for _, q := range all {
		q.Cancel("measured")
	}
	for _, q := range all {
		select {
		case <-q.Quiesced():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	row.Values = append(row.Values, value("to cancel all", "ms", []float64{millis(time.Since(start))}))
	return []Row{row}, nil
}

func heapProfile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.WriteHeapProfile(f), f.Close())
}

// look is the state of both processes.
func (p *pair) look(ctx context.Context) (there, here state, err error) {
	there, err = p.call(ctx, "state", question{})
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return there, state{Heap: m.HeapAlloc, RSS: residentBytes(), CPU: cpuTime()}, err
}

// residentBytes is the memory of this process that is in use, 0 when nobody knows.
func residentBytes() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0
	}
	n, _ := strconv.ParseUint(fields[1], 10, 50)
	return n * uint64(os.Getpagesize())
}
