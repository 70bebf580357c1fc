package proto

import (
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

// nullOut takes everything, and remembers cookies only.
type nullOut struct {
	source  SourcePages
	cookies []uint64
	job     JobID
}

func (o *nullOut) Send(Peer, []byte)           {}
func (o *nullOut) Import(LinkID, Peer, *Hello) {}
func (o *nullOut) Forget(LinkID)               {}
func (o *nullOut) Start(j JobID)               { o.job = j }
func (o *nullOut) Stop(JobID)                  {}
func (o *nullOut) Unpin(JobID)                 {}
func (o *nullOut) Note(ServeNote)              {}
func (o *nullOut) Admit(JobID, *JobInfo) Admission {
	return Admission{Verdict: AdmitReady, Source: o.source}
}

func (o *nullOut) Post(cookie uint64, _ *Posting) (uint64, error) {
	o.cookies = append(o.cookies, cookie)
	return 0, nil
}

func (o *nullOut) PostTail(cookie uint64, _ *Posting) (uint64, error) { return o.Post(cookie, nil) }

// bench is a machine between a decoder and an engine that cost nothing.
type bench struct {
	t   testing.TB
	p   *Prefiller
	out *nullOut
	now Time
	d   *rigLink
}

func newBench(t testing.TB, model layout.Model, tokens int) *bench {
	t.Helper()
	pages := pagesFor(tokens, model.Groups[0].PageTokens)
	spec := layout.Spec{Pages: pages, TP: 1}
	top := shape(t, model, 1, spec)
	b := &bench{t: t, out: &nullOut{}, now: time.Second}
	index := make([]uint32, pages)
	for i := range index {
		index[i] = uint32((i * 7) % pages)
	}
	for range model.Groups {
		b.out.source.Pages = append(b.out.source.Pages, layout.Pages{Index: index})
	}
	cfg := PrefillerConfig{Instance: "p", Topology: top, Options: anySize, Pages: 1 << 30}
	var err error
	if b.p, err = NewPrefiller(cfg, b.out); err != nil {
		t.Fatal(err)
	}
	b.d = (&serveRig{t: t, p: b.p, now: b.now}).decoder(1, "d", top, 0)
	b.d.send(b.d.hello())
	b.p.Imported(b.now, 1, nil)
	b.d.head.Ticket = 1
	return b
}

// dispatch encodes the next request.
func (b *bench) dispatch(tokens int) []byte {
	m := b.d.ask(fmt.Sprint("request-", b.d.head.Next), 0, tokens)
	return Encode(b.d.head, m)
}

func (b *bench) complete() {
	for len(b.out.cookies) > 0 {
		last := len(b.out.cookies) - 1
		c := b.out.cookies[last]
		b.out.cookies = b.out.cookies[:last]
		b.p.Completed(b.now, c, nil)
	}
}

// BenchmarkServeAttempt is one request from Dispatch to forgotten tomb: of one page, and of 16,384 tokens of qwen3-8b, of which the source is
// computed when it comes.
func BenchmarkServeAttempt(b *testing.B) {
	qwen, err := layout.BuiltinModel("qwen3-8b")
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		model  layout.Model
		tokens int
	}{{"tiny", tiny, 4}, {"16k", qwen, 16384}} {
		b.Run(c.name, func(b *testing.B) {
			x := newBench(b, c.model, c.tokens)
			x.out.source.Cached = c.tokens
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				x.d.head.LowWater = x.d.head.Next
				data := x.dispatch(c.tokens)
				b.StartTimer()
				x.p.Message(x.now, 1, data)
				x.complete()
			}
			if s := x.p.Stats(); s.Done == 0 || s.Attempts > 0 {
				b.Fatalf("%+v", s)
			}
		})
	}
}

// BenchmarkServeLayer is one layer of 16,384 tokens of qwen3-8b: 256 writes in 32 operations of at most 8 (of 128 KiB), with their completions.
func BenchmarkServeLayer(b *testing.B) {
	qwen, err := layout.BuiltinModel("qwen3-8b")
	if err != nil {
		b.Fatal(err)
	}
	x := newBench(b, qwen, 16384)
	layer, pass := qwen.Layers, PassID(0)
	before := uint64(0)
	b.ReportAllocs()
	layers := 0
	for b.Loop() {
		if layer == qwen.Layers {
			b.StopTimer()
			x.d.head.LowWater = x.d.head.Next
			x.p.Message(x.now, 1, x.dispatch(16384))
			x.p.PassEnd(x.now, pass)
			pass, _, err = x.p.Begin(x.now, []PassSpan{{x.out.job, Span{First: 0, N: 16384}}})
			if err != nil {
				b.Fatal(err)
			}
			layer = 0
			b.StartTimer()
		}
		x.p.LayerReady(x.now, pass, 0, layer)
		x.complete()
		layer++
		layers++
	}
	if n := (x.p.stats.Writes - before) / uint64(layers); n != 256 {
		b.Fatalf("%d writes per layer", n)
	}
}

// TestLayerAllocatesNothing: neither announcing a layer, nor posting it, nor its completions.
func TestLayerAllocatesNothing(t *testing.T) {
	qwen, err := layout.BuiltinModel("qwen3-8b")
	if err != nil {
		t.Fatal(err)
	}
	x := newBench(t, qwen, 16384)
	x.p.Message(x.now, 1, x.dispatch(16384))
	pass, _, err := x.p.Begin(x.now, []PassSpan{{x.out.job, Span{First: 0, N: 16384}}})
	if err != nil {
		t.Fatal(err)
	}
	layer := 0
	n := testing.AllocsPerRun(20, func() {
		x.p.LayerReady(x.now, pass, 0, layer)
		x.complete()
		layer++
	})
	if n != 0 {
		t.Errorf("%v allocations per layer", n)
	}
	if x.p.stats.Writes != uint64(layer)*256 {
		t.Errorf("%d writes in %d layers", x.p.stats.Writes, layer)
	}
}
