package proto

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

// TestRequestIsServed is the usual way, whatever the cut of the pages on both sides.
func TestRequestIsServed(t *testing.T) {
	for _, c := range []struct {
		name     string
		src, dst layout.Spec
		model    layout.Model
	}{
		{"equal", layout.Spec{}, layout.Spec{}, tiny},
		{"smaller pages there", layout.Spec{PageTokens: 8}, layout.Spec{PageTokens: 4}, tiny},
		{"larger pages there", layout.Spec{PageTokens: 4}, layout.Spec{PageTokens: 6}, tiny},
		{"two ranks here", layout.Spec{TP: 2}, layout.Spec{}, tiny},
		{"two ranks there", layout.Spec{}, layout.Spec{TP: 2}, tiny},
		{"replicas", layout.Spec{TP: 4}, layout.Spec{TP: 2}, layout.Model{
			Name: "latent", Layers: 3, Groups: []layout.Group{{PageTokens: 4, KVHeads: 1, HeadDim: 9, ElemSize: 2, Planes: 1}},
		}},
		{"window", layout.Spec{}, layout.Spec{}, layout.Model{
			Name: "window", Layers: 4, LayerGroups: []uint8{0, 1, 0, 1}, Groups: []layout.Group{
				{PageTokens: 4, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2},
				{PageTokens: 4, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2, Window: 9},
			},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newServeRig(t, PrefillerConfig{Topology: shape(t, c.model, 1, c.src), Verify: true})
			d := r.link(1, "d", shape(t, c.model, 1, c.dst), 0)
			m := d.dispatch("r", 12, 45, func(m *Dispatch) { m.Tail = true })
			if a := last[*Accept](d); a.Seq != m.Seq {
				t.Fatalf("accepted %d", a.Seq)
			}
			if r.started[1] != 1 || r.admitted[1].Request != "r" {
				t.Fatalf("started %d, %+v", r.started[1], r.admitted[1])
			}
			r.compute(0, 30, 1)
			r.complete(-1)
			if n := r.posted[servedAs{1, m.Seq}]; n == 0 || n >= m.Expected {
				t.Errorf("%d of %d writes after the first chunk", n, m.Expected)
			}
			r.compute(30, 45, 1)
			r.complete(-1)
			if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected-1 {
				t.Errorf("%d writes before the tail, want %d", n, m.Expected-1)
			}
			if err := r.p.Tail(r.now, 1); err != nil {
				t.Fatal(err)
			}
			none[*Digest](d)
			r.complete(-1)
			if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected {
				t.Errorf("%d writes, want %d", n, m.Expected)
			}
			sum := uint64(0)
			for _, s := range last[*Digest](d).Sums {
				sum += s
			}
			if sum != m.Expected { // the rig's sum of an operation is its writes
				t.Errorf("the sums of the digest add up to %d, want %d", sum, m.Expected)
			}
			if a := d.phase(m.Seq); a.Phase != PhaseTomb || a.Posted != m.Expected || !a.Exact || len(a.Sums) == 0 {
				t.Errorf("it is %+v", a)
			}
			if r.stopped[1] != 1 || r.pinned[1] != 0 || len(r.p.jobs) != 0 {
				t.Errorf("stopped %d, pinned %d, %d jobs", r.stopped[1], r.pinned[1], len(r.p.jobs))
			}
			d.head.LowWater = d.head.Next
			d.send(&Beat{})
			if n := r.p.Stats().Tombs; n != 0 {
				t.Errorf("%d tombs after the decoder has forgotten them", n)
			}
		})
	}
}

// TestIdleHasNoAlarm: nothing lives, everything was told.
func TestIdleHasNoAlarm(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	r.compute(0, 9, 1)
	r.complete(-1)
	r.advance(2 * time.Second)
	if at, ok := r.p.Next(); ok {
		t.Errorf("alarm at %v, it is %v", at, r.now)
	}
	if b := last[*Beat](d); b.Granted != d.granted+3 {
		t.Errorf("told %d credits, want the 3 that came back, and %d", b.Granted, d.granted)
	}
}

// TestLiveTellsAttempts, for people.
func TestLiveTellsAttempts(t *testing.T) {
	cfg := PrefillerConfig{}
	cfg.Window.Writes = 4
	r := newServeRig(t, cfg)
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	r.compute(0, 4, 1)
	r.complete(1)
	var got []ServeInfo
	r.p.Live(func(i ServeInfo) { got = append(got, i) })
	want := ServeInfo{
		Link: 1, Peer: 1, Job: 1, Request: "r", Seq: m.Seq, State: "running", Posted: 1, Outstanding: 4, Left: m.Expected - 5, Deadline: r.now + time.Minute,
	}
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestFirstPostIsNoted, once for an attempt.
func TestFirstPostIsNoted(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	posts := func() (n int) {
		for _, o := range r.notes {
			if o.Kind == ServePost && o.Request == "r" && o.Seq != 0 {
				n++
			}
		}
		return n
	}
	d.dispatch("r", 0, 9)
	if n := posts(); n != 0 {
		t.Errorf("noted %d times before anything is computed", n)
	}
	for _, span := range []Span{{First: 0, N: 4}, {First: 4, N: 9}} {
		r.compute(span.First, span.N, 1)
		r.complete(-1)
		if n := posts(); n != 1 {
			t.Errorf("noted %d times after tokens %d .. %d", n, span.First, span.N)
		}
	}
}
