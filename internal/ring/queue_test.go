package ring

import (
	"runtime"
	"sync"
	"testing"
)

func TestQueueIsFIFOAndBounded(t *testing.T) {
	q := NewQueue[int](4)
	for round := range 3 {
		for i := range 4 {
			if !q.Push(round*10 + i) {
				t.Fatalf("push %d refused before the queue was full", i)
			}
		}
		if q.Push(99) {
			t.Fatal("a fifth element fitted into four cells")
		}
		for i := range 4 {
			if v, ok := q.Pop(); !ok || v != round*10+i {
				t.Fatalf("pop = %d, %v, want %d", v, ok, round*10+i)
			}
		}
		if _, ok := q.Pop(); ok || !q.Empty() {
			t.Fatal("pop from an empty queue")
		}
	}
}

// Every element that producers push comes out once, and those of one producer in order for one consumer.
func TestQueueManyProducersOneConsumer(t *testing.T) {
	const producers, each = 8, 20000
	q := NewQueue[[2]int](64)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				for !q.Push([2]int{p, i}) {
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
}

func TestQueueManyConsumers(t *testing.T) {
	const total = 50000
	q := NewQueue[int](32)
	seen := make([]int, total)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for i := c; i < total; i += 4 {
				for !q.Push(i) {
					if v, ok := q.Pop(); ok {
						mu.Lock()
						seen[v]++
						mu.Unlock()
					}
				}
			}
		})
	}
	wg.Wait()
	for {
		v, ok := q.Pop()
		if !ok {
			break
		}
		seen[v]++
	}
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("element %d came out %d times", i, n)
		}
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	q := NewQueue[*int](8)
	v := new(int)
	if n := testing.AllocsPerRun(100, func() { q.Push(v); q.Pop() }); n != 0 {
		t.Fatalf("%v allocations a push and pop", n)
	}
}

func BenchmarkQueue(b *testing.B) {
	q := NewQueue[uint64](1024)
	for b.Loop() {
		q.Push(1)
		q.Pop()
	}
}
