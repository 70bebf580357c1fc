package imm

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func hold(t *testing.T, tab *Table, r *Range) *Range {
	t.Helper()
	if _, err := tab.Hold(r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRangesDoNotOverlapAndNameTheHolder(t *testing.T) {
	tab := NewTable()
	first := hold(t, tab, &Range{Holder: "first", Base: 0x1000, Bits: 12})
	for name, r := range map[string]*Range{
		"same":   {Base: 0x1000, Bits: 12},
		"inside": {Base: 0x1ff0, Bits: 4, BlockBits: -1},
		"around": {Base: 0, Bits: 20},
	} {
		_, err := tab.Hold(r)
		var in *InUse
		if !errors.As(err, &in) || in.Holder != first || !strings.Contains(err.Error(), "first") {
			t.Errorf("%s: %v", name, err)
		}
	}
	hold(t, tab, &Range{Base: 0x2000, Bits: 12})
	tab.Release(first)
	hold(t, tab, &Range{Holder: "second", Base: 0x1000, Bits: 12})
}

func TestRangesOfWrongNumbersAreRefused(t *testing.T) {
	for name, r := range map[string]*Range{
		"negative":         {Bits: -1},
		"everything":       {Bits: 32},
		"not a multiple":   {Base: 1, Bits: 1},
		"block too large":  {Bits: 3, BlockBits: 4},
		"too many blocks":  {Bits: 21, BlockBits: 0},
		"base beyond bits": {Base: 0x80000001, Bits: 31},
	} {
		if _, err := NewTable().Hold(r); err == nil {
			t.Errorf("%s: held", name)
		}
	}
	for _, r := range []*Range{{Bits: 0}, {Base: 1 << 31, Bits: 31, BlockBits: 20}, {Base: 0xfffffff0, Bits: 4, BlockBits: -1}} {
		if _, err := NewTable().Hold(r); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// What somebody waits for is not taken away; what nobody asked for was early, which is stale.
func TestValuesInUseWhenARangeIsHeld(t *testing.T) {
	tab, src := NewTable(), &Source{}
	for range 3 {
		add(t, tab, src, 0x105)
	}
	asked := tab.Counter(0x207)
	_, err := tab.Hold(&Range{Base: 0x200, Bits: 8})
	var in *InUse
	if !errors.As(err, &in) || in.Value != asked {
		t.Fatalf("hold a value in use: %v", err)
	}
	stale, err := tab.Hold(&Range{Base: 0x100, Bits: 8, BlockBits: -1})
	if err != nil || stale != 3 {
		t.Fatalf("%d stale, %v, want 3", stale, err)
	}
	if n := src.unasked.Load(); n != 0 {
		t.Fatalf("%d places of the source are taken by values that are gone", n)
	}
	if tab.Counter(0x105) != nil {
		t.Fatal("a managed value that is not open has a counter")
	}
	if c := tab.Open(0x105); c.Load() != 0 {
		t.Fatalf("%d early arrivals were mixed in", c.Load())
	}
}

// Managed values cost a source none of its open ones.
func TestManagedValuesAreNotUnasked(t *testing.T) {
	tab, src := NewTable(), &Source{}
	r := hold(t, tab, &Range{Base: 1 << 20, Bits: 17, BlockBits: 16})
	r.Put(0, r.NewBlock(0, false))
	for i := range uint32(1 << 17) {
		if _, err := tab.Add(src, 1<<20+i); (err == nil) != (i < 1<<16) || err != nil && !errors.Is(err, ErrStale) {
			t.Fatalf("value %d: %v", i, err)
		}
	}
	if src.Stale() != 1<<16 || src.unasked.Load() != 0 {
		t.Fatalf("%d stale, %d unasked, want %d and 0", src.Stale(), src.unasked.Load(), 1<<16)
	}
}

// The table against a plain model: open values, values that are opened one by one, and blocks, in any order.
func TestTableAgreesWithModel(t *testing.T) {
	const singles, dense, values = 0x100, 0x200, 0x40
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		tab, srcs := NewTable(), []*Source{{}, {}, {}}
		hold(t, tab, &Range{Holder: "singles", Base: singles, Bits: 6, BlockBits: -1})
		r := hold(t, tab, &Range{Holder: "dense", Base: dense, Bits: 6, BlockBits: 3})
		want, stale := map[uint32]map[*Source]uint64{}, map[*Source]uint64{} // want: the values that are open
		one := func() uint32 { return []uint32{0, singles, dense}[rng.IntN(3)] + rng.Uint32N(values) }
		for range 20000 {
			v := one()
			managed := v >= singles
			switch rng.IntN(12) {
			default:
				src := srcs[rng.IntN(len(srcs))]
				_, err := tab.Add(src, v)
				if managed && want[v] == nil {
					stale[src]++
				} else if want[v] == nil {
					want[v] = map[*Source]uint64{}
				}
				if want[v] != nil {
					want[v][src]++
				}
				if (err != nil) != (want[v] == nil) {
					t.Fatalf("seed %d: arrival at %#x: %v", seed, v, err)
				}
			case 0: // open what is closed, close what is open
				switch {
				case v >= dense:
					i := int(v-dense) >> 3
					b := r.NewBlock(i, false)
					isOpen := want[v] != nil
					if isOpen {
						b = nil
					}
					r.Put(i, b)
					for j := range uint32(8) {
						delete(want, dense+uint32(i)<<3+j)
						if !isOpen {
							want[dense+uint32(i)<<3+j] = map[*Source]uint64{}
						}
					}
				case managed && want[v] == nil:
					tab.Open(v)
					want[v] = map[*Source]uint64{}
				case want[v] != nil:
					tab.Remove(tab.Counter(v))
					delete(want, v)
				}
			}
		}
		for v, parts := range want {
			c, sum := tab.Counter(v), uint64(0)
			for src, n := range parts {
				if c.From(src) != n {
					t.Fatalf("seed %d: value %#x: %d of a source, want %d", seed, v, c.From(src), n)
				}
				sum += n
			}
			if c.Load() != sum || c.Imm != v {
				t.Fatalf("seed %d: value %#x (%#x): %d, want %d", seed, v, c.Imm, c.Load(), sum)
			}
		}
		for _, src := range srcs {
			if src.Stale() != stale[src] {
				t.Fatalf("seed %d: %d stale, want %d", seed, src.Stale(), stale[src])
			}
		}
		seen := 0
		tab.Each(func(*Counter) { seen++ })
		if seen != len(want) || tab.Len() != len(want) {
			t.Fatalf("seed %d: %d counters, Each saw %d, want %d", seed, tab.Len(), seen, len(want))
		}
	}
}

// Blocks open and close while a worker counts: nothing is counted twice, nothing is lost without being called stale, but for what is
// counted in a block that was just closed.
func TestBlocksOpenAndCloseUnderCounting(t *testing.T) {
	tab, src := NewTable(), &Source{}
	r := hold(t, tab, &Range{Base: 0, Bits: 4, BlockBits: 4})
	const arrivals = 200000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint32(arrivals) {
			_, _ = tab.Add(src, i%16)
		}
	})
	var blocks []*Block
	for range 2000 {
		b := r.NewBlock(0, false)
		r.Put(0, b)
		blocks = append(blocks, b)
		if old := r.Put(0, nil); old != b {
			t.Fatal("closed another block than was opened")
		}
	}
	wg.Wait()
	sum := src.Stale()
	for _, b := range blocks {
		for i := range b.Counters {
			sum += b.Counters[i].Load()
		}
	}
	if sum != arrivals {
		t.Fatalf("%d counted or stale, want %d", sum, arrivals)
	}
}

func TestMirrorFollowsAndStops(t *testing.T) {
	tab, src := NewTable(), &Source{}
	add(t, tab, src, 1)
	c, b := tab.Counter(1), make([]byte, 16)
	b[0] = 0xff // no count
	w, err := Word(b[:8])
	if err != nil {
		t.Fatal(err)
	}
	c.Mirror(w)
	if w.Load() != 1 {
		t.Fatalf("starts with %d, want 1", w.Load())
	}
	c.SetThreshold(3)
	for n := uint64(2); n < 6; n++ {
		if due := add(t, tab, src, 1); w.Load() != n || (due != nil) != (n >= 3) {
			t.Fatalf("arrival %d: mirror %d, due %v", n, w.Load(), due != nil)
		}
	}
	raise(w, 4) // by a worker that counted before others and comes after them
	if w.Load() != 5 {
		t.Fatalf("the mirror went back to %d", w.Load())
	}
	c.Unmirror(false)
	if due := add(t, tab, src, 1); w.Load() != 5 || due == nil {
		t.Fatalf("a mirror that has ended goes on to %d, due %v", w.Load(), due != nil)
	}
	c.Mirror(w)
	w.Store(0) // as if the worker that counts last had not come to it yet
	if c.Unmirror(false); w.Load() != 6 {
		t.Fatalf("a mirror ends with %d, the count is 6", w.Load())
	}
	if _, err := Word(b[4:12]); err == nil {
		t.Fatal("a word that is not aligned")
	}
	if _, err := Word(b); err == nil {
		t.Fatal("a word of 16 bytes")
	}
}

// A mirror that starts while workers count misses nothing and never goes back.
func TestMirrorStartsUnderCounting(t *testing.T) {
	const workers, each = 3, 20000
	for range 20 {
		tab, src := NewTable(), &Source{}
		c, w := tab.Counter(1), new(atomic.Uint64)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range each {
					_, _ = tab.Add(src, 1)
				}
			})
		}
		c.Mirror(w)
		for last := uint64(0); last < workers*each; {
			n := w.Load()
			if n < last || n > c.Load() {
				t.Fatalf("mirror went from %d to %d, count %d", last, n, c.Load())
			}
			last = n
		}
		wg.Wait()
	}
}

