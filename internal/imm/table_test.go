package imm

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
)

func add(t *testing.T, tab *Table, src *Source, imm uint32) *Counter {
	t.Helper()
	c, err := tab.Add(src, imm)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestImmNotLostBeforeAsked(t *testing.T) {
	tab, src := NewTable(), &Source{}
	for range 3 {
		add(t, tab, src, 0)
	}
	c := tab.Counter(0)
	if c.Load() != 3 || c.From(src) != 3 {
		t.Fatalf("count %d, from source %d, want 3 and 3", c.Load(), c.From(src))
	}
	if tab.Counter(0) != c {
		t.Fatal("two counters for one value")
	}
}

func TestPartsAddUpPerSource(t *testing.T) {
	tab := NewTable()
	sources := make([]*Source, 20)
	for i := range sources {
		sources[i] = &Source{}
		for range i {
			add(t, tab, sources[i], 7)
		}
	}
	c := tab.Counter(7)
	sum := uint64(0)
	for i, s := range sources {
		if c.From(s) != uint64(i) {
			t.Fatalf("source %d: %d, want %d", i, c.From(s), i)
		}
		sum += c.From(s)
	}
	if c.Load() != sum {
		t.Fatalf("count %d, parts %d", c.Load(), sum)
	}
}

func TestThresholdReportsFromThatCountOn(t *testing.T) {
	tab, src := NewTable(), &Source{}
	c := tab.Counter(5)
	c.SetThreshold(3)
	for i := 1; i <= 4; i++ {
		if due := add(t, tab, src, 5); (due != nil) != (i >= 3) {
			t.Fatalf("arrival %d: due %v", i, due != nil)
		}
	}
	c.SetThreshold(math.MaxUint64)
	if add(t, tab, src, 5) != nil {
		t.Fatal("reported although nobody waits")
	}
}

func TestRemovedValueStartsAtZero(t *testing.T) {
	tab, src := NewTable(), &Source{}
	add(t, tab, src, 9)
	old := tab.Counter(9)
	tab.Remove(old)
	tab.Remove(old)
	add(t, tab, src, 9)
	if n := tab.Counter(9).Load(); n != 1 || old.Load() != 1 || tab.Len() != 1 {
		t.Fatalf("after removal: new %d, old %d, counters %d, want 1 each", n, old.Load(), tab.Len())
	}
}

func TestOneSourceCannotFillTheTable(t *testing.T) {
	tab, bad, good := NewTable(), &Source{}, &Source{}
	for i := range uint32(MaxUnasked) {
		add(t, tab, bad, i)
	}
	if _, err := tab.Add(bad, MaxUnasked); !errors.Is(err, ErrUnasked) {
		t.Fatalf("value number %d: %v", MaxUnasked+1, err)
	}
	add(t, tab, bad, 1) // values that exist go on
	add(t, tab, good, MaxUnasked+1)
	tab.Counter(3) // asked for: one place is free again
	add(t, tab, bad, MaxUnasked+2)
}

// Nor can one that comes under one identity after the other, each within its limit. What others count too stays.
func TestSourcesThatComeAndGoCannotFillTheTable(t *testing.T) {
	const comers = 3
	tab, stays := NewTable(), &Source{}
	tab.Attach(stays)
	for k := range uint32(comers) {
		src, base := &Source{}, k*MaxUnasked
		tab.Attach(src)
		for i := range uint32(MaxUnasked) {
			add(t, tab, src, base+i)
		}
		tab.Counter(base) // somebody asks for one of them
		add(t, tab, stays, base+1)
		tab.Detach(src)
		if n, most := tab.Len(), maxOrphans+2*(int(k)+1); n > most {
			t.Fatalf("%d counters after %d sources have come and gone, at most %d", n, k+1, most)
		}
	}
	orphans := 0
	for c := range tab.all() {
		if c.creator != nil && c.creator.attached == 0 {
			orphans++
		}
	}
	if tab.orphans != orphans {
		t.Fatalf("%d orphans, want %d", tab.orphans, orphans)
	}
	for k := range uint32(comers) {
		if one, two := tab.Counter(k*MaxUnasked).Load(), tab.Counter(k*MaxUnasked+1); one != 1 || two.From(stays) != 1 {
			t.Fatalf("counts that are of use: %d, %d", one, two.From(stays))
		}
	}
}

// Values are forgotten while another source counts them: none of its arrivals is lost, and none counted twice.
func TestForgettingUnderCounting(t *testing.T) {
	tab, stays := NewTable(), &Source{}
	tab.Attach(stays)
	const values, each = 64, 2000
	removed := map[uint32][]*Counter{} // an Add that had found one counts there
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint32(values * each) {
			_, _ = tab.Add(stays, i%values)
		}
	})
	for k := range uint32(40) {
		src := &Source{}
		tab.Attach(src)
		for i := range uint32(values) {
			_, _ = tab.Add(src, i)
		}
		tab.mu.Lock()
		tab.orphans += maxOrphans // as if there were many more
		tab.mu.Unlock()
		tab.Detach(src)
		tab.mu.Lock()
		tab.orphans -= maxOrphans
		tab.mu.Unlock()
		for i := range uint32(values) {
			if c := tab.find(i); c != nil && k%2 == 0 && c.From(stays) == 0 {
				tab.Remove(c) // so that the next one creates it
				removed[i] = append(removed[i], c)
			}
		}
	}
	wg.Wait()
	for i := range uint32(values) {
		n := tab.Counter(i).From(stays)
		for _, c := range removed[i] {
			n += c.From(stays)
		}
		if n != each {
			t.Errorf("value %d: %d of %d", i, n, each)
		}
	}
}

