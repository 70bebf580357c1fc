package shm

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// TestPlaceCopiesExactly: every length and alignment around the limits, past the caches and into them, with and without
// something to look ahead to; no byte beside the destination changes.
func TestPlaceCopiesExactly(t *testing.T) {
	if !canStream {
		t.Log("this build or processor has only copy, which is what is tested")
	}
	rng := rand.New(rand.NewPCG(5, 6))
	src, dst := make([]byte, 3<<20), make([]byte, 3<<20)
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	lengths := []int{
		0, 1, streamMin - 1, streamMin, streamMin + 1, streamMin + lineSize + streamStep - 1, aheadBytes + streamStep, 3*aheadBytes + 5,
		aheadMax, aheadMax + 1, aheadMax + 7*lineSize, cachedMax - 1, cachedMax + 3, 1 << 20, 2<<20 + 77,
	}
	d := new(domain)
	for _, n := range lengths {
		for range 24 {
			from, to := rng.IntN(200), rng.IntN(200)
			var next []byte
			if rng.IntN(2) == 0 {
				next = src[rng.IntN(len(src)):]
			}
			fill := byte(rng.Uint32())
			for i := range dst[:n+400] {
				dst[i] = fill
			}
			d.place(dst[to:to+n], src[from:from+n], next)
			d.settle()
			if !bytes.Equal(dst[to:to+n], src[from:from+n]) {
				t.Fatalf("%d bytes from offset %d to offset %d: content differs", n, from, to)
			}
			for i, b := range dst[:n+400] {
				if (i < to || i >= to+n) && b != fill {
					t.Fatalf("%d bytes to offset %d: byte %d changed", n, to, i)
				}
			}
		}
	}
}

// TestWarmthForgets: a destination is cached when it was written lately, and only then.
func TestWarmthForgets(t *testing.T) {
	w, b := new(warmth), make([]byte, 2*warmBytes)
	page := func(i int) []byte { return b[i*pageSize:][:pageSize] }
	steps := []struct {
		what   string
		dst    []byte
		cached bool
	}{
		{"never written", page(1), false},
		{"written before", page(1), true},
		{"beside it", page(2), false},
		{"a long write", b[4*pageSize:][:warmBytes-2*pageSize], false},
		{"just in time", page(1), true},
		{"another long write", b[5*pageSize:][:warmBytes], false},
		{"written long ago", page(1), false},
		{"the same place a whole table away", page(1 + warmPlaces), false},
		{"which took the place of", page(1), false},
	}
	for _, s := range steps {
		if got := w.cached(s.dst); got != s.cached {
			t.Errorf("%s: cached is %v, want %v", s.what, got, s.cached)
		}
	}
}

// TestBatchIsSettledBeforeItIsPublished: what went past the caches has been ordered when the peer may see the immediate, and when the
// slot says idle.
func TestBatchIsSettledBeforeItIsPublished(t *testing.T) {
	a, b := newPair(t)
	_, src := a.memory(1 << 20)
	_, dst := b.memory(1 << 20)
	key := b.grant(dst)
	past := 0
	a.d.midCopy = func() { past++ }
	a.d.looked = func() {
		if a.d.streamed {
			t.Error("a batch is about to be published that is not settled")
		}
	}
	wr := provider.WR{Op: provider.OpWriteImm, LocalKey: src.ID, RemoteKey: key.ID, Len: 1 << 20}
	a.post(wr)
	b.wait(provider.KindImm, a)
	a.d.midCopy = func() {
		if err := b.d.Disconnect(b.peer); err != nil {
			t.Error(err)
		}
	}
	a.post(wr)
	if a.d.streamed || past != 1 {
		t.Error("a batch that was cut off is not settled")
	}
}

// TestPullIsSettledBeforeItCounts is the same for copies by the receiver.
func TestPullIsSettledBeforeItCounts(t *testing.T) {
	l := newShown(t, 1<<20)
	pulls := 0
	l.b.d.midPull = func(read bool) {
		if read {
			pulls++
		}
		if read && l.b.d.streamed {
			t.Error("a loan is about to be answered that is not settled")
		}
	}
	l.a.post(l.wr(0, 0, 1<<20, 7))
	l.b.wait(provider.KindImm, l.a)
	if pulls == 0 || !bytes.Equal(l.src, l.dst) {
		t.Errorf("%d pulls, content right: %v", pulls, bytes.Equal(l.src, l.dst))
	}
}

// TestArmWaitsForACopyOnce: a peer that is in the middle of a copy keeps the owner awake for one more round of looking, and no longer.
func TestArmWaitsForACopyOnce(t *testing.T) {
	a, b := newPair(t)
	_, src := a.memory(4096)
	_, dst := b.memory(4096)
	key := b.grant(dst)
	for b.d.Arm() { // what came with the connection
		b.poll()
	}
	for round := range 2 {
		var armed []bool
		a.d.midCopy = func() {
			for range 3 {
				armed = append(armed, b.d.Arm())
				b.poll()
			}
		}
		a.post(provider.WR{Op: provider.OpWriteImm, LocalKey: src.ID, RemoteKey: key.ID, Len: 4096})
		b.wait(provider.KindImm, a)
		if len(armed) != 3 || !armed[0] || armed[1] || armed[2] {
			t.Errorf("round %d: Arm said %v in the middle of a copy, want true once", round, armed)
		}
	}
}