// Those who are gone leave the list when the next one comes.
func TestSourcesThatAreGoneAreForgotten(t *testing.T) {
	tab, stays := NewTable(), &Source{}
	add(t, tab, stays, 1)
	for range 1000 {
		src := &Source{}
		add(t, tab, src, 1)
		src.Leave()
	}
	c := tab.Counter(1)
	if n := len(*c.from.Load()); n > 2 {
		t.Fatalf("%d sources in the list, want 2", n)
	}
	if c.From(stays) != 1 || c.Load() != 1001 {
		t.Fatalf("%d, %d from the one that stays", c.Load(), c.From(stays))
	}
}

func TestAddToManagedValuesAllocatesNothing(t *testing.T) {
	tab, src := NewTable(), &Source{}
	r := hold(t, tab, &Range{Base: 0, Bits: 8, BlockBits: 4})
	b := r.NewBlock(1, false)
	r.Put(1, b)
	b.Counters[3].Mirror(new(atomic.Uint64))
	add(t, tab, src, 0x13)
	if n := testing.AllocsPerRun(100, func() {
		_, _ = tab.Add(src, 0x13) // counted, with a mirror
		_, _ = tab.Add(src, 0x23) // stale
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkAddToBlock(b *testing.B) {
	tab, src := NewTable(), &Source{}
	r := &Range{Base: 0, Bits: 16, BlockBits: 8}
	if _, err := tab.Hold(r); err != nil {
		b.Fatal(err)
	}
	r.Put(0, r.NewBlock(0, false))
	for b.Loop() {
		_, _ = tab.Add(src, 77)
	}
}

func BenchmarkAddWithMirror(b *testing.B) {
	tab, src := NewTable(), &Source{}
	tab.Counter(77).Mirror(new(atomic.Uint64))
	for b.Loop() {
		_, _ = tab.Add(src, 77)
	}
}

// One value from 64 sources in turn, as a barrier of 65 members sees it.
func BenchmarkAddOf64Sources(b *testing.B) {
	tab, srcs := NewTable(), make([]Source, 64)
	for i := uint64(0); b.Loop(); i++ {
		_, _ = tab.Add(&srcs[i%64], 77)
	}
}
