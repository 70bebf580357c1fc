package providertest

import (
	"bytes"
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// completedWriteReadsNoMore spoils the source of each write at the moment it completes.
func completedWriteReadsNoMore(w *world) {
	const slots, size, rounds = 32, 8 << 10, 20
	l := w.pair(slots * size)
	for round := range rounds {
		w.fill(l.src.b)
		want := bytes.Clone(l.src.b)
		slot := map[uint64]int{}
		l.from.onDone = func(c provider.Completion) {
			spoil(l.src.b[slot[c.Token]*size:][:size])
		}
		for i := range slots {
			slot[l.from.token+1] = i // the token that post will give it
			l.from.post(l.writeImm(i*size, i*size, size, uint32(i)))
		}
		w.until("all writes and immediates complete", func() bool {
			return len(l.from.out) == 0 && len(l.to.imms) == slots*(round+1)
		})
		if at := differ(l.dst.b, want); at >= 0 {
			w.Fatalf("round %d: byte %d was read from the source after its write had completed", round, at)
		}
	}
}

func spoil(b []byte) {
	for i := range b {
		b[i] = 0xEE
	}
}

// flushedWriteReadsNoMore spoils the source once everything is flushed.
func flushedWriteReadsNoMore(w *world) {
	const size = 64 << 10
	a, b := w.open("a"), w.open("b")
	src, dst := w.region(a, size, 0), w.region(b, size, provider.AccessRemoteWrite)
	for round := range 10 {
		l := &lane{w: w, from: a, to: b, src: src, dst: dst}
		l.peer, l.back = w.connect(a, b)
		l.key = w.grant(dst, l.back)
		clear(dst.b)
		for i := range src.b {
			src.b[i] = 1
		}
		var wrs []provider.WR
		for i := range min(a.caps.PeerDepth, 32) {
			wrs = append(wrs, l.writeImm(0, 0, size, uint32(i)))
		}
		if _, err := a.tryPost(wrs); err != nil {
			w.Fatal(err)
		}
		for range round {
			w.pump()
		}
		b.paused = round%2 == 0
		w.drop(a, l.peer)
		spoil(src.b)
		b.paused = false
		w.until("the other side sees KindPeerDown", func() bool { return b.peer(l.back).down })
		w.settle()
		for at, v := range dst.b {
			if v > 1 {
				w.Fatalf("round %d: byte %d was read from the source after its write had been flushed", round, at)
			}
		}
		if err := b.dom.Disconnect(l.back); err != nil {
			w.Fatal(err)
		}
	}
}

// orderedKeepsOrder: plain writes before an immediate are visible with it, and immediates come in order.
func orderedKeepsOrder(w *world) {
	const size, batch, rounds = 16 << 10, 8, 100
	l := w.pair(batch * size)
	if !l.from.caps.Ordered {
		w.unpromised("Caps.Ordered is false")
	}
	next := uint32(0)
	l.to.onImm = func(c provider.Completion) error {
		if c.Imm != next {
			return fmt.Errorf("immediate %d came, %d was posted first", c.Imm, next)
		}
		next++
		if at := differ(l.dst.b, l.src.b); at >= 0 {
			return fmt.Errorf("an immediate came before byte %d of an earlier write", at)
		}
		return nil
	}
	for round := range rounds {
		w.fill(l.src.b)
		wrs := make([]provider.WR, batch)
		for i := range wrs {
			wrs[i] = l.write(i*size, i*size, size)
		}
		wrs = append(wrs, l.writeImm(0, 0, 0, uint32(2*round)), l.writeImm(0, 0, 1, uint32(2*round+1)))
		toks := l.from.post(wrs...)
		w.until("the writes and both immediates complete", func() bool {
			return l.from.isDone(toks...) && next == uint32(2*round+2)
		})
	}
}
