package kv_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// vllm#46283: the decode side's pool drained to zero, a little with each prefiller that died. A death is followed by a fence, the fence by
// another look at the count, and then the pages are free.
func TestReg03DeadPrefillerFreesPages(t *testing.T) {
	r := newDecodeRig(t, 8, func(c *proto.DecoderConfig) { c.Tries = 1 })
	for i, c := range []struct {
		name   string
		landed uint64 // before the fence is proved
		cancel bool
		ready  bool
	}{{"nothing", 0, false, false}, {"a part", 31, false, false}, {"all", 32, false, true}, {"cancelled", 31, true, false}, {"all, cancelled", 32, true, false}} {
		p := proto.Peer(i + 1)
		q := r.ask(c.name, 8, nil, "a")
		r.link(p)
		d := one[*proto.Dispatch](&r.sayings, p)
		if c.cancel {
			r.m.Cancel(r.now, q, nil)
		}
		r.m.PeerDown(r.now, p, nil)
		if r.quiet[q] || r.pool.Counts().Leased != 8 {
			t.Fatalf("%s: quiet %v, pages %+v: a death proves nothing", c.name, r.quiet[q], r.pool.Counts())
		}
		if len(r.fences) != i+1 || r.fences[i] != p {
			t.Fatalf("%s: fences %v", c.name, r.fences)
		}
		if i == 1 { // stopped in mid-copy at first
			r.m.Unfenced(r.now, p, hawser.ErrUnfenced)
			if h := r.m.Health(); h.Quarantined != 8 || r.pool.Counts().Free != 0 {
				t.Errorf("%s: %+v, %+v while the fence has no proof", c.name, h, r.pool.Counts())
			}
			r.pass(3 * time.Second)
			if again := len(r.fences); again < 2 {
				t.Errorf("%s: %d fences: nobody tries again", c.name, again)
			}
			r.fences = r.fences[:i+1]
		}
		r.landed[d.Seq][p] = c.landed // the last ones come out of the queue with the fence
		r.m.Fenced(r.now, p)
		r.check()
		if _, ok := r.ready[q]; ok != c.ready || !r.quiet[q] {
			t.Errorf("%s: ready %v, ended with %v, quiet %v", c.name, ok, r.ended[q], r.quiet[q])
		}
		r.m.Release(r.now, q)
		r.allFree()
		r.pass(time.Minute)
	}
}

// vllm#48633: corruption when the beginning of a prompt was here already: lists of pages were aligned by their length. Pages have
// logical numbers on the wire.
func TestReg04PrefixNotTrimmed(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, PageTokens: 8, Pages: 128})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 256})
		e := newLLM(t, src, kv.PrefillerConfig{Verify: true})
		d := newDecoder(t, dst, kv.DecoderConfig{Verify: true})
		blocks := pool.Hashes(pool.Hash{}, make([]uint32, 500), 4)
		for i, tokens := range []int{21, 30, 31, 100, 57, 333, 334, 500} { // 21 ends within a page of both sides
			fetch(t, d, dst, kv.FetchRequest{
				ID: fmt.Sprint(i), Prompt: prompt("shared", tokens), Blocks: blocks[:tokens/4], From: from(src.eng), Tail: i%2 == 0,
			})
		}
		idle(t, d, dst, e)
	})
	// What does not begin where the span begins is refused, not aligned.
	r := newPrefillRig(t, layout.Spec{Model: tiny, Pages: 64})
	r.link(1, "d", layout.Spec{Model: tiny, Pages: 64})
	for _, shift := range []int{-1, 1} {
		m := r.dispatch(1, "r", proto.Span{First: 8, N: 20})
		for i := range m.Groups[0].Pages {
			m.Groups[0].Pages[i].Logical += uint32(shift)
		}
		r.say(1, m)
		if no := one[*proto.Reject](&r.sayings, 1); no.Code != proto.CodeInvalid {
			t.Errorf("pages shifted by %d: %+v", shift, no)
		}
	}
}

