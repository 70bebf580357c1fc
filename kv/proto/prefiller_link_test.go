package proto

import (
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

// TestHelloIsIdempotent: it is repeated until it is answered.
func TestHelloIsIdempotent(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.decoder(1, "d", nil, 0)
	for range 3 {
		d.send(d.hello())
	}
	if len(r.imports) != 1 || len(r.take(1)) > 0 {
		t.Fatalf("%d imports", len(r.imports))
	}
	r.imported(nil)
	a := last[*HelloAck](d)
	d.send(d.hello())
	if b := last[*HelloAck](d); b.Granted != a.Granted || a.Granted != 64 {
		t.Errorf("granted %d, then %d, of 64", a.Granted, b.Granted)
	}
	if s := r.p.Stats(); s.Links != 1 {
		t.Errorf("%+v", s)
	}
}

// TestHelloRefused names what differs, as often as it is asked.
func TestHelloRefused(t *testing.T) {
	otherModel, otherDim := tiny, tiny
	otherModel.Name = "other"
	otherDim.Groups = []layout.Group{{PageTokens: 4, KVHeads: 2, HeadDim: 16, ElemSize: 2, Planes: 2}}
	for _, c := range []struct {
		name        string
		change      func(*rigLink, *Hello)
		code        Code
		field, text string
	}{
		{"model", func(d *rigLink, h *Hello) { h.Topology = shape(t, otherModel, 1, layout.Spec{}).AppendBinary(nil) }, CodeMismatch, "fingerprint", ""},
		{"dim", func(d *rigLink, h *Hello) { h.Topology = shape(t, otherDim, 1, layout.Spec{}).AppendBinary(nil) }, CodeMismatch, "head dim", ""},
		{"member", func(d *rigLink, h *Hello) { h.Member = 1 }, CodeInvalid, "", "member 1 of 1"},
		{"topology", func(d *rigLink, h *Hello) { h.Topology = h.Topology[1:] }, CodeInvalid, "", ""},
		{"descriptors", func(d *rigLink, h *Hello) { h.Descriptors = h.Descriptors[1:] }, CodeInvalid, "", "1 descriptors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newServeRig(t, PrefillerConfig{})
			d := r.decoder(1, "d", nil, 0)
			h := d.hello()
			c.change(d, h)
			for range 2 {
				d.send(h)
				a := last[*HelloReject](d)
				if a.Code != c.code || a.Field != c.field || !strings.Contains(a.Text, c.text) || a.Field == "" && a.Text == "" || a.Field != "" && a.Here == a.There {
					t.Errorf("answer is %+v", a)
				}
			}
			d.head.Epoch++
			d.connect()
		})
	}
	t.Run("import", func(t *testing.T) {
		r := newServeRig(t, PrefillerConfig{})
		d := r.decoder(1, "d", nil, 0)
		d.send(d.hello())
		r.imported(errInjected)
		if a := last[*HelloReject](d); a.Text != errInjected.Error() || !r.forgot[1] {
			t.Errorf("answer is %+v", a)
		}
		d.send(d.hello())
		last[*HelloReject](d)
		d.head.Epoch++
		d.connect()
	})
	t.Run("infeasible", func(t *testing.T) {
		r := newServeRig(t, PrefillerConfig{})
		r.p.cfg.Options = layout.Options{}
		d := r.decoder(1, "d", nil, 0)
		d.send(d.hello())
		if a := last[*HelloReject](d); a.Code != CodeInfeasible || !strings.Contains(a.Text, "bytes") {
			t.Errorf("answer is %+v", a)
		}
	})
}

// TestNewerEpochEndsTheOldLink: its attempts are silent, its messages dropped, its memory is forgotten with its last write.
func TestNewerEpochEndsTheOldLink(t *testing.T) { newerEpoch(t) }

func newerEpoch(t tb) {
	r := newServeRig(t, PrefillerConfig{})
	old := r.link(1, "d", nil, 0)
	m := old.dispatch("r", 0, 9)
	r.compute(0, 9, 1)
	d := r.decoder(1, "d", nil, 0)
	d.head.Epoch = 2
	d.send(d.hello())
	if r.forgot[1] || r.stopped[1] != 1 {
		t.Errorf("forgotten %v with writes outstanding, job stopped %d", r.forgot[1], r.stopped[1])
	}
	r.take(1)
	for _, b := range []Body{m, &Cancel{Seq: m.Seq, Request: "r"}, &Query{[]uint64{m.Seq}}} {
		old.send(b)
		for _, a := range r.take(1) {
			if bye, ok := a.Body.(*Bye); !ok || a.Epoch != 1 {
				t.Errorf("%v of an ended epoch is answered with %+v %+v", b.Kind(), a.Head, bye)
			}
		}
	}
	old.send(old.hello())
	r.imported(nil)
	if r.complete(-1); !r.forgot[1] {
		t.Error("the link is not forgotten")
	}
	last[*HelloAck](d)
	d.dispatch("s", 0, 9)
	last[*Accept](d)
	r.finish(9, 2)
	r.over(2)
}

