package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// membersOf are the sides of an instance of n members, which share its ranks evenly.
func membersOf(t *testing.T, name, network string, s layout.Spec, n int) (all []*side, top *layout.Topology) {
	t.Helper()
	top = &layout.Topology{}
	for i := range n {
		s.First, s.Ranks = i*s.TP/n, s.TP/n
		m := newSide(t, fmt.Sprint(name, i), network, s)
		all = append(all, m)
		top.Members = append(top.Members, m.g)
	}
	return all, top
}

func prefillersOf(t *testing.T, all []*side, top *layout.Topology, change ...func(*llm)) (engines []*llm) {
	t.Helper()
	for i, m := range all {
		engines = append(engines, newLLM(t, m, kv.PrefillerConfig{Topology: top, Member: i, Verify: true}, change...))
	}
	return engines
}

func sourceOf(all []*side) []proto.Source {
	var engines []*hawser.Engine
	for _, m := range all {
		engines = append(engines, m.eng)
	}
	return from(engines...)
}

// wide has heads for eight ranks, latent one that every rank has a copy of.
var (
	wide = layout.Model{
		Name: "wide", Layers: 3, Groups: []layout.Group{{PageTokens: 8, KVHeads: 8, HeadDim: 16, ElemSize: 2, Planes: 2}},
	}
	latent = layout.Model{
		Name: "latent", Layers: 3, Groups: []layout.Group{{PageTokens: 8, KVHeads: 1, HeadDim: 64, ElemSize: 2, Planes: 1}},
	}
	// windowed mixes layers of full and of sliding-window attention.
	windowed = layout.Model{
		Name: "windowed", Layers: 4, LayerGroups: []uint8{0, 1, 1, 0},
		Groups: []layout.Group{
			{PageTokens: 4, KVHeads: 4, HeadDim: 16, ElemSize: 2, Planes: 2},
			{PageTokens: 4, KVHeads: 4, HeadDim: 16, ElemSize: 2, Planes: 2, Window: 20},
		},
	}
)

// TestSeveralMembers moves between instances of several processes on both sides.
func TestSeveralMembers(t *testing.T) {
	for _, c := range []struct {
		name   string
		model  layout.Model
		tp     [2]int
		member [2]int
	}{
		{"TP 4 in 2 members to TP 2 in 2", wide, [2]int{4, 2}, [2]int{2, 2}},
		{"TP 2 in 2 members to TP 4 in 4", wide, [2]int{2, 4}, [2]int{2, 4}},
		{"latent, 4 copies in 2 members to 2 in 2", latent, [2]int{4, 2}, [2]int{2, 2}},
		{"latent, 8 copies in 4 members to 1", latent, [2]int{8, 1}, [2]int{4, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onNetworks(t, func(t *testing.T, network string) {
				src, top := membersOf(t, "p", network, layout.Spec{Model: c.model, TP: c.tp[0], Pages: 128}, c.member[0])
				engines := prefillersOf(t, src, top)
				dst, dtop := membersOf(t, "d", network, layout.Spec{Model: c.model, TP: c.tp[1], Pages: 128}, c.member[1])
				var ds []*kv.Decoder
				for i, m := range dst {
					ds = append(ds, newDecoder(t, m, kv.DecoderConfig{Topology: dtop, Member: i, Verify: true}))
				}
				for i := range 6 {
					fetchByAll(t, ds, dst, sourceOf(src), fmt.Sprint(i), 1+i*37)
				}
				for i, e := range engines {
					allFree(t, fmt.Sprint("prefiller ", i), e.pools)
					if e.p.Stats().Writes == 0 {
						t.Errorf("member %d has written nothing", i)
					}
				}
			})
		})
	}
}

// fetchByAll fetches a prompt into pages that one scheduler chose for all members, on each of them.
func fetchByAll(t *testing.T, ds []*kv.Decoder, dst []*side, from []proto.Source, key string, tokens int) {
	t.Helper()
	size := dst[0].g.Groups[0].PageTokens
	lease, err := dst[0].pools[0].Reserve((tokens + size - 1) / size)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i, d := range ds {
		wg.Go(func() {
			fetch(t, d, dst[i], kv.FetchRequest{
				ID: key, Prompt: prompt(key, tokens), From: from, Tail: true,
				Spans: []proto.Span{{N: tokens}}, Pages: [][]uint32{lease.Pages},
			})
		})
	}
	wg.Wait()
	if err := dst[0].pools[0].Drop(lease, pool.OwnerRequest); err != nil {
		t.Error(err)
	}
}

