package kv_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// fetch fetches a prompt whole and checks every byte.
func fetch(t *testing.T, d *kv.Decoder, m *side, r kv.FetchRequest) {
	t.Helper()
	p, err := d.Fetch(limit(t), r)
	if err != nil {
		t.Error(err)
		return
	}
	res, err := p.Wait(limit(t))
	if err != nil {
		t.Error(err)
		return
	}
	if n, first := m.wrong(contentOf(r.Prompt), res.Spans, res.Pages); n != 0 {
		t.Errorf("request %s: %d rows are wrong: %s", r.ID, n, first)
	}
	if r.Tail {
		var tail [64]byte
		if _, err := res.ReadTail(tail[:]); err != nil || binary.LittleEndian.Uint64(tail[:]) != contentOf(r.Prompt) {
			t.Errorf("request %s: tail %x, %v", r.ID, tail[:8], err)
		}
	}
	quiet(t, p)
	res.Release()
	if r.Tail {
		if _, err := res.ReadTail(make([]byte, 64)); err == nil {
			t.Errorf("request %s: the tail is read after its release", r.ID)
		}
	}
}

func TestFetch(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		for _, words := range []bool{false, true} {
			src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 256})
			dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 128})
			newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) { e.words = words })
			d := newDecoder(t, dst, kv.DecoderConfig{})
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					key := fmt.Sprint(i)
					fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 1+i*7), From: from(src.eng), Tail: i%2 == 0})
				})
			}
			wg.Wait()
			allFree(t, "decoder", dst.pools)
			allFree(t, "prefiller", src.pools)
		}
	})
}

// TestUnequalSides moves between layouts that differ, with digests.
func TestUnequalSides(t *testing.T) {
	wide := small
	wide.Groups = []layout.Group{{PageTokens: 16, KVHeads: 8, HeadDim: 16, ElemSize: 2, Planes: 2}}
	latent := small
	latent.Groups = []layout.Group{{PageTokens: 16, KVHeads: 1, HeadDim: 576, ElemSize: 2, Planes: 1}}
	for _, c := range []struct {
		name     string
		model    layout.Model
		src, dst layout.Spec
	}{
		{"TP 4 to 1", wide, layout.Spec{TP: 4}, layout.Spec{TP: 1}},
		{"TP 1 to 4", wide, layout.Spec{TP: 1}, layout.Spec{TP: 4}},
		{"TP 4 to 2, NHD", wide, layout.Spec{TP: 4, Order: layout.NHD}, layout.Spec{TP: 2, Order: layout.NHD}},
		{"latent, 8 copies to 1", latent, layout.Spec{TP: 8}, layout.Spec{TP: 1}},
		{"pages of 16 to 32", wide, layout.Spec{TP: 2}, layout.Spec{TP: 1, PageTokens: 32}},
		{"pages of 32 to 16, a region per layer", wide, layout.Spec{TP: 1, PageTokens: 32, LayerRegions: true}, layout.Spec{TP: 2, LayerRegions: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onNetworks(t, func(t *testing.T, network string) {
				c.src.Model, c.dst.Model, c.src.Pages, c.dst.Pages = c.model, c.model, 64, 64
				src, dst := newSide(t, "p", network, c.src), newSide(t, "d", network, c.dst)
				newLLM(t, src, kv.PrefillerConfig{Verify: true})
				d := newDecoder(t, dst, kv.DecoderConfig{Verify: true})
				for i, tokens := range []int{1, 15, 16, 17, 100, 255} {
					key := fmt.Sprint(i)
					fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, tokens), From: from(src.eng), Tail: true})
				}
			})
		})
	}
}

// TestRails moves between 3 rails and 2.
func TestRails(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		rails := func(n int) (all []hawser.Rail) {
			for range n {
				all = append(all, hawser.Rail{Provider: network})
			}
			return all
		}
		src := newSideOn(t, openEngine(t, hawser.Options{Name: "p", Rails: rails(3)}), layout.Spec{Model: small, Pages: 256})
		dst := newSideOn(t, openEngine(t, hawser.Options{Name: "d", Rails: rails(2)}), layout.Spec{Model: small, Pages: 256})
		newLLM(t, src, kv.PrefillerConfig{Verify: true})
		d := newDecoder(t, dst, kv.DecoderConfig{Verify: true})
		for i := range 10 {
			key := fmt.Sprint(i)
			fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 500), From: from(src.eng), Tail: true})
		}
	})
}

// TestPrefillFirst meets a prompt that came to the prefiller before its Dispatch, and after.
func TestPrefillFirst(t *testing.T) {
	for _, late := range []bool{false, true} {
		src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 256})
		dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 128})
		e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) { e.unknown = true })
		d := newDecoder(t, dst, kv.DecoderConfig{})
		expect := func() {
			if _, err := e.p.Expect("r", prompt("r", 100)); err != nil {
				t.Error(err)
			}
		}
		if !late {
			expect()
		}
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: proto.Prompt{Key: "r", Tokens: 100}, From: from(src.eng)})
		if err != nil {
			t.Fatal(err)
		}
		if late {
			eventually(t, func() error {
				if s := e.p.Stats(); s.Waiting != 1 {
					return fmt.Errorf("%d jobs wait, want 1", s.Waiting)
				}
				return nil
			})
			expect()
		}
		res, err := p.Wait(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, first := dst.wrong(contentOf(prompt("r", 100)), res.Spans, res.Pages); n != 0 {
			t.Error(first)
		}
		res.Release()
		allFree(t, "decoder", dst.pools)
		allFree(t, "prefiller", src.pools)
	}
}

// TestPollSees has a caller who looks instead of waiting: what it sees of the count only grows, what has landed counts although nobody has
// been woken, and the bytes are there when Poll says so.
func TestPollSees(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 64})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 64})
		begin := make(chan struct{}, 1)
		newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
			e.wait = func(_ *kv.Job, layer int) bool {
				if layer == 0 {
					<-begin
				}
				return true
			}
		})
		defer close(begin)
		d := newDecoder(t, dst, kv.DecoderConfig{})
		for i := range 10 { // now and then another message comes as soon as the last write, and has the count looked at
			key := fmt.Sprint(i)
			p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 40), From: from(src.eng)})
			if err != nil {
				t.Fatal(err)
			}
			seesAll(t, p, func() { begin <- struct{}{} })
			res, err := p.Wait(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			if wrong, first := dst.wrong(contentOf(prompt(key, 40)), res.Spans, res.Pages); wrong > 0 {
				t.Errorf("%d rows differ, first %s", wrong, first)
			}
			if !p.Poll() {
				t.Error("Poll takes back what it has said")
			}
			res.Release()
			quiet(t, p) // asked for after it has happened
			quiet(t, p)
		}
	})
}

// seesAll polls until a request is ready. Its writes begin when nobody is woken by them any more.
func seesAll(t *testing.T, p *kv.Pending, begin func()) {
	t.Helper()
	ctx, begun, last := limit(t), false, uint64(0)
	for ctx.Err() == nil {
		n, of := p.Landed()
		if of > 0 {
			if n < last || n > of {
				t.Fatalf("%d of %d after %d have landed", n, of, last)
			}
			last = n
			p.Unwatch()
			if !begun {
				begin()
				begun = true
			}
		}
		if p.Poll() {
			return
		}
		if of > 0 && n == of {
			t.Fatalf("Poll does not see that all %d writes have landed", n)
		}
		runtime.Gosched()
	}
	t.Fatal("never ready")
}
