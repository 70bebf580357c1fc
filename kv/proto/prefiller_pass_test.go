package proto

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
)

// wordRig is a job of 40 tokens that is computed by words, by a member of so many ranks.
func wordRig(t *testing.T, ranks int, shared bool) (*serveRig, *rigLink, *Dispatch) {
	t.Helper()
	r := newServeRig(t, PrefillerConfig{Topology: shape(t, tiny, 1, layout.Spec{TP: ranks}), SharedProgress: shared})
	d := r.link(1, "d", nil, 0)
	return r, d, d.dispatch("r", 0, 40)
}

// word sets the progress word of a rank, and returns the writes that this starts.
func (r *serveRig) word(rank int, pass PassID, layers int) int {
	r.t.Helper()
	before := r.p.stats.Writes
	r.p.Progress(r.now, rank, uint64(pass)<<16+uint64(layers))
	r.check()
	r.complete(-1)
	return int(r.p.stats.Writes - before)
}

// perLayer is the writes of a token's page in one layer of one rank.
const perLayer = 2

func (r *serveRig) wantWrites(got, want int) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%d writes, want %d", got, want)
	}
}

func TestWordsMayBeSkipped(t *testing.T) {
	r, d, m := wordRig(t, 1, false)
	a := r.begin(0, 8, 1)
	b := r.begin(8, 24, 1)
	r.wantWrites(r.word(0, a, 0), 0)
	r.wantWrites(r.word(0, a, 1), 2*perLayer)
	r.wantWrites(r.word(0, a, 1), 0)
	r.wantWrites(r.word(0, b, 2), 2*2*perLayer+2*4*perLayer) // the rest of pass a, two layers of b
	c := r.begin(24, 40, 1)
	r.wantWrites(r.word(0, c, 3), 4*perLayer+3*4*perLayer)
	if s := d.phase(m.Seq); s.Phase != PhaseTomb || s.Posted != m.Expected {
		t.Errorf("state is %+v", s)
	}
	if s := r.p.Stats(); s.BadWords != 0 || s.LateWords != 0 {
		t.Errorf("%+v", s)
	}
	r.over(1)
}

// TestAbortedPass: the layers that are not ready will not be; a late word of it completes only what was before.
func TestAbortedPass(t *testing.T) {
	r, d, m := wordRig(t, 1, false)
	a := r.begin(0, 8, 1)
	b := r.begin(8, 24, 1)
	r.wantWrites(r.word(0, a, 2), 2*2*perLayer)
	r.wantWrites(r.word(0, b, 1), 2*perLayer+4*perLayer)
	r.p.PassAbort(r.now, b)
	r.wantWrites(r.word(0, b, 2), 0)
	if n := r.p.Stats().LateWords; n != 1 {
		t.Errorf("%d late words", n)
	}
	again := r.begin(8, 40, 1)
	r.wantWrites(r.word(0, again, 3), 3*8*perLayer-4*perLayer) // layer 0 had 4 pages of it
	if s := d.phase(m.Seq); s.Posted != m.Expected {
		t.Errorf("state is %+v, want %d posted", s, m.Expected)
	}
	r.over(1)
}

// TestWordsThatMakeNoSense fail the jobs of their pass, or all if there is no such pass, and start nothing.
func TestWordsThatMakeNoSense(t *testing.T) {
	for _, c := range []struct {
		name string
		word uint64
		fail [2]bool // first and second job
		text string
	}{
		{"layer beyond the last", 2<<16 + 4, [2]bool{false, true}, "layer 3 of pass 2: the rank has 3 layers"},
		{"unknown pass", 3<<16 + 1, [2]bool{true, true}, "layer 0 of pass 3"},
		{"no pass", 5, [2]bool{true, true}, "pass 0"},
		{"back within the pass", 1<<16 + 1, [2]bool{true, false}, "the last value was 0x10002"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, d, _ := wordRig(t, 1, false)
			d.dispatch("s", 0, 8)
			r.begin(0, 8, 1)
			r.begin(0, 8, 2)
			r.word(0, 1, 2)
			before := r.p.stats.Writes
			r.take(1)
			r.p.Progress(r.now, 0, c.word)
			r.check()
			failed := map[uint64]string{}
			for _, m := range r.take(1) {
				if f, ok := m.Body.(*Failed); ok {
					failed[f.Seq] = f.Text
					if f.Code != CodeProgress || !strings.Contains(f.Text, c.text) {
						t.Errorf("answer is %+v", f)
					}
				}
			}
			for i, want := range c.fail {
				if _, ok := failed[uint64(i+1)]; ok != want {
					t.Errorf("attempt %d failed: %v", i+1, ok)
				}
			}
			if r.complete(-1); r.p.stats.Writes != before || r.p.Stats().BadWords != 1 {
				t.Errorf("%d writes for it", r.p.stats.Writes-before)
			}
		})
	}
}