// TestDetachedMember: a member that has everything says so, and the job of the others does not wait for it.
func TestDetachedMember(t *testing.T) {
	src, top := membersOf(t, "p", "shm", layout.Spec{Model: wide, TP: 2, Pages: 64}, 1)
	e := newLLM(t, src[0], kv.PrefillerConfig{Topology: top, JoinWait: time.Hour})
	dst, dtop := membersOf(t, "d", "shm", layout.Spec{Model: wide, TP: 2, Pages: 64}, 2)
	d0 := newDecoder(t, dst[0], kv.DecoderConfig{Topology: dtop, Member: 0})
	d1 := newDecoder(t, dst[1], kv.DecoderConfig{Topology: dtop, Member: 1})
	r := kv.FetchRequest{ID: "r", Prompt: prompt("r", 8), From: sourceOf(src), Spans: []proto.Span{{First: 8, N: 8}}, Pages: [][]uint32{nil}}
	if err := d0.Warm(limit(t), src[0].eng.Addr()); err != nil {
		t.Fatal(err)
	}
	p, err := d0.Fetch(limit(t), r)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(limit(t)); err != nil || res.Writes != 0 {
		t.Fatalf("%d writes, %v", res.Writes, err)
	}
	r.Spans, r.Pages = []proto.Span{{N: 8}}, [][]uint32{{3}}
	fetch(t, d1, dst[1], r)
	eventually(t, func() error {
		if s := e.p.Stats(); s.Jobs != 0 || s.Waiting != 0 {
			return fmt.Errorf("%d jobs live, %d wait", s.Jobs, s.Waiting)
		}
		return nil
	})
}

// TestWindowGroups: of layers with a window only its pages move.
func TestWindowGroups(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: windowed, TP: 2, Pages: 64})
		dst := newSide(t, "d", network, layout.Spec{Model: windowed, Pages: 48})
		e := newLLM(t, src, kv.PrefillerConfig{Verify: true})
		d := newDecoder(t, dst, kv.DecoderConfig{Verify: true})
		for i, tokens := range []int{1, 19, 20, 21, 24, 25, 150} {
			key := fmt.Sprint(i)
			before := e.p.Stats().Bytes
			fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, tokens), From: from(src.eng), Tail: true})
			idle(t, d, dst, e)
			if tokens != 150 {
				continue
			}
			page := uint64(windowed.Groups[0].PageBytes(4) * 2)
			full, window := uint64(2*38), uint64(2*6) // pages of 150 tokens, of the last 20
			if got := e.p.Stats().Bytes - before; got < (full+window)*page || got > (full+window)*page+64 {
				t.Errorf("%d bytes moved for a window, want those of %d pages of %d bytes and a tail", got, full+window, page)
			}
		}
	})
}

// TestPrefixIsNotSentAgain counts the writes of prompts whose beginning is here, and those that are here whole.
func TestPrefixIsNotSentAgain(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 64})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 64})
		e := newLLM(t, src, kv.PrefillerConfig{})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		tokens := make([]uint32, 100)
		blocks := pool.Hashes(pool.Hash{}, tokens, 4)
		perPage := uint64(small.Layers * small.Groups[0].Planes)
		for _, c := range []struct {
			tokens int
			tail   bool
			pages  uint64 // that are sent
			tails  uint64
		}{
			{40, false, 10, 0}, // 39 tokens: nine full pages and a part of one
			{41, false, 1, 0},
			{41, true, 1, 1},
			{81, false, 10, 0},
			{81, false, 0, 0},
			{100, true, 5, 1},
			{100, true, 0, 1}, // all but the tail is here
		} {
			before := e.p.Stats().Writes
			fetch(t, d, dst, kv.FetchRequest{
				ID: fmt.Sprint(c), Prompt: prompt("shared", c.tokens), Blocks: blocks[:c.tokens/4], From: from(src.eng), Tail: c.tail,
			})
			idle(t, d, dst, e)
			if got, want := e.p.Stats().Writes-before, c.pages*perPage+c.tails; got != want {
				t.Errorf("prompt of %d tokens, tail %v: %d writes, want %d", c.tokens, c.tail, got, want)
			}
		}
	})
}

// TestPreemption takes the source pages away in the middle, twice: what was sent is not sent again.
func TestPreemption(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 256})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 128})
		var mu sync.Mutex
		preempted := map[string]int{}
		e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
			e.wait = func(j *kv.Job, layer int) bool {
				mu.Lock()
				defer mu.Unlock()
				if layer != 1+preempted[j.ID()] || layer > 2 {
					return true
				}
				preempted[j.ID()]++
				j.Preempt()
				return false
			}
			e.aborted = e.again
		})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		const n = 10
		var wg sync.WaitGroup
		writes := uint64(0)
		for i := range n {
			key, tokens := fmt.Sprint(i), 100+i
			writes += uint64((tokens+3)/4*small.Layers*small.Groups[0].Planes) + 1
			wg.Go(func() {
				fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, tokens), From: from(src.eng), Tail: true})
			})
		}
		wg.Wait()
		idle(t, d, dst, e)
		if got := e.p.Stats().Writes; got != writes {
			t.Errorf("%d writes, want %d: each once", got, writes)
		}
		for id, times := range preempted {
			if times != 2 {
				t.Errorf("request %s was preempted %d times, want 2", id, times)
			}
		}
	})
}

