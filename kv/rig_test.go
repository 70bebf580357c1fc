package kv

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// networks are the two that every host has.
var networks = []string{"shm", "tcp"}

func onNetworks(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

// testLog shows what happens when HAWSER_TEST_LOG is set to a level.
func testLog() *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("HAWSER_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// hang bounds every wait of a test: it guards against hangs and asserts nothing.
const hang = time.Minute

// limit guards a test against hanging.
func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until f returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(hang)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

func openEngine(t *testing.T, name, network string) *hawser.Engine {
	t.Helper()
	return openWith(t, hawser.Options{Name: name, Require: network})
}

func openWith(t *testing.T, o hawser.Options) *hawser.Engine {
	t.Helper()
	o.Log = testLog().With("engine", o.Name)
	eng, err := hawser.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := eng.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return eng
}

// small is a geometry whose pages are small enough for thousands of them.
var small = Geometry{"small", 3, Group{PageTokens: 4, KVHeads: 2, HeadDim: 16, ElemSize: 2, Planes: 2}}

// memory is the cache of one side.
type memory struct {
	g      Geometry
	region *hawser.Region
	views  []View
	pool   *Pool
}

func newMemory(t *testing.T, eng *hawser.Engine, g Geometry, pages int, seed uint64) *memory {
	t.Helper()
	pool, err := NewPool(pages, seed)
	if err != nil {
		t.Fatal(err)
	}
	region, err := eng.Alloc(uint64(pages)*g.BytesPerPage(), hawser.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{g: g, region: region, pool: pool}
	size := g.Group.PageBytes()
	for v := range g.Views() {
		m.views = append(m.views, View{Region: region, Base: uint64(v*pages) * size, Stride: size, Pages: pages})
	}
	return m
}

func (m *memory) page(view int, index uint32) []byte {
	size := m.g.Group.PageBytes()
	at := m.views[view].Base + uint64(index)*size
	return m.region.Bytes()[at : at+size]
}

// pattern is the content of byte i of a page.
func pattern(id string, view, page, i int) byte {
	h := uint32(2166136261)
	for _, c := range []byte(id) {
		h = (h ^ uint32(c)) * 16777619
	}
	for _, v := range []int{view, page, i} {
		h = (h ^ uint32(v)) * 16777619
		h ^= h >> 15
	}
	return byte(h >> 8)
}

func (m *memory) write(id string, view, page int, index uint32) {
	b := m.page(view, index)
	for i := range b {
		b[i] = pattern(id, view, page, i)
	}
}

// corrupt counts the bytes of a prompt that are wrong.
func (m *memory) corrupt(id string, pages []uint32) (n int) {
	for view := range m.views {
		for page, index := range pages {
			for i, b := range m.page(view, index) {
				if b != pattern(id, view, page, i) {
					n++
				}
			}
		}
	}
	return n
}

// toy is an inference engine that computes one job after the other, as fast as it can, or as its test lets it.
type toy struct {
	mem   *memory
	chunk int // tokens of a pass
	// step, when set, is called before each layer is reported, without any lock.
	step func(j *Job, first, layer int)
	// refuse, when set, is the answer to Admit.
	refuse error
	// dead ends the current job after its step: its memory is gone.
	dead atomic.Bool

	mu   sync.Mutex
	cond sync.Cond
	jobs []*toyJob
	live map[*Job]*toyJob
	stop bool
	done chan struct{}
}

type toyJob struct {
	job              *Job
	pages            []uint32
	owner            uint64
	running, stopped bool
}

func newToy(mem *memory) *toy {
	h := &toy{mem: mem, chunk: 32, live: map[*Job]*toyJob{}, done: make(chan struct{})}
	h.cond.L = &h.mu
	return h
}

func (h *toy) Admit(j *Job) error {
	if h.refuse != nil {
		return h.refuse
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	x := &toyJob{job: j}
	h.live[j] = x
	h.jobs = append(h.jobs, x)
	h.cond.Broadcast()
	return nil
}

func (h *toy) Stop(j *Job) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.live[j]
	delete(h.live, j)
	x.stopped = true
	if !x.running {
		h.free(x)
	}
}

func (h *toy) free(x *toyJob) {
	if err := h.mem.pool.Return(x.pages, x.owner); err != nil {
		panic(err)
	}
	x.pages = nil
	h.cond.Broadcast()
}

// take waits for the next job that has pages.
func (h *toy) take() *toyJob {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		for len(h.jobs) > 0 && h.jobs[0].stopped {
			h.jobs = h.jobs[1:]
		}
		if h.stop {
			return nil
		}
		if len(h.jobs) > 0 {
			x := h.jobs[0]
			x.owner = x.job.seq
			pages, err := h.mem.pool.Reserve(h.mem.g.Pages(x.job.Tokens()), x.owner)
			if err == nil {
				h.jobs = h.jobs[1:]
				x.pages, x.running = pages, true
				return x
			}
		}
		h.cond.Wait()
	}
}

func (h *toy) run(p *Prefiller) {
	defer close(h.done)
	for {
		x := h.take()
		if x == nil {
			return
		}
		h.compute(p, x)
		h.mu.Lock()
		x.running = false
		if x.stopped {
			h.free(x)
		}
		h.mu.Unlock()
	}
}

func (h *toy) compute(p *Prefiller, x *toyJob) {
	j := x.job
	if j.Source(x.pages) != nil {
		return // stopped
	}
	for first := 0; first < j.Tokens(); first += h.chunk {
		n := min(j.Tokens(), first+h.chunk)
		pass := p.NewPass()
		pass.Add(j, Span{first, n})
		p.Begin(pass)
		for layer := range h.mem.g.Layers {
			for plane := range h.mem.g.Group.Planes {
				for page := first / h.mem.g.Group.PageTokens; page < h.mem.g.Pages(n); page++ {
					h.mem.write(j.ID(), layer*h.mem.g.Group.Planes+plane, page, x.pages[page])
				}
			}
			if h.step != nil {
				h.step(j, first, layer)
			}
			if h.dead.Load() {
				return
			}
			pass.LayerReady(layer, false)
		}
	}
}

func (h *toy) end() {
	h.mu.Lock()
	h.stop = true
	h.cond.Broadcast()
	h.mu.Unlock()
	<-h.done
}

// prefillSide is an engine with a Prefiller and its toy.
type prefillSide struct {
	eng *hawser.Engine
	mem *memory
	toy *toy
	p   *Prefiller
}

func newPrefillSide(t *testing.T, network string, g Geometry, pages int, change func(*toy, *PrefillerConfig)) *prefillSide {
	t.Helper()
	return prefillWith(t, openEngine(t, "P", network), g, pages, change)
}

func prefillWith(t *testing.T, eng *hawser.Engine, g Geometry, pages int, change func(*toy, *PrefillerConfig)) *prefillSide {
	t.Helper()
	s := &prefillSide{eng: eng}
	s.mem = newMemory(t, s.eng, g, pages, 7)
	s.toy = newToy(s.mem)
	cfg := PrefillerConfig{Geometry: g, Views: s.mem.views, Log: testLog().With("side", "P")}
	if change != nil {
		change(s.toy, &cfg)
	}
	var err error
	if s.p, err = NewPrefiller(s.eng, cfg, s.toy); err != nil {
		t.Fatal(err)
	}
	go s.toy.run(s.p)
	t.Cleanup(func() {
		s.toy.end()
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := s.p.Close(ctx); err != nil {
			t.Error(err)
		}
		if n := s.mem.pool.Pages() - s.mem.pool.Free(); n != 0 {
			t.Errorf("prefill side: %d pages leaked", n)
		}
	})
	return s
}

// decodeSide is an engine with a Decoder.
type decodeSide struct {
	eng *hawser.Engine
	mem *memory
	d   *Decoder
}

func newDecodeSide(t *testing.T, network string, g Geometry, pages int, change ...func(*DecoderConfig)) *decodeSide {
	t.Helper()
	s := &decodeSide{eng: openEngine(t, "D", network)}
	s.mem = newMemory(t, s.eng, g, pages, 8)
	var err error
	cfg := DecoderConfig{Geometry: g, Views: s.mem.views, Pool: s.mem.pool, Log: testLog().With("side", "D")}
	for _, f := range change {
		f(&cfg)
	}
	s.d, err = NewDecoder(s.eng, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAtEnd(t)
	return s
}

// decodeWith puts net between a Decoder of the small geometry and its engine.
func decodeWith(t *testing.T, eng *hawser.Engine, net network, pages int) *decodeSide {
	t.Helper()
	s := &decodeSide{eng: eng, mem: newMemory(t, eng, small, pages, 8)}
	s.d = newDecoder(net, DecoderConfig{
		Geometry: small, Views: s.mem.views, Pool: s.mem.pool, Queue: 10, Deadline: time.Minute, Stall: time.Minute, Log: testLog().With("side", "D"),
	})
	s.d.begin()
	s.closeAtEnd(t)
	return s
}

// closeAtEnd closes the Decoder at the end of the test and looks whether its pages are back.
func (s *decodeSide) closeAtEnd(t *testing.T) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := s.d.Close(ctx); err != nil {
			t.Error(err)
		}
		if n := s.mem.pool.Pages() - s.mem.pool.Free(); n != 0 {
			t.Errorf("decode side: %d pages leaked", n)
		}
	})
}

// fetch fetches a prompt, checks it and releases it.
func (s *decodeSide) fetch(t *testing.T, from *prefillSide, id string, tokens int) {
	t.Helper()
	if err := s.try(limit(t), from.eng.Addr(), id, tokens); err != nil {
		t.Fatal(err)
	}
}

func (s *decodeSide) try(ctx context.Context, addr, id string, tokens int) error {
	p, err := s.d.Fetch(ctx, FetchRequest{ID: id, Tokens: tokens, From: addr})
	if err != nil {
		return err
	}
	r, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	defer r.Release()
	if len(r.Pages) != s.mem.g.Pages(tokens) {
		return fmt.Errorf("%s: %d pages, want %d", id, len(r.Pages), s.mem.g.Pages(tokens))
	}
	if n := s.mem.corrupt(id, r.Pages); n != 0 {
		return fmt.Errorf("%s: %d corrupt bytes", id, n)
	}
	return nil
}
