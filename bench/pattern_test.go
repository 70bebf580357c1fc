package bench

import (
	"slices"
	"testing"
)

func TestOrderUsesEveryBlockOnce(t *testing.T) {
	const slots = 1000
	o := newOrder(slots, 7)
	seenSrc, seenDst := make([]int, slots), make([]int, slots)
	err := o.runs(slots-10, slots, 64, func(at int, src, dst []uint32) error { // starts near the end, so that it wraps
		if len(src) == 0 || len(src) > 64 || len(src) != len(dst) {
			t.Fatalf("run of %d and %d blocks", len(src), len(dst))
		}
		if at >= slots || o.src[at] != src[0] {
			t.Fatalf("a run that does not begin at position %d", at)
		}
		for i := range src {
			seenSrc[src[i]]++
			seenDst[dst[i]]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, seen := range [][]int{seenSrc, seenDst} {
		if slices.Min(seen) != 1 || slices.Max(seen) != 1 {
			t.Errorf("blocks were used %d .. %d times, want once", slices.Min(seen), slices.Max(seen))
		}
	}
	again := newOrder(slots, 7)
	if !slices.Equal(o.src, again.src) || !slices.Equal(o.dst, again.dst) {
		t.Error("the same seed gave another order")
	}
	if slices.Equal(o.src, o.dst) || slices.Equal(o.src, newOrder(slots, 8).src) {
		t.Error("orders that should differ are equal")
	}
}

// TestColdSidesDoNotMeet looks at the blocks that the two sides use in one round.
func TestColdSidesDoNotMeet(t *testing.T) {
	for _, size := range Pages.Sizes() {
		c, err := Config{Kind: Pages, Provider: "shm", Size: size, Cold: true}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		o := newOrder(c.slots(), 1)
		used := make([]int, c.slots())
		for _, first := range []uint64{5, o.away(5)} {
			_ = o.runs(first, c.blocks(), c.Batch, func(_ int, src, _ []uint32) error {
				for _, s := range src {
					used[s]++
				}
				return nil
			})
		}
		if slices.Max(used) != 1 {
			t.Errorf("blocks of %d bytes: one is used %d times in a round, want once", size, slices.Max(used))
		}
	}
}

func TestCorruptFindsEveryKindOfFault(t *testing.T) {
	const size, slots, seed = 61, 16, 3 // with a tail
	o := newOrder(slots, seed)
	src := make([]byte, size*slots)
	stamp(src, size, seed)
	copied := func() []byte {
		dst := make([]byte, len(src))
		o.copy(dst, src, size, task{Count: slots})
		return dst
	}
	block := func(dst []byte, k int) []byte { return dst[int(o.dst[k])*size:][:size] }
	for _, tc := range []struct {
		name  string
		spoil func(dst []byte)
		want  uint64
	}{
		{"nothing", func([]byte) {}, 0},
		{"a flipped bit", func(dst []byte) { dst[100] ^= 1 }, 8},
		{"one in the tail", func(dst []byte) { dst[60] ^= 1 }, 1},
		{"a block that never came", func(dst []byte) { clear(block(dst, 5)) }, size},
		{"two swapped blocks", func(dst []byte) {
			a, b := block(dst, 2), block(dst, 9)
			for i := range a {
				a[i], b[i] = b[i], a[i]
			}
		}, 2 * size},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dst := copied()
			tc.spoil(dst)
			if got := o.corrupt(dst, size, seed, slots, 0, 1); got != tc.want {
				t.Errorf("got %d corrupt bytes, want %d", got, tc.want)
			}
			var parts uint64
			for i := range 3 {
				parts += o.corrupt(dst, size, seed, slots, i, 3)
			}
			if parts != tc.want {
				t.Errorf("three receivers got %d corrupt bytes, want %d", parts, tc.want)
			}
		})
	}
}

func TestStrayMessagesAreFound(t *testing.T) {
	const size, slots, seed = 61, 16, 3
	src := make([]byte, size*slots)
	stamp(src, size, seed)
	message := func() []byte { return slices.Clone(src[5*size : 6*size]) }
	for _, tc := range []struct {
		name  string
		spoil func(m []byte)
		want  uint64
	}{
		{"nothing", func([]byte) {}, 0},
		{"a flipped bit", func(m []byte) { m[20] ^= 1 }, 8},
		{"a flipped bit in the tail", func(m []byte) { m[60] ^= 1 }, 1},
		{"no block", func(m []byte) { m[0] ^= 1 }, size},
		{"the rest of another", func(m []byte) { copy(m[16:], src[7*size+16:8*size]) }, size - 16},
	} {
		m := message()
		tc.spoil(m)
		if got := strayBytes(m, seed, slots); got != tc.want {
			t.Errorf("%s: got %d wrong bytes, want %d", tc.name, got, tc.want)
		}
	}
}