// again waits until a preempted job's pages are free, and computes it again in other ones.
func (e *llm) again(j *kv.Job) {
	eventually(e.t, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.leases[j] != nil {
			return errors.New("the job still has its pages")
		}
		return nil
	})
	a := e.Admit(j)
	if a.Verdict != proto.AdmitReady {
		e.t.Errorf("admitted again as %d: %s", a.Verdict, a.Text)
		return
	}
	if err := j.Sourced(a.Source); err != nil {
		e.t.Error(err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tasks <- e.leases[j]
}

// TestTailOnly is requests that want no page but the tail.
func TestTailOnly(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 64})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 64})
		e := newLLM(t, src, kv.PrefillerConfig{})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		var wg sync.WaitGroup
		for i := range 200 { // more than there are tail slots
			key := fmt.Sprint(i)
			wg.Go(func() {
				fetch(t, d, dst, kv.FetchRequest{
					ID: key, Prompt: prompt(key, 4), From: from(src.eng), Tail: true, Spans: []proto.Span{{First: 4, N: 4}}, Pages: [][]uint32{nil},
				})
			})
		}
		wg.Wait()
		idle(t, d, dst, e)
		if got := e.p.Stats().Writes; got != 200 {
			t.Errorf("%d writes, want 200 tails", got)
		}
	})
}

// drains begins a Drain, which has to wait, and does not wait.
func drains(t *testing.T, drain func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := drain(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("drained with requests under way: %v", err)
	}
}

// TestDrainPrefiller delivers what is under way and refuses what comes later; the other prefiller gets it.
func TestDrainPrefiller(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		a := newSide(t, "a", network, layout.Spec{Model: small, Pages: 256})
		b := newSide(t, "b", network, layout.Spec{Model: small, Pages: 256})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 256})
		wait, open := gate()
		first := newLLM(t, a, kv.PrefillerConfig{}, func(e *llm) { e.wait = wait })
		defer open()
		second := newLLM(t, b, kv.PrefillerConfig{})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		sources := slices.Concat(from(a.eng), from(b.eng))
		ask := func(key string) *kv.Pending {
			p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 40), From: sources, Tail: true})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		arrive := func(all []*kv.Pending) {
			for _, p := range all {
				res, err := p.Wait(limit(t))
				if err != nil {
					t.Error(err)
					continue
				}
				res.Release()
			}
		}
		var early, late []*kv.Pending
		for i := range 5 {
			early = append(early, ask(fmt.Sprint("early ", i)))
		}
		eventually(t, func() error {
			if n := first.p.Stats().Accepted; n < 5 {
				return fmt.Errorf("%d attempts accepted, want 5", n)
			}
			return nil
		})
		drains(t, first.p.Drain)
		for i := range 5 {
			late = append(late, ask(fmt.Sprint("late ", i)))
		}
		arrive(late)
		open()
		arrive(early)
		if err := first.p.Drain(limit(t)); err != nil {
			t.Error(err)
		}
		if n := first.p.Stats(); n.Accepted != 5 || n.Failed != 0 || n.Cancelled != 0 || n.Silent != 0 {
			t.Errorf("a prefiller that drains has taken more, or ended what it had badly: %+v", n)
		}
		idle(t, d, dst, first)
		idle(t, d, dst, second)
	})
}

// TestDrainDecoder waits for what is under way and takes nothing new.
func TestDrainDecoder(t *testing.T) {
	src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 256})
	dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	wait, open := gate()
	e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) { e.wait = wait })
	defer open()
	d := newDecoder(t, dst, kv.DecoderConfig{})
	var all []*kv.Pending
	for i := range 10 {
		key := fmt.Sprint(i)
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 100), From: from(src.eng)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		go func() {
			if res, err := p.Wait(limit(t)); err == nil {
				res.Release() // others wait for its pages
			}
		}()
	}
	drains(t, d.Drain)
	if _, err := d.Fetch(limit(t), kv.FetchRequest{ID: "late", Prompt: prompt("late", 4), From: from(src.eng)}); !errors.Is(err, proto.ErrDraining) {
		t.Errorf("fetch after Drain: %v", err)
	}
	open()
	if err := d.Drain(limit(t)); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		select {
		case <-p.Done():
		default:
			t.Error("a request is not done after Drain")
			continue
		}
		if _, err := p.Wait(limit(t)); err != nil {
			t.Error(err)
		}
	}
	idle(t, d, dst, e)
}