// TestWordsOfRanks: each for itself.
func TestWordsOfRanks(t *testing.T) {
	r, _, m := wordRig(t, 2, false)
	a := r.begin(0, 40, 1)
	r.wantWrites(r.word(1, a, 3), 3*10*perLayer)
	r.wantWrites(r.word(0, a, 2), 2*10*perLayer)
	r.wantWrites(r.word(0, a, 3), 10*perLayer)
	if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected {
		t.Errorf("%d writes, want %d", n, m.Expected)
	}
}

// TestSharedWord speaks for all ranks.
func TestSharedWord(t *testing.T) {
	r, _, _ := wordRig(t, 2, true)
	a := r.begin(0, 40, 1)
	r.wantWrites(r.word(0, a, 1), 2*10*perLayer)
	r.wantWrites(r.word(1, a, 3), 0)
	if n := r.p.Stats().BadWords; n != 1 {
		t.Errorf("%d bad words", n)
	}
	r.wantWrites(r.word(0, a, 3), 2*2*10*perLayer)
	r.over(1)
	top := shape(t, layout.Model{Name: "tiny", Layers: 4, Groups: tiny.Groups}, 1, layout.Spec{PP: 2})
	if _, err := NewPrefiller(PrefillerConfig{Instance: "p", Topology: top, Pages: 1, SharedProgress: true}, r); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("shared word over stages: %v", err)
	}
}

// TestPassesAreBounded, but for those of which all layers are ready.
func TestPassesAreBounded(t *testing.T) {
	r, _, _ := wordRig(t, 1, false)
	for i := range MaxPasses {
		r.begin(8*i, 8*i+8, 1)
	}
	if _, _, err := r.p.Begin(r.now, nil); !errors.Is(err, hawser.ErrBusy) {
		t.Fatalf("one more: %v", err)
	}
	r.word(0, 1, 3)
	r.begin(0, 0)
}

// TestHostPath: layers in any order; a gap is a fault of the engine.
func TestHostPath(t *testing.T) {
	r, d, _ := wordRig(t, 1, false)
	a := r.begin(0, 8, 1)
	for _, layer := range []int{2, 0, 2, 1} {
		r.p.LayerReady(r.now, a, 0, layer)
		r.check()
	}
	if r.complete(-1); r.p.stats.Writes != 3*2*perLayer {
		t.Errorf("%d writes", r.p.stats.Writes)
	}
	r.p.PassEnd(r.now, a)
	r.p.LayerReady(r.now, a, 0, 0) // of a pass that has ended
	b := r.begin(12, 16, 1)
	r.p.LayerReady(r.now, b, 0, 0)
	if f := last[*Failed](d); f.Code != CodeEngine || !strings.Contains(f.Text, "12 .. 16") {
		t.Errorf("answer is %+v", f)
	}
	d.dispatch("s", 0, 8)
	c := r.begin(0, 8, 2)
	r.p.LayerReady(r.now, c, 0, 3)
	if f := last[*Failed](d); f.Code != CodeProgress {
		t.Errorf("answer is %+v", f)
	}
	if _, _, err := r.p.Begin(r.now, []PassSpan{{3, Span{First: 0, N: 1}}}); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("pass with a job that never was: %v", err)
	}
}

