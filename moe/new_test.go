package moe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
)

// newPair makes two ranks of different configurations meet, and returns what New says to each.
func newPair(ctx context.Context, t testing.TB, engines []*hawser.Engine, desk Rendezvous, a, b Config) (groups [2]*Group, errs [2]error) {
	t.Helper()
	be := newBackend(t)
	var wg sync.WaitGroup
	for i, c := range []Config{a, b} {
		wg.Go(func() {
			c.Rank = i
			if groups[i], errs[i] = New(ctx, engines[i], be, desk, c); errs[i] == nil {
				t.Cleanup(func() {
					if err := groups[i].Close(within(t)); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
	return groups, errs
}

// TestConfigMismatch: both sides name the field in which they differ. Defaults count as what they come to.
func TestConfigMismatch(t *testing.T) {
	es := engines(t, "shm", 2)
	good := tiny(2)
	for field, change := range map[string]func(*Config){
		"MaxRanks":     func(c *Config) { c.MaxRanks = 3 },
		"MaxTokens":    func(c *Config) { c.MaxTokens = 13 },
		"Hidden":       func(c *Config) { c.Hidden = 9 },
		"TopK":         func(c *Config) { c.TopK = 1 },
		"Experts":      func(c *Config) { c.Experts = 3 },
		"In":           func(c *Config) { c.In = backend.BF16 },
		"Wire":         func(c *Config) { c.Wire = backend.F16 },
		"Scale":        func(c *Config) { c.Scale = backend.F32x128 },
		"Meta":         func(c *Config) { c.Meta = true },
		"FirstChunk":   func(c *Config) { c.FirstChunk = 4 },
		"ChunkRecords": func(c *Config) { c.ChunkRecords = 3 },
		"PoolRecords":  func(c *Config) { c.PoolRecords = 7 },
		"Lanes":        func(c *Config) { c.Lanes = 1 },
	} {
		other := good
		change(&other)
		_, errs := newPair(within(t), t, es, &Local{Ranks: 2}, good, other)
		for i, err := range errs {
			if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), field+" is ") || !strings.Contains(err.Error(), fmt.Sprintf("at rank %d", 1-i)) {
				t.Errorf("%s, rank %d: %v", field, i, err)
			}
		}
	}
	a, b := good, good
	b.Tag, a.Tag = 4, 5
	ctx, cancel := context.WithTimeout(within(t), 300*time.Millisecond) // so long rank 0 waits for rank 1
	defer cancel()
	if _, errs := newPair(ctx, t, es, &Local{Ranks: 2}, a, b); !errors.Is(errs[1], hawser.ErrInvalid) || !strings.Contains(errs[1].Error(), "Tag is 4 here and 5 at rank 0") {
		t.Errorf("Tag: %v", errs[1])
	}
	a, b = good, good
	a.Lanes, b.Lanes, b.MaxRecv, b.StreamRows, b.StepTimeout = 2, 0, 9, 7, time.Second
	a.Tag = 5
	if _, errs := newPair(within(t), t, es, &Local{Ranks: 2}, a, b); errs[0] != nil || errs[1] != nil {
		t.Errorf("what may differ, and a default: %v", errs)
	}
}

// TestConfigRefused: what a Config lacks is named.
func TestConfigRefused(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"MaxRanks": func(c *Config) { c.MaxRanks = 0 }, "Rank": func(c *Config) { c.Rank = 2 }, "MaxTokens": func(c *Config) { c.MaxTokens = 0 },
		"Hidden": func(c *Config) { c.Hidden = 0 }, "TopK": func(c *Config) { c.TopK = 5 }, "Experts": func(c *Config) { c.Experts = -1 },
		"In": func(c *Config) { c.In = backend.I64 }, "Wire": func(c *Config) { c.Wire = backend.E4M3 }, "Scale": func(c *Config) { c.Scale = 9 },
		"Layout": func(c *Config) { c.Layout = 2 }, "BatchCap": func(c *Config) { c.BatchCap = -1 }, "ExpertAlign": func(c *Config) { c.ExpertAlign = -1 },
		"FirstChunk": func(c *Config) { c.FirstChunk = -2 }, "ChunkRecords": func(c *Config) { c.ChunkRecords = -1 },
		"PoolRecords": func(c *Config) { c.PoolRecords = 1 }, "MaxRecv": func(c *Config) { c.MaxRecv = -1 }, "StreamRows": func(c *Config) { c.StreamRows = 1 },
		"Budget": func(c *Config) { c.Budget = -1 }, "OnOverflow": func(c *Config) { c.OnOverflow = 2 }, "Lanes": func(c *Config) { c.Lanes = 9 },
		"Tag": func(c *Config) { c.Tag = 63 }, "StepTimeout": func(c *Config) { c.StepTimeout = -1 },
	} {
		c := tiny(2)
		change(&c)
		if _, err := Sizes(c); !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestTagTaken: who has it is named; with none configured rank 0 proposes the lowest that is free, beside the engine's own values.
func TestTagTaken(t *testing.T) {
	es := engines(t, "shm", 2)
	for i, e := range es {
		if _, err := e.Imms().Take(); err != nil { // it has values of tag 63
			t.Fatal(err)
		}
		for tag := uint32(1); tag < 3; tag++ {
			if i == 1 && tag == 2 {
				continue
			}
			if _, err := e.Imms().Reserve(fmt.Sprint("somebody ", tag), tag<<26, 26, 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := tiny(2)
	c.Tag = 1
	brief, cancel := context.WithTimeout(within(t), 300*time.Millisecond) // so long rank 1 waits for rank 0
	defer cancel()
	if _, errs := newPair(brief, t, es, &Local{Ranks: 2}, c, c); !errors.Is(errs[0], hawser.ErrBusy) || !strings.Contains(errs[0].Error(), "somebody 1") {
		t.Errorf("a tag that is taken: %v", errs[0])
	}
	c.Tag = 0
	first, errs := newPair(within(t), t, es, &Local{Ranks: 2}, c, c)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if _, err := es[1].Imms().Reserve("somebody else", 4<<26, 26, 10); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(within(t), 300*time.Millisecond)
	defer cancel()
	be, desk := newBackend(t), &Local{Ranks: 2}
	var wg sync.WaitGroup
	for i, e := range es { // rank 0 proposes 4
		wg.Go(func() {
			c := c
			c.Rank = i
			_, errs[i] = New(ctx, e, be, desk, c)
		})
	}
	wg.Wait()
	var missing *ActivateError
	if !errors.Is(errs[1], hawser.ErrBusy) || !strings.Contains(errs[1].Error(), "somebody else") || !errors.As(errs[0], &missing) || missing.Missing[0] != 1 {
		t.Errorf("a tag that is taken at rank 1: %v", errs)
	}
	if tags := []int{first[0].tag, first[1].tag}; tags[0] != 3 || tags[1] != 3 {
		t.Errorf("tags %v, want 3", tags)
	}
}

// TestGroupsShareEngines: groups of the same engines have their own tags and messages, and one takes a tag that another gave back.
func TestGroupsShareEngines(t *testing.T) {
	es := engines(t, "tcp", 2)
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			c := tiny(2)
			c.Tag = n + 1
			x := &team{TB: t, engines: es, backend: newBackend(t), cfg: c, desk: &Local{Ranks: 2}, ranks: make([]*rank, 2), rng: newRand(uint64(n))}
			for epoch := uint32(2); epoch < 4; epoch++ {
				var both sync.WaitGroup
				for i := range 2 {
					both.Go(func() {
						if err := x.join(i, es[i]); err != nil {
							t.Error(err)
						}
					})
				}
				if both.Wait(); t.Failed() {
					return
				}
				x.steps(3)
				got, errs := x.activate(within(t), 2, 0, 1)
				if err := errors.Join(errs...); err != nil {
					t.Errorf("group %d: %v %v", n, got, err)
					return
				}
				x.steps(3)
				x.desk = &Local{Ranks: 2}
				for _, r := range x.ranks {
					both.Go(func() {
						if err := r.g.Close(within(t)); err != nil {
							t.Error(err)
						}
					})
				}
				both.Wait()
			}
		})
	}
	wg.Wait()
	stations.mu.Lock()
	defer stations.mu.Unlock()
	for _, e := range es {
		if stations.of[e] != nil {
			t.Error("messages are taken for no group")
		}
	}
}

// TestSizesRegistered: what Sizes says is what is registered, and what the process grows by when all of it is used.
func TestSizesRegistered(t *testing.T) {
	c := Config{MaxRanks: 2, MaxTokens: 128, Hidden: 2048, TopK: 8, Experts: 64, In: backend.E4M3, Wire: backend.BF16, Scale: backend.F32x128, Meta: true}
	for _, budget := range []int64{0, 1 << 20} {
		c.Budget = budget
		s, err := Sizes(c)
		if err != nil {
			t.Fatal(err)
		}
		if streamed := budget > 0; s.Layout.Streamed != streamed {
			t.Fatalf("budget %d: streamed %v: %s", budget, s.Layout.Streamed, s.Why)
		}
		before := resident(t)
		x := newTeam(t, "shm", c, 0)
		for _, r := range x.ranks {
			registered := int64(0)
			for _, m := range r.mems {
				for _, a := range m.areas {
					registered += int64(a.Len())
				}
			}
			if want := int64(s.Layout.Lanes) * s.Regions.Total(); registered != want || r.g.layout.Streamed != s.Layout.Streamed {
				t.Errorf("budget %d: %d bytes are registered, want %d", budget, registered, want)
			}
			for _, m := range r.mems {
				for _, a := range m.areas {
					for i := 0; i < int(a.Len()); i += 4096 {
						a.Bytes()[i] = 1
					}
				}
			}
		}
		want := 2 * int64(s.Layout.Lanes) * s.Regions.Total()
		if got := resident(t) - before; got < want || got > want+want/8 {
			t.Errorf("budget %d: the process has grown by %d MB, Sizes says %d MB", budget, got>>20, want>>20)
		}
		if r := x.ranks[0]; r.mems[0].areas[exec.Blocks].Len() != uint64(exec.PlacesOf(r.cfg).Bytes(exec.Blocks)) {
			t.Error("blocks have another size")
		}
	}
}

// resident is the memory of this process that others may map, as registered memory is.
func resident(t testing.TB) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(b), "RssShmem:")
	if _, err := fmt.Sscan(line, &n); !ok || err != nil {
		t.Skipf("this kernel does not tell: %v", err)
	}
	return n << 10
}

// TestWarmup: identical tokens of all ranks, with the defaults of Config, end no group, however many rows come to one rank.
func TestWarmup(t *testing.T) {
	for _, budget := range []int64{0, 1} { // in one piece, and streamed by default
		c := tiny(3)
		c.FirstChunk, c.ChunkRecords, c.PoolRecords, c.Budget, c.StreamRows = 0, 0, 0, budget, 0
		c.ChunkRecords = 8
		if budget > 0 {
			c.StreamRows = 24
		}
		x := newTeam(t, "sim", c, 0)
		for range 2 {
			each(t, x.ranks, func(r *rank) error {
				w := dummies(newRand(uint64(r.i)), r, max(r.cfg.MaxRecv, r.cfg.StreamRows))
				s, err := r.lanes[0].DispatchSend(within(t), &w.in)
				if err != nil {
					return err
				}
				_, err = s.Recv(within(t), &w.out)
				if errors.Is(err, hawser.ErrLimit) {
					err = r.streamRest(within(t), s, w)
				} else if err == nil {
					err = r.finish(w)
				}
				if err != nil {
					return err
				}
				w.check(t, r)
				return nil
			})
			x.steps(1)
		}
	}
}

// finish ends a step on lane 0 whose rows are there.
func (r *rank) finish(w *work) error {
	h := &r.lanes[0].handle
	r.compute(w, h.Counts(), h.Offsets(), 0)
	c, err := h.CombineSend(context.Background(), w.y)
	if err != nil {
		return err
	}
	return c.Recv(context.Background(), w.sum, CombineOpts{})
}

// TestCloseInMidStep: who waits gets ErrClosed, peers hear of it, and nothing is left behind: goroutines, regions, immediates.
func TestCloseInMidStep(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		es, be := engines(t, network, 3), newBackend(t)
		c := tiny(3)
		round := func() {
			x := &team{TB: t, engines: es, backend: be, cfg: c, desk: &Local{Ranks: 3}, ranks: make([]*rank, 3), rng: newRand(1)}
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					if err := x.join(i, es[i]); err != nil {
						t.Error(err)
					}
				})
			}
			if wg.Wait(); t.Failed() {
				t.FailNow()
			}
			x.steps(1)
			waits := make(chan error, 4)
			for _, r := range x.ranks[:2] { // rank 2 does not take part: nobody gets further than Recv
				for lane := range r.lanes {
					go func() {
						w := dummies(newRand(1), r, r.cfg.Full)
						waits <- r.step(within(t), lane, w, 0)
					}()
				}
			}
			for _, r := range x.ranks[:2] {
				for _, l := range r.lanes {
					for !l.inside.Load() {
						time.Sleep(time.Millisecond) // between two looks
					}
				}
			}
			if err := x.ranks[0].g.Close(within(t)); err != nil {
				t.Error(err)
			}
			for range cap(waits) {
				if err := <-waits; !errors.Is(err, hawser.ErrClosed) {
					t.Errorf("who waits: %v", err)
				}
			}
			for _, r := range x.ranks { // twice is fine
				for range 2 {
					if err := r.g.Close(within(t)); err != nil {
						t.Error(err)
					}
				}
				for _, l := range r.lanes { // what comes late finds no memory
					l.Cancel(nil)
					l.peerDown((r.i+1)%3, noSession)
					if _, err := l.DispatchSend(within(t), &Input{}); !errors.Is(err, hawser.ErrClosed) {
						t.Errorf("a step after the end: %v", err)
					}
					if _, err := l.pending.Recv(within(t), &Output{}); !errors.Is(err, hawser.ErrClosed) {
						t.Errorf("the rest of a step after the end: %v", err)
					}
				}
				if _, err := r.g.Activate(within(t), x.view(2, 0, 1, 2)); !errors.Is(err, hawser.ErrClosed) {
					t.Errorf("activate after the end: %v", err)
				}
			}
		}
		round()
		before := leftOf(t, es)
		for range 3 {
			round()
		}
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) { // between two looks
			after := leftOf(t, es)
			if after.goroutines <= before.goroutines && after.files <= before.files && after.counters <= before.counters && after.tags == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("left behind: %+v, before %+v", after, before)
			}
		}
	})
}

// left is what groups could leave behind.
type left struct {
	goroutines int
	files      int // regions are files, too
	counters   int
	tags       int
}

func leftOf(t testing.TB, es []*hawser.Engine) (l left) {
	t.Helper()
	l.goroutines = runtime.NumGoroutine()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	l.files = len(files)
	for _, e := range es {
		l.counters += e.Stats().Counters
		for tag := range uint32(3) {
			r, err := e.Imms().Reserve("test", (tag+1)<<26, 26, 10)
			if err != nil {
				l.tags++
				continue
			}
			r.Close()
		}
	}
	return l
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
