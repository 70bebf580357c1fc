package ring

import (
	"runtime"
	"sync"
	"testing"
)

func TestFunnelIsFIFOAndBounded(t *testing.T) {
	q := NewFunnel[int](4)
	for round := range 100 {
		for i := range 4 {
			if !q.Push(round*10 + i) {
				t.Fatalf("round %d: push %d refused before the funnel was full", round, i)
			}
		}
		if q.Push(99) {
			t.Fatal("a fifth element fitted into four cells")
		}
		for i := range 4 {
			if v, ok := q.Pop(); !ok || v != round*10+i || q.Empty() != (i == 3) {
				t.Fatalf("pop = %d, %v, want %d", v, ok, round*10+i)
			}
		}
		if _, ok := q.Pop(); ok {
			t.Fatal("pop from an empty funnel")
		}
	}
}

// Every element that producers push comes out once, and those of one producer in order, also when they wait for room.
func TestFunnelManyProducers(t *testing.T) {
	const producers, each = 8, 20000
	q := NewFunnel[*[2]int](64)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				for v := (&[2]int{p, i}); !q.Push(v); {
					runtime.Gosched()
				}
			}
		})
	}
	var next [producers]int
	for n := 0; n < producers*each; {
		v, ok := q.Pop()
		if !ok {
			runtime.Gosched()
			continue
		}
		if v[1] != next[v[0]] {
			t.Fatalf("producer %d: got element %d, want %d", v[0], v[1], next[v[0]])
		}
		next[v[0]]++
		n++
	}
	wg.Wait()
	if !q.Empty() {
		t.Fatal("more elements than were pushed")
	}
}

// What was taken is not kept: it can be collected.
func TestFunnelKeepsNothing(t *testing.T) {
	q := NewFunnel[*int](4)
	q.Push(new(int))
	q.Pop()
	for i := range q.cells {
		if q.cells[i].v != nil {
			t.Fatalf("cell %d still has its element", i)
		}
	}
}