// sglang#15674: grouped heads from two ranks to one died at 128 concurrent requests, of too many small writes. Writes are merged, and only so
// many are outstanding.
func TestReg16HeteroTPBounded(t *testing.T) {
	r := newPrefillRig(t, layout.Spec{Model: tiny, TP: 2, Pages: 8192})
	r.link(1, "d", layout.Spec{Model: tiny, TP: 1, Pages: 8192})
	want := 0
	for i := range 128 {
		m := r.dispatch(1, fmt.Sprint(i), proto.Span{N: 256})
		r.say(1, m)
		one[*proto.Accept](&r.sayings, 1)
		want += int(m.Expected)
		r.compute(r.jobs[len(r.jobs)-1], 256)
	}
	r.completeAll()
	if r.writes != want || r.most > proto.DefaultWrites || r.ops*8 > r.writes {
		t.Errorf("%d writes in %d operations, at most %d outstanding: want %d writes, several in an operation, at most %d outstanding",
			r.writes, r.ops, r.most, want, proto.DefaultWrites)
	}
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, TP: 2, Pages: 4096})
		dst := newSide(t, "d", network, layout.Spec{Model: small, TP: 1, Pages: 4096})
		e := newLLM(t, src, kv.PrefillerConfig{})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		var wg sync.WaitGroup
		for i := range 128 {
			key := fmt.Sprint(i)
			wg.Go(func() {
				fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 100), From: from(src.eng)})
			})
		}
		wg.Wait()
		idle(t, d, dst, e)
	})
}

// sglang#28651: an outage of an hour after aborts: each failure brought more work. Failures are said at once, retries have a budget, and
// those after a death are paced.
func TestReg18NoCollapse(t *testing.T) {
	const requests = 300
	r := newDecodeRig(t, 4096, func(c *proto.DecoderConfig) {
		c.Topology = topologyOf(t, layout.Spec{Model: tiny, Pages: 4096}, 1)
		c.Tries = 100
	})
	var all []proto.Request
	for i := range requests {
		all = append(all, r.ask(fmt.Sprint(i), 1, nil, "a", "b"))
		if i == 0 {
			r.link(1)
		}
	}
	dispatched := 0
	for range 2000 { // the prefiller refuses all, as long as somebody asks
		for _, p := range []proto.Peer{1, 2} {
			for _, m := range heard[*proto.Dispatch](&r.sayings, p) {
				dispatched++
				r.say(p, &proto.Reject{Seq: m.Seq, Code: proto.CodeBusy, RetryAfter: time.Millisecond})
			}
		}
		for len(r.connects) > 0 {
			r.link(2)
		}
		r.pass(10 * time.Millisecond)
	}
	if most := requests + 2*requests/10 + 3; dispatched > most || dispatched <= requests { // two windows of 10 s
		t.Errorf("%d dispatches for %d requests that are all refused, want some retries and at most %d in all", dispatched, requests, most)
	}
	for _, q := range all {
		if r.ended[q] == nil {
			t.Fatal("a request that is always refused does not end")
		}
	}
	r.pass(time.Minute)

	// A death: every request goes on, but not all at once.
	for i := range requests {
		r.ask(fmt.Sprint("second ", i), 1, nil, "a", "b")
	}
	if n := len(heard[*proto.Dispatch](&r.sayings, 1)); n != requests {
		t.Fatalf("%d dispatches", n)
	}
	r.m.PeerDown(r.now, 1, nil)
	r.m.Fenced(r.now, 1)
	retries := func() (n int) {
		for _, m := range heard[*proto.Dispatch](&r.sayings, 2) {
			n++
			r.say(2, &proto.Accept{Seq: m.Seq})
		}
		return n
	}
	if n := retries(); n != 32 {
		t.Errorf("%d retries at once after a death, want 32", n)
	}
	total := 32
	for range 20 { // shorter than a Dispatch is repeated
		r.pass(50 * time.Millisecond)
		total += retries()
	}
	if total < 32+190 || total > 32+210 {
		t.Errorf("%d retries in the next second, want 200", total-32)
	}
	for range 20 {
		r.pass(50 * time.Millisecond)
		total += retries()
	}
	if total != requests {
		t.Errorf("%d retries in the end, want all %d", total, requests)
	}
}