// TestWindow bounds what is outstanding by bytes, per peer and not per link; the rig looks at each post.
func TestWindow(t *testing.T) {
	cfg := PrefillerConfig{}
	cfg.Window.Bytes = 1000 // a write has 128 bytes
	r := newServeRig(t, cfg)
	d := r.link(1, "d", nil, 0)
	other := r.link(2, "e", nil, 0)
	d.dispatch("r", 0, 40)
	other.dispatch("s", 0, 40)
	r.compute(0, 40, 1, 2)
	if n := len(r.open); n != 14 {
		t.Errorf("%d operations, want 7 for each peer", n)
	}
	r.take(1)
	d.head.Epoch++ // the window is still full of the old link's writes
	d.connect()
	m := d.dispatch("t", 0, 40)
	r.compute(0, 40, 3)
	if n := len(r.open); n != 14 {
		t.Errorf("%d operations", n)
	}
	r.complete(-1)
	if n := r.posted[servedAs{3, m.Seq}]; n != m.Expected {
		t.Errorf("%d writes, want %d", n, m.Expected)
	}

	big := PrefillerConfig{} // a write that is larger than the window is posted alone
	big.Window.Bytes = 100
	r = newServeRig(t, big)
	d = r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 40)
	r.compute(0, 40, 1)
	if n := len(r.open); n != 1 {
		t.Errorf("%d operations", n)
	}
	r.complete(-1)
	r.over(1)
}

// order returns which attempts' writes go out, one after the other.
func (r *serveRig) order() (seqs []uint64) {
	for len(r.open) > 0 {
		if n := len(seqs); n == 0 || seqs[n-1] != r.open[0].seq {
			seqs = append(seqs, r.open[0].seq)
		}
		r.complete(1)
	}
	return seqs
}

// TestOrderOfWork: priority, then what is left, and whoever waits long gets older.
func TestOrderOfWork(t *testing.T) {
	cfg := PrefillerConfig{Pages: 200, Topology: shape(t, tiny, 1, layout.Spec{Pages: 200})}
	cfg.Window.Writes = 4
	r := newServeRig(t, cfg)
	d := r.link(1, "d", nil, 0)
	d.dispatch("block", 0, 4)
	d.dispatch("long", 0, 80)
	d.dispatch("short", 0, 8)
	d.dispatch("urgent", 0, 80, func(m *Dispatch) { m.Priority = 1 })
	d.dispatch("old", 0, 80, func(m *Dispatch) { m.Priority = -3 })
	r.compute(0, 4, 1)
	r.compute(0, 80, 5)
	r.advance(450 * time.Millisecond)
	r.compute(0, 80, 2)
	r.compute(0, 80, 4)
	r.compute(0, 8, 3)
	got, want := r.order(), []uint64{1, 4, 5, 3, 2}
	if len(got) != len(want) {
		t.Fatalf("order is %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("order is %v, want %v", got, want)
		}
	}
}

// TestNoRoomIsTriedAgain: at Room, at a completion, and by itself, for one link after the other.
func TestNoRoomIsTriedAgain(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	a, b := r.link(1, "a", nil, 0), r.link(2, "b", nil, 0)
	a.dispatch("r", 0, 9)
	b.dispatch("s", 0, 9)
	r.refuse = ErrRoom
	r.compute(0, 9, 1, 2)
	if n := r.p.Stats().NoRoom; n != 2 || len(r.open) > 0 {
		t.Fatalf("%d refused, %d outstanding", n, len(r.open))
	}
	r.p.Room(r.now)
	r.check()
	r.advance(10 * time.Millisecond)
	if n := r.p.Stats().NoRoom; n < 10 || n > 20 {
		t.Errorf("%d refused", n)
	}
	r.refuse = nil
	r.advance(time.Millisecond)
	r.complete(-1)
	r.over(1)
	r.over(2)
	if s := r.p.Stats(); s.Done != 2 {
		t.Errorf("%+v", s)
	}
}
