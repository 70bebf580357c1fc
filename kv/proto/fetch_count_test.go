package proto

import (
	"errors"
	"testing"
	"time"
)

func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		sums []uint64
		lost bool // the digest; Query brings it
		want error
	}{
		"equal":  {sums: []uint64{1, 2}},
		"differ": {sums: []uint64{1, 0}, want: ErrCorrupt},
		"lost":   {sums: []uint64{1, 2}, lost: true},
		"never":  {want: ErrStalled},
	} {
		k := newDesk(t, func(c *DecoderConfig) { c.Verify, c.Tries = true, 1 }, "a")
		h := k.hosts["a"]
		h.mute[KindQuery] = true
		r := k.fetch("r1", 2, func(f *Fetch) { f.Blocks = hashes('x', 2) }, "a")
		seq := h.lastSeq()
		h.finish(seq)
		k.pass(100 * time.Millisecond)
		if len(k.ready) > 0 {
			t.Fatalf("%s: ready without a digest", name)
		}
		switch {
		case c.lost:
			k.pass(2 * time.Second)
			if len(of[*Query](h)) == 0 {
				t.Fatalf("%s: no query", name)
			}
			h.send(&State{[]AttemptState{{Seq: seq, Phase: PhaseTomb, Posted: 8, Exact: true, Sums: c.sums}}})
		case c.sums != nil:
			h.send(&Digest{seq, c.sums})
		}
		k.pass(6 * time.Second)
		if _, ok := k.ready[r]; ok != (c.want == nil) || !errors.Is(k.ended[r], c.want) {
			t.Errorf("%s: ready: %v, ended with %v", name, ok, k.ended[r])
		}
		if cached := k.d.cfg.Pools[0].Counts().Cached; c.want != nil && cached != 0 {
			t.Errorf("%s: %d pages cached", name, cached)
		}
		k.d.Release(k.now, r)
		k.idle()
	}
}

// TestNoProgressIsLostBetweenLookAndAwait: a write that is counted between the look at the count and Await.
func TestNoProgressIsLostBetweenLookAndAwait(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	a := k.attempts[seq]
	h.write(seq, 4)
	sly := &slyOut{DecoderOut: k, await: func() { a.landed[h.peer] = 7 }} // as Await is called, three more come
	k.d.out = sly
	h.send(&Failed{CancelAck{seq, 9, true, h.granted}, CodeEngine, ""})
	k.run()
	k.d.out = k
	if sly.await != nil {
		t.Fatal("Await was not called")
	}
	h.write(seq, 2)
	k.run()
	if !k.attempts[seq].put {
		t.Error("the last write was not noticed")
	}
	k.d.Cancel(k.now, r, nil)
}

type slyOut struct {
	DecoderOut
	await func()
}

func (o *slyOut) Await(seq, more uint64) {
	if f := o.await; f != nil {
		o.await = nil
		f()
	}
	o.DecoderOut.Await(seq, more)
}

// TestOverrunEvictsThePeer: one that writes more than it was asked for may write anywhere.
func TestOverrunEvictsThePeer(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	k.attempts[seq].landed[h.peer] = 13
	k.d.Counted(k.now, seq)
	if k.attempts[seq].put {
		t.Fatal("the immediate was given back before the fence")
	}
	k.run()
	if s := k.d.Stats(); !errors.Is(k.ended[r], ErrProtocol) || s.Overruns != 1 || s.Fences != 1 {
		t.Errorf("ended with %v, %+v", k.ended[r], s)
	}
	k.idle()
}
