package kv_test

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// TestLayerAllocatesNothing: posting a layer, completing it, and counting it on the other side allocate nothing, both sides and their
// engines together.
func TestLayerAllocatesNothing(t *testing.T) {
	const layers, runs = 100, 60
	deep := layout.Model{
		Name: "deep", Layers: layers, Groups: []layout.Group{{PageTokens: 4, KVHeads: 4, HeadDim: 16, ElemSize: 2, Planes: 2}},
	}
	for _, words := range []bool{false, true} {
		onNetworks(t, func(t *testing.T, network string) {
			src := newSide(t, "p", network, layout.Spec{Model: deep, Pages: 16})
			dst := newSide(t, "d", network, layout.Spec{Model: deep, Pages: 16})
			jobs := make(chan *kv.Job, 1)
			e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
				e.wait = func(j *kv.Job, _ int) bool { jobs <- j; return false }
			})
			d := newDecoder(t, dst, kv.DecoderConfig{})
			p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 64), From: from(src.eng)})
			if err != nil {
				t.Fatal(err)
			}
			pass := e.p.NewPass()
			pass.Add(<-jobs, proto.Span{N: 64})
			base, err := e.p.Begin(pass)
			if err != nil {
				t.Fatal(err)
			}
			word, err := e.p.Progress(0)
			if err != nil {
				t.Fatal(err)
			}
			layer := 0
			step := func() {
				if words {
					word.Word().Store(base + uint64(layer) + 1)
					word.Kick()
				} else {
					pass.LayerReady(0, layer, false)
				}
				layer++
				for e.p.Stats().Writes < uint64(layer*2*16) {
					time.Sleep(20 * time.Microsecond) // not a spin: the one thread that AllocsPerRun leaves also polls the network
				}
			}
			for range layers - runs - 2 {
				step()
			}
			if avg := testing.AllocsPerRun(runs, step); avg > 0 {
				t.Errorf("%v allocations for a layer", avg)
			}
			step()
			if res, err := p.Wait(limit(t)); err != nil {
				t.Error(err)
			} else {
				res.Release()
			}
		})
	}
}
