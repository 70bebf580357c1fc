package providertest

import (
	"fmt"
	"math"

	"github.com/hawser-project/hawser/provider"
)

// eachImmediateOnce sends values that repeat, in writes of all lengths, and counts them.
func eachImmediateOnce(w *world) {
	l := w.pair(64 << 10)
	countImmediates(l, 4000)
}

// completionsFitAnySlice does the same with owners that take one or three completions a call.
func completionsFitAnySlice(w *world) {
	l := w.pair(64 << 10)
	l.from.cs, l.to.cs = make([]provider.Completion, 3), make([]provider.Completion, 1)
	countImmediates(l, 1000)
}

func countImmediates(l *lane, total int) {
	w := l.w
	w.Helper()
	const values = 97 // a prime, so that values and lengths do not go together
	want, got := [values]int{}, [values]int{}
	l.to.onImm = func(c provider.Completion) error {
		if c.Imm >= values {
			return fmt.Errorf("immediate that nobody sent")
		}
		if got[c.Imm]++; got[c.Imm] > want[c.Imm] {
			return fmt.Errorf("immediate %d came %d times, sent %d times", c.Imm, got[c.Imm], want[c.Imm])
		}
		return nil
	}
	var toks []uint64
	for i := 0; i < total; {
		wrs := make([]provider.WR, min(total-i, 1+w.rng.IntN(40)))
		for j := range wrs {
			v := (i + j) % values
			n := w.rng.IntN(300)
			wrs[j] = l.writeImm(w.rng.IntN(1000), w.rng.IntN(1000), n, uint32(v))
			want[v]++
		}
		toks = append(toks, l.from.post(wrs...)...)
		i += len(wrs)
		w.pump()
	}
	w.until("every immediate arrives", func() bool { return len(l.to.imms) >= total && l.from.isDone(toks...) })
	l.from.wantStatus(provider.StatusOK, toks...)
	w.settle()
	if got != want {
		w.Fatalf("immediates by value: got %v, want %v", got, want)
	}
	if len(l.from.imms) != 0 {
		w.Fatalf("the writer received %d immediates", len(l.from.imms))
	}
}

// immediateNeverBeforeItsBytes keeps many writes of random lengths in flight. Each has a slot of its own, which is
// compared at the moment Poll returns its immediate, and then cleared for the next write.
func immediateNeverBeforeItsBytes(w *world) {
	const slots, slot, total = 16, 64 << 10, 1500
	l := w.pair(slots * slot)
	type flight struct{ n, off int }
	var fly [slots]flight
	free := make([]int, 0, slots)
	for i := range slots {
		free = append(free, i)
	}
	seen := 0
	var bad error
	l.to.onImm = func(c provider.Completion) error {
		i := int(c.Imm)
		if i >= slots || fly[i].n < 0 || l.to.immLen(fly[i].n) != c.Len {
			return fmt.Errorf("immediate that is not in flight")
		}
		f := fly[i]
		dst := l.dst.b[i*slot+f.off:][:f.n]
		if at := differ(dst, l.src.b[i*slot+f.off:][:f.n]); at >= 0 {
			bad = fmt.Errorf("the immediate of a write of %d bytes came before byte %d", f.n, at)
			return bad
		}
		clear(dst)
		fly[i].n = -1
		free = append(free, i)
		seen++
		return nil
	}
	posted := 0
	w.until(fmt.Sprintf("%d immediates arrive", total), func() bool {
		for len(free) > 0 && posted < total {
			i := free[len(free)-1]
			n := w.rng.IntN(slot) + 1
			switch w.rng.IntN(4) {
			case 0:
				n = w.rng.IntN(64) + 1
			case 1:
				n = w.rng.IntN(4096) + 1
			}
			f := flight{n: n, off: w.rng.IntN(slot - n + 1)}
			wr := l.writeImm(i*slot+f.off, i*slot+f.off, f.n, uint32(i))
			fly[i] = f // before Post, which may place it at once
			toks, err := l.from.tryPost([]provider.WR{wr})
			if err != nil {
				w.Fatal(err)
			}
			if len(toks) == 0 {
				fly[i].n = -1
				break
			}
			free = free[:len(free)-1]
			posted++
		}
		return seen == total
	})
	w.until("the writes complete", func() bool { return len(l.from.out) == 0 })
}

func immediateNamesValueLengthAndPeer(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	lanes := []*lane{w.lane(a, c, 4096), w.lane(b, c, 4096), w.lane(a, c, 4096)}
	for _, imm := range []uint32{0, 1, 0x01020304, math.MaxInt32, math.MaxUint32} {
		for i, l := range lanes {
			c.imms = c.imms[:0]
			n := i * 1000
			l.from.finish(l.from.post(l.writeImm(0, 0, n, imm))...)
			w.until("the immediate arrives", func() bool { return len(c.imms) == 1 })
			if got := c.imms[0]; got.Imm != imm || got.Peer != l.back || got.Len != c.immLen(n) {
				w.Fatalf("got %s, want imm %#x of peer %#x with length %d", show(got), imm, l.back, n)
			}
		}
	}
}
