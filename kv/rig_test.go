package kv_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// networks are the two that every host has.
var networks = []string{"shm", "tcp"}

func onNetworks(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

// hang bounds every wait of a test: it guards against hangs and asserts nothing.
const hang = time.Minute

// limit guards a test against hanging.
func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until f returns nil.
func eventually(t testing.TB, f func() error) {
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

// testLog shows what happens when HAWSER_TEST_LOG is set to a level.
func testLog() *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("HAWSER_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func openEngine(t testing.TB, o hawser.Options) *hawser.Engine {
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

// small has pages that are small enough for thousands of them.
var small = layout.Model{
	Name: "small", Layers: 3, TP: 1,
	Groups: []layout.Group{{PageTokens: 4, KVHeads: 4, HeadDim: 16, ElemSize: 2, Planes: 2}},
}

// anySize lets pages of any size be written.
var anySize = layout.Options{AllowSmallWrites: true}

// side is the memory of one member.
type side struct {
	eng     *hawser.Engine
	g       layout.Geometry
	regions []*hawser.Region
	pools   []*pool.Pool
}

func newSide(t testing.TB, name, network string, s layout.Spec) *side {
	t.Helper()
	return newSideOn(t, openEngine(t, hawser.Options{Name: name, Require: network}), s)
}

func newSideOn(t testing.TB, eng *hawser.Engine, s layout.Spec) *side {
	t.Helper()
	g, sizes, err := layout.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	m := &side{eng: eng, g: g}
	for _, n := range sizes {
		r, err := eng.Alloc(uint64(n), hawser.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.regions = append(m.regions, r)
	}
	for range g.Groups {
		p, err := pool.New(s.Pages, 1)
		if err != nil {
			t.Fatal(err)
		}
		m.pools = append(m.pools, p)
	}
	return m
}

// rows calls f for every head of every token of the span in every view.
func (m *side) rows(group int, span proto.Span, pages []uint32, f func(row []byte, layer, plane, head, token int)) {
	g := m.g.Groups[group]
	first := span.First / g.PageTokens
	for r := range m.g.Ranks {
		k := &m.g.Ranks[r]
		for l, planes := range k.Views {
			layer := k.LayerFirst + l
			if m.g.GroupOf(layer) != group {
				continue
			}
			for plane, v := range planes {
				for token := span.First; token < span.N; token++ {
					page := pages[token/g.PageTokens-first]
					for h := range k.Heads {
						at := v.Base + int64(page)*v.Page + int64(h)*v.Head + int64(token%g.PageTokens)*v.Token
						f(m.regions[v.Region].Bytes()[at:at+g.HeadBytes()], layer, plane, k.HeadFirst+h, token)
					}
				}
			}
		}
	}
}

// word is the content of one word of a row. Prompts with one content hold the same bytes, whatever their ids.
func word(content uint64, layer, plane, head, token, i int) uint64 {
	x := content ^ uint64(layer)<<56 ^ uint64(plane)<<48 ^ uint64(head)<<40 ^ uint64(token)<<8 ^ uint64(i)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return (x ^ x>>27) * 0x94d049bb133111eb
}

func (m *side) fill(content uint64, span proto.Span, pages [][]uint32) {
	for group := range m.g.Groups {
		m.rows(group, span, pages[group], func(row []byte, layer, plane, head, token int) {
			for i := 0; i < len(row); i += 8 {
				binary.LittleEndian.PutUint64(row[i:], word(content, layer, plane, head, token, i))
			}
		})
	}
}

// wrong counts the rows that do not hold the content.
func (m *side) wrong(content uint64, spans []proto.Span, pages [][]uint32) (n int, first string) {
	for group := range m.g.Groups {
		m.rows(group, spans[group], pages[group], func(row []byte, layer, plane, head, token int) {
			for i := 0; i < len(row); i += 8 {
				if got, want := binary.LittleEndian.Uint64(row[i:]), word(content, layer, plane, head, token, i); got != want {
					if n == 0 {
						first = fmt.Sprintf("layer %d plane %d head %d token %d byte %d: %#x, want %#x", layer, plane, head, token, i, got, want)
					}
					n++
					return
				}
			}
		})
	}
	return n, first
}

// llm is an inference engine that computes each prompt in one pass as soon as it is told to: content fills the pages layer by layer.
// What it has been told it does in one goroutine.
type llm struct {
	*side
	t     testing.TB
	p     *kv.Prefiller
	tails *hawser.Region // one slot of 64 bytes per job, used in turn
	next  uint64

	// wait, when set, is called before each layer; false ends the pass early.
	wait func(j *kv.Job, layer int) bool
	// aborted, when set, is called after that.
	aborted func(j *kv.Job)
	// words makes it tell its progress by words.
	words bool
	// unknown makes Admit say so until the prompt was Expected.
	unknown bool

	tasks chan *task
	done  sync.WaitGroup

	mu     sync.Mutex
	leases map[*kv.Job]*task
	ended  int // Stops
}

type task struct {
	job   *kv.Job
	lease []pool.Lease
	pages [][]uint32
	tail  bool
}

func contentOf(p proto.Prompt) uint64 {
	var h uint64 = 14695981039346656037
	for _, c := range []byte(p.Key) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func newLLM(t testing.TB, m *side, cfg kv.PrefillerConfig, change ...func(*llm)) *llm {
	t.Helper()
	e := &llm{t: t, side: m, tasks: make(chan *task, 1<<16), leases: map[*kv.Job]*task{}}
	for _, c := range change {
		c(e)
	}
	if cfg.Topology == nil {
		cfg.Topology = &layout.Topology{Members: []layout.Geometry{m.g}}
	}
	if cfg.Instance == "" {
		cfg.Instance = "p"
	}
	cfg.Regions, cfg.Pages, cfg.Log = m.regions, m.pools[0].Pages(), testLog()
	cfg.Options = anySize
	tails, err := m.eng.Alloc(64<<10, hawser.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.tails = tails
	e.p, err = kv.NewPrefiller(m.eng, cfg, e)
	if err != nil {
		t.Fatal(err)
	}
	e.done.Go(e.run)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := e.p.Close(ctx); err != nil {
			t.Error(err)
		}
		close(e.tasks)
		e.done.Wait()
	})
	return e
}

// gate is a wait of an llm, which ends when open is called. Have it called before the llm's end, also when the test fails.
func gate() (wait func(*kv.Job, int) bool, open func()) {
	c := make(chan struct{})
	return func(*kv.Job, int) bool { <-c; return true }, sync.OnceFunc(func() { close(c) })
}

func (e *llm) Admit(j *kv.Job) proto.Admission {
	info := j.Info()
	if e.unknown && !info.Expected {
		return proto.Admission{Verdict: proto.AdmitUnknown}
	}
	t := &task{job: j, tail: info.Tail}
	a := proto.Admission{Verdict: proto.AdmitReady}
	for g := range e.g.Groups {
		size := e.g.Groups[g].PageTokens
		l, err := e.pools[g].Reserve((info.Prompt.Tokens + size - 1) / size)
		if err != nil {
			e.free(t)
			return proto.Admission{Verdict: proto.AdmitRefused, Code: proto.CodeBusy, Text: err.Error()}
		}
		t.lease = append(t.lease, l)
		t.pages = append(t.pages, l.Pages)
		a.Source.Pages = append(a.Source.Pages, layout.Pages{Index: l.Pages})
	}
	e.mu.Lock()
	e.leases[j] = t
	e.mu.Unlock()
	return a
}

func (e *llm) Start(j *kv.Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tasks <- e.leases[j]
}

func (e *llm) Stop(*kv.Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended++
}

func (e *llm) Unpin(j *kv.Job) {
	e.mu.Lock()
	t := e.leases[j]
	delete(e.leases, j)
	e.mu.Unlock()
	e.free(t)
}

func (e *llm) free(t *task) {
	for g, l := range t.lease {
		if err := e.pools[g].Drop(l, pool.OwnerRequest); err != nil {
			panic(err)
		}
	}
}

func (e *llm) run() {
	for t := range e.tasks {
		e.compute(t)
	}
}

// compute is one pass. A job that has been stopped meanwhile may have lost its pages, and then they are not written.
func (e *llm) compute(t *task) {
	info := t.job.Info()
	select {
	case <-t.job.Done():
		return
	default:
	}
	span := proto.Span{N: info.Prompt.Tokens}
	pass := e.p.NewPass()
	pass.Add(t.job, span)
	base, err := e.p.Begin(pass)
	for errors.Is(err, hawser.ErrBusy) { // words of the passes before are still on their way
		time.Sleep(time.Millisecond) // between two looks
		base, err = e.p.Begin(pass)
	}
	if err != nil {
		t.job.Fail(err)
		return
	}
	e.mu.Lock()
	if e.leases[t.job] != nil {
		e.fill(contentOf(info.Prompt), span, t.pages)
	}
	e.mu.Unlock()
	for layer := range e.g.Ranks[0].Layers {
		if e.wait != nil && !e.wait(t.job, layer) {
			pass.Abort()
			if e.aborted != nil {
				e.aborted(t.job)
			}
			return
		}
		for rank := range e.g.Ranks {
			if !e.words {
				pass.LayerReady(rank, layer, false)
				continue
			}
			w, err := e.p.Progress(rank)
			if err != nil {
				return
			}
			w.Word().Store(base + uint64(layer) + 1)
			w.Kick()
		}
	}
	if !e.words {
		pass.End()
	}
	if t.tail {
		e.giveTail(t)
	}
}

func (e *llm) giveTail(t *task) {
	e.next++
	slot := e.tails.Slice(e.next%1024*64, 64)
	binary.LittleEndian.PutUint64(e.tails.Bytes()[slot.Off:], contentOf(t.job.Info().Prompt))
	if err := t.job.Tail(slot); err != nil && !errors.Is(err, hawser.ErrClosed) {
		t.job.Fail(err)
	}
}

// newDecoder starts a Decoder over the memory of a side.
func newDecoder(t testing.TB, m *side, cfg kv.DecoderConfig) *kv.Decoder {
	t.Helper()
	if cfg.Topology == nil {
		cfg.Topology = &layout.Topology{Members: []layout.Geometry{m.g}}
		cfg.Pools = m.pools
	}
	if cfg.Instance == "" {
		cfg.Instance = "d"
	}
	cfg.Regions, cfg.Options, cfg.Log = m.regions, anySize, testLog()
	tails, err := m.eng.Alloc(64*64, hawser.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tails, cfg.TailBytes = tails, 64
	d, err := kv.NewDecoder(m.eng, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return d
}

// from names a prefill instance of one member.
func from(engines ...*hawser.Engine) []proto.Source {
	var s proto.Source
	for _, e := range engines {
		s.Writers = append(s.Writers, e.Addr())
	}
	return []proto.Source{s}
}

func prompt(key string, tokens int) proto.Prompt { return proto.Prompt{Key: key, Tokens: tokens} }

func quiet(t testing.TB, p *kv.Pending) {
	t.Helper()
	select {
	case <-p.Quiesced():
	case <-time.After(hang):
		t.Fatal("the request is never quiet")
	}
}

// allFree checks that no page of a pool is held by anybody.
func allFree(t testing.TB, what string, pools []*pool.Pool) {
	t.Helper()
	eventually(t, func() error {
		for _, p := range pools {
			if c := p.Counts(); c.Leased != 0 || c.Pinned != 0 || c.Quarantined != 0 {
				return fmt.Errorf("%s: pages are held at the end: %+v", what, c)
			}
			if err := p.Check(); err != nil {
				return err
			}
		}
		return nil
	})
}