// TestImportThatTakesLong: a decoder that gave up on it says hello again; there is one import at a time.
func TestImportThatTakesLong(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.decoder(1, "d", nil, 0)
	d.send(d.hello())
	d.head.Epoch++
	d.send(d.hello())
	d.send(d.hello())
	if len(r.imports) != 1 {
		t.Fatalf("%d imports", len(r.imports))
	}
	r.imported(nil)
	if !r.forgot[1] || len(r.take(1)) > 0 {
		t.Error("the import of the ended epoch is of use to somebody")
	}
	d.connect()
}

// TestGarbageEndsTheLink, with one word of complaint.
func TestGarbageEndsTheLink(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	r.take(1)
	for range 3 {
		r.p.Message(r.now, 1, []byte("garbage"))
		r.p.Message(r.now, 2, []byte("garbage"))
		r.check()
	}
	if a, b := len(r.take(1)), len(r.take(2)); a != 1 || b != 1 {
		t.Errorf("%d and %d messages about it", a, b)
	}
	r.over(1)
	r.p.PeerDown(r.now, 1)
	r.p.PeerDown(r.now, 2)
	if len(r.p.peers) > 0 || len(r.p.links) > 0 {
		t.Errorf("%d peers, %d links are kept", len(r.p.peers), len(r.p.links))
	}
}

// TestPeerDown is silent.
func TestPeerDown(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	r.compute(0, 9, 1)
	r.take(1)
	r.p.PeerDown(r.now, 1)
	r.complete(-1)
	r.over(1)
	if len(r.take(1)) > 0 || len(r.p.peers) > 0 || !r.forgot[1] {
		t.Error("something is left of it")
	}
	r.advance(time.Minute)
}

// TestDrain: no new job; the link ends when the decoder has said that it has nothing live.
func TestDrain(t *testing.T) { drain(t) }

func drain(t tb) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	other := r.link(2, "e", nil, 0)
	m := d.dispatch("r", 0, 9)
	r.p.Drain(r.now)
	r.check()
	last[*Bye](other)
	none[*Bye](d)
	n := d.dispatch("s", 0, 9)
	if a := last[*Reject](d); a.Seq != n.Seq || a.Code != CodeDraining {
		t.Errorf("answer is %+v", a)
	}
	r.finish(9, 1)
	if a := d.phase(m.Seq); a.Phase != PhaseTomb || r.p.Done() {
		t.Errorf("%+v, done %v", a, r.p.Done())
	}
	r.advance(time.Second)
	if b := last[*Beat](d); !b.Draining {
		t.Errorf("%+v", b)
	}
	d.head.LowWater = d.head.Next
	d.send(&Beat{})
	last[*Bye](d)
	if !r.p.Done() {
		t.Error("not done")
	}
	late := r.decoder(3, "f", nil, 0)
	late.send(late.hello())
	r.imported(nil)
	last[*Bye](late)
	r.advance(time.Minute)
	if at, ok := r.p.Next(); ok || !r.p.Done() {
		t.Errorf("alarm at %v, done %v", at, r.p.Done())
	}
}

// TestClose fails what lives, waits for the writes, and does not wait for ever for the decoders.
func TestClose(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	if _, err := r.p.Expect(r.now, "s", Prompt{Tokens: 3}); err != nil {
		t.Fatal(err)
	}
	r.compute(0, 9, 1)
	r.p.Close(r.now)
	r.check()
	r.advance(time.Minute)
	none[*Failed](d)
	if r.p.Done() {
		t.Error("done with writes outstanding")
	}
	r.complete(-1)
	if a := last[*Failed](d); a.Code != CodeClosed || !a.Exact {
		t.Errorf("answer is %+v", a)
	}
	r.over(1)
	r.over(2)
	r.advance(time.Second)
	last[*Bye](d)
	if !r.p.Done() {
		t.Error("not done")
	}
	late := r.decoder(2, "f", nil, 0)
	late.send(late.hello())
	if a := last[*HelloReject](late); a.Code != CodeClosed {
		t.Errorf("answer is %+v", a)
	}
	if _, err := r.p.Expect(r.now, "t", Prompt{Tokens: 3}); err == nil {
		t.Error("a closed prefiller expects something")
	}
}

// TestBeats come every 500 ms while an attempt lives.
func TestBeats(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	r.take(1)
	r.advance(5 * time.Second)
	n := 0
	for _, m := range r.take(1) {
		if b, ok := m.Body.(*Beat); ok {
			if n++; b.Queue != 1 || b.Busy != 1000*3/64 {
				t.Errorf("%+v", b)
			}
		}
	}
	if n < 9 || n > 11 {
		t.Errorf("%d beats in 5s", n)
	}
}

// TestTiming tells when the computation went how.
func TestTiming(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{Origin: 1000, Host: 7})
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	pass := r.begin(0, 9, 1)
	for layer := range 3 {
		r.now += time.Second
		r.p.LayerReady(r.now, pass, 0, layer)
	}
	r.p.LayerLate(pass)
	want := Timing{m.Seq, 7, 1000 + int64(time.Second), 1000 + int64(4*time.Second), 3, 0}
	if a := last[*Timing](d); *a != want {
		t.Errorf("timing is %+v, want %+v", *a, want)
	}
}