// An Add that finds its counter condemned has counted, when the counter is kept after all.
func TestCondemnedAndKept(t *testing.T) {
	tab, src := NewTable(), &Source{}
	tab.Attach(src)
	add(t, tab, src, 7)
	c := tab.find(7)
	tab.mu.Lock()
	c.condemned.Store(true)
	c.alarm.Store(0)
	added := make(chan struct{})
	go func() {
		defer close(added)
		_, _ = tab.Add(src, 7)
	}()
	for c.Load() != 2 {
		runtime.Gosched()
	}
	tab.drop(c) // its source is attached
	tab.mu.Unlock()
	<-added
	if n := tab.Counter(7).Load(); n != 2 {
		t.Fatalf("counted %d, want 2", n)
	}
}

// The table against a plain map, with removals, so that tombstones and rebuilds are crossed many times.
func TestTableAgreesWithMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tab, src, want := NewTable(), &Source{}, map[uint32]uint64{}
	for range 200000 {
		imm := rng.Uint32N(500) * 0x01000193
		if rng.IntN(4) == 0 {
			tab.Remove(tab.Counter(imm))
			delete(want, imm)
		} else {
			add(t, tab, src, imm)
			want[imm]++
		}
	}
	if tab.Len() != len(want) {
		t.Fatalf("%d counters, want %d", tab.Len(), len(want))
	}
	for imm, n := range want {
		if got := tab.Counter(imm).Load(); got != n {
			t.Fatalf("value %#x: %d, want %d", imm, got, n)
		}
	}
	seen := 0
	tab.Each(func(*Counter) { seen++ })
	if seen != len(want) {
		t.Fatalf("Each saw %d of %d", seen, len(want))
	}
}

func TestWorkersCountTogether(t *testing.T) {
	tab, shared := NewTable(), &Source{}
	const workers, values, each = 4, 300, 50
	own := make([]*Source, workers)
	var wg sync.WaitGroup
	for w := range workers {
		own[w] = &Source{}
		wg.Go(func() {
			for i := range each * values {
				_, _ = tab.Add(shared, uint32(i%values))
				_, _ = tab.Add(own[w], uint32(i%values))
			}
		})
	}
	wg.Wait()
	for v := range uint32(values) {
		c := tab.Counter(v)
		if c.Load() != 2*workers*each || c.From(shared) != workers*each || c.From(own[1]) != each {
			t.Fatalf("value %d: %d, shared %d, own %d", v, c.Load(), c.From(shared), c.From(own[1]))
		}
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	tab, src := NewTable(), &Source{}
	add(t, tab, src, 1)
	if n := testing.AllocsPerRun(100, func() { _, _ = tab.Add(src, 1) }); n != 0 {
		t.Fatalf("%v allocations an arrival", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	tab, src := NewTable(), &Source{}
	for b.Loop() {
		_, _ = tab.Add(src, 77)
	}
}

// Whoever sees the whole count sees the parts of those who sent it: the part is counted first.
func TestPartIsCountedBeforeTheWhole(t *testing.T) {
	table, src := NewTable(), &Source{}
	c := table.Counter(1)
	const n = 200000
	done := make(chan error, 1)
	go func() {
		for range n {
			if _, err := table.Add(src, 1); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for whole := uint64(0); whole < n; {
		whole = c.Load()
		if part := c.From(src); part < whole {
			t.Fatalf("%d counted, of which %d are from the only sender", whole, part)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
