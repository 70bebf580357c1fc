package kvbench

import (
	"slices"
	"testing"

	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/kv/layout"
)

// What other libraries are given to do is the whole cache of the prompt, each byte of the decoder's pages once.
func TestWorkOfRivals(t *testing.T) {
	model, err := layout.BuiltinModel("qwen3-235b-tp4")
	if err != nil {
		t.Fatal(err)
	}
	if model, err = model.Scale(2. / float64(model.Layers)); err != nil {
		t.Fatal(err)
	}
	const tokens = 512
	side := func(tp, page int) shape { return shape{Model: model, TP: tp, PageTokens: page, Pages: tokens / page} }
	for _, c := range []struct{ src, dst shape }{
		{side(1, 128), side(1, 128)}, {side(4, 128), side(1, 128)}, {side(1, 128), side(4, 128)}, {side(1, 16), side(1, 128)},
	} {
		w, err := work(c.src, c.dst, tokens, scattered(c.dst.Pages))
		if err != nil {
			t.Fatal(err)
		}
		_, sizes, err := c.dst.build()
		if err != nil {
			t.Fatal(err)
		}
		total := uint64(starts(sizes)[len(sizes)])
		if w.Dst != total {
			t.Errorf("destination of %d bytes, want %d", w.Dst, total)
		}
		if !slices.IsSortedFunc(w.Ranges, func(a, b versus.Range) int { return int(a.Layer) - int(b.Layer) }) {
			t.Error("layers do not follow each other")
		}
		for _, f := range []func(versus.Range) uint64{func(r versus.Range) uint64 { return r.Dst }, func(r versus.Range) uint64 { return r.Src }} {
			slices.SortFunc(w.Ranges, func(a, b versus.Range) int { return int(f(a)) - int(f(b)) })
			at := uint64(0)
			for _, r := range w.Ranges {
				if f(r) != at {
					t.Fatalf("a range begins at %d, want %d: they leave something out or meet", f(r), at)
				}
				at += r.Len
			}
			if at != total {
				t.Errorf("ranges of %d bytes, want %d", at, total)
			}
		}
	}
}