// TensorRT-LLM#12313: what looks for requests that are over ran only when new ones came. Time has a goroutine of its own.
func TestReg23ReaperWithoutTraffic(t *testing.T) {
	src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
	stuck := make(chan struct{})
	e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
		e.wait = func(j *kv.Job, _ int) bool {
			select {
			case <-j.Done():
			case <-stuck:
			}
			return false
		}
	})
	defer close(stuck)
	puppet := newPuppet(t, "shm")
	d := puppet.decodeFrom(e, puppetMemory(t, puppet))
	ask := d.dispatch("r", 100, 2*time.Second) // long enough to look at the pages
	puppet.say(d.to, d.head, ask)
	hear[*proto.Accept](puppet)
	if src.pools[0].Counts().Leased == 0 {
		t.Error("it holds no pages")
	}
	failed, _ := hear[*proto.Failed](puppet) // and not a message in between
	if failed.Seq != ask.Seq || failed.Code != proto.CodeLate || !failed.Exact {
		t.Errorf("%+v", failed)
	}
	allFree(t, "prefiller", src.pools)

	dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	dec := newDecoder(t, dst, kv.DecoderConfig{})
	p, err := dec.Fetch(limit(t), kv.FetchRequest{ID: "r2", Prompt: prompt("r2", 100), From: from(src.eng), Deadline: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(limit(t)); !errors.Is(err, proto.ErrDeadline) {
		t.Errorf("%v, want the deadline", err)
	}
	quiet(t, p)
	allFree(t, "decoder", dst.pools)
	allFree(t, "prefiller", src.pools)
}

// dynamo#7489, #4917, TensorRT-LLM#13713, #13796: a request that was given up tore the connection of all others down, and scaling down lost
// what had been computed. A cancel is of one attempt; Drain waits.
func TestReg24DrainDeliversPosted(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 1024})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 1024})
		wait, open := gate()
		e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) { e.wait = wait })
		defer open()
		down := &deaths{}
		d := newDecoder(t, dst, kv.DecoderConfig{Observer: down.note})
		var all []*kv.Pending
		for i := range 20 {
			key := fmt.Sprint(i)
			p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 100), From: from(src.eng), Tail: true})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		eventually(t, func() error {
			if n := e.p.Stats().Accepted; n != 20 {
				return fmt.Errorf("%d accepted", n)
			}
			return nil
		})
		for i := 0; i < len(all); i += 2 {
			all[i].Cancel("the user has left")
			quiet(t, all[i])
		}
		drains(t, e.p.Drain)
		down.mu.Lock()
		if !down.last.IsZero() {
			t.Errorf("a link went down because of a cancel: %v", down.err)
		}
		down.mu.Unlock()
		open()
		for i, p := range all {
			res, err := p.Wait(limit(t))
			if i%2 == 0 {
				if !errors.Is(err, proto.ErrCancelled) {
					t.Error(err)
				}
				continue
			}
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				continue
			}
			if n, first := dst.wrong(contentOf(prompt(fmt.Sprint(i), 100)), res.Spans, res.Pages); n != 0 {
				t.Error(first)
			}
			res.Release()
		}
		if err := e.p.Drain(limit(t)); err != nil {
			t.Error(err)
		}
		idle(t, d, dst, e)
	})
}

// sglang#6193, Mooncake#1207, #281: "Bad address" when memory was registered, and no more. The error says which memory, how long, and why.
func TestReg25RegistrationNamed(t *testing.T) {
	const size = 1 << 20
	for _, network := range networks {
		eng := openEngine(t, hawser.Options{Name: "d", Require: network})
		b, err := syscall.Mmap(-1, 0, size, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := syscall.Munmap(b); err != nil {
				t.Error(err)
			}
		}()
		_, err = eng.Register(b, hawser.RegisterOptions{})
		at := address(b)
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("%v: want the address %s and the size %d", err, at, size)
		}
	}
	m := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	short, err := m.eng.Alloc(4096, hawser.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	top := &layout.Topology{Members: []layout.Geometry{m.g}}
	want := fmt.Sprint(m.g.RegionBytes()[0])
	for _, regions := range [][]*hawser.Region{{short}, {nil}} {
		_, err = kv.NewDecoder(m.eng, kv.DecoderConfig{Instance: "d", Topology: top, Regions: regions, Pools: m.pools})
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "region 0") || !strings.Contains(err.Error(), want) {
			t.Errorf("decoder: %v: want the region and %s bytes", err, want)
		}
		_, err = kv.NewPrefiller(m.eng, kv.PrefillerConfig{Instance: "p", Topology: top, Regions: regions, Pages: 64}, nil)
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "region 0") || !strings.Contains(err.Error(), want) {
			t.Errorf("prefiller: %v: want the region and %s bytes", err, want)
		}
	}
}

// address is that of the first byte.
func address(b []byte) string { return strings.TrimPrefix(fmt.Sprintf("%p", b), "0x") }
