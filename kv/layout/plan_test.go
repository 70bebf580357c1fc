package layout

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestAnyPair: whatever the two sides are, every byte of the spans arrives once, at its place, from the rank whose turn it is, and
// nothing else is touched; counts, bytes and digests agree.
func TestAnyPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawShape(t)
		src := drawSide(t, s, drawPageTokens(t, len(s.groups), "source pages"), true)
		dst := drawSide(t, s, drawPageTokens(t, len(s.groups), "destination pages"), false)
		pair, err := NewPair(&src, &dst, Options{AllowSmallWrites: true})
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(0, maxSpan).Draw(t, "tokens")
		spans := pair.Spans(rapid.IntRange(0, n).Draw(t, "first"), n)
		if rapid.Bool().Draw(t, "free spans") {
			for i := range spans {
				page := dst.Members[0].Groups[i].PageTokens
				spans[i].N = rapid.IntRange(0, maxSpan).Draw(t, "end")
				spans[i].First = rapid.IntRange(0, spans[i].N/page).Draw(t, "first page") * page
			}
		}
		seq := rapid.Uint64().Draw(t, "seq")
		p, err := pair.Plan(spans, seq)
		if err != nil {
			t.Fatal(err)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(src, dst, p, func(n, below int) (all []uint32) {
			for _, i := range rng.Perm(below)[:n] {
				all = append(all, uint32(i))
			}
			return all
		})
		w.runAll(t, p, func() int { return 1 + rng.IntN(20) }, 1+rng.IntN(9))
		w.check(t, p, seq)
		there, err := MakePlan(recode(t, &src), recode(t, &dst), spans, seq, Options{AllowSmallWrites: true})
		if err != nil {
			t.Fatal(err)
		}
		if there.Digest() != p.Digest() {
			t.Fatalf("digest here %#x, there %#x", p.Digest(), there.Digest())
		}
	})
}

// recode is what the other side gets.
func recode(t rapid.TB, topo *Topology) *Topology {
	got, err := DecodeTopology(topo.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	return got
}
